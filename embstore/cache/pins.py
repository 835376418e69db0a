"""Pins of a pool: the number of pinned slots, its upper bound, and the owners of pins.

A pinned slot is never a victim. The pins of a slot add up; the device counts them in the slot's
score. This module counts the slots that have at least one pin. One slot in `_UNPINNED_SHARE` is
never pinned, so that every call finds slots; a call that needs more slots than it finds is done in
parts.

An owner of lasting pins is a **reclaimer**. Before slots are dropped, the reclaimer removes its
pins of these slots. If a call has no unpinned slot left, the reclaimer removes all its pins in the
pool. Pins affect where rows are, but never their content.

Where the device's work is queued, `unpin` requests the number of slots that lost their last pin,
but does not wait for it, so that releasing the pins of a finished step does not delay the trainer.
`count` waits for these numbers.
"""

from dataclasses import dataclass
from typing import Protocol

from embstore.arrays import Keys
from embstore.cache.slots import PoolSlots
from embstore.device.base import Device
from embstore.device.values import Answer, Array, Slots

_UNPINNED_SHARE = 16
_ASKED_MAX = 16
"""The most requests whose answers may be outstanding; each takes page-locked host memory."""


@dataclass(frozen=True)
class PinnedSlots:
    """The last slots of a pool, which will be dropped, and the row keys of those that are
    pinned."""

    first_slot: int
    keys: Keys


class Reclaimer(Protocol):
    """An owner of pins that can continue without its pins."""

    def reclaim(self, pins: "PoolPins", pinned: PinnedSlots | None) -> None:
        """Remove the owner's pins in a pool: at least the pins of the slots `pinned`, or all pins
        if `pinned` is None. Engine thread only."""


class PoolPins:
    """The pins of one pool. Engine thread only."""

    def __init__(self, device: Device, slots: PoolSlots) -> None:
        self.known_count = 0
        """The number of slots with a pin; it may include slots that were unpinned recently. Any
        thread may read it."""
        self._asked: list[Answer[int]] = []  # each: how many slots lost their last pin
        self._device = device
        self._slots = slots
        self._reclaimers: list[Reclaimer] = []

    @property
    def count(self) -> int:
        """The number of slots with a pin. Waits for the device."""
        self.synchronize()
        return self.known_count

    @property
    def most(self) -> int:
        """The most slots that may be pinned."""
        return self._slots.count - max(1, self._slots.count // _UNPINNED_SHARE)

    @property
    def unpinned_count(self) -> int:
        """The number of slots without a pin, which a call may fill. Waits for the device."""
        return self._slots.count - self.count

    def pin(self, slots: Array | Slots) -> None:
        """Add a pin to each of the slots; -1 is skipped."""
        self.known_count += self._device.slots.pin(self._slots.memory, slots)()

    def pin_first(self, slots: Array) -> None:
        """Add a pin to each of the slots, of which none was pinned. Does not wait for the
        device."""
        pinned, count = self._device.slots.pin(self._slots.memory, slots), len(slots)
        self.known_count += count
        self._asked.append(lambda: count - pinned())

    def unpin(self, slots: Array | Slots) -> None:
        """Remove a pin from each of the slots; -1 is skipped."""
        self._asked.append(self._device.slots.unpin(self._slots.memory, slots))
        if not self._device.is_queued or len(self._asked) == _ASKED_MAX:
            self.synchronize()

    def synchronize(self) -> None:
        """Wait until the number of slots with a pin is known."""
        while self._asked:
            self.known_count -= self._asked.pop()()

    def add_reclaimer(self, reclaimer: Reclaimer) -> None:
        """Register an owner of pins, so that `reclaim` asks it to remove its pins. Idempotent."""
        if reclaimer not in self._reclaimers:
            self._reclaimers.append(reclaimer)

    def remove_reclaimer(self, reclaimer: Reclaimer) -> None:
        """Unregister an owner that has no pins in this pool. Idempotent."""
        if reclaimer in self._reclaimers:
            self._reclaimers.remove(reclaimer)

    def reclaim(
        self, pinned: PinnedSlots | None = None, *, but_of: Reclaimer | None = None
    ) -> None:
        """Make the owners remove the pins of `pinned`, or all pins. The owner `but_of` keeps its
        pins."""
        for reclaimer in list(self._reclaimers):
            if reclaimer is not but_of:
                reclaimer.reclaim(self, pinned)

    def close(self) -> None:
        """Drop the references to owners of pins and to memory of the device."""
        self._reclaimers.clear()
        self._asked.clear()
