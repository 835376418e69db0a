"""The slots of a pool. They are added and removed in slabs; each slot is free or contains a row.

The arena's budget bounds the number of slots (`Sizes`). The arena decides when a slab is added, and
when slabs must be dropped (arena.py). Slots keep their numbers when the budget changes: slabs are
added and removed at the end. The index is as large as the slots need; an index of the wrong size is
rebuilt.

The list of free slots is on the host, because only the host takes and frees slots. Taking slots
only moves the end of the list: the taken slots stay in the array, behind the end of the list, until
other slots are freed. So the slots taken last can be put back. `eviction.py` logs and evicts the
rows in slots.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager

import numpy as np

from embstore.arrays import Keys
from embstore.cache.index import SlotIndex
from embstore.cache.sizes import Sizes
from embstore.device.base import Device
from embstore.device.values import SlotContents, Slots
from embstore.errors import CapacityError
from embstore.host.memory import lengthened, release
from embstore.layout import Layout
from embstore.row_keys import DENSE, RowKeys

_SLICE_SLOTS, _SLICE_BYTES = 1 << 14, 2 << 20
"""The most slots of a slice (a part of a slab), and the most bytes of its rows. These rows, dirty
or not, leave within a few milliseconds."""


class PoolSlots:
    """Slots in slabs, their index and the list of the free slots. Engine thread only."""

    def __init__(
        self,
        device: Device,
        layout: Layout,
        budget_bytes: int,
        irreversible: AbstractContextManager[None],
        below_bytes: int = 0,
        index_grew: Callable[[], None] = lambda: None,
        row_keys: RowKeys = DENSE,
    ) -> None:
        self.row_keys = row_keys
        self._below_bytes = below_bytes
        self.memory = device.memory.allocate_slots(layout)
        self.index = SlotIndex(device, irreversible, index_grew)
        self.count = 0
        self._device = device
        self._layout = layout
        self._free = np.empty(0, np.uint32)
        self._free_count = 0
        self._may_grow = True
        self.fit_budget(budget_bytes)

    def fit_budget(self, budget_bytes: int, slab_slots: int = 0) -> None:
        """Change the pool's sizes to those that follow from a budget. Rows stay, even if they
        exceed the budget.

        slab_slots : slots per slab, for level two, whose slabs keep their first size; 0: the number
            that follows from the budget

        Raises
        ------
        CapacityError : too little memory or address space. Nothing visible has changed.
        """
        sizes = self.sizes_of(budget_bytes)
        sizes = sizes.with_slabs(slab_slots, budget_bytes) if slab_slots else sizes
        memory = self._device.memory
        memory.reserve_slots(self.memory, self.count, sizes.slots_max, sizes.slab_slots)
        if sizes.slots_max > len(self._free):
            self._free = lengthened(self._free, self.count, sizes.slots_max)
        self.sizes = sizes
        self._may_grow = True
        self._expected = sizes.slots_max
        self.trim_index()

    def sizes_of(self, budget_bytes: int) -> Sizes:
        """Return the sizes that follow from a budget."""
        return Sizes.of(self._layout, budget_bytes, self._device, self._below_bytes, self.row_keys)

    def expect(self, memory_bytes: int | None) -> None:
        """Limit the index to the size that `memory_bytes` of slots need, unless the pool has more
        slots. If `memory_bytes` is None, the limit is the size for the whole budget."""
        most = self.sizes.slots_max
        if memory_bytes is not None:
            most = min(most, int(memory_bytes / self.slot_bytes))
        self._expected = most

    # Sizes

    @property
    def slab_count(self) -> int:
        """The number of slabs. After a change of the budget the last slab may be incomplete."""
        return -(-self.count // self.sizes.slab_slots)

    @property
    def memory_bytes(self) -> int:
        """Bytes of slots and index."""
        return self.count * self.sizes.slot_bytes + self.index.memory_bytes

    @property
    def slot_bytes(self) -> float:
        """Bytes of a slot, including its share of the index of a full pool."""
        most = self.sizes.slots_max
        return self.sizes.slot_bytes + self._device.memory.index_bytes(most) / most

    @property
    def grown_bytes(self) -> int:
        """Bytes of slots and index if one slab were added."""
        count = self._grown_count
        index_bytes = self.index.bytes_for(self._index_slots(count))
        return count * self.sizes.slot_bytes + index_bytes

    @property
    def _grown_count(self) -> int:
        """The number of slots if one slab were added, or if the incomplete last slab were
        completed."""
        return (self.count // self.sizes.slab_slots + 1) * self.sizes.slab_slots

    def _index_slots(self, slots: int) -> int:
        """Return the capacity of an index that must serve `slots` slots.

        The capacity is twice `slots`, so that the index is rebuilt only a few times. But it is at
        most the expected number of slots (`expect`).
        """
        if slots <= self.index.capacity:
            return self.index.capacity
        return min(2 * slots, max(slots, self._expected)) if self.count else slots

    # Contents

    def contents(self) -> SlotContents:
        """Return the contents of every slot."""
        return self._device.slots.read_range(self.memory, 0, self.count)

    @property
    def keys(self) -> Keys:
        """The row key in each slot, EMPTY_KEY where it is free."""
        return self.contents().keys

    @property
    def resident_count(self) -> int:
        """The number of slots in use."""
        return self.count - self._free_count

    # Slabs

    @property
    def may_grow(self) -> bool:
        """Whether the budget and the device allow another slab; False once the pool is closed."""
        return self._may_grow and self._grown_count <= self.sizes.slots_max

    def add_slab(self) -> bool:
        """Add a slab. Return False if the device is out of memory; `may_grow` is then False until
        the budget changes.

        Raises
        ------
        CapacityError : the device is out of memory, and the slab would be the first.
        """
        low, high = self.count, self._grown_count
        try:
            self.index.grow(self._index_slots(high), self.memory, low)
            self._device.memory.add_slots(self.memory, low, high)
        except CapacityError:
            self._may_grow = False
            if not low:
                raise
            return False
        self.free(np.arange(high - 1, low - 1, -1))
        self.count = high
        return True

    def first_of_last_slabs(self, count: int) -> int:
        """Return the first slot of the last `count` slabs; the pool's first slab is never one of
        them."""
        assert self.slab_count > 1, "a pool keeps its first slab"
        return max(self.slab_count - count, 1) * self.sizes.slab_slots

    def first_of_slice(self) -> int:
        """Return the first slot of the last slice, which is small enough to be vacated between
        calls. If the device cannot free parts of slabs, the slice is the whole last slab."""
        slab = self.first_of_last_slabs(1)
        if not self._device.memory.frees_parts:
            return slab
        row_bytes = self._layout.row_bytes
        return max(slab, self.count - max(1, min(_SLICE_SLOTS, _SLICE_BYTES // row_bytes)))

    def drop_from(self, low: int) -> None:
        """Free the memory of the slots from `low` on, which must be free slots."""
        free, high = self.free_slots, self.count
        free = free[free < low]
        count = len(free)
        self._free[:count] = free
        self._free_count, self.count = count, low
        self._device.memory.drop_slots(self.memory, low, high)
        release(self._free[low:])
        self.trim_index()  # now, because memory for another index is free

    def trim_index(self) -> None:
        """Make the index as small as the slots allow, if it is far too large or the pool has only
        one slab."""
        if self.slab_count == 1 or 2 * self.count < self.index.capacity:
            self.index.shrink(self.count, self.memory, self.count)

    def close(self) -> None:
        """Free all memory."""
        self._may_grow = False
        self._device.memory.drop_slots(self.memory, 0, self.count)

    # Free slots

    @property
    def free_count(self) -> int:
        """The number of slots without a row."""
        return self._free_count

    @property
    def free_slots(self) -> Slots:
        """The free slots; the slots that are taken next are at the end."""
        return self._free[: self._free_count].astype(np.int64)

    def free_between(self, low: int, high: int) -> Slots:
        """Return the free slots in [low, high), ascending; each occurs as often as in the list."""
        free = self._free[: self._free_count]
        return np.sort(free[(free >= low) & (free < high)]).astype(np.int64)

    def take(self, count: int) -> Slots:
        """Remove `count` slots from the list of free slots, and return them."""
        left = self._free_count - count
        taken = self._free[left : self._free_count].astype(np.int64)
        self._free_count = left
        return taken

    def put_back(self, count: int) -> None:
        """Put the `count` slots that were taken last back into the list of free slots. No key is in
        these slots yet."""
        self._free_count += count

    def free(self, slots: Slots) -> None:
        """Add slots to the list of free slots."""
        self._free[self._free_count : self._free_count + len(slots)] = slots
        self._free_count += len(slots)
