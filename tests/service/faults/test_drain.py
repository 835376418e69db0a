"""SIGTERM while something long runs: it ends, says why, and all that was acknowledged is there.

The long work is made endless, so that it surely runs and ends by nothing but being ended: it does
one of its pieces again and again. The server is a process, and has no time to drain.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

import embstore
from embstore.config import Constant, Sgd
from embstore.handles.store import Store
from embstore.profiles.profile import Profile, TableProfile
from embstore_client import connect
from embstore_proto.v1 import embstore_pb2 as pb
from embstore_proto.v1.embstore_pb2_grpc import EmbstoreStub
from embstore_server.setup.launch import ServerProcess
from tests.service.faults.ledger import gradients, make_tables
from tests.service.faults.processes import ForkedServer
from tests.service.faults.served import PATIENCE_S, until

ROWS, DIM = 3_000, 4
SEGMENTS = 16
"""So many of the log are folded."""

ENDLESS = """
import itertools, sys
what, marker = sys.argv.pop(1), sys.argv.pop(1)

def begun():
    with open(marker, "a") as file:
        file.write("begun\\n")

def again(owner, name, only=lambda it: True):
    once = getattr(owner, name)
    def endless(*arguments):
        if not only(arguments[0]):
            return once(*arguments)
        begun()
        while True:
            done = once(*arguments)
            if hasattr(done, "__exit__"):
                with done:
                    pass
    setattr(owner, name, endless)

match what:
    case "slices":
        from embstore.tables import slices
        again(slices.Slices, "one", lambda it: it._progress is not slices._nobody)  # not the end's
    case "backup":
        from embstore.engine.backups import Backups
        again(Backups, "_note")
    case "fold":
        from embstore.storage.merges import Merges
        again(Merges, "_reached")
    case "warm-up":
        from embstore.hotness import warming
        def endless(*of):
            begun()
            return itertools.repeat(0)
        warming.range = endless

from embstore_server.cli import main
sys.exit(main())
"""


class Endless(ServerProcess):
    """A server one of whose works never ends by itself."""

    def __init__(self, path: Path, what: str) -> None:
        self.marker = path / "begun"
        options = ("--cache-bytes", "4MiB", "--drain-s", "0", "--backup-within", str(path / "b"))
        super().__init__(path / "store", *options)
        self._command[1:3] = ["-c", ENDLESS, what, str(self.marker)]

    @property
    def begun(self) -> int:
        """How many endless works have begun."""
        return len(self.marker.read_text().splitlines()) if self.marker.exists() else 0


def profile() -> Profile:
    keys = np.arange(ROWS)
    return Profile({"a": TableProfile("a", 0, keys, keys + 1, int((keys + 1).sum()))}, rate=1.0)


def begin_folds(store: Store) -> None:
    """Commit often enough, and let the fold begin with a call."""
    for number in range(SEGMENTS):
        store.table("a").update([number], np.ones((1, DIM), np.float32))
        store.checkpoint(f"{number}")
    store.lookup({"a": [1]})


def origin() -> Any:
    return pb.Origin(client_id="c", sequence=1)


def in_slices(stub: EmbstoreStub, _: Path) -> list[Any]:
    return [
        stub.GetDigest.future(pb.GetDigestRequest(table="a")),
        stub.CheckIntegrity.future(pb.CheckIntegrityRequest()),
        stub.Flush.future(pb.FlushRequest()),
        stub.Checkpoint.future(pb.CheckpointRequest(label="a", origin=origin())),
        stub.ExportProfile(pb.ExportProfileRequest(source=pb.PROFILE_SOURCE_COUNTED)),
    ]


WORKS: dict[str, Callable[[EmbstoreStub, Path], list[Any]]] = {
    "slices": in_slices,
    "backup": lambda stub, path: [stub.Backup.future(pb.BackupRequest(destination="b"))],
    "warm-up": lambda stub, _: [stub.WarmCache(pb.WarmCacheRequest(share=0.5))],
    "fold": lambda stub, _: [],
}


@pytest.mark.parametrize("what", WORKS)
def test_a_signal_ends_what_is_long(what, quick_path):
    ones = np.ones((ROWS, DIM), np.float32)
    with Endless(quick_path, what) as server, grpc.insecure_channel(server.address) as channel:
        with connect(server.address, timeout_s=PATIENCE_S) as store:
            table = store.create_table(
                "a", dim=DIM, rows=ROWS, optimizer=Sgd(0.5), initializer=Constant(0.0)
            )
            table.update(np.arange(ROWS), ones)
            if what == "warm-up":
                store.import_profile(profile())
            if what == "fold":
                begin_folds(store)
            calls = WORKS[what](EmbstoreStub(channel), quick_path)
            until(lambda: server.begun >= max(len(calls), 1))
            assert table.lookup([ROWS - 1]).tolist() == [[-0.5] * DIM], "calls get on"
            command = table.update([ROWS - 1], ones[:1]).command
        assert server.stop() == 0
        for call in calls:
            error = error_of(call)
            assert error.code() is grpc.StatusCode.UNAVAILABLE
            assert "the server is stopping" in error.details()
            assert dict(error.trailing_metadata())["embstore-error"] == "StoreClosedError"
    assert "Traceback" not in "\n".join(server.log)
    with embstore.open(quick_path / "store") as opened:
        assert opened.command == command
        assert opened.table("a").lookup([ROWS - 1]).tolist() == [[-1.0] * DIM]
        assert len(opened.checkpoints()) == (3 if what == "fold" else 0)
        opened.check_integrity()


@pytest.mark.parametrize(("drain_s", "replayed"), [(30.0, False), (0.0, True)])
def test_rows_are_committed_in_time_or_left_to_the_command_log(
    drain_s, replayed, forks, quick_path
):
    """No acknowledged command is lost, and the process ends with 0 (`stop`)."""
    path = quick_path / "store"
    server = ForkedServer(forks, path, durability="interval", drain_s=drain_s)
    server.start()
    with connect(server.address, timeout_s=PATIENCE_S) as store:
        make_tables(store)
        command = [store.update(gradients(n)).command for n in range(3)][-1]
        epoch, expected = store.epoch, digests(store)
    server.stop()
    with embstore.open(path, cache_bytes=1 << 22) as opened:
        executor: Any = opened.executor
        assert executor.recovered_commands == (command if replayed else 0)
        assert (opened.command, opened.epoch, digests(opened)) == (command, epoch, expected)


def digests(store: Store) -> list[str]:
    return [store.table(name).digest() for name in store.tables()]


def error_of(call: Any) -> Any:
    """Return what a call ended with, after any messages of its stream."""
    with pytest.raises(grpc.RpcError) as caught:
        for _ in call:
            pass
        call.result(PATIENCE_S)
    return caught.value
