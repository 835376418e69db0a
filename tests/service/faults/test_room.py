"""A disk that is full, or takes no writes: everybody is told, and nothing that was said is lost."""

import asyncio
import subprocess
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import grpc
import httpx
import numpy as np
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

import embstore
from embstore.config import Constant, Sgd
from embstore.engine.commits import OwnCommits
from embstore.errors import CapacityError, StorageError, StoreClosedError
from embstore.handles.store import Store
from embstore.storage.disk_space import LEAST_BYTES
from embstore.storage.files import Files
from embstore_client import connect
from embstore_server.path.disk_space import DiskSpace
from embstore_server.setup.launch import ServerProcess
from tests.service.faults.ledger import Ledger, gradients, make_tables
from tests.service.faults.served import PATIENCE_S, until
from tests.serving import on_loop

ANY: Any = {"optimizer": Sgd(1.0), "initializer": Constant(0.0)}
DISK_BYTES = 64 << 20


class Disk:
    """A small file system of its own, in memory."""

    def __init__(self, root: Path) -> None:
        self.root, self._filling = root, root / "filling"
        root.mkdir()
        self._mount(f"size={DISK_BYTES}")

    def _mount(self, options: str) -> None:
        command = ["mount", "-t", "tmpfs", "-o", options, "embstore-test", str(self.root)]
        try:
            subprocess.run(command, check=True, capture_output=True)
        except (OSError, subprocess.CalledProcessError):
            pytest.skip("this user may not mount a file system")

    def fill(self) -> None:
        """Take all the room that there is."""
        with self._filling.open("wb", buffering=0) as file, pytest.raises(OSError, match="space"):
            while True:
                file.write(bytes(4096))

    def free(self) -> None:
        """Give it back."""
        self._filling.unlink()

    def protect(self) -> None:
        """Take no writes any more."""
        self._mount(f"remount,ro,size={DISK_BYTES}")

    def close(self) -> None:
        """Remove it."""
        subprocess.run(["umount", "--lazy", str(self.root)], check=True)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    made = Disk(tmp_path / "disk")
    yield made
    made.close()


def readiness(server: ServerProcess) -> str:
    """Return the reason that /readyz gives; empty: it is ready."""
    told = httpx.get(f"http://{server.admin}/readyz", trust_env=False, timeout=PATIENCE_S)
    assert told.status_code in (200, 503)
    return str(told.json()["reason"])


def is_serving(address: str) -> bool:
    """Tell what gRPC's health says."""
    with grpc.insecure_channel(address) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        status = stub.Check(health_pb2.HealthCheckRequest(), timeout=PATIENCE_S).status
    return bool(status == health_pb2.HealthCheckResponse.SERVING)


def train_until_refused(store: Store) -> int:
    """Send updates until there is no room; return how many were acknowledged."""
    table, done = store.table("a"), 0
    while True:
        try:
            table.update(np.arange(8), np.ones((8, 4), np.float32))
        except CapacityError:
            return done
        done += 1


@pytest.mark.parametrize("level", ["checkpoint", "interval", "commands"])
@pytest.mark.parametrize("end", ["room", "no room"])
def test_full_disk_is_told_and_what_was_acknowledged_is_kept(disk, level, end):
    options = ("--durability", level, "--drain-s", "3600" if end == "room" else "1")
    server = ServerProcess(disk.root / "store", "--cache-bytes", "4MiB", *options)
    server.start()
    with connect(server.address, timeout_s=PATIENCE_S) as store:
        table = store.create_table("a", dim=4, rows=100, **ANY)
        store.checkpoint("one")
        assert readiness(server) == "" and is_serving(server.address)
        table.update(np.arange(8), np.ones((8, 4), np.float32))
        disk.fill()
        acknowledged = 1 + train_until_refused(store)
        until(lambda: "no room" in readiness(server))
        until(lambda: not is_serving(server.address))
        assert table.t == acknowledged
        assert np.array_equal(table.lookup([1])[0], np.full(4, -acknowledged, np.float32))
    assert sum('"no room"' in line for line in server.log) == 1
    if end == "room":
        disk.free()
        until(lambda: readiness(server) == "" and is_serving(server.address))
        assert server.stop() == 0
    else:
        assert server.stop() == 1
        assert any('"not committed"' in line for line in server.log)
        disk.free()
    with embstore.open(disk.root / "store", cache_bytes=1 << 22) as opened:
        is_lost = level == "checkpoint" and end == "no room"  # and the log says it
        assert opened.table("a").t == (0 if is_lost else acknowledged)


