"""What a call costs the host above the runtime: Python, and nothing that CUDA does.

A call of few keys on rows that are all there, its arrays on the device. Time
inside the runtime's methods (on a GPU: CuPy and the driver; emulated: the kernels too) is taken
away from the call's. The medians are of calls in turn, so that the figure is of a warm process.
"""

import contextlib
import pathlib
import time
from collections.abc import Callable
from functools import partial, wraps
from typing import Any

import numpy as np

from embstore.device.gpu import GpuDevice
from embstore.device.runtime import Runtime
from tests.bench.gpu.machine import Machine, median
from tests.bench.gpu.scale import Scale
from tests.bench.gpu.stores import DeviceStore

DIM, ROWS_A_KEY = 64, 8
ROW_BYTES = 1024
"""More than a row of DIM takes in the cache."""


class TimedRuntime:
    """A runtime, and how long its methods took."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self.is_lost = False  # a name of the instance, as in the runtimes
        self.seconds = 0.0

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._runtime, name)
        if not callable(found):
            return found

        @wraps(found)
        def timed(*arguments: Any, **options: Any) -> Any:
            begin = time.perf_counter()
            try:
                return found(*arguments, **options)
            finally:
                self.seconds += time.perf_counter() - begin

        setattr(self, name, timed)
        return timed


def measure(machine: Machine, scale: Scale, path: pathlib.Path) -> dict[str, Any]:
    """Return milliseconds of a lookup, the same again, its update, and another update."""
    runtime = TimedRuntime(machine.runtime())
    device, rows, count = GpuDevice(runtime), ROWS_A_KEY * scale.host_keys, scale.host_keys
    rng = np.random.default_rng(scale.seed)
    spent: dict[str, list[float]] = {
        name: [] for name in ("lookup", "lookup_again", "its_update", "update")
    }
    cache_bytes = max(scale.cache_bytes, ROW_BYTES * rows)
    with contextlib.closing(
        DeviceStore(path, device, cache_bytes=cache_bytes, rows=rows, dim=DIM)
    ) as store:
        store.table.lookup(np.arange(rows))
        d_out = device.memory.allocate(count, np.float32, width=DIM)
        d_grads = device.memory.upload(rng.standard_normal((count, DIM), np.float32))
        for _ in range(scale.host_calls):
            d_keys, d_others = (
                device.memory.upload(rng.integers(0, rows, count)) for _ in range(2)
            )
            calls: dict[str, Callable[[], None]] = {
                "lookup": partial(store.lookup, d_keys, d_out),
                "lookup_again": partial(store.lookup, d_keys, d_out),
                "its_update": partial(store.update, d_keys, d_grads),
                "update": partial(store.update, d_others, d_grads),
            }
            for name, call in calls.items():
                spent[name].append(_above_ms(runtime, call))
    warm = scale.host_calls // 4
    return {name: median(times[warm:]) for name, times in spent.items()} | {"keys": count}


def _above_ms(runtime: TimedRuntime, call: Callable[[], Any]) -> float:
    """Return what a call took without the runtime's share."""
    inside, begin = runtime.seconds, time.perf_counter()
    call()
    return 1e3 * (time.perf_counter() - begin - (runtime.seconds - inside))
