"""The hot set in the cache: its rows are loaded, and stay pinned until another set replaces it.

A set is pinned piece by piece, so that other calls run in between. When a new version is pinned, a
row that both sets contain keeps its pin. The other rows of the new set are pinned while there is
space; when there is no space, the same number of rows of the old set is unpinned first. Therefore a
part of the hot rows is pinned at any time, and there are never twice as many pinned rows as hot
rows. Pins decide which rows are in the cache, but never the content of a row: the replacement of a
set changes no bit of any row, whatever calls run meanwhile.

Hot rows take at most three quarters of a pool's slots. Steps of look-ahead sessions can pin the
other slots, except those that are never pinned. If pins of a session leave no slot for a hot row,
these pins are removed, and the session's steps are planned again.

A requested set is pinned as a whole, or else the previous set is pinned again. Commands that remove
slots or tables (a smaller cache, a restore, a drop) remove the pins in these slots or tables.
Afterwards the wanted set, the set that was last requested, is pinned again: as much of it as there
is space for, except rows that cannot be read.

The wanted set refers to tables by id and not by name: a dropped table leaves the set, and a new
table of the same name is not in the set. Therefore the file in the directory identifies tables by
their ids.
"""

import threading
from collections import Counter
from collections.abc import Container, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from embstore.arrays import Keys, outside
from embstore.cache.pins import PinnedSlots, PoolPins
from embstore.cache.pool import Pool
from embstore.errors import (
    CapacityError,
    CorruptTableError,
    EmbstoreError,
    InvalidArgumentError,
    TableNotFoundError,
)
from embstore.hotness.background import Background
from embstore.hotness.kept import KeptProfiles
from embstore.profiles.hotset import HotSet
from embstore.results import HotSetFacts
from embstore.tables.slices import Slices
from embstore.tables.state import TableState
from embstore.tables.tables import Tables

PIECE_ROWS = 1024
"""Number of rows that are pinned at once. If all of these rows must be read, pinning them takes a
few milliseconds of the engine's time."""
_HOT_QUARTERS = 3
_LOOKED_AT = 16 * PIECE_ROWS
_WANTED, _PINNED, _UNREADABLE = 0, 1, 2

Places = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class _Wanted:
    """A hot set and the ids of its tables. The set and the ids are replaced together, so that they
    always agree."""

    hot_set: HotSet
    ids: dict[str, int]

    @classmethod
    def kept(cls, by_id: HotSet, tables: Iterable[TableState]) -> "_Wanted | None":
        """Return the hot set of a directory, without missing tables. `by_id` has the ids of tables
        in place of their names."""
        names = {str(table.table_id): table.name for table in tables}
        here = {known: keys for known, keys in by_id.tables.items() if known in names}
        found = {names[known]: keys for known, keys in here.items()}
        total_bytes = by_id.bytes if len(here) == len(by_id.tables) else 0
        ids = {names[known]: int(known) for known in here}
        return cls(replace(by_id, tables=found, bytes=total_bytes), ids) if here else None

    def by_id(self) -> HotSet:
        """Return the set as it is written to the directory, with the ids of tables in place of
        their names."""
        tables = {str(self.ids[name]): keys for name, keys in self.hot_set.tables.items()}
        return replace(self.hot_set, tables=tables)

    def without(self, gone: Container[int]) -> "_Wanted | None":
        """Return the set without the tables of some ids; None if no table is left."""
        ids = {name: known for name, known in self.ids.items() if known not in gone}
        if len(ids) == len(self.ids) > 0:
            return self
        tables = {name: keys for name, keys in self.hot_set.tables.items() if name in ids}
        return _Wanted(replace(self.hot_set, tables=tables, bytes=0), ids) if ids else None


@dataclass(eq=False)
class _HotRows:
    """The hot rows of one table, and the state of each row: whether it is pinned."""

    table: TableState
    keys: Keys  # (k,) ascending row keys
    states: NDArray[np.int8]  # (k,)
    pinned_count: int = 0
    begin: int = 0
    """The index from which the next piece is searched; the rows before this index are done."""

    def take_over(self, other: "_HotRows", here: Places, there: Places) -> None:
        """Take over the pins of rows that have indexes `there` in `other`, and indexes `here` in
        this object."""
        pinned = other.states[there] == _PINNED
        other.mark(there[pinned], _WANTED)
        self.mark(here[pinned], _PINNED)

    def piece(self, state: int) -> Places:
        """Return the indexes of the next rows whose state is `state`, at most PIECE_ROWS.

        One pass handles one state: each piece must be marked with another state before the next
        piece is requested, and the pass must end before a pass for another state begins.
        """
        while self.begin < len(self.keys):
            here = self.states[self.begin : self.begin + _LOOKED_AT] == state
            places: Places = self.begin + np.flatnonzero(here)[:PIECE_ROWS]
            if len(places):
                return places
            self.begin += _LOOKED_AT
        return np.empty(0, np.int64)

    def mark(self, places: Places, state: int) -> None:
        """Set the state of rows at unique indexes."""
        self.pinned_count -= int(np.count_nonzero(self.states[places] == _PINNED))
        self.states[places] = state
        self.pinned_count += len(places) if state == _PINNED else 0


