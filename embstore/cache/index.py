"""Row key -> slot: the cache's index, sized by slots and never by the length of a table.

The structure is the device's (two-choice buckets and a small stash, device/base.py); here is only
what keeps it usable: it grows with the slots, and is built anew, larger, in the rare case that the
stash fills.
"""

import numpy as np

from embstore.arrays import EMPTY_KEY, Keys
from embstore.device.base import Device, Slots


class SlotIndex:
    """The index of one pool. Engine thread only."""

    def __init__(self, device: Device) -> None:
        self.capacity = 0
        self._device = device
        self._arrays = device.allocate_index(1)

    @property
    def memory_bytes(self) -> int:
        """Bytes that the index takes."""
        return self._device.index_bytes(self.capacity)

    def bytes_for(self, slot_count: int) -> int:
        """Return the bytes that the index will take once it serves `slot_count` slots."""
        return self._device.index_bytes(max(self.capacity, slot_count))

    def grow(self, slot_count: int, slot_keys: Keys) -> None:
        """Serve `slot_count` slots, of which `slot_keys` tells the content."""
        if slot_count > self.capacity:
            self._rebuild(slot_count, slot_keys)

    def shrink(self, slot_count: int, slot_keys: Keys) -> None:
        """Give memory back once far fewer slots are served."""
        if slot_count < self.capacity:
            self._rebuild(slot_count, slot_keys)

    def probe(self, keys: Keys, slots: Slots) -> int:
        """Write each key's slot, or -1, into `slots`; return how many are absent.

        Pure: any thread.
        """
        return self._device.probe(self._arrays, keys, slots)

    def insert(self, keys: Keys, slots: Slots, slot_keys: Keys) -> None:
        """Add absent keys, which stand in `slot_keys` already."""
        if not self._device.insert(self._arrays, keys, slots):
            self._rebuild(self.capacity + self.capacity // 4 + 64, slot_keys)

    def erase(self, keys: Keys) -> None:
        """Remove present keys."""
        self._device.erase(self._arrays, keys)

    def _rebuild(self, capacity: int, slot_keys: Keys) -> None:
        slots = np.flatnonzero(slot_keys != EMPTY_KEY)
        while True:
            arrays = self._device.allocate_index(capacity)
            if self._device.insert(arrays, slot_keys[slots], slots):
                self._arrays, self.capacity = arrays, capacity
                return
            capacity += capacity // 4 + 64
