"""Calls of a few keys: the event loop does them itself, but never waits for a GPU."""

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import embstore
from embstore import Sgd, Uniform
from embstore.device.base import Device
from embstore.device.cpu import CpuDevice
from embstore.device.gpu import GpuDevice
from tests.kernels.emulation.runtime import EmulatedRuntime
from tests.serving import Server, patient

LOOP, ENGINE = "event loop", "engine"


@pytest.mark.parametrize(
    ("device", "thread"),
    [(lambda: CpuDevice(1), LOOP), (lambda: GpuDevice(EmulatedRuntime(), 1), ENGINE)],
    ids=["cpu", "gpu"],
)
def test_the_thread_that_does_a_brief_call(
    device: Callable[[], Device], thread: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: Any = device()
    threads: set[str] = set()
    synchronize = made.keys.synchronize

    def noted(*batches: Any) -> None:
        threads.add(threading.current_thread().name)
        synchronize(*batches)

    def opened() -> embstore.Store:
        return embstore.open(tmp_path / "store", device=made, cache_bytes=1 << 20)

    with Server(opened, tmp_path / "store") as server, patient(server.address) as store:
        table = store.create_table(
            "a", dim=4, rows=99, optimizer=Sgd(0.1), initializer=Uniform(-1, 1)
        )
        table.lookup([1, 2])
        monkeypatch.setattr(made.keys, "synchronize", noted)
        for _ in range(3):
            table.lookup([1, 2])
            table.update([1, 2], np.ones((2, 4), np.float32))
    assert threads == {thread}
