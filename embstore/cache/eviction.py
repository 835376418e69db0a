"""Slots for new rows: free slots, the slots of a new slab, or slots of victims, whose rows leave.

A dirty victim is logged before its slot is freed. Room for all victims of a call is reserved in the
log before the first victim is logged. An error while slots are freed is irreversible: it fails the
store.

If the device has no memory for a slab that the budget allows, the pool evicts rows and does not
refuse the call.
"""

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from embstore.arrays import EMPTY_KEY, Keys
from embstore.cache.arena import Arena
from embstore.cache.counters import Counters
from embstore.cache.finder import Finder
from embstore.cache.pins import PinnedSlots, PoolPins
from embstore.cache.scores import Scores, Victims
from embstore.cache.slots import PoolSlots
from embstore.device.base import Device
from embstore.device.values import Answer, Array, SlotContents, Slots
from embstore.layout import Layout
from embstore.score import PIN_SHIFT
from embstore.storage.storage import PoolStorage

_VACATED_SLOTS_MAX = 1 << 16


class LevelBelow(Protocol):
    """Level two, as the evictor of level one uses it: level two takes the rows that leave level one
    between calls. Within calls, exchange.py moves the rows."""

    def make_room(self, count: int) -> Slots:
        """Return up to `count` free slots of this level, which the caller passes to `keep`. Raises
        CapacityError."""

    def keep(self, here: SlotContents, rows: Array, slots: Slots, places: Slots) -> bool:
        """Copy the rows that leave `slots` of level one, whose contents are `here`, to the slots
        `places` of this level. Return False if the rows could not be copied."""

    def put_back(self, places: Slots) -> None:
        """Make slots that `make_room` has returned free again."""


