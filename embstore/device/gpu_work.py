"""What a GPU's work is made of: launches, copies of arrays, and scratch memory.

Kernels launched before a batch is synchronized read the number of unique keys from the device's
memory. Their results for the host are one row of eight int64 for each batch, its **findings**
(`common.cuh`).

Arrays of a call are copied together: `send` packs them into one pinned buffer and one copy. Large
ones are copied piece by piece while COMPUTE works (`staging.py`).

Grids: a block for every 256 items, or lanes of rows, but no more than keep the device busy; kernels
walk over the rest.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embstore.arrays import Rows
from embstore.device.base import Batch, IndexArrays
from embstore.device.runtime import BLOCK_THREADS, COMPUTE, Argument, DeviceArray, Runtime
from embstore.device.scratch import Scratch
from embstore.device.staging import LARGE_BYTES, Staging
from embstore.host.workers import COPY_THREADS_MAX, Workers
from embstore.kernels.probe import BUCKET_WIDTH
from embstore.layout import VALUE

LANES = 32
"""At most so many own a row."""
NONE = (1 << 63) - 1
"""Of a finding that is the lowest of something."""
UNIQUE_COUNT, OUTSIDE, MISSING, NOT_FINITE, ACCESSES, HITS, REFUSED = range(7)
NOTHING_FOUND = np.array([0, NONE, 0, NONE, 0, 0, 0, 0], np.int64)
NULL = np.uint64(0)
_BLOCKS_PER_MULTIPROCESSOR = 16
_ALIGNMENT = 16
_SECURED_BYTES, _SECURED_BYTES_LEAST = 64, 8 << 20
"""Scratch of a slot that changes rows (keys, slots and places, in blocks of `Scratch`), and of a
call whatever its slots."""


@dataclass
class GpuBatch(Batch):
    """A batch, and where its kernels write their findings; None where it has no key."""

    findings: DeviceArray | None = field(default=None)


class GpuWork:
    """A runtime, and what its work needs. One thread at a time.

    Parameters
    ----------
    threads : that fill and empty pinned buffers, the caller included; None: one a core, at most 8
    """

    def __init__(self, runtime: Runtime, threads: int | None = None) -> None:
        self.runtime = runtime
        self.scratch = Scratch(runtime)
        self._workers = Workers(threads or min(COPY_THREADS_MAX, os.cpu_count() or 1))
        self.staging = Staging(runtime, self._workers, self.scratch)
        self._blocks_max = runtime.facts()["multiprocessors"] * _BLOCKS_PER_MULTIPROCESSOR

    def close(self) -> None:
        """End the threads, wait for all work unless the device is lost, and free the scratch."""
        self._workers.close()
        if not self.runtime.is_lost:
            self.wait()
        self.staging.close()
        self.scratch.close()
        self.runtime.close()

    def launch(self, kernel: str, items: int, *arguments: Argument) -> None:
        """Run a kernel over so many items, or lanes."""
        blocks = min(-(-items // BLOCK_THREADS), self._blocks_max)
        self.runtime.launch(kernel, blocks, *arguments)

    def wait(self) -> None:
        """Wait for all work."""
        self.runtime.wait(self.runtime.mark(COMPUTE))

    def send(self, *arrays: NDArray[Any]) -> list[DeviceArray]:
        """Copy host arrays to the device in one piece, and return them there."""
        ends = np.cumsum([-(-array.nbytes // _ALIGNMENT) * _ALIGNMENT for array in arrays])
        target = self.scratch.take(max(int(ends[-1]), 1), np.uint8)
        begins = [0, *ends[:-1].tolist()]

        def fill(memory: NDArray[np.uint8]) -> None:
            for array, begin in zip(arrays, begins, strict=True):
                memory[begin : begin + array.nbytes] = _bytes_of(array)

        self.staging.send(fill, target)
        return [
            target[begin : begin + array.nbytes].view(array.dtype)
            for array, begin in zip(arrays, begins, strict=True)
        ]

    def send_parts(self, parts: Sequence[Any], target: DeviceArray) -> None:
        """Copy arrays one after the other into one of the device."""
        if all(isinstance(part, np.ndarray) for part in parts) and target.nbytes < LARGE_BYTES:
            self.staging.send(lambda memory: _fill(memory, parts), target)
            return
        low = 0
        for part in parts:
            if len(part):
                self.send_one(part, target[low : low + len(part)])
            low += len(part)

    def send_one(self, source: NDArray[Any] | DeviceArray, target: DeviceArray) -> None:
        """Copy an array, of the host or of the device."""
        if isinstance(source, DeviceArray):
            self.runtime.copy(source, target)
        elif source.nbytes < LARGE_BYTES:
            self.staging.send(lambda memory: _fill(memory, [source]), target)
        else:
            self.staging.upload(source, target)

    def resident(self, array: NDArray[Any] | DeviceArray) -> DeviceArray:
        """Return the array in the device's memory."""
        return array if isinstance(array, DeviceArray) else self.upload(array)

    def secure(self, count: int) -> None:
        """Reserve scratch and pinned buffers to change so many slots."""
        self.scratch.secure(count * _SECURED_BYTES + _SECURED_BYTES_LEAST)
        self.staging.secure_rows()

    def upload(self, array: NDArray[Any]) -> DeviceArray:
        """Return a copy of a host array in scratch memory."""
        width = array.shape[1] if array.ndim == 2 else 1
        target = self.scratch.take(len(array), array.dtype, width=width)
        if len(target):
            self.send_one(array, target)
        return target

    def download(self, array: DeviceArray | NDArray[Any]) -> NDArray[Any]:
        """Return a copy on the host; the array itself where it is there already. Waits."""
        if isinstance(array, np.ndarray):
            return array
        shape = (array.count, array.width) if array.width > 1 else array.count
        out = np.empty(shape, array.dtype)
        if out.size:
            self.staging.download(array, [out])
        return out

    def download_together(
        self, arrays: Sequence[DeviceArray], outs: Sequence[NDArray[Any]]
    ) -> None:
        """Copy neighbours in one block of memory into host arrays, one after the other; wait."""
        first, size = arrays[0], sum(array.nbytes for array in arrays)
        if size:
            block = DeviceArray(first.address, size, np.uint8, first.owner)
            self.staging.download(block, outs)


