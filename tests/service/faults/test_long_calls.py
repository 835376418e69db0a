"""What takes long lets calls get on, and ends when its caller has gone or the server stops."""

import asyncio
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

import embstore
from embstore.cache import integrity
from embstore.config import Constant, Sgd
from embstore.handles.store import Store
from embstore.tables import hashing
from embstore.tables.slices import Slices
from embstore_proto.v1 import embstore_pb2 as pb
from embstore_proto.v1.embstore_pb2_grpc import EmbstoreStub
from tests.service.faults.served import PATIENCE_S, Served, until
from tests.service.rest import serving

DIM, ROWS = 4, 4_000
AT_SLICE = 3


class Gate:
    """Stops what is long before its third slice, until it may go on."""

    def __init__(self) -> None:
        self.slices = 0
        self.reached, self.free = threading.Event(), threading.Event()
        self._one = Slices.one

    def again(self) -> None:
        """Begin anew."""
        self.slices = 0
        self.reached.clear()
        self.free.clear()

    def __call__(self, slices: Slices) -> Any:
        self.slices += 1
        if self.slices == AT_SLICE:
            self.reached.set()
            assert self.free.wait(PATIENCE_S)
        return self._one(slices)


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[Gate]:
    made = Gate()
    monkeypatch.setattr(hashing, "SLICE_ROWS", 300)
    monkeypatch.setattr(integrity, "SLICE_SLOTS", 300)
    monkeypatch.setattr(Slices, "one", lambda slices: made(slices))
    yield made
    made.free.set()


@pytest.fixture
def filled(served: Served) -> Store:
    """A client of a store with a table whose rows are all written."""
    return with_rows(served.connect())


def with_rows(store: Store) -> Store:
    table = store.create_table(
        "long", dim=DIM, rows=ROWS, optimizer=Sgd(0.5), initializer=Constant(0.0)
    )
    table.update(np.arange(ROWS), np.ones((ROWS, DIM), np.float32))
    return store


@pytest.mark.parametrize("durability", ["checkpoint", "commands"])
def test_calls_get_on_while_a_digest_is_computed_which_is_of_the_state_before(
    serve, gate, durability, quick_path
):
    gate.free.set()
    with embstore.open(quick_path / "twin") as twin:
        expected = with_rows(twin).table("long").digest()
    gate.again()
    served = serve(open_store=lambda: embstore.open(quick_path / "store", durability=durability))
    keys, ones = np.arange(0, ROWS, 7), np.ones((len(range(0, ROWS, 7)), DIM), np.float32)
    with served.connect() as store, served.connect() as other:
        table = with_rows(store).table("long")
        with grpc.insecure_channel(served.address) as channel:
            running = EmbstoreStub(channel).GetDigest.future(pb.GetDigestRequest(table="long"))
            assert gate.reached.wait(PATIENCE_S)
            command = other.command
            assert other.table("long").lookup([7]).tolist() == [[-0.5] * DIM]
            for _ in range(3):
                other.table("long").update(keys, ones)
            gate.free.set()
            reply = running.result(PATIENCE_S)
        assert (reply.context.command, reply.t) == (command, 1)
        assert other.command == command + 3
        assert reply.digest == expected != table.digest()


ORIGIN = pb.Origin(client_id="c", sequence=1)
CALLS: dict[str, Callable[[Path], Any]] = {
    "GetDigest": lambda _: pb.GetDigestRequest(table="long"),
    "GetLeaves": lambda _: pb.GetLeavesRequest(table="long"),
    "CheckIntegrity": lambda _: pb.CheckIntegrityRequest(),
    "Flush": lambda _: pb.FlushRequest(),
    "Checkpoint": lambda _: pb.CheckpointRequest(label="a", origin=ORIGIN),
    "Backup": lambda path: pb.BackupRequest(destination=str(path / "backup")),
}


@pytest.mark.parametrize("how", ["cancelled", "deadline"])
@pytest.mark.parametrize("verb", CALLS)
def test_it_ends_when_its_caller_has_gone(served, filled, gate, verb, how, tmp_path):
    timeout_s = PATIENCE_S if how == "cancelled" else 0.2
    with grpc.insecure_channel(served.address) as channel:
        method = getattr(EmbstoreStub(channel), verb)
        while not gate.reached.is_set():  # a busy machine takes longer to get there
            until(lambda: not served.service.long_jobs.running)
            gate.slices, timeout_s = 0, 2 * timeout_s
            call = method.future(CALLS[verb](tmp_path), timeout=timeout_s)
            until(lambda: gate.reached.is_set() or call.done())  # noqa: B023
        if how == "cancelled":
            call.cancel()
        codes = ("CANCELLED", "DEADLINE_EXCEEDED")
        until(lambda: any(served.answered(verb, code) for code in codes))
        gate.free.set()
        until(lambda: not served.service.long_jobs.running)
    assert gate.slices == AT_SLICE, "no slice was done for nobody"
    assert filled.checkpoints() == []
    filled.close()


async def test_it_ends_when_its_rest_client_has_gone(tmp_path, gate, runner):
    async with serving(tmp_path / "store") as rest:
        await rest.on_engine(with_rows)
        gone, messages = asyncio.Event(), [{"type": "http.request", "body": b'{"table": "long"}'}]

        async def receive() -> Any:
            if messages:
                return messages.pop()
            await gone.wait()
            return {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            pass

        path = "/api/v1/commands/GetDigest"
        scope = {"type": "http", "method": "POST", "path": path, "raw_path": path.encode()}
        scope |= {"query_string": b"", "root_path": "", "scheme": "http", "http_version": "1.1"}
        scope |= {"headers": [(b"host", b"localhost"), (b"content-type", b"application/json")]}
        scope |= {"client": ("127.0.0.1", 1), "server": ("127.0.0.1", 8080)}
        call = asyncio.create_task(rest.client._transport.app(scope, receive, send))
        assert await asyncio.to_thread(gate.reached.wait, PATIENCE_S)
        gone.set()
        await call
        gate.free.set()
        await asyncio.to_thread(until, lambda: not rest.service.long_jobs.running)
        assert gate.slices == AT_SLICE