@dataclass(eq=False)
class Evictor:
    """Takes and frees the slots of one pool, and releases slabs for the arena. Engine thread
    only."""

    device: Device
    storage: PoolStorage
    arena: Arena
    layout: Layout
    slots: PoolSlots
    pins: PoolPins
    finder: Finder
    scores: Scores
    counters: Counters
    dirty_max: int = 0
    """An upper bound of the number of dirty slots; it counts a row that was written twice as
    two."""
    level_two: LevelBelow | None = None
    is_clean_first: bool = False
    """Whether dirty rows are evicted last, because the count in their scores is 1. This is so in
    level two."""

    # Slabs

    def grow(self) -> bool:
        """Add a slab if the arena grants one and the device has memory for it. Return whether a
        slab was added."""
        return self.slots.may_grow and self.arena.grant(self) and self.slots.add_slab()

    def release_slabs(self, count: int) -> None:
        """Evict the rows of the last `count` slabs and free these slabs, but never the first slab.

        Raises
        ------
        CapacityError : the log has no room. The slabs stay, but rows that were already logged have
            left.
        """
        low = self.slots.first_of_last_slabs(count)
        self._vacate(low)
        self.slots.drop_from(low)

    def release_slice(self) -> None:
        """Evict the rows of a part of the last slab and free that part, but never the first slab.

        Raises
        ------
        CapacityError : as in `release_slabs`.
        """
        low = self.slots.first_of_slice()
        self._vacate(low)
        self.slots.drop_from(low)

    def _vacate(self, low: int) -> None:
        """Evict the rows of all slots from `low` on.

        The work is done piece by piece. Otherwise the allocator would keep arrays of many megabytes
        after their use, although the purpose is to free memory.

        Usually only the pins of these slots are removed. But if pins would take more than half of
        the remaining slots, all pins of the pool are removed, and their owners then pin as many
        rows as fit.
        """
        if 2 * self.pins.count > low:
            self.finder.finish_arriving()
            self.pins.reclaim()
        self.scores.forget()
        step = min(self.logged_rows_max, _VACATED_SLOTS_MAX)
        for high in range(self.slots.count, low, -step):
            begin = max(low, high - step)
            here = self.device.slots.read_range(self.slots.memory, begin, high)
            self.reserve(int(np.count_nonzero(here.dirty)))
            pinned = (here.keys != EMPTY_KEY) & (here.scores >> PIN_SHIFT != 0)  # or pending
            if pinned.any():
                self.finder.finish_arriving()
                self.pins.reclaim(PinnedSlots(begin, here.keys[pinned]))
                here = self.device.slots.read_range(self.slots.memory, begin, high)
            taken = here.keys != EMPTY_KEY
            self._evict(begin + np.flatnonzero(taken), here.of(taken))

    # Slots

    def ask_victims(self, count: int) -> Answer[Victims] | None:
        """Add slabs for `count` rows. If slots are still lacking, request victims, and return the
        answer, which gives them; if no row must leave, return None."""
        needed = self.needed(count)
        return self.scores.ask_victims(needed, with_rows=self.dirty_max > 0) if needed else None

    def take(self, count: int, begun: Answer[Victims] | None = None) -> Slots:
        """Return `count` free slots; if there are too few, rows are evicted.

        begun : the result of `ask_victims` for the same count; `ask_victims` was called after all
            touches of the running call

        Raises
        ------
        CapacityError : the log has no room for rows that would have to leave.
        """
        needed = self.needed(count)
        if needed:
            # At worst every victim is dirty; room is reserved before the first victim is logged.
            self.reserve(min(needed, self.dirty_max))
            self._evict(*self.scores.victims(needed, begun))
        return self.slots.take(count)

    def needed(self, count: int) -> int:
        """Add slabs if possible; return how many rows must then leave so that `count` slots are
        free."""
        while self.slots.free_count < count and self.grow():
            pass
        return max(count - self.slots.free_count, 0)

    def evict(self, count: int) -> int:
        """Evict up to `count` rows before their slots are needed; return how many rows were
        evicted.

        Raises
        ------
        CapacityError : the log has no room. Nothing has changed.
        """
        count = min(count, self.pins.unpinned_count - self.slots.free_count)
        if count <= 0:
            return 0
        self.scores.tick()
        self.reserve(min(count, self.dirty_max))
        self._evict(*self.scores.victims(count))
        return count

    def free(self, slots: Slots, keys: Keys) -> None:
        """Free slots and remove their keys from the index, even if a slot is pending."""
        with self.storage.irreversible:
            self.finder.moves += 1
            self.slots.index.erase(keys)
            self.device.slots.clear_slots(self.slots.memory, slots)
            self.slots.free(slots)

    def free_table(self, table_id: int) -> None:
        """Free all slots with rows of a table, and remove the rows' keys from the index."""
        keys = self.slots.keys
        slots = np.flatnonzero(self.slots.row_keys.are_of(keys, table_id))
        self.free(slots, keys[slots])
        self.scores.forget()

    def _evict(self, slots: Slots, here: SlotContents) -> None:
        """Free resident slots, whose contents are `here`. Dirty rows that level two does not take
        are logged before their slots are freed; room for these rows has been reserved."""
        if self.level_two is None:
            logged, kept = self.log_dirty(slots, here), 0
        else:
            logged, kept = self._sink(self.level_two, slots, here)
        self.free(slots, here.keys)
        self.dirty_max -= int(np.count_nonzero(here.dirty))
        self.counters.count_evictions(len(slots) - kept, logged)
        self.counters.evictions_host += kept

    def _sink(self, level_two: LevelBelow, slots: Slots, here: SlotContents) -> tuple[int, int]:
        """Move rows that leave `slots` of level one to level two. If level two has too little room,
        it takes only the last rows, and the first rows are logged. Return how many rows were
        logged, and how many rows level two has taken.

        Rows are logged before level two takes its rows, so that a refused call has moved no row.
        """
        places = level_two.make_room(len(slots))
        left = len(slots) - len(places)
        above, below = here.of(np.arange(left)), here.of(np.arange(left, len(slots)))
        try:
            self.reserve(int(np.count_nonzero(above.dirty)))  # level two may have used the room
            logged = self.log_dirty(slots[:left], above)
        except BaseException:
            level_two.put_back(places)
            raise
        if not len(places) or level_two.keep(below, self.slots.memory.rows, slots[left:], places):
            return logged, len(places)
        self.reserve(int(np.count_nonzero(below.dirty)))
        return logged + self.log_dirty(slots[left:], below), 0

    # The log

    def mark(self, slots: Slots, *, dirty: bool) -> None:
        """Mark slots as dirty or as clean."""
        self.device.slots.mark(self.slots.memory, slots, dirty=dirty)
        if self.is_clean_first:
            counts = np.full(len(slots), dirty, np.int64)
            self.device.slots.set_counts(self.slots.memory, slots, counts)
            self.scores.forget()  # some queued victims may be dirty now

    @property
    def logged_rows_max(self) -> int:
        """The most rows that are logged at once, so that log segments keep their intended size."""
        return max(1, self.storage.segment_bytes // (2 * self.layout.row_bytes))

    def log_dirty(self, slots: Slots, here: SlotContents) -> int:
        """Log the dirty rows of slots; return the number of these rows. Room must have been
        reserved."""
        dirty = np.flatnonzero(here.dirty)
        if len(dirty) and here.rows is not None:
            self.storage.appender.append(here.keys[dirty], here.rows, dirty)
        elif len(dirty):
            self.log(here.keys[dirty], slots[dirty])
        return len(dirty)

    def log(self, keys: Keys, slots: Slots) -> None:
        """Append the rows of slots to the log. Room must have been reserved."""
        rows = self.slots.memory.rows
        for piece, host_rows, places in self.device.rows.row_pieces(rows, slots):
            self.storage.appender.append(keys[piece], host_rows, places)

    def reserve(self, rows: int) -> None:
        """Reserve room in the log for `rows` rows. Raises CapacityError."""
        self.storage.appender.reserve(rows, self.layout.record_bytes)