class Outputs:
    """A call's outputs in the device's memory; at its end those of the host are copied there."""

    def __init__(self, work: GpuWork, outs: Sequence[Rows | DeviceArray], dim: int) -> None:
        self._work = work
        self._host_outs = [out for out in outs if not isinstance(out, DeviceArray)]
        count = sum(len(out) for out in self._host_outs)
        self._d_outs = work.scratch.take(count, VALUE, width=dim)
        low, self._placed = 0, []
        for out in outs:
            if isinstance(out, DeviceArray):
                self._placed.append(out)
            else:
                self._placed.append(self._d_outs[low : low + len(out)])
                low += len(out)

    def __enter__(self) -> list[DeviceArray]:
        return self._placed

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            return
        if len(self._d_outs):
            self._work.download_together([self._d_outs], self._host_outs)
        else:
            self._work.wait()  # what a caller's own stream does next is not ordered behind ours


def parameters_of(index: IndexArrays) -> tuple[Argument, ...]:
    """Return the six parameters of an index."""
    buckets = np.int64(len(index.bucket_keys) // BUCKET_WIDTH)
    return (
        index.bucket_keys, index.bucket_slots, buckets, index.stash_keys, index.stash_slots,
        index.stash_count,
    )  # fmt: skip


def findings_of(batch: Batch) -> DeviceArray | None:
    """Return where a batch's kernels write their findings; None where it has no key."""
    assert isinstance(batch, GpuBatch)
    return batch.findings


def _bytes_of(array: NDArray[Any]) -> NDArray[np.uint8]:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)


def _fill(memory: NDArray[np.uint8], parts: Sequence[NDArray[Any]]) -> None:
    low = 0
    for part in parts:
        memory[low : low + part.nbytes] = _bytes_of(part)
        low += part.nbytes
