"""Row key -> slot: the cache's index, sized by slots and never by the length of a table.

The structure is the device's (two-choice buckets and a small stash, device/base.py); here is only
what keeps it usable: it grows with the slots, and is built anew, larger, in the rare case that the
stash fills.
"""

from embstore.arrays import Keys
from embstore.device.base import Device, SlotMemory, Slots


class SlotIndex:
    """The index of one pool. Engine thread only."""

    def __init__(self, device: Device) -> None:
        self.capacity = 0
        self.arrays = device.allocate_index(1)
        self._device = device

    @property
    def memory_bytes(self) -> int:
        """Bytes that the index takes."""
        return self._device.index_bytes(self.capacity)

    def bytes_for(self, slot_count: int) -> int:
        """Return the bytes that the index will take once it serves `slot_count` slots."""
        return self._device.index_bytes(max(self.capacity, slot_count))

    def grow(self, capacity: int, memory: SlotMemory, slot_count: int) -> None:
        """Serve `capacity` slots; those that there are, `slot_count`, tell what is in it."""
        if capacity > self.capacity:
            self._rebuild(capacity, memory, slot_count)

    def shrink(self, capacity: int, memory: SlotMemory, slot_count: int) -> None:
        """Give memory back once far fewer slots are served."""
        if capacity < self.capacity:
            self._rebuild(capacity, memory, slot_count)

    def insert(self, keys: Keys, slots: Slots, memory: SlotMemory, slot_count: int) -> None:
        """Add absent keys, which are in their slots already."""
        if not self._device.insert(self.arrays, keys, slots):
            self._rebuild(self.capacity + self.capacity // 4 + 64, memory, slot_count)

    def erase(self, keys: Keys) -> None:
        """Remove present keys."""
        self._device.erase(self.arrays, keys)

    def _rebuild(self, capacity: int, memory: SlotMemory, slot_count: int) -> None:
        while True:
            arrays = self._device.allocate_index(capacity)
            if self._device.insert_slots(arrays, memory, slot_count):
                self.arrays, self.capacity = arrays, capacity
                return
            capacity += capacity // 4 + 64
