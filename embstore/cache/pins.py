"""Pins of a pool: the number of pinned slots, its bound, and the owners that can take pins back.

A pinned slot is no victim. Pins of a slot add up and are counted in its score, on the device; this
module has the number of slots with a pin. One slot in `_UNPINNED_SHARE` is never pinned, so that
calls always have slots, in parts if they must.

An owner of lasting pins is a **reclaimer**: before slots go, it takes their pins back, and where a
call has none left, all its pins in the pool. Pins decide the place of rows and never their content.

Where the device's work is queued, the number of slots that lost their last pin is requested without
a wait: a step that has ended does not delay its trainer. A caller that needs the number waits
(`count`).
"""

from dataclasses import dataclass
from typing import Protocol

from embstore.arrays import Keys
from embstore.cache.slots import PoolSlots
from embstore.device.base import Device
from embstore.device.values import Answer, Array, Slots

_UNPINNED_SHARE = 16
_ASKED_MAX = 16
"""Answers not waited for, at most, each in pinned memory."""


@dataclass(frozen=True)
class PinnedSlots:
    """The last slots of a pool, which are to go, and the row keys of those that have pins."""

    first_slot: int
    keys: Keys


class Reclaimer(Protocol):
    """An owner of pins that can do without them."""

    def reclaim(self, pins: "PoolPins", pinned: PinnedSlots | None) -> None:
        """Take its pins of a pool back: of `pinned` at least, or all. Engine thread."""


class PoolPins:
    """The pins of one pool. Engine thread only."""

    def __init__(self, device: Device, slots: PoolSlots) -> None:
        self.known_count = 0
        """Slots that have a pin, or had until a while ago. Any thread may read it."""
        self._asked: list[Answer[int]] = []  # how many have none any more
        self._device = device
        self._slots = slots
        self._reclaimers: list[Reclaimer] = []

    @property
    def count(self) -> int:
        """Slots that have a pin. Waits."""
        self.synchronize()
        return self.known_count

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
        self.known_count += self._device.slots.pin(self._slots.memory, slots)()

    def pin_first(self, slots: Array) -> None:
        """Add a pin to each of the slots, none of which has one. Does not wait."""
        pinned, count = self._device.slots.pin(self._slots.memory, slots), len(slots)
        self.known_count += count
        self._asked.append(lambda: count - pinned())

    def unpin(self, slots: Array | Slots) -> None:
        """Remove a pin from each of the slots; -1 is skipped."""
        self._asked.append(self._device.slots.unpin(self._slots.memory, slots))
        if not self._device.is_queued or len(self._asked) == _ASKED_MAX:
            self.synchronize()

    def synchronize(self) -> None:
        """Know how many slots have a pin. Waits."""
        while self._asked:
            self.known_count -= self._asked.pop()()

    def add_reclaimer(self, reclaimer: Reclaimer) -> None:
        """Ask an owner of pins, from here on, to take them back. Idempotent."""
        if reclaimer not in self._reclaimers:
            self._reclaimers.append(reclaimer)

    def remove_reclaimer(self, reclaimer: Reclaimer) -> None:
        """Forget an owner that has no pins here. Idempotent."""
        if reclaimer in self._reclaimers:
            self._reclaimers.remove(reclaimer)

    def reclaim(
        self, pinned: PinnedSlots | None = None, *, but_of: Reclaimer | None = None
    ) -> None:
        """Have the pins of `pinned` taken back, or all, except the pins of the owner `but_of`."""
        for reclaimer in list(self._reclaimers):
            if reclaimer is not but_of:
                reclaimer.reclaim(self, pinned)

    def close(self) -> None:
        """Refer to no owner of pins, and to no memory of the device."""
        self._reclaimers.clear()
        self._asked.clear()
