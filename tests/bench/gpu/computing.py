"""A trainer's computation between a lookup and its update: copies within the device's memory.

The copies run on a stream of the trainer, in parallel to the work of the store on its streams, and
compete with that work for the memory of the device. There are as many copies as last for the wanted
time on an idle device. The host waits for their end, as a trainer that sends gradients does.
"""

import time
from typing import Any

import numpy as np

from tests.bench.gpu.machine import median
from tests.bench.gpu.scale import Scale

SAMPLES = 5
SAMPLE_COPIES = 16


class DeviceCopies:
    """Copies on a stream of a CUDA device."""

    def __init__(self, byte_count: int) -> None:
        import cupy

        self._byte_count, self._elapsed_ms = byte_count, cupy.cuda.get_elapsed_time
        self._stream = cupy.cuda.Stream(non_blocking=True)
        self._source, self._target = (cupy.cuda.alloc(byte_count) for _ in range(2))
        self._begin, self._end = cupy.cuda.Event(), cupy.cuda.Event()

    def begin(self, count: int) -> None:
        self._begin.record(self._stream)
        for _ in range(count):
            self._target.copy_from_device_async(self._source, self._byte_count, self._stream)
        self._end.record(self._stream)

    def wait(self) -> float:
        """Wait for the copies; return the milliseconds that they took the device."""
        self._end.synchronize()
        return float(self._elapsed_ms(self._begin, self._end))


class HostCopies:
    """Copies of the host's memory, where the device is emulated."""

    def __init__(self, byte_count: int) -> None:
        self._source, self._target = np.zeros((2, byte_count), np.uint8)
        self._ms = 0.0

    def begin(self, count: int) -> None:
        began = time.perf_counter()
        for _ in range(count):
            self._target[:] = self._source
        self._ms = 1e3 * (time.perf_counter() - began)

    def wait(self) -> float:
        return self._ms


class Computing:
    """So many milliseconds of copies; 0: none."""

    def __init__(self, scale: Scale, wanted_ms: float) -> None:
        self._count = 0
        self.ms = 0.0
        """What the copies take an idle device, the median of some samples."""
        if wanted_ms:
            kind: Any = HostCopies if scale.emulated else DeviceCopies
            self._copies = kind(scale.cushion_bytes)
            copy_ms = self._alone_ms(SAMPLE_COPIES) / SAMPLE_COPIES
            self._count = 1 if scale.emulated else max(round(wanted_ms / copy_ms), 1)
            self.ms = self._alone_ms(self._count)

    def _alone_ms(self, count: int) -> float:
        spent = []
        for _ in range(SAMPLES):
            self._copies.begin(count)
            spent.append(self._copies.wait())
        return median(spent)

    def begin(self) -> None:
        """Give the device the copies."""
        if self._count:
            self._copies.begin(self._count)

    def wait(self) -> float:
        """Wait for their end; return the milliseconds that they took."""
        return self._copies.wait() if self._count else 0.0
