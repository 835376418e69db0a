"""The host's time for a call outside of the CUDA runtime: the time of Python, without any work of
CUDA.

The call has few keys, whose rows are all resident, and its arrays are on the device. The time
within the runtime's methods is subtracted from the time of the call. After the first rounds, the
methods that use the device do no work: they only return what they returned for the same call
before. The reason is the emulation, which runs kernels on the host. Unlike kernels of a GPU, such
kernels empty the host's caches, and Python between them took twice its time. The medians are of
calls one after the other, so the figure is that of a warm process.
"""

import contextlib
import pathlib
import time
from collections import deque
from collections.abc import Callable
from functools import partial, wraps
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embstore.device.gpu import GpuDevice
from embstore.device.runtime import Runtime
from tests.bench.gpu.machine import Machine, median, wait
from tests.bench.gpu.scale import Scale
from tests.bench.gpu.stores import DeviceStore

DIM, ROWS_A_KEY = 64, 8
ROW_BYTES = 1024
"""More than a row of DIM takes in the cache."""

_DEVICE_WORK = frozenset({"launch", "fill", "copy", "upload", "download", "follow", "wait"})
_TIMED_CALLS = 1000
_DONE_ROUNDS = 5
"""Until every round is answered as the one before."""


class ReplayedRuntime:
    """A runtime that does a round of calls, then only plays it again; and how long that took.

    A round is always the same calls. What is not device work, as to allocate, is always done.
    """

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self.is_lost = False  # a name of the instance, as in the runtimes
        self.seconds = 0.0
        self.calls = 0
        self.is_replaying = False
        self._under_way: list[NDArray[Any]] = []  # targets of downloads
        self._answers: deque[bytes] = deque()  # what came in a round, in order
        self._played = 0  # of them, in this round

    def begin(self, *, replay: bool) -> None:
        """Begin a round: with the runtime, or as the last that was done was answered."""
        assert not self._under_way, "a round ends with a wait"
        assert self._played in (0, len(self._answers)), "a round is always the same calls"
        self.is_replaying, self._played = replay, 0
        if not replay:
            self._answers.clear()

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._runtime, name)
        if not callable(found):
            return found

        @wraps(found)
        def timed(*arguments: Any, **options: Any) -> Any:
            begin = time.perf_counter()
            try:
                result = None
                if not self.is_replaying or name not in _DEVICE_WORK:
                    result = found(*arguments, **options)
                if name == "download":
                    self._under_way.append(arguments[1])
                elif name == "wait":
                    self._came()
                return result
            finally:
                self.calls += 1
                self.seconds += time.perf_counter() - begin

        setattr(self, name, timed)
        return timed

    def _came(self) -> None:
        for target in self._under_way:
            if self.is_replaying:
                target.reshape(-1).view(np.uint8)[:] = np.frombuffer(self._answers[0], np.uint8)
                self._answers.rotate(-1)
                self._played += 1
            else:
                self._answers.append(target.tobytes())
        self._under_way.clear()


def measure(machine: Machine, scale: Scale, path: pathlib.Path) -> dict[str, Any]:
    """Return milliseconds of a lookup, the same again, its update, and another update."""
    runtime = ReplayedRuntime(machine.runtime())
    device, rows, count = GpuDevice(runtime), ROWS_A_KEY * scale.host_keys, scale.host_keys
    rng = np.random.default_rng(scale.seed)
    cache_bytes = max(scale.cache_bytes, ROW_BYTES * rows)
    with contextlib.closing(
        DeviceStore(path, device, cache_bytes=cache_bytes, rows=rows, dim=DIM)
    ) as store:
        store.table.lookup(np.arange(rows))
        d_out = device.memory.allocate(count, np.float32, width=DIM)
        d_grads = device.memory.upload(rng.standard_normal((count, DIM), np.float32))
        d_keys, d_others = (device.memory.upload(rng.integers(0, rows, count)) for _ in range(2))
        calls: dict[str, Callable[[], None]] = {
            "lookup": partial(store.lookup, d_keys, d_out),
            "lookup_again": partial(store.lookup, d_keys, d_out),
            "its_update": partial(store.update, d_keys, d_grads),
            "update": partial(store.update, d_others, d_grads),
        }
        spent: dict[str, list[float]] = {name: [] for name in calls}
        timer_s = _timer_s(runtime)
        for done in range(_DONE_ROUNDS + scale.host_calls):
            runtime.begin(replay=done >= _DONE_ROUNDS)
            for name, call in calls.items():
                spent[name].append(_above_ms(runtime, call, timer_s))
            wait(device)  # an update's end waits for nobody
        runtime.begin(replay=False)
    return {name: median(times[_DONE_ROUNDS:]) for name, times in spent.items()} | {"keys": count}


def _above_ms(runtime: ReplayedRuntime, call: Callable[[], Any], timer_s: float) -> float:
    """Return what a call took without the runtime's share, and without that of timing it."""
    inside, calls, begin = runtime.seconds, runtime.calls, time.perf_counter()
    call()
    seconds = time.perf_counter() - begin - (runtime.seconds - inside)
    return 1e3 * (seconds - timer_s * (runtime.calls - calls))


def _timer_s(runtime: ReplayedRuntime) -> float:
    """Return what it adds to a call of the runtime to be timed: outside the time that is told, and
    beyond what a call costs anyway."""

    def plain(*_: Any) -> None:
        pass

    runtime.begin(replay=True)
    took = []
    for _ in range(_TIMED_CALLS):
        inside, begin = runtime.seconds, time.perf_counter()
        runtime.launch("", 1, 2, 3)
        middle = time.perf_counter()
        plain("", 1, 2, 3)
        end = time.perf_counter()
        took.append(middle - begin - (runtime.seconds - inside) - (end - middle))
    return median(took)
