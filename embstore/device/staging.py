"""Copies between host and device, through pinned buffers that are filled while others are copied.

A copy to or from memory that is not pinned passes through a buffer of the driver, in the calling
thread. Here such copies use rings of pinned buffers. While one buffer is copied, several threads
fill the next, and the caller continues as soon as the last buffer is filled. Buffers only grow,
because freeing pinned memory would wait for the device. Each buffer has a mark after its last use;
the host waits for this mark before it uses the buffer again.

    pack      small arrays of a call, in COMPUTE: one copy of all that is sent between two waits
    upload    large arrays, in UP, piece by piece
    rows      missing rows, in UP: buffers that storage reads into, each with a twin on the device
    download  small in COMPUTE, large in DOWN, piece by piece
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embstore.arrays import Rows
from embstore.device.recorder import Recorder
from embstore.device.runtime import COMPUTE, DOWN, UP, DeviceArray
from embstore.device.scratch import Scratch
from embstore.host.workers import Workers
from embstore.layout import Layout

BUFFERS = 3
PIECE_BYTES = 4 << 20
"""Bytes of a piece of a copy: enough to use the bus fully, and few enough for pieces to overlap."""
LARGE_BYTES = 512 << 10
"""Copies of at least this many bytes are cut into pieces, and run concurrently with COMPUTE."""
PACK_BYTES, _FIRST_PACK_BYTES = 1 << 20, 16 << 10
"""The most bytes that are sent together between two waits, and the first size of packs; packs grow
to the size that calls need."""
_PACKS = 4
ALIGNMENT = 16


@dataclass
class Buffer:
    """Pinned memory, and the mark after its last use."""

    memory: NDArray[np.uint8]
    d_memory: DeviceArray | None = None
    mark: Any = None

    def rows(self, count: int, layout: Layout) -> Rows:
        """Return the beginning of the buffer as rows, (count, stride)."""
        front = self.memory[: count * layout.row_bytes]
        return front.view(layout.element).reshape(count, layout.stride)


@dataclass
class Pack:
    """Pinned memory that is being filled, and its twin: the scratch memory to which it will be
    copied."""

    buffer: Buffer
    memory: NDArray[np.uint8]  # memory of the buffer when the pack was opened
    d_memory: DeviceArray
    used: int = 0


class Ring:
    """Pinned buffers that are used one after the other, and then again. If `scratch` is given, each
    has a twin on the device."""

    def __init__(self, runtime: Recorder, count: int, scratch: Scratch | None = None) -> None:
        self._runtime = runtime
        self._scratch = scratch
        self._buffers = [Buffer(np.empty(0, np.uint8)) for _ in range(count)]
        self._next = 0

    def take(self, byte_count: int) -> Buffer:
        """Return the next buffer, which is free and has at least `byte_count` bytes."""
        buffer = self._buffers[self._next]
        self._next = (self._next + 1) % len(self._buffers)
        if buffer.mark is not None:
            self._runtime.wait(buffer.mark)
            buffer.mark = None
        if len(buffer.memory) < byte_count:
            self._lengthen(buffer, byte_count + byte_count // 4)
        return buffer

    def secure(self, byte_count: int) -> None:
        """Make all buffers at least `byte_count` bytes long."""
        for buffer in self._buffers:
            if len(buffer.memory) < byte_count:
                if buffer.mark is not None:
                    self._runtime.wait(buffer.mark)
                self._lengthen(buffer, byte_count)

    def clear(self) -> None:
        """Free the buffers. The device must have done all queued work, or must be lost."""
        self._buffers = [Buffer(np.empty(0, np.uint8)) for _ in self._buffers]

    def _lengthen(self, buffer: Buffer, byte_count: int) -> None:
        if self._scratch is not None:
            buffer.d_memory = self._scratch.plain(byte_count, np.uint8)
        buffer.memory = self._runtime.allocate_host(byte_count)


class Staging:
    """Copies between host arrays and a device's arrays. One thread calls it at a time."""

    def __init__(self, runtime: Recorder, workers: Workers, scratch: Scratch) -> None:
        self._runtime = runtime
        self._workers = workers
        self._scratch = scratch
        self._packs = Ring(runtime, _PACKS)
        self._pack: Pack | None = None
        self._pack_bytes = _FIRST_PACK_BYTES
        self._small_down: list[Buffer] = []  # free buffers
        self._up = Ring(runtime, BUFFERS)
        self._rows = Ring(runtime, BUFFERS, scratch)
        self._down = Ring(runtime, BUFFERS)
        self._staged: tuple[Rows, Buffer] | None = None

    def close(self) -> None:
        """Free all buffers."""
        self._staged = self._pack = None
        self._small_down.clear()
        for ring in (self._packs, self._up, self._rows, self._down):
            ring.clear()

    # Up

    def place(self, byte_count: int) -> tuple[NDArray[np.uint8], DeviceArray]:
        """Return memory of a pack, which the caller fills at once, and the device array to which
        this memory will be copied. `byte_count` is below LARGE_BYTES."""
        size, pack = -(-byte_count // ALIGNMENT) * ALIGNMENT, self._pack
        if pack is None:
            pack = self._open_pack()
        if pack.used + size > len(pack.d_memory):
            self._runtime.submit()
            self._pack_bytes = min(max(2 * self._pack_bytes, pack.used + size), PACK_BYTES)
            pack = self._open_pack()
        low, pack.used = pack.used, pack.used + size
        d_memory = pack.d_memory
        return pack.memory[low : low + byte_count], DeviceArray(
            d_memory.address + low, byte_count, d_memory.dtype, d_memory.owner
        )

    def _open_pack(self) -> Pack:
        buffer = self._packs.take(self._pack_bytes)
        d_memory = self._scratch.take(self._pack_bytes, np.uint8)
        pack = self._pack = Pack(buffer, buffer.memory, d_memory)
        self._runtime.record(lambda: self._send(pack))
        return pack

    def _send(self, pack: Pack) -> None:
        self._pack = None
        self._runtime.upload(pack.memory[: pack.used], pack.d_memory[: pack.used])
        pack.buffer.mark = self._runtime.mark(COMPUTE)

    def upload(self, sources: Sequence[NDArray[Any]], target: DeviceArray) -> None:
        """Copy arrays, one after the other, into a large array of the device. Work queued in
        COMPUTE from now on runs after the copy."""
        self._runtime.follow(UP, self._runtime.mark(COMPUTE))  # earlier work may use `target`
        parts, target_bytes = [_bytes_of(source) for source in sources], target.view(np.uint8)
        try:
            for low, high in _pieces(target.nbytes):
                buffer = self._up.take(high - low)
                piece = buffer.memory[: high - low]
                for of_part, of_piece in _shared(parts, low, high):
                    self._copy(of_part, piece[of_piece])
                self._runtime.upload(piece, target_bytes[low:high], stream=UP)
                buffer.mark = self._runtime.mark(UP)
        finally:  # even after an error: COMPUTE may use `target` again
            self._runtime.follow(COMPUTE, self._runtime.mark(UP))

    def secure(self) -> None:
        """Allocate packs and buffers for rows in their largest sizes."""
        self._packs.secure(PACK_BYTES)
        self._rows.secure(PIECE_BYTES)

    def begin_rows(self, byte_count: int) -> Buffer:
        """Return a free buffer for rows. The caller fills it and passes it to `send_rows` before
        the next call of this method."""
        return self._rows.take(byte_count)

    def stage(self, count: int, layout: Layout) -> Rows:
        """Return the rows of a new buffer, for the caller to fill."""
        buffer = self.begin_rows(count * layout.row_bytes)
        rows = buffer.rows(count, layout)
        self._staged = rows, buffer
        return rows

    def staged(self, rows: Rows) -> Buffer | None:
        """Return the buffer of `rows` if `stage` returned them in its last call, else None. A
        second call for the same rows returns None."""
        staged, self._staged = self._staged, None
        return staged[1] if staged is not None and staged[0] is rows else None

    def send_rows(self, buffer: Buffer, byte_count: int) -> DeviceArray:
        """Copy the buffer to its twin, in UP, and make COMPUTE follow. Once the caller has launched
        the kernels that read the twin, it sets the buffer's mark again."""
        assert buffer.d_memory is not None
        d_rows = buffer.d_memory[:byte_count]
        self._runtime.upload(buffer.memory[:byte_count], d_rows, stream=UP)
        buffer.mark = self._runtime.mark(UP)
        self._runtime.follow(COMPUTE, buffer.mark)
        return d_rows

    def fill(self, source: NDArray[Any], buffer: Buffer) -> None:
        """Copy a host array into a buffer."""
        self._copy(_bytes_of(source), buffer.memory[: source.nbytes])

    # Down

    def download(self, source: DeviceArray, targets: Sequence[NDArray[Any]]) -> None:
        """Copy a large array that COMPUTE writes into host arrays, one after the other. Waits."""
        parts = [_bytes_of(target) for target in targets]
        for low, piece in self._pieces_of(source.view(np.uint8)):
            self._spread(piece, low, parts)

    def begin_small(self, source: DeviceArray) -> Buffer:
        """Begin to copy an array that COMPUTE writes. The array has fewer than LARGE_BYTES, or is a
        call's findings. Once the host has waited for COMPUTE, the returned buffer contains the
        data; it is valid until `end_small`.
        """
        buffer = self._small_down.pop() if self._small_down else Buffer(np.empty(0, np.uint8))
        if len(buffer.memory) < source.nbytes:
            buffer.memory = self._runtime.allocate_host(source.nbytes + source.nbytes // 4)
        self._runtime.download(source, buffer.memory[: source.nbytes])
        return buffer

    def end_small(self, buffer: Buffer, begin: int, targets: Sequence[NDArray[Any]]) -> None:
        """Copy the bytes that have arrived, from byte `begin` on, into host arrays, one after the
        other."""
        if targets:
            parts = [_bytes_of(target) for target in targets]
            end = begin + sum(map(len, parts))
            self._spread(buffer.memory[begin:end], 0, parts)
        self._small_down.append(buffer)

    def begin_download(self, source: DeviceArray) -> Buffer:
        """Begin to copy an array in DOWN. The returned buffer contains the data once its mark is
        reached.

        The caller has made DOWN follow the work that writes `source`. A buffer is valid until the
        second next call of this method.
        """
        buffer = self._down.take(source.nbytes)
        self._runtime.download(source, buffer.memory[: source.nbytes], stream=DOWN)
        buffer.mark = self._runtime.mark(DOWN)
        return buffer

    def _pieces_of(self, source: DeviceArray) -> Iterator[tuple[int, NDArray[np.uint8]]]:
        """Yield the pieces of an array, on the host. While one piece is used, the next piece is
        copied."""
        self._runtime.follow(DOWN, self._runtime.mark(COMPUTE))
        under_way: list[tuple[int, int, Buffer]] = []
        try:
            for low, high in _pieces(len(source)):
                under_way.append((low, high, self.begin_download(source[low:high])))
                if len(under_way) == BUFFERS - 1:
                    yield self._arrived(*under_way.pop(0))
            for piece in under_way:
                yield self._arrived(*piece)
        finally:  # even after an error: COMPUTE may use `source` again
            self._runtime.follow(COMPUTE, self._runtime.mark(DOWN))

    def _arrived(self, low: int, high: int, buffer: Buffer) -> tuple[int, NDArray[np.uint8]]:
        self._runtime.wait(buffer.mark)
        return low, buffer.memory[: high - low]

    # On the host

    def _spread(
        self, piece: NDArray[np.uint8], low: int, parts: Sequence[NDArray[np.uint8]]
    ) -> None:
        """Copy `piece` to bytes [low, low + len(piece)) of the concatenated `parts`."""
        for of_part, of_piece in _shared(parts, low, low + len(piece)):
            self._copy(piece[of_piece], of_part)

    def _copy(self, source: NDArray[np.uint8], target: NDArray[np.uint8]) -> None:
        ranges = self._workers.ranges(len(source), 1)
        if len(ranges) == 1:
            target[:] = source
            return

        def work(low: int, high: int) -> None:
            target[low:high] = source[low:high]

        self._workers.run(work, ranges)


def _bytes_of(array: NDArray[Any]) -> NDArray[np.uint8]:
    assert array.flags.c_contiguous, "a copy would take another array"
    return array.reshape(-1).view(np.uint8)


def _shared(
    parts: Sequence[NDArray[np.uint8]], low: int, high: int
) -> Iterator[tuple[NDArray[np.uint8], slice]]:
    """Yield the pieces of parts that form the bytes [low, high) of the concatenated parts. With
    each piece, yield the slice of these bytes that the piece fills."""
    begin = 0
    for part in parts:
        first, last = max(low, begin), min(high, begin + len(part))
        if first < last:
            yield part[first - begin : last - begin], slice(first - low, last - low)
        begin += len(part)


def _pieces(byte_count: int) -> Iterator[tuple[int, int]]:
    for low in range(0, byte_count, PIECE_BYTES):
        yield low, min(low + PIECE_BYTES, byte_count)
