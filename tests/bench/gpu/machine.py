"""The device that is measured: a GPU, or the emulation of one."""

import contextlib
import importlib.metadata
from typing import Any

import numpy as np

from embstore.device.gpu import GpuDevice
from embstore.device.runtime import COMPUTE, DOWN, UP
from tests.bench.gpu.clock import Clock, EventClock, LaunchTimer, WallClock
from tests.bench.gpu.scale import Scale

PACKAGES = ("cupy-cuda12x", "cupy-cuda13x", "torch")


class Machine:
    """Opens devices of one kind. Each has a runtime of its own, which ends with it."""

    def __init__(self, scale: Scale) -> None:
        self._scale = scale

    def device(self) -> GpuDevice:
        """Return a device whose launches can be timed, as `timer_of` tells."""
        runtime = self.runtime()
        return GpuDevice(LaunchTimer(runtime, self._clock(runtime)))

    def runtime(self) -> Any:
        """Return a runtime of the kind."""
        if self._scale.emulated:
            from tests.kernels.emulation.runtime import EmulatedRuntime

            return EmulatedRuntime()
        from embstore.device.cuda import open_runtime

        return open_runtime(0)

    def _clock(self, runtime: Any) -> Clock:
        if self._scale.emulated:
            return WallClock(runtime)
        return EventClock(runtime, self._scale.cushion_bytes)


def timer_of(device: GpuDevice) -> LaunchTimer:
    """Return the timer of a machine's device."""
    timer: Any = device.runtime
    return timer


def wait(device: GpuDevice) -> None:
    """Wait for all that every stream of a device has been given."""
    for stream in (COMPUTE, UP, DOWN):
        device.work.runtime.wait(device.work.runtime.mark(stream))


def median(values: Any) -> float:
    """Return the median as a plain number."""
    return float(np.median(values))


def packages() -> dict[str, str | None]:
    """Return the versions of what the device is reached by, None where it is not installed."""
    found: dict[str, str | None] = dict.fromkeys(PACKAGES)
    for name in PACKAGES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[name] = importlib.metadata.version(name)
    return found
