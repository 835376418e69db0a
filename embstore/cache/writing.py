"""Writes of a pool: gradients are summed; rows are made resident, changed and logged.

A write is prepared before the first row changes, and can be refused only then. If the rows of a
write fit into the cache, they are made resident. A larger write only reserves room in the log, and
is done in parts.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from embstore.arrays import Keys
from embstore.cache.arena import Arena
from embstore.cache.eviction import Evictor
from embstore.cache.finder import Finder
from embstore.cache.residency import Residency
from embstore.cache.slots import PoolSlots
from embstore.device.base import Device
from embstore.device.values import Array, Batch, Gradients, PoolUpdate, Slots
from embstore.layout import VALUE, Layout
from embstore.storage.storage import PoolStorage

_LOOKED_AT = 1 << 16
"""The number of slots whose metadata is read at once, to find dirty slots."""
PIECE_BYTES = 2 << 20
"""Bytes of rows that `flush_range` logs at once; calls wait meanwhile."""


class Place(NamedTuple):
    """The position of a pass over the slots of all levels."""

    level: int
    """0 for level one, 1 for level two."""
    slot: int
    dirtied: int = 0
    """The value of `_dirtied` for this level when the pass reached the first slot of the level."""


FIRST = Place(0, 0)


@dataclass(frozen=True)
class Prepared:
    """The slots of a write's rows, valid as long as the pool's number of moves is `moves`."""

    slots: Array
    moves: int


@dataclass(eq=False)
class PoolWriter:
    """The writes of one pool. Engine thread only."""

    device: Device
    storage: PoolStorage
    arena: Arena
    layout: Layout
    slots: PoolSlots
    finder: Finder
    evictor: Evictor
    residency: Residency

    def __post_init__(self) -> None:
        self._levels = [self.evictor]
        self._changed = 0  # rows that writes have made dirty
        self._sums: Array = self.device.memory.allocate(0, VALUE, width=self.layout.dim)

    def add_level(self, evictor: Evictor) -> None:
        """Register level two, so that its dirty rows are logged too."""
        self._levels.append(evictor)

    def begin(
        self, batch: Batch, gradients: list[Gradients], scale: np.float32, slots: Array
    ) -> PoolUpdate:
        """Begin an update: return this pool's part of the update, for `DeviceRows.begin_update`.
        `slots` is the result of `Finder.looked_at`. After the update the caller calls `end` or
        `take_back`."""
        scores = self.residency.scores
        scores.tick()
        return PoolUpdate(
            batch, gradients, scale, self.layout.optimizer, self.slots.memory, slots,
            self.residency.parameters, self.layout.dim, scores.clock, scores.policy.counting,
            self._room_for(-(-len(batch.inverse) // 2)),
        )  # fmt: skip

    def end(self, batch: Batch) -> None:
        """Count the rows of a batch, which the update begun by `begin` has changed."""
        self.finder.synchronize(batch)
        self._count_dirty(len(batch.unique_keys))
        self.residency.scores.count_touches(len(batch.unique_keys))

    def take_back(self) -> None:
        """Take back the clock of the update begun by `begin`, which has changed nothing."""
        self.residency.scores.clock -= 1

    def sum_by_key(self, batch: Batch, gradients: list[Gradients], scale: np.float32) -> Array:
        """Return the scaled sums of a batch's gradients, (unique keys or more, dim), valid until
        the next call; see `DeviceRows.sum_by_key`."""
        sums = self._room_for(len(batch.unique_keys))
        self.device.rows.sum_by_key(batch, gradients, scale, sums[: len(batch.unique_keys)])
        return sums

    def _room_for(self, count: int) -> Array:
        """Return a scratch array, (count or more, dim), with arbitrary content."""
        if len(self._sums) < count:
            self._sums = self._sums[:0]  # free the old array first
            self._sums = self.device.memory.allocate(
                count + count // 4, VALUE, width=self.layout.dim
            )
        return self._sums

    def prepare(self, keys: Array) -> Prepared | None:
        """Do everything that can make the store refuse a write, before the first row changes.

        If the rows fit into the cache, they are made resident. Otherwise the rows must be written
        in parts: room in the log is reserved for all victims, and None is returned.

        Raises
        ------
        CapacityError, CorruptTableError : the write is refused. Nothing has changed.
        """
        if self.device.is_queued:
            self.device.memory.secure(len(keys))
        slots = self.residency.at_once(keys)
        if slots is not None:
            return Prepared(slots, self.finder.moves)
        self.storage.appender.reserve(len(keys), self.layout.record_bytes)
        return None

    def apply(self, keys: Array, sums: Array, slots: Array, low: int, high: int) -> None:
        """Apply the optimizer to rows with the scaled sums of their keys. With `keys` and `sums`
        bound, this method is a `change` for `write`."""
        self.device.rows.apply(
            self.layout.optimizer,
            self.slots.memory,
            slots,
            keys[low:high],
            sums[low:high],
            self.residency.parameters,
        )

    def write(
        self, keys: Array, prepared: Prepared | None, change: Callable[[Array, int, int], None]
    ) -> None:
        """Call `change(slots, low, high)`, which changes the rows of keys[low:high], part by part.

        `prepared` is the result of `prepare`. A failure from here on leaves the store half written,
        so the caller must treat it as irreversible.
        """
        self._count_dirty(len(keys))
        self._fix_arenas(True)  # room was reserved for the rows in their current slots
        try:
            if prepared is not None and prepared.moves == self.finder.moves:
                change(prepared.slots, 0, len(keys))
                return
            for low, high in self.residency.parts(len(keys)):
                change(self.residency.make_resident(keys[low:high]), low, high)
        finally:
            self._fix_arenas(False)

    def _count_dirty(self, count: int) -> None:
        self.evictor.dirty_max += count
        self._changed += count

    def _fix_arenas(self, is_fixed: bool) -> None:
        for level in self._levels:
            level.arena.is_fixed = is_fixed

    def dirty_range(self, at: Place) -> tuple[Place | None, Keys]:
        """Read one range of slots. Return the position of the next range, None at the end, and the
        row keys in the range's dirty slots. A call takes well under a millisecond.

        at : the beginning of the range: FIRST, or the position that the last call returned. The
            pool may have fewer slots by now
        """
        level, low = self._levels[at.level], at.slot
        high = max(low, min(low + _LOOKED_AT, level.slots.count))
        here = level.device.slots.read_range(level.slots.memory, low, high)
        return self._after(at, high), here.keys[here.dirty]

    def _after(self, at: Place, high: int) -> Place | None:
        if high < self._levels[at.level].slots.count:
            return Place(at.level, high, at.dirtied)
        return Place(at.level + 1, 0) if at.level + 1 < len(self._levels) else None

    def dirty_rows(self, level: int) -> int:
        """Return an upper bound of the number of dirty rows of a level. Any thread."""
        here = self._levels[level]
        return min(here.dirty_max, here.slots.resident_count)

    def _dirtied(self, level: int) -> int:
        """Return an upper bound of the number of rows that have become dirty in a level, or have
        entered it dirty, since the pool was created."""
        counters = self.evictor.counters
        return counters.evictions_host if level else self._changed + counters.misses_host

    def flush(self) -> int:
        """Log all dirty rows, which stay in their slots and become clean. Return the number of
        these rows.

        Raises
        ------
        CapacityError : the disk is full. Rows not yet logged stay dirty.
        """
        count = 0
        for level in self._levels:
            here = level.slots.contents()
            slots = np.flatnonzero(here.dirty)
            keys = here.keys[slots]
            self.storage.appender.expect(len(slots))
            step = level.logged_rows_max
            for low in range(0, len(slots), step):
                self._log_and_clean(level, slots[low : low + step], keys[low : low + step])
            level.dirty_max = 0
            count += len(slots)
        return count

    def flush_range(self, at: Place, table_id: int | None = None) -> tuple[Place | None, int]:
        """For a few milliseconds, log dirty rows in the slots from a position on; with `table_id`,
        only rows of this table. Return the next position (None at the end), and the number of rows
        logged.

        After a pass over all slots of a level, only rows that became dirty since the beginning of
        the pass can be dirty. This bounds the number of dirty rows.

        Raises
        ------
        CapacityError : the disk is full. Nothing has changed.
        """
        level, low = self._levels[at.level], at.slot
        if not low:
            at = at._replace(dirtied=self._dirtied(at.level))
        high = max(low, min(low + _LOOKED_AT, level.slots.count))
        here = level.device.slots.read_range(level.slots.memory, low, high)
        most = min(max(1, PIECE_BYTES // self.layout.row_bytes), level.logged_rows_max)
        dirty = here.dirty
        if table_id is not None:
            dirty = dirty & self.slots.row_keys.are_of(here.keys, table_id)
        places = np.flatnonzero(dirty)
        after = self._after(at, high)
        if len(places) > most:
            places = places[:most]
            after = Place(at.level, low + int(places[-1]) + 1, at.dirtied)
        self._log_and_clean(level, low + places, here.keys[places])
        if table_id is None and (after is None or after.level != at.level):
            since = self._dirtied(at.level) - at.dirtied
            level.dirty_max = min(level.dirty_max, since)
        return after, len(places)

    def _log_and_clean(self, level: Evictor, slots: Slots, keys: Keys) -> None:
        if len(slots):
            self.storage.appender.reserve(len(slots), self.layout.record_bytes, bounded=False)
            level.log(keys, slots)
            level.mark(slots, dirty=False)
            level.dirty_max -= len(slots)

    def close(self) -> None:
        """Drop the references to memory of the device."""
        self._sums = None
