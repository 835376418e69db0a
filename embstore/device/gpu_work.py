"""The parts of a GPU's work: launches, copies of arrays, and scratch memory.

Kernels that are launched before a batch is synchronized read the number of unique keys from the
device's memory. The results of these kernels for the host are eight int64 per call, the call's
**findings** (`findings.cuh`).

Small arrays of a call are copied together. Large arrays are copied piece by piece, concurrently
with COMPUTE (`staging.py`). Work is recorded, and submitted to the runtime when the host waits
(`recorder.py`).

`Recorder.launch_over` defines the sizes of grids.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import accumulate, chain
from struct import pack_into, unpack_from
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import DTypeLike, NDArray

from embstore.arrays import Keys, Rows
from embstore.device.recorder import Recorder
from embstore.device.runtime import BLOCK_THREADS, COMPUTE, Adopted, Argument, DeviceArray, Runtime
from embstore.device.scratch import Scratch
from embstore.device.staging import ALIGNMENT, LARGE_BYTES, Buffer, Staging
from embstore.device.values import Answer, Batch, IndexArrays
from embstore.host.workers import COPY_THREADS_MAX, Workers
from embstore.kernels.probe import BUCKET_WIDTH
from embstore.layout import VALUE, VALUE_BYTES

LANES = 32
"""The most lanes (threads of a warp) that process one row together."""
NONE = (1 << 63) - 1
"""The value, if nothing was found, of the findings that are otherwise a lowest position or id."""
UNIQUE_COUNT, OUTSIDE, MISSING, LARGE_SUM, ACCESSES, HITS, REFUSED = range(7)
NOTHING_FOUND = (0, NONE, 0, NONE, 0, 0, 0, 0)
FINDINGS_FORMAT = f"{len(NOTHING_FOUND)}q"
FINDINGS_BYTES = 8 * len(NOTHING_FOUND)
NULL = np.uint64(0)
_KEPT_MAX = 16
TILE = 8 * BLOCK_THREADS
"""The number of items of a tile. Blocks draw one tile after the other (`tiles.cuh`)."""
_SECURED_BYTES, _SECURED_BYTES_LEAST = 192, 8 << 20
"""Bytes of scratch memory that `secure` reserves for each slot whose row changes (keys, slots and
places, in blocks of `Scratch`), and the least bytes for a call."""


class Groups(NamedTuple):
    """The positions of each id are positions[starts[id]:starts[id + 1]]."""

    starts: DeviceArray  # (n + 1,) int64, of which ids + 1 are written
    positions: DeviceArray  # (n,) int32
    ids: DeviceArray  # (n,) int32, the ids of these positions


@dataclass
class GpuBatch(Batch):
    """A batch, and the memory for the findings of its kernels, None if the batch has no key."""

    findings: DeviceArray | None = field(default=None)
    groups: Groups | None = None
    """The groups of the batch's positions if they are grouped by slot; in this case `inverse`
    contains slots. None if positions are not grouped by slot."""
    answer: Buffer | None = None
    """The host buffer for the findings; the outputs that are being copied follow the findings in
    it."""


class GpuWork:
    """A runtime, with scratch memory and staging. One thread calls it at a time.

    Parameters
    ----------
    threads : number of threads that fill and empty pinned buffers, including the calling thread;
        None: one per core, at most 8
    """

    def __init__(self, runtime: Runtime, threads: int | None = None) -> None:
        self.runtime = Recorder(runtime)
        self.launch = self.runtime.launch_over
        self.scratch = Scratch(self.runtime)
        self._workers = Workers(threads or min(COPY_THREADS_MAX, os.cpu_count() or 1))
        self.staging = Staging(self.runtime, self._workers, self.scratch)
        self._waits = 0
        self._numbers: dict[DTypeLike, DeviceArray] = {}
        self._sent: dict[Any, tuple[bytes, DeviceArray]] = {}
        self._kept: dict[tuple[tuple[int, ...], ...], list[DeviceArray]] = {}

    def close(self) -> None:
        """End the threads, wait for all work unless the device is lost, and free scratch memory."""
        self._workers.close()
        if not self.runtime.is_lost:
            self.wait()
        self.staging.close()
        self._numbers.clear()
        self._sent.clear()
        self._kept.clear()
        self.scratch.close()
        self.runtime.close()

    def launch_in_tiles(self, kernel: str, n: int, *arguments: Argument) -> None:
        """Run a kernel over n items; the blocks of this kernel draw tiles. The counters of the
        tiles are added as the kernel's last argument."""
        tiles = -(-n // TILE)
        self.launch(kernel, tiles * BLOCK_THREADS, *arguments, self.zeros(1 + tiles, np.uint64))

    def wait(self) -> None:
        """Wait for all work."""
        self.wait_for(self.runtime.mark(COMPUTE))

    def wait_for(self, mark: Any) -> None:
        """Wait for a mark of COMPUTE that was made after all work requested so far."""
        self.runtime.wait(mark)
        self._waits += 1

    def send(self, *arrays: NDArray[Any]) -> list[DeviceArray]:
        """Copy host arrays to the device, and return the device arrays."""
        sizes = [-(-array.nbytes // ALIGNMENT) * ALIGNMENT for array in arrays]
        if sum(sizes) >= LARGE_BYTES:
            return [self.join([array], array.dtype, _width(array)) for array in arrays]
        memory, d_memory = self.staging.place(sum(sizes))
        sent, low, owner = [], 0, d_memory.owner
        for array, size in zip(arrays, sizes, strict=True):
            contiguous = np.ascontiguousarray(array).reshape(-1)
            memory[low : low + array.nbytes] = contiguous.view(np.uint8)
            address, width = d_memory.address + low, _width(array)
            sent.append(DeviceArray(address, len(array), array.dtype, owner, width=width))
            low += size
        return sent

    def send_numbers(self, *columns: Sequence[int]) -> list[DeviceArray]:
        """Copy lists of integers to the device as int64, and return the device arrays."""
        numbers = [*chain.from_iterable(columns)]
        if 8 * len(numbers) >= LARGE_BYTES:
            return self.send(*[np.array(column, np.int64) for column in columns])
        memory, d_memory = self.staging.place(8 * len(numbers))
        pack_into(f"{len(numbers)}q", memory.data, 0, *numbers)
        sent, address, owner = [], d_memory.address, d_memory.owner
        for column in columns:
            sent.append(DeviceArray(address, len(column), np.int64, owner))
            address += 8 * len(column)
        return sent

    def kept_numbers(self, *columns: tuple[int, ...]) -> list[DeviceArray]:
        """Return lists of integers on the device, as `send_numbers` does, if the device never
        changes them. Lists that were sent recently, for example by the last call of a loop, are not
        sent again."""
        kept = self._kept.get(columns)
        if kept is None:
            if len(self._kept) == _KEPT_MAX:
                del self._kept[next(iter(self._kept))]  # the oldest
            kept = self._kept[columns] = self.send_numbers(*columns)
        return kept

    def zeros(self, count: int, dtype: DTypeLike) -> DeviceArray:
        """Return zeros on the device. A few zeros are sent together with the call's numbers."""
        byte_count = count * np.dtype(dtype).itemsize
        if byte_count >= LARGE_BYTES:
            filled = self.scratch.take(count, dtype)
            self.runtime.fill(filled, 0)
            return filled
        memory, d_memory = self.staging.place(byte_count)
        memory.fill(0)
        return d_memory.view(dtype)

    def upload(self, array: NDArray[Any]) -> DeviceArray:
        """Copy a host array to the device, and return the device array."""
        return self.send(array)[0]

    def join(
        self, parts: Sequence[NDArray[Any] | DeviceArray], dtype: DTypeLike, width: int = 1
    ) -> DeviceArray:
        """Return the concatenation of arrays, on the device. A single array on the device is
        returned as it is."""
        if len(parts) == 1 and isinstance(parts[0], DeviceArray):
            return parts[0]
        on_host = [np.ascontiguousarray(p) for p in parts if not isinstance(p, DeviceArray)]
        if len(on_host) < len(parts):
            return self._joined_on_device(parts, dtype, width)
        count = sum(map(len, on_host))
        byte_count = count * width * np.dtype(dtype).itemsize
        if byte_count >= LARGE_BYTES:
            target = self.scratch.take(count, dtype, width=width)
            self.staging.upload(on_host, target)
            return target
        memory, d_memory = self.staging.place(byte_count)
        low = 0
        for part in on_host:
            memory[low : low + part.nbytes] = part.reshape(-1).view(np.uint8)
            low += part.nbytes
        return d_memory.view(dtype, width=width)

    def _joined_on_device(
        self, parts: Sequence[NDArray[Any] | DeviceArray], dtype: DTypeLike, width: int
    ) -> DeviceArray:
        target, low = self.scratch.take(sum(map(len, parts)), dtype, width=width), 0
        for part in parts:
            if len(part):
                self.runtime.copy(self.resident(part), target[low : low + len(part)])
            low += len(part)
        return target

    def send_changed(self, name: Any, array: NDArray[Any]) -> DeviceArray:
        """Return the device's copy of a host array. The array is sent only if it differs from the
        last array of this name."""
        content = array.tobytes()
        sent, d_sent = self._sent.get(name, (b"", None))
        if d_sent is None or sent != content:
            d_sent = self.upload(array)
            self._sent[name] = content, d_sent
        return d_sent

    def numbers(self, count: int, dtype: DTypeLike) -> DeviceArray:
        """Return 0, 1, 2, ..., which must not be changed."""
        kept = self._numbers.get(dtype)
        if kept is None or len(kept) < count:
            kept = self.scratch.take(count + count // 4, dtype)  # no slice of a pack
            self.runtime.copy(self.upload(np.arange(len(kept), dtype=dtype)), kept)
            self._numbers[dtype] = kept
        return kept[:count]

    def resident(self, array: NDArray[Any] | DeviceArray) -> DeviceArray:
        """Return an array in the device's memory; a host array is sent."""
        return array if isinstance(array, DeviceArray) else self.upload(array)

    def all_resident(self, *arrays: NDArray[Any] | DeviceArray) -> list[DeviceArray]:
        """Return arrays in the device's memory; host arrays are sent together."""
        sent = iter(self.send(*[a for a in arrays if not isinstance(a, DeviceArray)]))
        return [a if isinstance(a, DeviceArray) else next(sent) for a in arrays]

    def secure(self, count: int) -> None:
        """Reserve scratch memory and pinned buffers for a change of `count` slots."""
        self.scratch.secure(count * _SECURED_BYTES + _SECURED_BYTES_LEAST)
        self.staging.secure()

    def download(self, array: DeviceArray | NDArray[Any]) -> NDArray[Any]:
        """Return a copy on the host; a host array is returned as it is. Waits."""
        return array if isinstance(array, np.ndarray) else self.ask(array)()

    def ask(self, array: DeviceArray) -> Answer[NDArray[Any]]:
        """Begin to copy an array to the host."""
        shape = (array.count, array.width) if array.width != 1 else array.count
        out = np.empty(shape, array.dtype)
        end = self.ask_together([array], [out])

        def answer() -> NDArray[Any]:
            end()
            return out

        return answer

    def ask_together(
        self, arrays: Sequence[DeviceArray], outs: Sequence[NDArray[Any]]
    ) -> Answer[None]:
        """Begin to copy adjacent arrays of one block of memory into host arrays.

        A large block is copied piece by piece when the caller calls the returned answer. The block
        must not change until then.
        """
        first, size = arrays[0], sum(array.nbytes for array in arrays)
        if not size:
            return lambda: None
        block = DeviceArray(first.address, size, np.uint8, first.owner)
        if size >= LARGE_BYTES:
            return partial(self.staging.download, block, outs)
        buffer, waits = self.staging.begin_small(block), self._waits

        def answer() -> None:
            if self._waits == waits:
                self.wait()
            self.staging.end_small(buffer, 0, outs)

        return answer


class Outputs:
    """A call's outputs in the device's memory. Outputs for the host are copied to it at the end.

    `answer` is memory for the call's findings. It lies directly before the outputs for the host, so
    that one copy transfers both. It is NULL if no outputs are for the host, or if they are large.
    """

    def __init__(self, work: GpuWork, outs: Sequence[Rows | DeviceArray], dim: int) -> None:
        self._work = work
        self._host_outs = [out for out in outs if not isinstance(out, DeviceArray)]
        self.answer: Argument = NULL
        self._come: DeviceArray | None = None  # findings and small outputs, copied together
        if not self._host_outs:
            self.placed: list[Any] = [*outs]
            return
        size = sum(len(out) for out in self._host_outs) * dim * VALUE_BYTES
        if FINDINGS_BYTES + size < LARGE_BYTES:
            self._come = block = work.scratch.take(FINDINGS_BYTES + size, np.uint8)
            self.answer = block[:FINDINGS_BYTES].view(np.int64)
            self._d_outs = block[FINDINGS_BYTES:].view(VALUE, width=dim)
        else:
            self._d_outs = work.scratch.take(size, np.uint8).view(VALUE, width=dim)
        low, self.placed = 0, []
        for out in outs:
            if isinstance(out, DeviceArray):
                self.placed.append(out)
            else:
                self.placed.append(self._d_outs[low : low + len(out)])
                low += len(out)

    def begin(self, findings: DeviceArray) -> Buffer:
        """Begin to copy the findings to the host, after the work queued so far. Outputs for the
        host are copied with them if they are small."""
        return self._work.staging.begin_small(findings if self._come is None else self._come)

    def end(self, buffer: Buffer) -> None:
        """Fill the outputs on the host. The caller has waited for the copies that `begin`
        queued."""
        come = [] if self._come is None else self._host_outs
        self._work.staging.end_small(buffer, FINDINGS_BYTES, come)
        if self._host_outs and not come:
            self._work.ask_together([self._d_outs], self._host_outs)()

    def fill(self) -> None:
        """Wait, and fill the outputs on the host. If all outputs are on the device, and the streams
        in which callers use the outputs are known, these streams wait instead of the host."""
        if self._host_outs and len(self._d_outs):
            self._work.ask_together([self._d_outs], self._host_outs)()
            return
        streams = {_stream_of(out.owner) for out in self.placed}
        if None in streams or self._host_outs:
            self._work.wait()
            return
        for stream in filter(None, streams):
            self._work.runtime.lead(stream)


def _stream_of(owner: Any) -> int | None:
    """Return the stream in which a caller uses its array, None if the stream is not known."""
    return owner.stream if isinstance(owner, Adopted) else None


def _width(array: NDArray[Any]) -> int:
    return array.shape[1] if array.ndim == 2 else 1


def parameters_of(index: IndexArrays) -> tuple[Argument, ...]:
    """Return the six kernel arguments for an index."""
    buckets = np.int64(len(index.bucket_keys) // BUCKET_WIDTH)
    return (
        index.bucket_keys, index.bucket_slots, buckets, index.stash_keys, index.stash_slots,
        index.stash_count,
    )  # fmt: skip


def bounds_of(segments: Sequence[tuple[int, int, Keys]]) -> list[int]:
    """Return the first position of each segment, followed by the number of positions."""
    return [*accumulate((len(keys) for _, _, keys in segments), initial=0)]


def tell_batch(batch: GpuBatch, answer: Buffer) -> None:
    """Set the results of a batch from the findings that have arrived in a buffer."""
    values = unpack_from(FINDINGS_FORMAT, answer.memory.data)
    if values[UNIQUE_COUNT] < len(batch.unique_keys):
        batch.unique_keys = batch.unique_keys[: values[UNIQUE_COUNT]]
    batch.found.outside = _position(values[OUTSIDE])
    batch.found.missing = values[MISSING]
    batch.found.large = _position(values[LARGE_SUM])
    batch.is_known = True


def _position(found: int) -> int:
    return -1 if found == NONE else found


def findings_of(batch: Batch) -> DeviceArray | None:
    """Return the memory for the findings of a batch's kernels, None if the batch has no key.

    The caller's kernels write more findings into this memory, which the host does not know yet.
    """
    assert isinstance(batch, GpuBatch)
    batch.is_known = False
    return batch.findings
