"""The device that is measured, a GPU or the emulation of one, and points in its time.

On a GPU, a point is an event in the stream of the kernels. The emulation executes nothing before
the host waits for it; there, a point is the host's clock after a wait.
"""

import pathlib
import shutil
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from typing import Any

import numpy as np

from embstore.device.cpu import CpuDevice
from embstore.device.gpu import GpuDevice
from embstore.device.runtime import COMPUTE, DOWN, UP, Argument, DeviceArray, Runtime
from tests.bench.gpu.scale import Scale

LAUNCH_CUSHIONS = 1
PINNED_COPIES = 4
VERB_CUSHIONS = 8
"""Copies before a sample. A launch takes the host some 10 us, a verb some 300; a copy of 256 MiB
takes a GPU of 4 TB/s 120 us."""


ASKED = (
    "launches",
    "copies",
    "uploads",
    "downloads",
    "waits",
    "uploaded_bytes",
    "downloaded_bytes",
)


class EventClock:
    """Of a CUDA device.

    `cushion` gives the device work that empties its L2 cache and lets the host run ahead; `point`
    returns the moment at which all that COMPUTE has been given so far is done; `elapsed_ms` waits
    for its second point.
    """

    def __init__(self, runtime: Any, cushion_bytes: int) -> None:
        import cupy

        self._cuda = cupy.cuda
        self._runtime = runtime
        self._source = runtime.allocate(cushion_bytes, "u1")
        self._target = runtime.allocate(cushion_bytes, "u1")

    def cushion(self, count: int) -> None:
        for _ in range(count):
            self._runtime.copy(self._source, self._target)

    def point(self) -> Any:
        event = self._cuda.Event()
        self._cuda.runtime.eventRecord(event.ptr, self._runtime.compute_stream)
        return event

    def elapsed_ms(self, begin: Any, end: Any) -> float:
        end.synchronize()
        return float(self._cuda.get_elapsed_time(begin, end))


class WallClock:
    """Of the emulation."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime

    def cushion(self, count: int) -> None:
        """There is no cache, and nobody runs ahead."""

    def point(self) -> float:
        self._runtime.wait(self._runtime.mark(COMPUTE))
        return time.perf_counter()

    def elapsed_ms(self, begin: float, end: float) -> float:
        return 1e3 * (end - begin)


def sample_ms(clock: Any, work: Callable[[], Any]) -> float:
    """Return what one call of `work` takes the device."""
    clock.cushion(VERB_CUSHIONS)
    begin = clock.point()
    work()
    return clock.elapsed_ms(begin, clock.point())


class LaunchTimer:
    """A runtime that counts what it is asked for, and can tell what each launch took, on its own
    behind a cushion of its own.

    So a verb that waits in between, or copies between host and device, still tells the time of its
    kernels. They begin with an empty L2 cache then, which in a call they may not.
    """

    def __init__(self, runtime: Any, clock: Any) -> None:
        self.clock = clock
        self._runtime = runtime
        self._spans: list[tuple[str, Any, Any]] | None = None
        self.asked = dict.fromkeys(ASKED, 0)
        """Calls by kind, and the bytes of copies between host and device; rows that kernels move
        are not among them."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._runtime, name)

    @contextmanager
    def recording(self) -> Iterator[list[tuple[str, Any, Any]]]:
        """Have the launches of the block noted as (name, begin, end)."""
        self._spans = spans = []
        try:
            yield spans
        finally:
            self._spans = None

    def launches_ms(self, work: Callable[[], Any]) -> dict[str, list[float]]:
        """Return by kernel what each of its launches in one call of `work` took."""
        with self.recording() as spans:
            work()
        found: dict[str, list[float]] = {}
        for name, begin, end in spans:
            found.setdefault(name, []).append(self.clock.elapsed_ms(begin, end))
        return found

    def _timed(self, name: str, give: Callable[[], None]) -> None:
        self.asked["launches"] += 1
        if self._spans is None:
            give()
            return
        self.clock.cushion(LAUNCH_CUSHIONS)
        begin = self.clock.point()
        give()
        self._spans.append((name, begin, self.clock.point()))

    def launch(self, kernel: str, blocks: int, *arguments: Argument) -> None:
        self._timed(kernel, lambda: self._runtime.launch(kernel, blocks, *arguments))

    def fill(self, array: DeviceArray, byte: int) -> None:
        self._timed("fill", lambda: self._runtime.fill(array, byte))

    def copy(self, source: DeviceArray, target: DeviceArray) -> None:
        self.asked["copies"] += 1
        self._runtime.copy(source, target)

    def upload(self, source: Any, target: DeviceArray, *, stream: int = COMPUTE) -> None:
        self.asked["uploads"] += 1
        self.asked["uploaded_bytes"] += target.nbytes
        self._runtime.upload(source, target, stream=stream)

    def download(self, source: DeviceArray, target: Any, *, stream: int = COMPUTE) -> None:
        self.asked["downloads"] += 1
        self.asked["downloaded_bytes"] += source.nbytes
        self._runtime.download(source, target, stream=stream)

    def wait(self, mark: Any) -> None:
        self.asked["waits"] += 1
        self._runtime.wait(mark)


