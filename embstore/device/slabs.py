"""The slots of one level of the cache on a GPU, in slabs; a slab has C slots, a power of two:

    slab of C slots    rows C x row bytes    and    keys C int64 | scores C int64 | dirty C uint8

Since slots are in slabs, they are added and dropped without a copy. Kernels find a slot's row and
its metadata by a table of addresses (`slabs.cuh`). In level one, rows and metadata of a slab are
one allocation. In level two the rows are in pinned host memory, which the kernels read and write
over the bus. Rows outside slots (copies for one call) are a single slab without metadata.

When a pool's slab size grows with its budget, allocations keep the smallest slab size that the pool
has had; larger sizes are multiples of it. When the slab size shrinks, each slab is copied into
smaller slabs, one slab after the other. Each slab is copied into the memory that the slab before it
freed. If another process takes this memory, rows are lost, and the device counts as lost.

CUDA makes allocations of a megabyte or more in units of two megabytes. The size of a slab is
counted accordingly, and in a large cache slabs are as large as possible.
"""

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from embstore.device.runtime import COMPUTE, Argument, DeviceArray, Runtime
from embstore.device.scratch import Scratch
from embstore.errors import CapacityError, DeviceError
from embstore.layout import Layout

METADATA_BYTES = 8 + 8 + 1
_GRAIN_BYTES = 2 << 20
FLAT_SHIFT = 62
"""The value of `shift` for rows that are a single slab."""


@dataclass
class SlabRows:
    """Rows in slabs, in the form that kernels take: three arguments."""

    table: DeviceArray  # (2 * slabs,) uint64: alternately addresses of rows and of metadata
    shift: int
    layout: Layout
    owner: Any = None  # the owner of the memory, if the rows are a single slab

    @property
    def arguments(self) -> tuple[Argument, ...]:
        """The parameters slabs, slab_shift, stride."""
        return self.table, np.int32(self.shift), np.int32(self.layout.stride)


def allocated_bytes(size: int) -> int:
    """Return the bytes of the device's memory that an allocation of `size` bytes takes."""
    return size if size < _GRAIN_BYTES // 2 else -(-size // _GRAIN_BYTES) * _GRAIN_BYTES


class Slab(NamedTuple):
    """The memory of a run of slots."""

    rows: DeviceArray
    metadata: DeviceArray


class Located(NamedTuple):
    """The slots of the keys of a lookup."""

    moves: int
    """The number of times that rows had entered or left slots. If this number has grown since, rows
    may be in other slots."""
    tables: list[tuple[int, int]]
    """The table id and the number of keys of each table, as in the call."""
    keys: DeviceArray  # (n,) int64
    slots: DeviceArray  # (n,) int32


@dataclass
class Slabs:
    """`SlotMemory` of a GPU."""

    runtime: Runtime
    scratch: Scratch
    rows: SlabRows
    slabs: list[Slab] = field(default_factory=list)
    located: Located | None = None

    def reserve(self, slab_slots: int) -> None:
        """Set the number of slots of a slab, a power of two."""
        shift = slab_slots.bit_length() - 1
        assert slab_slots == 1 << shift, "expected a power of two"
        if not self.slabs:
            self.rows.shift = shift
        elif shift < self.rows.shift:
            self._split(shift)

    def add(self, count: int) -> None:
        """Allocate `count` slabs.

        Raises
        ------
        CapacityError : the device has too little memory. No slab was added.
        """
        self._use(self.slabs + [self._allocate(self.rows.shift) for _ in range(count)])

    def drop(self, count: int) -> None:
        """Free the last `count` slabs. The device must have done all queued work."""
        self.located = None
        self._use(self.slabs[: len(self.slabs) - count])

    def _use(self, slabs: list[Slab]) -> None:
        if 2 * len(slabs) > len(self.rows.table):
            self.rows.table = self.scratch.plain(4 * len(slabs), np.uint64)
        if slabs:
            addresses = np.array([part.address for slab in slabs for part in slab], np.uint64)
            self.runtime.upload(addresses, self.rows.table[: len(addresses)])
        self.slabs = slabs

    def _allocate(self, shift: int) -> Slab:
        row_bytes = self.rows.layout.row_bytes
        memory = self.scratch.plain((row_bytes + METADATA_BYTES) << shift, np.uint8)
        return Slab(memory[: row_bytes << shift], memory[row_bytes << shift :])

    def _split(self, shift: int) -> None:
        smaller: list[Slab] = []
        while self.slabs:
            try:
                pieces = [self._allocate(shift) for _ in range(1 << (self.rows.shift - shift))]
            except CapacityError as exc:
                if not smaller:
                    raise
                self.runtime.is_lost = True
                raise DeviceError(f"rows were lost while slabs were split: {exc}") from exc
            slab = self.slabs.pop(0)  # its memory becomes free for the pieces of the next slab
            for number, piece in enumerate(pieces):
                self._copy_piece(slab, number, piece, shift)
            smaller += pieces
            self.runtime.wait(self.runtime.mark(COMPUTE))  # before the slab is freed
        self.rows.shift = shift
        self._use(smaller)

    def _copy_piece(self, slab: Slab, number: int, piece: Slab, shift: int) -> None:
        self._copy(slab.rows, 0, number, piece.rows, 0, self.rows.layout.row_bytes, shift)
        before = 0
        for item_bytes in (8, 8, 1):
            at, piece_at = before << self.rows.shift, before << shift
            self._copy(slab.metadata, at, number, piece.metadata, piece_at, item_bytes, shift)
            before += item_bytes

    def _copy(
        self, source: DeviceArray, at: int, number: int, target: DeviceArray, target_at: int,
        item_bytes: int, shift: int,
    ) -> None:  # fmt: skip
        """Copy a slab's items that belong to its piece `number`. The slab's items begin at byte
        `at` of `source`, the piece's items at byte `target_at` of `target`."""
        size, low = item_bytes << shift, at + (number * item_bytes << shift)
        self.runtime.copy(source[low : low + size], target[target_at : target_at + size])


class PinnedSlabs(Slabs):
    """Slabs whose rows are in pinned host memory."""

    def _allocate(self, shift: int) -> Slab:
        memory = self.runtime.allocate_host(self.rows.layout.row_bytes << shift)
        rows = DeviceArray(memory.ctypes.data, len(memory), np.uint8, memory)
        return Slab(rows, self.scratch.plain(METADATA_BYTES << shift, np.uint8))

    def _split(self, shift: int) -> None:
        raise AssertionError("the budget of level two does not change")
