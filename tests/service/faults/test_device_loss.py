"""A device that is lost under a server: the call and those behind it are told, and the server ends.

What only the device held is gone with it, as after a crash: a store that is opened again, on any
device, is as at its last checkpoint.
"""

import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest
from grpc_health.v1 import health_pb2_grpc
from grpc_health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse

import embstore
from embstore.errors import DeviceError
from embstore_client import connect
from embstore_proto.status import NOT_AGAIN_METADATA
from embstore_server.cli import exits
from tests.service.faults.ledger import Ledger, gradients, make_tables
from tests.service.faults.losing import LosingDevice, LosingServer, needs_compiler
from tests.service.faults.served import PATIENCE_S, Served, until
from tests.service.faults.wire import Wire, lookup, pieces, refusal, update

pytestmark = needs_compiler

APPLIES = 2
"""Of an update: one for each of its two pools."""


@pytest.fixture
def losing(serve: Callable[..., Served], quick_path: Path) -> Served:
    """A server whose device is lost in the middle of the third update."""

    def opened() -> embstore.Store:
        device = LosingDevice(3 * APPLIES)
        return embstore.open(quick_path / "store", device=device, cache_bytes=1 << 22)

    made = serve(open_store=opened)
    made.on_engine(make_tables)
    return made


def two_updates_and_a_checkpoint_between(address: str) -> Ledger:
    """Return what a store that opens at its last checkpoint must have."""
    with connect(address, timeout_s=PATIENCE_S) as store:
        if not store.tables():
            make_tables(store)
        ledger = Ledger({0: store.update(gradients(0)).command})
        store.checkpoint("good")
        store.update(gradients(1))
    return ledger


def check_reopened(path: Path, ledger: Ledger, epoch: int) -> None:
    """Check that the store is as at its checkpoint, on the CPU, and says that commands are lost."""
    with embstore.open(path, device="cpu", cache_bytes=1 << 22, threads=1) as store:
        ledger.check(store)
        store.check_integrity()
        assert store.epoch == epoch + 1
        assert [kept.label for kept in store.checkpoints()] == ["good"]


def test_call_in_flight_is_told_of_the_device_and_those_that_wait_of_the_store(
    losing, quick_path, caplog
):
    ledger = two_updates_and_a_checkpoint_between(losing.address)
    epoch = losing.store.epoch
    with Wire(losing.address) as wire:
        with losing.held():
            lost = wire.begin("Update", update(gradients(2)).joined())
            losing.await_queue(1)
            behind = [
                wire.begin("Update", update(gradients(3)).joined()),
                wire.begin("Lookup", lookup({"rows": [1]}).joined()),
                wire.begin("GetStats", b""),
            ]
            losing.await_queue(4)
        found = refusal(lost.result)
        assert (found.code, found.error) == ("INTERNAL", "DeviceError")
        for call in behind:
            found = refusal(call.result)
            assert (found.code, found.error) == ("UNAVAILABLE", "StoreClosedError")
            assert NOT_AGAIN_METADATA in found.trailing
    assert "cuda:0" in losing.service.not_ready
    assert isinstance(losing.service.device_error, DeviceError)
    levels = [(r.levelname, r.getMessage()) for r in caplog.records]
    assert levels == [("CRITICAL", "store failed")]
    losing.stop()
    check_reopened(quick_path / "store", ledger, epoch)


def test_loss_is_noticed_when_the_caller_has_gone(losing):
    two_updates_and_a_checkpoint_between(losing.address)
    device = losing.store.executor.device
    device.may_fail.clear()
    with Wire(losing.address) as wire:
        with losing.held():  # so that it is not done at once, by the event loop
            call = wire.begin("Update", update(gradients(2)).joined())
            losing.await_queue(1)
        assert device.fails_next.wait(PATIENCE_S)
        call.cancel()
        until(lambda: losing.answered("Update", "CANCELLED") == 1)
        device.may_fail.set()
        until(losing.service.failed.is_set)


def held_open(over: threading.Event) -> Iterator[bytes]:
    """Yield the first piece of an update, and no other until the event."""
    yield pieces(update(gradients(9)), 64)[0]
    over.wait(PATIENCE_S)


def test_server_process_says_so_and_ends_with_a_status_of_its_own(quick_path):
    path, over = quick_path / "store", threading.Event()
    with LosingServer(3 * APPLIES, path) as server, Wire(server.address) as wire:
        ledger = two_updates_and_a_checkpoint_between(server.address)
        health = health_pb2_grpc.HealthStub(wire._channel).Watch(HealthCheckRequest())
        assert next(health).status == HealthCheckResponse.SERVING
        under_way = wire.begin_stream("Update", held_open(over))  # the server waits for its end
        with connect(server.address, timeout_s=PATIENCE_S) as store:
            epoch = store.epoch
            with pytest.raises(DeviceError, match="cuda:0"):
                store.update(gradients(2))
        assert next(health).status == HealthCheckResponse.NOT_SERVING
        told = httpx.get(f"http://{server.admin}/readyz", trust_env=False)
        assert (told.status_code, told.json()["ready"]) == (503, False)
        assert "cuda:0: a launch failed" in told.json()["reason"]
        under_way.cancel()
        over.set()
        assert server.end() == exits.DEVICE_FAILED == 70
    entries = [json.loads(line) for line in server.log if line.startswith("{")]
    assert [e["event"] for e in entries if e["level"] == "critical"] == ["store failed"]
    assert "stopping" in [e["event"] for e in entries]
    check_reopened(path, ledger, epoch)
