"""Which slots a call's rows are in, found once however often it is asked.

A lookup and the update after it name the same keys, and a call asks for its slots several times. So
the last answer is kept, and is right as long as no row has come to a slot or left one (`moves`).

Rows of announced steps come ahead of their use (prefetch.py): a slot may be **pending**, its key in
the index, its row still to come. Before a pending slot is used, the rows under way are finished, in
order, until it has arrived.
"""

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from embstore.arrays import Keys
from embstore.cache.slots import PoolSlots
from embstore.device.base import Array, Batch, Device


class Arriving(Protocol):
    """Rows under way to slots whose keys are in the index."""

    def finish(self) -> None:
        """Wait for them, and write them to their slots; or free the slots of rows that cannot be
        read."""


class SlotFinder:
    """Finds slots by row key, and remembers those found last. Engine thread only."""

    def __init__(self, device: Device, slots: PoolSlots) -> None:
        self.arriving: list[Arriving] = []  # the oldest first
        self.moves = 0
        """Grows whenever a row comes to a slot or leaves it."""
        self.lookups_miss = self.updates_miss = False
        """Whether the last of them has found keys missing: so may the next, as a rule."""
        self._device = device
        self._slots = slots
        self._room: Array = device.memory.allocate(0, np.int64)  # what probing writes to
        self._found_for: object = None  # whose slots were found last, an array of keys or a batch
        self._found: Array = self._room
        self._missing = 0
        self._found_at = 0  # moves when they were found
        self._probed_at = 0  # rebuilds of the index when they were last looked for

    def look(self, batch: Batch) -> None:
        """Queue the search for the slots of a batch; see `synchronize`."""
        if batch.unique_keys is self._found_for and self._is_right:
            batch.found.missing = self._missing
            return
        slots = self._room_for(len(batch.unique_keys))
        index = self._slots.index
        self._device.keys.probe(index.arrays, batch, slots)
        self._found_for, self._found, self._probed_at = batch, slots, index.rebuilds

    def group(self, segments: Sequence[tuple[int, int, Keys]]) -> Batch | None:
        """Queue the batch of an update whose keys have their slots, as far as that is known; None
        where it has to be made unique. If a key turns out to be missing, it is void."""
        if self.lookups_miss or self.updates_miss or self.arriving:
            return None
        index, memory = self._slots.index, self._slots.memory
        grouped = self._device.keys.group(
            index.arrays, memory, self._slots.count, segments, self.moves
        )
        if grouped is None:
            return None
        self._found_for, self._found = grouped
        self._probed_at = index.rebuilds
        return grouped[0]

    def looked_at(self, batch: Batch) -> Array | None:
        """Return where the slots of a batch are being looked for, or are, all of them; None where
        that has to be known first, because rows are under way or missing."""
        is_known = batch.unique_keys is self._found_for and self._is_right and not self._missing
        return self._found if (is_known or self._found_for is batch) and not self.arriving else None

    def know(self, batch: Batch, slots: Array) -> None:
        """In place of `look`: the slots of all unique keys, which are pinned and have arrived."""
        self._found_for, self._found = batch, slots
        batch.found.missing = 0

    def synchronize(self, batch: Batch) -> None:
        """Wait for what the device finds out about a batch."""
        self._device.keys.synchronize(batch)
        if self._found_for is batch:
            keys, missing = batch.unique_keys, batch.found.missing
            self.note(keys, self._found[: len(keys)], missing)
            self._slots.index.synchronize()
            if batch.found.outside < 0:
                if missing and self._slots.index.rebuilds > self._probed_at:
                    self._find_again(keys)
                # What was begun was not done if anything was missing when the batch was probed.
                batch.found.missing = max(self._finish_arriving_at(keys), int(missing > 0))

    def find(self, keys: Array) -> tuple[Array, int]:
        """Return the slots of unique row keys, -1 where absent, and how many are.

        None of them is pending, nor becomes so before the next call.
        """
        if keys is not self._found_for or not self._is_right:
            self._find_again(keys)
        missing = self._finish_arriving_at(keys)
        return self._found, missing

    def locate(self, keys: Array) -> tuple[Array, int]:
        """Return the slots of row keys in an array of their own, -1 where absent, and how many are.

        Pending slots are found too.
        """
        slots = self._device.memory.allocate(len(keys), np.int64)
        return slots, self._device.keys.find(self._slots.index.synchronize(), keys, slots)

    def note(self, keys: Array, slots: Array, missing: int) -> None:
        """Remember the slots of unique row keys."""
        self._found_for, self._found = keys, slots
        self._missing, self._found_at = missing, self.moves

    def forget(self) -> None:
        """Remember no slots: those found last are about to change."""
        self._found_for = None

    def finish_arriving(self) -> None:
        """Wait for all rows under way."""
        while self.arriving:
            self.arriving[0].finish()

    def close(self) -> None:
        """Wait for all rows under way, and refer to no memory of the device."""
        self.finish_arriving()
        self._room = self._found = None

    @property
    def _is_right(self) -> bool:
        """Whether no row has come or gone since slots were found."""
        return self._found_at == self.moves

    def _find_again(self, keys: Array) -> None:
        slots = self._room_for(len(keys))
        self.note(keys, slots, self._device.keys.find(self._slots.index.synchronize(), keys, slots))

    def _finish_arriving_at(self, keys: Array) -> int:
        """Finish the rows under way to the slots found; return how many keys are missing.

        Rows that cannot be read are missing then, for the call to read and to report.
        """
        while self.arriving and self._device.slots.count_pending(self._slots.memory, self._found):
            self.arriving[0].finish()
            if not self._is_right:
                self._find_again(keys)
        return self._missing

    def _room_for(self, count: int) -> Array:
        """Return the array that probing writes to; what was found before is void."""
        self.forget()
        if len(self._room) < count:
            self._room = self._device.memory.allocate(count + count // 4, np.int64)
        return self._room[:count]
