"""The cache's index from row keys to slots. Its size depends on the number of slots, not on tables.

The device defines the data structure: two-choice buckets, and a small **stash** for keys whose
buckets are full (device/values.py). This module keeps the index usable: it grows with the slots,
and in the rare case that its stash is full, it is rebuilt with more buckets. Where the device's
work is queued, the stash is checked when the index is next used, since by then the host has usually
waited for the device. At that time the call that filled the stash can no longer be refused, so an
error of the rebuild is irreversible. A call that only looks up keys makes this check after it has
waited for the slots (`Finder.synchronize`). If the stash was full, the search has reported as
absent the keys for which the index had no room, so the search is repeated.

The stash is found to be full in the middle of a call, when rows of the call may already be in their
slots. Therefore the larger index is not checked against the budget. The arena is notified (`grew`),
and releases the excess before the next command (`Arena.keep_to_budget`).
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
    irreversible : a context manager; errors within it fail the store
    grew : called when the index has become larger than its number of slots requires
    """

    def __init__(
        self,
        device: Device,
        irreversible: AbstractContextManager[None],
        grew: Callable[[], None] = lambda: None,
    ) -> None:
        self.capacity = 0
        self.memory_bytes = device.memory.index_bytes(0)
        """Bytes that the index takes; they are counted when the pool asks for a slab."""
        self.rebuilds = 0
        self.arrays = device.memory.allocate_index(1)
        """The index on the device; the keys inserted last may be missing in it."""
        self._device = device
        self._irreversible = irreversible
        self._grew = grew
        self._inserted: tuple[Answer[bool], SlotMemory, int] | None = None

    def synchronize(self) -> IndexArrays:
        """Return the index on the device, with all keys that were placed. If its stash was full,
        the index is rebuilt first."""
        if self._inserted is not None:
            with self._irreversible:
                (is_whole, memory, slot_count), self._inserted = self._inserted, None
                if not is_whole():
                    self._rebuild(_larger(self.capacity), memory, slot_count)
                    self._grew()
        return self.arrays

    def bytes_for(self, slot_count: int) -> int:
        """Return the bytes that the index will take if it must serve `slot_count` slots."""
        return self._device.memory.index_bytes(max(self.capacity, slot_count))

    def grow(self, capacity: int, memory: SlotMemory, slot_count: int) -> None:
        """Enlarge the index for `capacity` slots. Its keys are in the first `slot_count` slots of
        `memory`."""
        if capacity > self.capacity:
            self._rebuild(capacity, memory, slot_count)

    def shrink(self, capacity: int, memory: SlotMemory, slot_count: int) -> None:
        """Make the index smaller, for `capacity` slots; the arguments are as in `grow`."""
        if capacity < self.capacity:
            self._rebuild(capacity, memory, slot_count)

    def place(
        self, keys: Keys, slots: Slots, memory: SlotMemory, slot_count: int, score: int
    ) -> None:
        """Write absent keys to slots, and add them to the index."""
        arrays = self.synchronize()
        self._device.slots.place_keys(memory, slots, keys, score)
        is_whole = self._device.keys.insert(arrays, keys, slots)
        if self._device.is_queued or not is_whole():
            self._inserted = is_whole, memory, slot_count
            if not self._device.is_queued:
                self.synchronize()

    def erase(self, keys: Keys) -> None:
        """Remove keys that are in the index."""
        self._device.keys.erase(self.synchronize(), keys)

    def exchange(
        self, erased: Array, keys: Array, slots: Array, memory: SlotMemory, slot_count: int
    ) -> None:
        """Remove keys that are in the index, and add absent keys, which are already in their
        slots."""
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
