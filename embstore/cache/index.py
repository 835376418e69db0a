"""Row key -> slot: the cache's index, sized by slots and never by the length of a table.

The structure is the device's (two-choice buckets and a small stash, device/base.py); this module
keeps it usable: it grows with the slots, and is rebuilt, larger, in the rare case that the stash is
full. Where the device's work is queued, that is checked when the index is used next: usually the
device has been waited for by then. It is too late to refuse that call for it: an error is
irreversible. A call that only looks keys up asks after it has waited for them
(`Finder.synchronize`): keys without a place are at worst not found.

A full stash is found in the middle of a call, whose rows may be in their slots already. Therefore
the budget is not checked for the larger index: the arena is notified (`grew`), and takes the excess
back before the next command (`Arena.keep_to_budget`).
"""

from collections.abc import Callable
from contextlib import AbstractContextManager

from embstore.arrays import Keys
from embstore.device.base import Device
from embstore.device.values import Answer, Array, IndexArrays, SlotMemory, Slots


class SlotIndex:
    """The index of one pool. Engine thread only.

    Parameters
    ----------
    irreversible : enters a block whose errors fail the store
    grew : called when the index has become larger than its slots need it
    """

    def __init__(
        self,
        device: Device,
        irreversible: AbstractContextManager[None],
        grew: Callable[[], None] = lambda: None,
    ) -> None:
        self.capacity = 0
        self.memory_bytes = device.memory.index_bytes(0)
        """Bytes that the index takes. Whoever asks for a slab has them of all pools counted."""
        self.rebuilds = 0
        self.arrays = device.memory.allocate_index(1)
        """On the device; keys inserted last may have found no place."""
        self._device = device
        self._irreversible = irreversible
        self._grew = grew
        self._inserted: tuple[Answer[bool], SlotMemory, int] | None = None

    def synchronize(self) -> IndexArrays:
        """Return the index on the device, with all keys that were placed: built anew if need be."""
        if self._inserted is not None:
            with self._irreversible:
                (is_whole, memory, slot_count), self._inserted = self._inserted, None
                if not is_whole():
                    self._rebuild(_larger(self.capacity), memory, slot_count)
                    self._grew()
        return self.arrays

    def bytes_for(self, slot_count: int) -> int:
        """Return the bytes that the index will take for `slot_count` slots."""
        return self._device.memory.index_bytes(max(self.capacity, slot_count))

    def grow(self, capacity: int, memory: SlotMemory, slot_count: int) -> None:
        """Make room for `capacity` slots; there are `slot_count`, with the keys to index."""
        if capacity > self.capacity:
            self._rebuild(capacity, memory, slot_count)

    def shrink(self, capacity: int, memory: SlotMemory, slot_count: int) -> None:
        """Free memory once there are far fewer slots."""
        if capacity < self.capacity:
            self._rebuild(capacity, memory, slot_count)

    def place(
        self, keys: Keys, slots: Slots, memory: SlotMemory, slot_count: int, score: int
    ) -> None:
        """Give slots to absent keys, and add these."""
        arrays = self.synchronize()
        self._device.slots.place_keys(memory, slots, keys, score)
        is_whole = self._device.keys.insert(arrays, keys, slots)
        if self._device.is_queued or not is_whole():
            self._inserted = is_whole, memory, slot_count
            if not self._device.is_queued:
                self.synchronize()

    def erase(self, keys: Keys) -> None:
        """Remove present keys."""
        self._device.keys.erase(self.synchronize(), keys)

    def exchange(
        self, erased: Array, keys: Array, slots: Array, memory: SlotMemory, slot_count: int
    ) -> None:
        """Remove present keys, and add absent ones, which the slots have already."""
        arrays = self.synchronize()
        self._device.keys.erase(arrays, erased)
        self._inserted = self._device.keys.insert(arrays, keys, slots), memory, slot_count

    def _rebuild(self, wanted: int, memory: SlotMemory, slot_count: int) -> None:
        capacity = wanted
        arrays = self._device.memory.allocate_index(capacity)
        while not self._device.keys.insert_slots(arrays, memory, slot_count):
            capacity = _larger(capacity)
            arrays = self._device.memory.allocate_index(capacity)
        self.arrays, self.capacity, self._inserted = arrays, capacity, None
        self.memory_bytes = self._device.memory.index_bytes(capacity)
        self.rebuilds += 1
        if capacity > wanted:
            self._grew()


def _larger(capacity: int) -> int:
    return capacity + capacity // 4 + 64
