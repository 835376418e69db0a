"""What an operator is told of the device: by gRPC, REST, metrics and commands, and when; and which
thread works on it."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import embstore
from embstore import Sgd, Uniform
from embstore.device.base import Device
from embstore.device.cpu import CpuDevice
from embstore.device.facts import DeviceFacts
from embstore.device.gpu import GpuDevice
from embstore.stats import declared
from embstore_proto.v1 import embstore_pb2 as pb
from tests.kernels.emulation.runtime import EmulatedRuntime
from tests.serving import Server, patient

CPU = {"model", "memory_bytes", "memory_free_bytes", "threads"}
GPU = {
    *("model", "memory_bytes", "memory_free_bytes", "driver_version", "runtime_version"),
    *("multiprocessors", "compile_seconds", "scratch_bytes"),
}


class Watched(CpuDevice):
    """Counts how often it was asked; its free memory is that count."""

    asked = 0

    def facts(self) -> dict[str, Any]:
        self.asked += 1
        return super().facts() | {"memory_free_bytes": self.asked}


@contextmanager
def served(path: Path, device: Device) -> Iterator[embstore.Store]:
    """Serve a store on a device; yield a client."""

    def opened() -> embstore.Store:
        return embstore.open(path, device=device, cache_bytes=1 << 22)

    with Server(opened, path) as server, patient(server.address) as store:
        yield store


@pytest.mark.parametrize(
    ("device", "names"),
    [(lambda: CpuDevice(1), CPU), (lambda: GpuDevice(EmulatedRuntime(), 1), GPU)],
    ids=["cpu", "gpu"],
)
def test_client_is_told_every_fact(device, names, tmp_path):
    made = device()
    with served(tmp_path / "store", made) as store:
        facts = store.device_facts
        assert facts.keys() == names
        assert facts["model"] == made.facts()["model"]
        assert store.device == made.name
        assert store.stats()["device_facts"].keys() == names


class Blank(CpuDevice):
    """Knows every fact, all of them zero or empty."""

    def facts(self) -> dict[str, Any]:
        texts = dict.fromkeys(("model", "driver_version", "runtime_version"), "")
        return dict.fromkeys(CPU | GPU, 0) | texts


def test_every_fact_has_a_field_and_zero_is_sent(tmp_path):
    device = Blank(1)
    with served(tmp_path / "store", device) as store:
        assert store.device_facts == device.facts()
    assert {f.name for f in pb.DeviceInfo.DESCRIPTOR.fields} == CPU | GPU
    assert {stat.name for stat in declared(DeviceFacts)} == CPU | GPU


def test_statistics_ask_the_device_again_and_nothing_else_does(tmp_path):
    device = Watched(1)
    with served(tmp_path / "store", device) as store:
        asked = device.asked
        assert store.device_facts["memory_free_bytes"] == asked
        assert store.server_info().device_info["memory_free_bytes"] == asked == device.asked
        store.stats()
        assert store.device_facts["memory_free_bytes"] == asked + 1 == device.asked


async def test_rest_and_metrics_tell_the_same(rest):
    samples = await rest.samples()
    facts = rest.service.store.device_facts
    told = (await rest.get("/api/v1/server"))["device_info"]
    assert {name: fact for name, fact in told.items() if fact is not None} == facts
    assert told["driver_version"] is None
    assert samples["embstore_device_memory_bytes"] == facts["memory_bytes"]
    assert samples["embstore_device_info{cpu}{}{" + facts["model"] + "}{}"] == 1


# Calls of a few keys: the event loop does them itself, but never waits for a GPU

LOOP, ENGINE = "event loop", "engine"


@pytest.mark.parametrize(
    ("device", "thread"),
    [(lambda: CpuDevice(1), LOOP), (lambda: GpuDevice(EmulatedRuntime(), 1), ENGINE)],
    ids=["cpu", "gpu"],
)
def test_the_thread_that_does_a_brief_call(device, thread, tmp_path, monkeypatch):
    made: Any = device()
    threads: set[str] = set()
    look_up = made.rows.look_up

    def noted(*arguments: Any) -> Any:
        threads.add(threading.current_thread().name)
        return look_up(*arguments)

    with served(tmp_path / "store", made) as store:
        table = store.create_table(
            "a", dim=4, rows=99, optimizer=Sgd(0.1), initializer=Uniform(-1, 1)
        )
        table.lookup([1, 2])
        monkeypatch.setattr(made.rows, "look_up", noted)
        for _ in range(3):
            table.lookup([1, 2])
            table.update([1, 2], np.ones((2, 4), np.float32))
    assert threads == {thread}
