"""The slots of a pool: they come and go by slabs, and are free or hold a row.

How many there may be follows from the arena's budget (`Sizes`); the arena says when one slab more
may come, and when some must go (arena.py). Slots keep their numbers, whatever becomes of the
budget: slabs are added behind the others and taken from the end. The index is as large as the slots
need, and is made anew where it is not.

The list of free slots is the host's, which alone gives and takes them; slots that were taken stay
in their places of the list until others come there, so that the last ones can be put back. What is
in the slots, and how rows leave them, is the pool's (`vacate`).
"""

from abc import abstractmethod

import numpy as np

from embstore.arrays import Keys
from embstore.cache.arena import Arena
from embstore.cache.index import SlotIndex
from embstore.cache.sizes import Layout, Sizes
from embstore.device.base import Device, SlotContents
from embstore.device.memory import lengthened, release
from embstore.errors import CapacityError


class SlabSlots:
    """Slots by slabs, as the arena sees them. Engine thread only."""

    device: Device
    arena: Arena
    layout: Layout

    def start(self) -> None:
        """Begin without a slot."""
        self.memory = self.device.allocate_slots(self.layout.stride)
        self.index = SlotIndex(self.device)
        self.slot_count = 0
        self._free = np.empty(0, np.uint32)
        self._free_count = 0
        self._is_full = False  # the device has had no memory for a slab of the budget

    @abstractmethod
    def vacate(self, low: int) -> None:
        """Have the rows of all slots from `low` on leave them.

        Raises
        ------
        CapacityError : no room in the log; some have left.
        """

    def fit_budget(self, budget_bytes: int) -> None:
        """Take the sizes of a budget. Rows stay, even those that are too many for it.

        Raises
        ------
        CapacityError : no memory, or no address space. Nothing has changed that can be seen.
        """
        sizes = Sizes.of(self.layout, budget_bytes, self.device)
        self.device.reserve_slots(self.memory, self.slot_count, sizes.slots_max, sizes.slab_slots)
        if sizes.slots_max > len(self._free):
            self._free = lengthened(self._free, self.slot_count, sizes.slots_max)
        self._sizes = sizes
        self._is_full = False
        self._trim_index()

    @property
    def slab_slots(self) -> int:
        """Slots that come and go together."""
        return self._sizes.slab_slots

    @property
    def slab_bytes(self) -> int:
        """Bytes of a slab's rows and metadata."""
        return self._sizes.slab_bytes

    @property
    def slab_count(self) -> int:
        """Slabs that the pool has; of the last, after a change of the budget, perhaps a part."""
        return -(-self.slot_count // self.slab_slots)

    def contents(self) -> SlotContents:
        """Return what is in every slot."""
        return self.device.read_range(self.memory, 0, self.slot_count)

    @property
    def slot_keys(self) -> Keys:
        """The row key in each slot, EMPTY_KEY where it is free."""
        return self.contents().keys

    @property
    def resident_count(self) -> int:
        """Slots in use."""
        return self.slot_count - self._free_count

    @property
    def memory_bytes(self) -> int:
        """Bytes of slabs, index and staging."""
        slots = self.slot_count * self._sizes.slot_bytes
        return slots + self.index.memory_bytes + self._sizes.staging_bytes

    @property
    def least_bytes(self) -> int:
        """Bytes with one slab."""
        return self._sizes.least_bytes

    def least_bytes_of(self, budget_bytes: int) -> int:
        """Return the bytes with one slab, were that the budget."""
        return Sizes.of(self.layout, budget_bytes, self.device).least_bytes

    @property
    def grown_bytes(self) -> int:
        """Bytes with one slab more."""
        count = self._grown_count
        index_bytes = self.index.bytes_for(self._index_slots(count))
        return count * self._sizes.slot_bytes + index_bytes + self._sizes.staging_bytes

    @property
    def _grown_count(self) -> int:
        """Slots with one slab more, or with the last one made whole."""
        return (self.slot_count // self.slab_slots + 1) * self.slab_slots

    def _index_slots(self, slots: int) -> int:
        """Return what the index is made for when it must serve `slots`.

        Twice that, so that it is rebuilt a few times only, but never more than there can be.
        """
        if slots <= self.index.capacity:
            return self.index.capacity
        return min(2 * slots, self._sizes.slots_max) if self.slot_count else slots

    def _add_slab(self) -> None:
        low, high = self.slot_count, self._grown_count
        self.index.grow(self._index_slots(high), self.memory, low)
        self.device.add_slots(self.memory, low, high)
        self.slot_count = high
        added = np.arange(high - 1, low - 1, -1)
        self._free[self._free_count : self._free_count + len(added)] = added
        self._free_count += len(added)

    def release_slab(self) -> None:
        """Evict the rows of the last slab and give it back to the arena."""
        self.release_slabs(1)

    def release_slabs(self, count: int) -> None:
        """Evict the rows of the last `count` slabs and give these back, though never the first.

        Raises
        ------
        CapacityError : no room in the log. The slabs stay; rows that were logged have left them.
        """
        assert self.slab_count > 1, "a pool keeps its first slab"
        low, high = max(self.slab_count - count, 1) * self.slab_slots, self.slot_count
        self.vacate(low)
        free = self._free[: self._free_count]
        free = free[free < low]
        self._free[: len(free)] = free
        self._free_count = len(free)
        self.slot_count = low
        self._trim_index()
        self.device.drop_slots(self.memory, low, high)
        release(self._free[low:])

    def _trim_index(self) -> None:
        """Make the index smaller where it is far too large, or where a slab is all there is."""
        if self.slab_count == 1 or 2 * self.slot_count < self.index.capacity:
            self.index.shrink(self.slot_count, self.memory, self.slot_count)

    def grow(self) -> bool:
        """Add a slab, if there is one to be had; a closed pool has none."""
        if self._is_full or self._grown_count > self._sizes.slots_max:
            return False
        if not self.arena.grant(self):
            return False
        try:
            self._add_slab()
        except CapacityError:
            if not self.slot_count:
                raise
            self._is_full = True  # rows leave instead, until there is another budget
        return not self._is_full

    @property
    def free_count(self) -> int:
        """Slots that hold nothing."""
        return self._free_count
