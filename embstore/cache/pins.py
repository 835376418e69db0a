"""Pins of a pool: how many slots are pinned, how many may be, and who can take pins back.

A pinned slot is no victim. Pins of a slot add up and are counted in its score, on the device; here
is the number of slots that have one. One slot in `_UNPINNED_SHARE` is never pinned, so that calls
always have slots, in parts if they must.

Whoever pins rows for long is a **reclaimer**: before slots go, or where a call has none left, it
takes all its pins in the pool back. Pins decide where rows are and never what they are.
"""

from typing import Protocol

from embstore.cache.slots import PoolSlots
from embstore.device.base import Array, Device, Slots

_UNPINNED_SHARE = 16


class Reclaimer(Protocol):
    """An owner of pins that can do without them."""

    def reclaim(self, pins: "PoolPins") -> None:
        """Take all its pins of a pool back. Engine thread."""


class PoolPins:
    """The pins of one pool. Engine thread only."""

    def __init__(self, device: Device, slots: PoolSlots) -> None:
        self.count = 0
        """Slots that have a pin."""
        self._device = device
        self._slots = slots
        self._reclaimers: list[Reclaimer] = []

    @property
    def most(self) -> int:
        """Slots that may be pinned, of those there are."""
        return self._slots.count - max(1, self._slots.count // _UNPINNED_SHARE)

    @property
    def unpinned_count(self) -> int:
        """Slots that a call may fill."""
        return self._slots.count - self.count

    def pin(self, slots: Array | Slots) -> None:
        """Add a pin to each of the slots; -1 is skipped."""
        self.count += self._device.slots.pin(self._slots.memory, slots)

    def unpin(self, slots: Array | Slots) -> None:
        """Remove a pin from each of the slots; -1 is skipped."""
        self.count -= self._device.slots.unpin(self._slots.memory, slots)

    def add_reclaimer(self, reclaimer: Reclaimer) -> None:
        """Ask an owner of pins, from here on, to take them back. Idempotent."""
        if reclaimer not in self._reclaimers:
            self._reclaimers.append(reclaimer)

    def remove_reclaimer(self, reclaimer: Reclaimer) -> None:
        """Forget an owner that has no pins here. Idempotent."""
        if reclaimer in self._reclaimers:
            self._reclaimers.remove(reclaimer)

    def reclaim(self, *, but_of: Reclaimer | None = None) -> None:
        """Have all pins taken back, `but_of` those of one owner."""
        for reclaimer in list(self._reclaimers):
            if reclaimer is not but_of:
                reclaimer.reclaim(self)

    def close(self) -> None:
        """Refer to no owner of pins."""
        self._reclaimers.clear()
