"""Sizes: a pool's part of a budget. A function of layout and budget alone, and not of past events.

A slab is a sixty-fourth of the budget, within bounds: small enough to share fairly, large enough to
be few. Everything of a slot counts: its row, its metadata and its share of the index; and so does
the staging buffer through which a pool's missing rows come in.

Where the cache has a level two, its rows are in the host's memory, and the rest of its slots, some
40 bytes each, in the device's. That counts here as well: each slot of level one carries its share.
It is at most half of the budget beyond one slab, which limits level two where rows are short.
"""

from dataclasses import dataclass, replace
from math import ceil

from embstore.device.base import Device
from embstore.layout import Layout

_SLABS = 64
_SLAB_BYTES_MIN = 8 << 10
_SLAB_SLOTS_MIN = 4
_STAGING_SHARE = 32
"""A pool's staging is at most 1/n of the budget."""
_FREE_BYTES = 4
"""Bytes of a slot in the free list, on the host."""
_MANY_SLOTS = 1 << 20
_BELOW_SHARE = 2
"""Level two's metadata is at most 1/n of the budget."""


@dataclass(frozen=True)
class Sizes:
    """The sizes of a pool of some layout, for a budget."""

    slot_bytes: int
    slab_slots: int
    slots_max: int  # a multiple of slab_slots; more can never be had
    staging_rows: int
    staging_bytes: int
    least_bytes: int  # with one slab
    below_bytes: int  # of level two's rows, in the host's memory

    @property
    def slab_bytes(self) -> int:
        """Bytes of a slab's rows and metadata."""
        return self.slab_slots * self.slot_bytes

    def with_slabs(self, slab_slots: int, budget_bytes: int) -> "Sizes":
        """Return the sizes of a level without index and staging, with other slabs."""
        slab_bytes = slab_slots * self.slot_bytes
        slots_max = max(budget_bytes // slab_bytes, 1) * slab_slots
        return replace(self, slab_slots=slab_slots, slots_max=slots_max, least_bytes=slab_bytes)

    @classmethod
    def of(cls, layout: Layout, budget_bytes: int, device: Device, below_bytes: int = 0) -> "Sizes":
        """Return the sizes of a pool that need not exist; its counts do not fall when the budget
        grows.

        below_bytes : budget of level two, of the host's memory
        """
        row_bytes = layout.row_bytes
        slab_bytes = min(max(budget_bytes // _SLABS, _SLAB_BYTES_MIN), device.memory.slab_bytes_max)
        memory = device.memory
        least_slot_bytes = memory.slot_bytes(1, row_bytes) + _FREE_BYTES
        staging_max = min(memory.staging_bytes_max, budget_bytes // _STAGING_SHARE)
        staging_rows = max(1, staging_max // row_bytes)
        staging_bytes = staging_rows * row_bytes
        below_slots = below_share = 0
        if below_bytes:
            index_bytes = memory.index_bytes(_MANY_SLOTS) / _MANY_SLOTS  # of a slot
            below_slot = least_slot_bytes - _FREE_BYTES - row_bytes + index_bytes
            slots = memory.slab_slots(max(_SLAB_SLOTS_MIN, slab_bytes // least_slot_bytes))
            least = slots * least_slot_bytes + memory.index_bytes(slots) + staging_bytes
            spare = max(budget_bytes - least, 0)
            below_slots = int(min(below_bytes / row_bytes, spare / _BELOW_SHARE / below_slot))
            used = below_slots * below_slot
            below_share = ceil((least_slot_bytes + index_bytes) * used / (budget_bytes - used))
        wanted = slab_bytes // (least_slot_bytes + below_share)
        slab_slots = memory.slab_slots(max(_SLAB_SLOTS_MIN, wanted))
        slot_bytes = memory.slot_bytes(slab_slots, row_bytes) + _FREE_BYTES + below_share
        least = slab_slots * slot_bytes + memory.index_bytes(slab_slots) + staging_bytes
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