class HotPins:
    """The pinned hot set of one store. Any thread; sets are replaced one at a time.

    One class has all of this, because three things change together, while one caller has the
    engine: the progress of a replacement, the rows that lose their pins during the replacement, and
    the wanted set.
    """

    def __init__(self, tables: Tables, kept: KeptProfiles) -> None:
        self._tables = tables
        self._kept_files = kept
        self._background = Background("hot set")
        self._swapping = threading.Lock()
        self._rows: list[_HotRows] = []  # of the wanted set
        self._old: list[_HotRows] = []  # of the previous set, during its unpinning
        by_id, self._wanted = kept.hot_set(), None
        if by_id is not None:
            self._wanted = _Wanted.kept(by_id, tables.by_id.values())
            if self._wanted is None or len(self._wanted.ids) < len(by_id.tables):
                with suppress(EmbstoreError):  # removes missing tables from the file
                    self._keep()

    @property
    def wanted(self) -> HotSet | None:
        """The set that was last requested."""
        wanted = self._wanted
        return None if wanted is None else wanted.hot_set

    def pin(self, hot_set: HotSet | None) -> HotSetFacts:
        """Replace the pinned set by another set, as `Store.pin_hot_set` does.

        After any error, also of the disk or of a row that cannot be read, the previous set is
        pinned again. The caller must not have the engine: this method waits for other replacements,
        which need the engine.
        """
        with Slices(self._tables.frame).after_others(self._swapping):
            if hot_set is not None:
                if self.wanted is not None:
                    hot_set.check_replaces(self.wanted)
                self._check(hot_set)
            before = self._wanted
            try:
                self._want(hot_set)
                self._swap(hot_set or HotSet({}), at_all_costs=True)
                self._keep()
            except BaseException:
                with suppress(EmbstoreError), self._tables.reading():
                    self._wanted = before
                    self.forget_missing()
                with suppress(EmbstoreError):
                    self._keep()
                with suppress(EmbstoreError):
                    self._pin_possible()
                raise
            return self.facts()

    def pin_wanted(self) -> None:
        """Pin the wanted rows that are not pinned, as far as possible. If another replacement is
        running, pin them in the background.

        The caller may have the engine, and the other replacement needs the engine for each piece.
        Therefore this method must not wait for the other replacement.
        """
        if not self._swapping.acquire(blocking=False):
            self._background.start(self._pin_later)
            return
        try:
            with suppress(EmbstoreError):
                self._pin_possible()
        finally:
            self._swapping.release()

    def _pin_later(self) -> None:
        """Pin the wanted rows after other replacements have ended. The caller must not have the
        engine."""
        with suppress(EmbstoreError), Slices(self._tables.frame).after_others(self._swapping):
            self._pin_possible()

    def _pin_possible(self) -> None:
        wanted = self._wanted
        if wanted is not None or self._all_rows:
            possible = HotSet({}) if wanted is None else self._possible(wanted)
            self._swap(possible, at_all_costs=False)

    def _want(self, hot_set: HotSet | None) -> None:
        """Make a set the wanted set."""
        with self._tables.reading():
            names = hot_set.tables if hot_set is not None else ()
            ids = {name: self._tables.find(name).table_id for name in names}
            self._wanted = _Wanted(hot_set, ids) if hot_set is not None and ids else None

    def _keep(self) -> None:
        """Write the wanted set to the directory. If the set has changed during the write, write it
        again."""
        while True:
            wanted = self._wanted
            self._kept_files.keep_hot_set(None if wanted is None else wanted.by_id())
            if self._wanted is wanted:
                return

    def _check(self, hot_set: HotSet) -> None:
        found: list[tuple[Pool, Keys]] = []
        with self._tables.reading():
            for name, keys in hot_set.tables.items():
                table = self._tables.find(name)
                if (error := outside(keys, table.rows, name)) is not None:
                    raise InvalidArgumentError(f"hot set: {error}")
                found.append((table.pool, keys))
        for pool, rows in self._grow(found).items():
            if rows > _hot_max(pool):
                raise _no_room(pool, rows)

    def _grow(self, found: Iterable[tuple[Pool, Keys]]) -> Counter[Pool]:
        """Make pools allocate free slabs for hot rows; return the number of hot rows per pool."""
        needed: Counter[Pool] = Counter()
        for pool, keys in found:
            needed[pool] += len(keys)
        for pool, rows in needed.items():
            while _hot_max(pool) < rows:
                with self._tables.background():
                    if not pool.evictor.grow():
                        break
        return needed

    def _possible(self, wanted: _Wanted) -> HotSet:
        """Return the part of a set for which tables and slots exist at present."""
        found: dict[str, tuple[Pool, Keys]] = {}
        with self._tables.reading():
            for name, keys in wanted.hot_set.tables.items():
                with suppress(TableNotFoundError):
                    table = self._tables.find(name)
                    if table.table_id == wanted.ids[name]:
                        found[name] = table.pool, keys[keys.view(np.uint64) < table.rows]
        left = {pool: _hot_max(pool) for pool in self._grow(found.values())}
        tables = {}
        for name, (pool, keys) in found.items():
            tables[name] = keys[: left[pool]]
            left[pool] -= len(tables[name])
        return replace(wanted.hot_set, tables=tables)

    # Swapping

    def _swap(self, hot_set: HotSet, *, at_all_costs: bool) -> None:
        """Replace the pinned set. Unless `at_all_costs` is true, skip rows that cannot be
        pinned."""
        with self._tables.reading():
            tables = {name: self._tables.find(name) for name in hot_set.tables}
            before = self._all_rows
        rows = [
            _HotRows(table, table.row_keys(keys), np.zeros(len(keys), np.int8))
            for table, keys in zip(tables.values(), hot_set.tables.values(), strict=True)
        ]
        shared = [
            (new, old, *np.intersect1d(new.keys, old.keys, True, return_indices=True)[1:])
            for new in rows
            for old in before
            if old.table is new.table
        ]
        with self._tables.reading():
            self._tables.storage.begin_change()
            alive = self._tables.by_id.values()
            self._old = [old for old in before if old in self._all_rows]
            self._rows = [new for new in rows if new.table in alive]
            for new, old, here, there in shared:
                if new in self._rows and old in self._old:
                    new.take_over(old, here, there)
            for old in self._old:
                old.begin = 0
        while self._pin_some(at_all_costs):
            pass
        while self._unpin_some():
            pass
        self._old = []

    @property
    def _all_rows(self) -> list[_HotRows]:
        return [*self._old, *self._rows]

    def _pin_some(self, at_all_costs: bool) -> bool:
        with self._tables.background():
            for rows in self._rows:
                places = rows.piece(_WANTED)
                if len(places):
                    self._pin_piece(rows, places, at_all_costs)
                    return True
        return False

    def _pin_piece(self, rows: _HotRows, places: Places, at_all_costs: bool) -> None:
        pool = rows.table.pool
        pool.pins.add_reclaimer(self)
        while (room := _hot_max(pool) - self._pinned_in(pool)) < len(places):
            if not self._unpin_of(pool) and not pool.evictor.grow():
                break
        if pool.pins.count + len(places) > pool.pins.most:
            pool.pins.reclaim(but_of=self)
        places = places[: max(0, min(room, pool.pins.most - pool.pins.count))]
        if len(places):
            self._pin_places(rows, places, at_all_costs)
        elif at_all_costs:
            raise _no_room(pool, len(rows.keys))
        else:
            rows.begin = len(rows.keys)  # pin no more rows of this table

    def _pin_places(self, rows: _HotRows, places: Places, at_all_costs: bool) -> None:
        """Load rows and pin them. If a row cannot be read, raise an error if `at_all_costs` is
        true, else skip the row."""
        pool = rows.table.pool
        places = places[: pool.residency.part_keys(len(places))]
        try:
            slots = pool.residency.make_resident(pool.device.memory.upload(rows.keys[places]))
        except CorruptTableError:
            if at_all_costs:
                raise
            if len(places) == 1:
                rows.mark(places, _UNREADABLE)
            else:
                middle = len(places) // 2
                for half in (places[:middle], places[middle:]):
                    self._pin_places(rows, half, at_all_costs)
            return
        self._tables.storage.begin_change()
        pool.pins.pin(slots)
        rows.mark(places, _PINNED)

    def _pinned_in(self, pool: Pool) -> int:
        return sum(rows.pinned_count for rows in self._all_rows if rows.table.pool is pool)

    def _unpin_of(self, pool: Pool) -> bool:
        """Unpin a piece of the previous set in a pool; return False if no pinned row of that set
        was left."""
        for rows in self._old:
            if rows.table.pool is pool and len(places := rows.piece(_PINNED)):
                self._unpin(rows, places)
                return True
        return False

    def _unpin_some(self) -> bool:
        with self._tables.background():
            return any(self._unpin_of(rows.table.pool) for rows in self._old)

    def _unpin(self, rows: _HotRows, places: Places) -> None:
        """Unpin rows. They are still in the slots in which they were pinned. Engine thread."""
        pool = rows.table.pool
        d_slots, missing = pool.finder.locate(pool.device.memory.upload(rows.keys[places]))
        assert not missing, "a pinned row does not leave"
        self._tables.storage.begin_change()
        pool.pins.unpin(d_slots)
        rows.mark(places, _WANTED)

    # Removing pins. Engine thread

    def reclaim(self, pins: PoolPins, pinned: PinnedSlots | None) -> None:
        """Remove pins of a pool before the pinned slots are freed, and start to pin the rows
        again."""
        here = [rows for rows in self._all_rows if rows.table.pool.pins is pins]
        if self._unpin_all(here, None if pinned is None else pinned.keys):
            self._background.start(self._pin_later)

    def release_tables(self, tables: Sequence[TableState], *, are_dropped: bool) -> None:
        """Remove the pins of tables before the tables are dropped or replaced. Engine thread."""
        gone = [rows for rows in self._all_rows if rows.table in tables]
        self._unpin_all(gone)
        self._rows = [rows for rows in self._rows if rows not in gone]
        self._old = [rows for rows in self._old if rows not in gone]
        if are_dropped:
            self._forget({table.table_id for table in tables})

    def forget_missing(self) -> None:
        """Remove the tables that no longer exist from the wanted set. Engine thread."""
        ids = set() if self._wanted is None else set(self._wanted.ids.values())
        self._forget(ids.difference(self._tables.by_id))

    def _forget(self, gone: Container[int]) -> None:
        """Remove tables, given by id, from the wanted set."""
        wanted = self._wanted
        if wanted is None:
            return
        self._wanted = wanted.without(gone)
        if self._wanted is not wanted:
            with suppress(EmbstoreError):  # on failure the file still names missing tables
                self._keep()

    def _unpin_all(self, gone: list[_HotRows], keys: Keys | None = None) -> bool:
        """Unpin rows, or, if `keys` is given, only rows with these row keys; return whether any row
        was pinned."""
        found = False
        for rows in gone:
            places = np.flatnonzero(rows.states == _PINNED)
            if keys is not None:
                places = places[np.isin(rows.keys[places], keys)]
            if len(places):
                self._unpin(rows, places)
                found = True
            rows.begin = 0
        return found

    # Life

    def start(self) -> None:
        """Pin the wanted set in the background, unless it is complete."""
        if not self.is_complete:
            self._background.start(self._pin_later)

    def stop(self) -> None:
        """Start no more background work."""
        self._background.stop()

    def join_threads(self) -> None:
        """Wait for the background work. The caller must not have the engine."""
        self._background.join()

    # Looking

    @property
    def is_complete(self) -> bool:
        """Whether all wanted rows are pinned."""
        wanted = self.wanted.row_count if self.wanted is not None else 0
        return self.facts().pinned_rows >= wanted

    def facts(self) -> HotSetFacts:
        """Return the version and size of the wanted set, and the number of its pinned rows."""
        wanted = self.wanted
        pinned = sum(rows.pinned_count for rows in self._rows)
        if wanted is None:
            return HotSetFacts(0, 0, 0, pinned)
        return HotSetFacts(wanted.version, wanted.row_count, wanted.bytes, pinned)


def _hot_max(pool: Pool) -> int:
    """Return the maximum number of hot rows in a pool with its present slots."""
    return pool.slots.count * _HOT_QUARTERS // 4


def _no_room(pool: Pool, rows: int) -> CapacityError:
    return CapacityError(
        f"hot set: {rows} rows are more than {_hot_max(pool)}, three quarters of the slots for "
        f"rows of dim {pool.layout.dim}; choose fewer rows, or give a larger cache_bytes"
    )
