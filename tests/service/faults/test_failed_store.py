"""A store that has failed under a server: everybody is told, at once, and nobody tries again."""

import errno
import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

import embstore
from embstore.errors import StorageError, StoreClosedError
from embstore_proto.status import NOT_AGAIN_METADATA
from tests.faults.refusing import RefusingFiles
from tests.service.faults.following import connected, server
from tests.service.faults.ledger import Ledger, gradients, make_tables
from tests.service.faults.served import Served, until
from tests.service.faults.wire import lookup, refusal, update
from tests.serving import on_loop


@pytest.fixture
def files(quick_path: Path) -> RefusingFiles:
    return RefusingFiles(quick_path / "store")


@pytest.fixture
def served(serve: Callable[..., Served], files: RefusingFiles) -> Served:
    def opened() -> embstore.Store:
        return embstore.open(files.root, files=files, cache_bytes=1 << 22, threads=1)

    made = serve(open_store=opened)
    made.on_engine(make_tables)
    return made


@pytest.fixture
def failed(served: Served, files: RefusingFiles) -> Served:
    """A server whose disk has just refused to sync."""
    with served.connect() as store:
        store.checkpoint("good")
        store.update(gradients(1))
        files.refuse(("sync",), 1, errno.EIO, lasting=True)
        with pytest.raises(StorageError):
            store.checkpoint("bad")
    return served


def test_every_call_is_refused_for_good(failed, wire):
    calls = {
        "GetStats": b"",
        "Update": update(gradients(2)).joined(),
        "Lookup": lookup({"rows": [1]}).joined(),
    }
    for name, message in calls.items():
        found = refusal(lambda n=name, m=message: wire.unary(n, m))
        assert (found.code, found.error) == ("UNAVAILABLE", "StoreClosedError")
        assert NOT_AGAIN_METADATA in found.trailing
    assert wire.unary("GetServerInfo", b"")


def test_client_is_told_and_does_not_try_again(failed):
    with failed.connect() as store, pytest.raises(StoreClosedError):
        store.stats()
    until(lambda: failed.answered("GetStats", "UNAVAILABLE") == 1)


def test_operator_and_health_are_told(failed, wire):
    def status() -> object:
        stub = health_pb2_grpc.HealthStub(wire._channel)
        return stub.Check(health_pb2.HealthCheckRequest()).status

    assert "restart the server" in failed.service.not_ready
    until(failed.service.failed.is_set)
    until(lambda: status() == health_pb2.HealthCheckResponse.NOT_SERVING)


def test_log_says_it_once(served, files, caplog):
    with served.connect() as store:
        files.refuse(("sync",), 1, errno.EIO, lasting=True)
        for _ in range(3):
            with pytest.raises((StorageError, StoreClosedError)):
                store.checkpoint("bad")
    until(lambda: [r.getMessage() for r in caplog.records if r.levelname == "ERROR"])
    assert [r.getMessage() for r in caplog.records] == ["store failed"]


def test_server_ends_and_the_next_one_has_the_last_commit(failed, files, serve):
    files.relent()
    failed.stop()
    again = serve()
    with again.connect() as store:
        Ledger().check(store)
        assert [kept.label for kept in store.checkpoints()] == ["good"]


def take_away(path: Path, name: str) -> None:
    """Remove a file or folder of a store; or move the store, and leave a copy in its place."""
    if name in ("copied", "moved"):
        path.rename(path.parent / "elsewhere")
        if name == "copied":
            ignored = shutil.ignore_patterns("socket")
            shutil.copytree(path.parent / "elsewhere", path, ignore=ignored)
    else:
        gone = path / name
        shutil.rmtree(gone) if gone.is_dir() else gone.unlink()


@pytest.mark.parametrize("name", ["log", "copied", "moved"])
def test_what_is_removed_below_a_server_is_told(serve, quick_path, name):
    path = quick_path / "store"
    served = serve(
        open_store=lambda: embstore.open(
            path,
            durability="commands",
            cache_bytes=1 << 22,
            threads=1,
            commit_every_s=0.0,
        )
    )
    served.on_engine(make_tables)
    with served.connect() as store:
        store.update(gradients(1))
        store.checkpoint("one")
        served.on_engine(lambda own: own.executor.storage.merges.finish())
        store.checkpoint("two")
        take_away(path, name)
        on_loop(served.service.disk_space.look())
        assert path.name in served.service.unready or name in served.service.unready
        assert "was removed while the store was open" in served.service.unready
        with grpc.insecure_channel(served.address) as channel:
            health = health_pb2_grpc.HealthStub(channel)
            serving = health_pb2.HealthCheckResponse.SERVING
            until(lambda: health.Check(health_pb2.HealthCheckRequest()).status != serving)
        with pytest.raises(StoreClosedError, match="was removed"):
            store.update(gradients(2))


def test_a_server_whose_directory_does_not_open_again_does_not_end_with_0(forks, quick_path):
    served = server(forks, quick_path / "store")
    served.start()
    with connected(served) as store:
        make_tables(store)
        store.update(gradients(1))
        store.checkpoint("one")
    shutil.rmtree(quick_path / "store" / "log")
    child = served._child
    assert child is not None
    os.kill(child.pid, signal.SIGTERM)
    assert child.wait() not in (0, -signal.SIGTERM)