def pinned_bytes_per_s(device: GpuDevice, scale: Scale) -> dict[str, float]:
    """Return what copies from and to pinned memory move, each way by itself, and both at once."""
    runtime = timer_of(device)
    hosts = [runtime.allocate_host(scale.pinned_bytes) for _ in range(2)]
    d_memories = [runtime.allocate(scale.pinned_bytes, np.uint8) for _ in range(2)]
    for host in hosts:
        host[:] = 1

    def up() -> None:
        runtime.upload(hosts[0], d_memories[0], stream=UP)

    def down() -> None:
        runtime.download(d_memories[1], hosts[1], stream=DOWN)

    found = {}
    for name, ways in {"up": [up], "down": [down], "each way at once": [up, down]}.items():
        spent = []
        for _ in range(1 + PINNED_COPIES):
            begin = time.perf_counter()
            for way in ways:
                way()
            wait(device)
            spent.append(time.perf_counter() - begin)
        found[name] = scale.pinned_bytes / median(spent[1:])
    return found


TOOLS = ("nvcc", "cuobjdump", "compute-sanitizer", "ncu", "nsys")


class Machine:
    """Opens devices of one kind. Each has a runtime of its own, which ends with it."""

    def __init__(self, scale: Scale) -> None:
        self._scale = scale

    def device(self) -> GpuDevice:
        """Return a device whose launches can be timed, as `timer_of` tells."""
        runtime = self.runtime()
        return GpuDevice(LaunchTimer(runtime, self._clock(runtime)))

    def runtime(self) -> Any:
        if self._scale.emulated:
            from tests.kernels.emulation.runtime import EmulatedRuntime

            return EmulatedRuntime()
        from embstore.device.cuda import open_runtime

        return open_runtime(0)

    def _clock(self, runtime: Any) -> Any:
        if self._scale.emulated:
            return WallClock(runtime)
        return EventClock(runtime, self._scale.cushion_bytes)


def timer_of(device: GpuDevice) -> LaunchTimer:
    timer: Any = device.runtime
    return timer


def wait(device: GpuDevice) -> None:
    """Wait for all that every stream of a device has been given."""
    for stream in (COMPUTE, UP, DOWN):
        device.work.runtime.wait(device.work.runtime.mark(stream))


def median(values: Any) -> float:
    return float(np.median(values))


def versions(machine: Machine, _: Scale, __: pathlib.Path) -> dict[str, Any]:
    """Return which tools are here, and the device's facts once all kernels are compiled; those of
    the CPU are compiled beside them: cold, they take half a minute."""
    device = machine.device()
    with closing(CpuDevice(1)) as cpu, ThreadPoolExecutor(1) as pool, closing(device):
        compiling = pool.submit(cpu.warm_up)
        device.warm_up()
        compiling.result()
        return {"tools": {tool: shutil.which(tool) for tool in TOOLS}, "device": device.facts()}
