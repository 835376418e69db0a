"""Sizes of a pool's slabs, slots and staging. They depend only on the layout and the budget.

A slab is a sixty-fourth of the budget, within bounds. This is small enough to share memory fairly,
and large enough that there are few slabs. Each table of sparse keys has a pool of its own, and a
store may have hundreds of such tables. The slabs of these pools are a sixteenth of that size, so
that every pool gets one. All memory of a slot counts against the budget: its row, its metadata and
its share of the index. Missing rows are read through a staging buffer. Only one call at a time uses
the buffer, so all pools of a cache share one buffer, whose size is the largest that a pool needs.

Rejected: slabs that shrink as pools are added. Each new table would split the slabs of all other
pools; on a GPU, splitting slabs copies all rows.

If the cache has a level two, the rows of level two are in the host's memory. The metadata of level
two's slots, some 40 bytes each, is in the device's memory, and counts here as well: the size of
each slot of level one includes a share of this metadata. The metadata takes at most half of the
budget that remains after one slab. If rows are short, this limits the size of level two.
"""

from collections.abc import Collection
from dataclasses import dataclass, replace
from math import ceil

from embstore.device.base import Device
from embstore.device.memory import DeviceMemory
from embstore.layout import Layout
from embstore.row_keys import DENSE, RowKeys

_SLABS, _SLABS_SPARSE = 64, 1024
_SLAB_BYTES_MIN, _SLAB_BYTES_MIN_SPARSE = 8 << 10, 1 << 10
_SLAB_SLOTS_MIN = 4
_STAGING_SHARE = 32
"""The staging buffer takes at most the budget divided by this number, or one row if that is
more."""
_FREE_BYTES = 4
"""Bytes of a slot in the free list, on the host."""
_MANY_SLOTS = 1 << 20
_BELOW_SHARE = 2
"""The metadata of level two takes at most 1/_BELOW_SHARE of the budget that remains after one
slab."""


@dataclass(frozen=True)
class Sizes:
    """The sizes of a pool of some layout, for a budget."""

    slot_bytes: int
    slab_slots: int
    slots_max: int  # a multiple of slab_slots, never exceeded
    staging_rows: int
    staging_bytes: int
    least_bytes: int  # with one slab, without staging
    below_bytes: int  # for level two's rows, in the host's memory

    @property
    def slab_bytes(self) -> int:
        """Bytes of a slab's rows and metadata."""
        return self.slab_slots * self.slot_bytes

    def with_slabs(self, slab_slots: int, budget_bytes: int) -> "Sizes":
        """Return the sizes with slabs of `slab_slots` slots, for level two, whose index and staging
        do not count against its budget."""
        slab_bytes = slab_slots * self.slot_bytes
        slots_max = max(budget_bytes // slab_bytes, 1) * slab_slots
        return replace(self, slab_slots=slab_slots, slots_max=slots_max, least_bytes=slab_bytes)

    @classmethod
    def of(
        cls,
        layout: Layout,
        budget_bytes: int,
        device: Device,
        below_bytes: int = 0,
        row_keys: RowKeys = DENSE,
    ) -> "Sizes":
        """Return the sizes of a pool; the pool need not exist yet. A larger budget never makes a
        number of slots or rows smaller.

        below_bytes : budget of level two, in the host's memory
        """
        row_bytes, memory = layout.row_bytes, device.memory
        slab_bytes = min(_slab_bytes(budget_bytes, row_keys), memory.slab_bytes_max)
        least_slot_bytes = memory.slot_bytes(1, row_bytes) + _FREE_BYTES
        staging_max = min(memory.staging_bytes_max, budget_bytes // _STAGING_SHARE)
        staging_rows = max(1, staging_max // row_bytes)
        staging_bytes = staging_rows * row_bytes
        below_slots = below_share = 0
        if below_bytes:
            index_bytes = memory.index_bytes(_MANY_SLOTS) / _MANY_SLOTS  # per slot
            below_slot = least_slot_bytes - _FREE_BYTES - row_bytes + index_bytes
            slots = _slab_slots(memory, slab_bytes // least_slot_bytes, row_bytes)
            least = slots * least_slot_bytes + memory.index_bytes(slots) + staging_bytes
            spare = max(budget_bytes - least, 0)
            below_slots = int(min(below_bytes / row_bytes, spare / _BELOW_SHARE / below_slot))
            used = below_slots * below_slot
            below_share = ceil((least_slot_bytes + index_bytes) * used / (budget_bytes - used))
        wanted = slab_bytes // (least_slot_bytes + below_share)
        slab_slots = _slab_slots(memory, wanted, row_bytes)
        slot_bytes = memory.slot_bytes(slab_slots, row_bytes) + _FREE_BYTES + below_share
        least = slab_slots * slot_bytes + memory.index_bytes(slab_slots)
        many = slab_slots * (_MANY_SLOTS * slot_bytes + memory.index_bytes(_MANY_SLOTS))
        slabs_max = budget_bytes * _MANY_SLOTS // many + 1
        slots_max = min(slabs_max, memory.slots_max // slab_slots) * slab_slots
        return cls(
            slot_bytes,
            slab_slots,
            slots_max,
            staging_rows,
            staging_bytes,
            least,
            below_bytes=below_slots * (row_bytes + _FREE_BYTES),
        )


def _slab_bytes(budget_bytes: int, row_keys: RowKeys) -> int:
    if row_keys.sparse_id is None:
        return max(budget_bytes // _SLABS, _SLAB_BYTES_MIN)
    return max(budget_bytes // _SLABS_SPARSE, _SLAB_BYTES_MIN_SPARSE)


def _slab_slots(memory: DeviceMemory, wanted: int, row_bytes: int) -> int:
    """Return the number of slots of a slab, at most `wanted`. The number is less than `wanted` if
    the device would allocate a quarter more memory for the slab than its slots take."""
    slots = memory.slab_slots(max(_SLAB_SLOTS_MIN, wanted))
    slot_bytes = memory.slot_bytes(1, row_bytes)
    while slots >= 2 * _SLAB_SLOTS_MIN and 4 * memory.slot_bytes(slots, row_bytes) > 5 * slot_bytes:
        slots = memory.slab_slots(slots // 2)
    return slots


def least_bytes(pools: Collection[Sizes]) -> int:
    """Return the bytes of pools that have one slab each, including the staging that they share."""
    staging_bytes = max((sizes.staging_bytes for sizes in pools), default=0)
    return sum(sizes.least_bytes for sizes in pools) + staging_bytes