def test_a_commit_waits_for_room_at_the_end(disk):
    options = ("--durability", "checkpoint", "--drain-s", "3600", "--cache-bytes", "4MiB")
    server = ServerProcess(disk.root / "store", *options)
    server.start()
    with connect(server.address, timeout_s=PATIENCE_S) as store:
        store.create_table("a", dim=4, rows=100, **ANY)
        disk.fill()
        acknowledged = train_until_refused(store)
    process = server._process
    assert process is not None
    process.terminate()
    until(lambda: any('"stopping"' in line for line in server.log))
    assert process.poll() is None
    disk.free()
    assert server.stop() == 0
    with embstore.open(disk.root / "store", cache_bytes=1 << 22) as opened:
        assert opened.table("a").t == acknowledged


def test_a_directory_that_takes_no_writes_is_served_read_only(disk):
    path = disk.root / "store"
    with embstore.open(path, cache_bytes=1 << 22) as store:
        store.create_table("a", dim=4, rows=100, **ANY)
    disk.protect()
    with pytest.raises(StoreClosedError, match="--read-only") as caught:
        ServerProcess(path, "--cache-bytes", "4MiB").start()
    assert "Traceback" not in str(caught.value)
    with (
        ServerProcess(path, "--cache-bytes", "4MiB", "--read-only") as server,
        connect(server.address, timeout_s=PATIENCE_S) as store,
    ):
        assert store.tables() == ["a"]
        assert readiness(server) == ""


def test_unwritable_directory_is_not_opened_for_writing(quick_path, monkeypatch):
    with embstore.open(quick_path / "store", cache_bytes=1 << 22):
        pass
    monkeypatch.setattr(Files, "is_writable", lambda self, path: False)
    with pytest.raises(StorageError, match="read_only=True"):
        embstore.open(quick_path / "store", cache_bytes=1 << 22)
    with embstore.open(quick_path / "store", cache_bytes=1 << 22, read_only=True) as store:
        assert store.tables() == []


@pytest.mark.parametrize("dirty_bytes", [None, 1000])
def test_readiness_counts_dirty_rows_up_to_their_ceiling(dirty_bytes, quick_path, monkeypatch):
    monkeypatch.setattr(OwnCommits, "start", lambda self: None)
    with embstore.open(quick_path / "a", cache_bytes=1 << 22, dirty_bytes=dirty_bytes) as store:
        store.create_table("a", dim=4, rows=100, **ANY).assign(
            np.arange(99), np.ones((99, 4), np.float32)
        )
        served = SimpleNamespace(engine=store.executor, notice_failure=lambda: None)
        room = DiskSpace(cast(Any, served))
        for left, needed in ((1000, ""), (999, "a commit may need")):
            monkeypatch.setattr(Files, "room_bytes", lambda self, left=left: LEAST_BYTES + left)
            asyncio.run(room.look())
            assert needed in room.lack
            assert bool(room.lack) == (left < 1000 or dirty_bytes is None)


def test_lack_of_room_comes_and_goes(serve, monkeypatch):
    served = serve()
    served.on_engine(make_tables)
    room = served.service.disk_space
    with served.connect() as store:
        ledger = Ledger({0: store.update(gradients(0)).command})
        with monkeypatch.context() as full:
            full.setattr(Files, "room_bytes", lambda self: 0)
            on_loop(room.look())
            assert "no room" in served.service.unready and not is_serving(served.address)
            with pytest.raises(CapacityError, match="no room"):
                store.update(gradients(1))
            ledger.check(store)
        with monkeypatch.context() as protected:
            protected.setattr(Files, "is_writable", lambda self, path: False)
            on_loop(room.look())
            assert "cannot write" in served.service.unready
        on_loop(room.look())
        assert not served.service.unready and is_serving(served.address)
        ledger.acknowledged[1] = store.update(gradients(1)).command
        ledger.check(store)
