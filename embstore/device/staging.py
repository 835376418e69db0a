"""Copies between host and device: pinned buffers, filled and emptied while others are copied.

A copy to or from memory that is not pinned goes through a buffer of the driver's, in the calling
thread. Here it goes through rings of pinned buffers: while one is copied the next is filled, by
several threads, and the caller goes on as soon as the last is filled. Buffers only grow (freeing
pinned memory would wait for the device). Each has a mark behind its last use, and is waited for
when its turn comes again.

    send      arrays of a call, small, in COMPUTE: no other stream need be followed
    upload    a large array, in UP, piece by piece
    rows      missing rows, in UP: buffers that storage reads into, each with its twin on the device
    download  small in COMPUTE, large in DOWN, piece by piece
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embstore.arrays import Rows
from embstore.device.runtime import COMPUTE, DOWN, UP, DeviceArray, Runtime
from embstore.device.scratch import Scratch
from embstore.host.workers import Workers
from embstore.layout import Layout

BUFFERS = 3
PIECE_BYTES = 4 << 20
"""Of a copy that is cut into pieces: long enough for the bus, short enough to overlap."""
LARGE_BYTES = 256 << 10
"""Copies of at least so much are cut into pieces, and run while COMPUTE works."""
_SMALL_BUFFERS = 16
"""More than a call sends, so that it waits for none of its own."""


@dataclass
class Buffer:
    """Pinned memory, and the mark behind its last use."""

    memory: NDArray[np.uint8]
    d_memory: DeviceArray | None = None
    mark: Any = None

    def rows(self, count: int, layout: Layout) -> Rows:
        """Return the front of the buffer as rows, (count, stride)."""
        front = self.memory[: count * layout.row_bytes]
        return front.view(layout.element).reshape(count, layout.stride)


class Ring:
    """Pinned buffers taken in turn; each with a twin on the device where `scratch` makes it."""

    def __init__(self, runtime: Runtime, count: int, scratch: Scratch | None = None) -> None:
        self._runtime = runtime
        self._scratch = scratch
        self._buffers = [Buffer(np.empty(0, np.uint8)) for _ in range(count)]
        self._next = 0

    def take(self, byte_count: int) -> Buffer:
        """Return the next buffer, free, with at least so many bytes."""
        buffer = self._buffers[self._next]
        self._next = (self._next + 1) % len(self._buffers)
        if buffer.mark is not None:
            self._runtime.wait(buffer.mark)
            buffer.mark = None
        if len(buffer.memory) < byte_count:
            self._lengthen(buffer, byte_count + byte_count // 4)
        return buffer

    def secure(self, byte_count: int) -> None:
        """Make all buffers at least so long."""
        for buffer in self._buffers:
            if len(buffer.memory) < byte_count:
                if buffer.mark is not None:
                    self._runtime.wait(buffer.mark)
                self._lengthen(buffer, byte_count)

    def clear(self) -> None:
        """Free the buffers. The device has done all queued work, or is lost."""
        self._buffers = [Buffer(np.empty(0, np.uint8)) for _ in self._buffers]

    def _lengthen(self, buffer: Buffer, byte_count: int) -> None:
        if self._scratch is not None:
            buffer.d_memory = self._scratch.plain(byte_count, np.uint8)
        buffer.memory = self._runtime.allocate_host(byte_count)


class Staging:
    """Copies between host arrays and a device's. One thread at a time."""

    def __init__(self, runtime: Runtime, workers: Workers, scratch: Scratch) -> None:
        self._runtime = runtime
        self._workers = workers
        self._small_up = Ring(runtime, _SMALL_BUFFERS)
        self._small_down = Ring(runtime, BUFFERS)
        self._up = Ring(runtime, BUFFERS)
        self._rows = Ring(runtime, BUFFERS, scratch)
        self._down = Ring(runtime, BUFFERS)
        self._staged: tuple[Rows, Buffer] | None = None

    def close(self) -> None:
        """Free all buffers."""
        self._staged = None
        for ring in (self._small_up, self._small_down, self._up, self._rows, self._down):
            ring.clear()

    # Up

    def send(self, fill: Callable[[NDArray[np.uint8]], None], target: DeviceArray) -> None:
        """Let `fill` write target.nbytes bytes of pinned memory, and copy them, in COMPUTE."""
        buffer = self._small_up.take(target.nbytes)
        source = buffer.memory[: target.nbytes]
        fill(source)
        self._runtime.upload(source, target)
        buffer.mark = self._runtime.mark(COMPUTE)

    def upload(self, source: NDArray[Any], target: DeviceArray) -> None:
        """Copy a large array to the device, before all work queued in COMPUTE from here on."""
        self._runtime.follow(UP, self._runtime.mark(COMPUTE))  # `target` may be in use until then
        source_bytes, target_bytes = _bytes_of(source), target.view(np.uint8)
        try:
            for low, high in _pieces(len(source_bytes)):
                buffer = self._up.take(high - low)
                piece = buffer.memory[: high - low]
                self._copy(source_bytes[low:high], piece)
                self._runtime.upload(piece, target_bytes[low:high], stream=UP)
                buffer.mark = self._runtime.mark(UP)
        finally:  # also where this ends early: `target` may be used again, in COMPUTE
            self._runtime.follow(COMPUTE, self._runtime.mark(UP))

    def secure_rows(self) -> None:
        """Allocate the buffers for rows, as long as any piece of them."""
        self._rows.secure(PIECE_BYTES)

    def begin_rows(self, byte_count: int) -> Buffer:
        """Return a buffer to fill and to pass to `send_rows`, before the next is begun."""
        return self._rows.take(byte_count)

    def stage(self, count: int, layout: Layout) -> Rows:
        """Begin a buffer of rows for the caller to fill."""
        buffer = self.begin_rows(count * layout.row_bytes)
        rows = buffer.rows(count, layout)
        self._staged = rows, buffer
        return rows

    def staged(self, rows: Rows) -> Buffer | None:
        """Return the buffer of the rows staged last, once; None for other rows."""
        staged, self._staged = self._staged, None
        return staged[1] if staged is not None and staged[0] is rows else None

    def send_rows(self, buffer: Buffer, byte_count: int) -> DeviceArray:
        """Copy the buffer to its twin, in UP, which COMPUTE follows. The caller marks the buffer
        again, behind what reads the twin."""
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
        """Copy an array that COMPUTE writes into host arrays, one after the other; wait for it."""
        parts = [_bytes_of(target) for target in targets]
        if source.nbytes < LARGE_BYTES:
            buffer = self._small_down.take(source.nbytes)
            piece = buffer.memory[: source.nbytes]
            self._runtime.download(source, piece)
            self._runtime.wait(self._runtime.mark(COMPUTE))
            self._spread(piece, 0, parts)
            return
        for low, piece in self._pieces_of(source.view(np.uint8)):
            self._spread(piece, low, parts)

    def begin_download(self, source: DeviceArray) -> Buffer:
        """Begin to copy an array in DOWN; it is in the buffer when its mark has been waited for.

        The caller has made DOWN follow what writes `source`. A buffer is valid until two more are
        begun.
        """
        buffer = self._down.take(source.nbytes)
        self._runtime.download(source, buffer.memory[: source.nbytes], stream=DOWN)
        buffer.mark = self._runtime.mark(DOWN)
        return buffer

    def _pieces_of(self, source: DeviceArray) -> Iterator[tuple[int, NDArray[np.uint8]]]:
        """Yield the pieces of an array on the host, while the next one is copied."""
        self._runtime.follow(DOWN, self._runtime.mark(COMPUTE))
        under_way: list[tuple[int, int, Buffer]] = []
        try:
            for low, high in _pieces(len(source)):
                under_way.append((low, high, self.begin_download(source[low:high])))
                if len(under_way) == BUFFERS - 1:
                    yield self._arrived(*under_way.pop(0))
            for piece in under_way:
                yield self._arrived(*piece)
        finally:  # also where this ends early: `source` may be used again, in COMPUTE
            self._runtime.follow(COMPUTE, self._runtime.mark(DOWN))

    def _arrived(self, low: int, high: int, buffer: Buffer) -> tuple[int, NDArray[np.uint8]]:
        self._runtime.wait(buffer.mark)
        return low, buffer.memory[: high - low]

    # On the host

    def _spread(
        self, piece: NDArray[np.uint8], low: int, parts: Sequence[NDArray[np.uint8]]
    ) -> None:
        """Copy bytes [low, low + len(piece)) of `parts`, one after the other, from a piece."""
        begin = 0
        for part in parts:
            first, last = max(low, begin), min(low + len(piece), begin + len(part))
            if first < last:
                self._copy(piece[first - low : last - low], part[first - begin : last - begin])
            begin += len(part)

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


def _pieces(byte_count: int) -> Iterator[tuple[int, int]]:
    for low in range(0, byte_count, PIECE_BYTES):
        yield low, min(low + PIECE_BYTES, byte_count)
