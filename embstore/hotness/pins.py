"""A hot set in the cache: its rows are brought in, and pinned until another set takes its place.

A set is pinned piece by piece, so that calls get on in between. When a new version comes, a row
that both have keeps its pin; rows of the new one are pinned while there is room, and where there is
none, as many of the old one are unpinned before. Therefore the hot rows are never out of the cache
together, and the pinned rows are never twice as many. Pins decide the place of rows and never their
content: a swap changes no bit, with any concurrent calls.

Hot rows take at most three quarters of a pool's slots. Steps of look-ahead sessions have the rest
of the slots that may be pinned; where a session's pins block a hot row they are taken from it, and
its steps planned again.

A requested set is pinned whole, or the previous one comes back. Commands that take slots or tables
away (a smaller cache, a restore, a drop) take pins along; the wanted set is then pinned again as
far as possible: as far as there is room, and without rows that cannot be read.

The set belongs to tables, not to names: a table that is dropped leaves it, and another one of its
name is not in it. In the directory it is therefore by table id.
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
"""Pinned at once: a few milliseconds of the engine's where all must be read."""
_HOT_QUARTERS = 3
_LOOKED_AT = 16 * PIECE_ROWS
_WANTED, _PINNED, _UNREADABLE = 0, 1, 2

Places = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class _Wanted:
    """A hot set and the ids of its tables; replaced whole, so that both go together."""

    hot_set: HotSet
    ids: dict[str, int]

    @classmethod
    def kept(cls, by_id: HotSet, tables: Iterable[TableState]) -> "_Wanted | None":
        """Return a directory's hot set, whose tables are ids, without tables that are gone."""
        names = {str(table.table_id): table.name for table in tables}
        here = {known: keys for known, keys in by_id.tables.items() if known in names}
        found = {names[known]: keys for known, keys in here.items()}
        total_bytes = by_id.bytes if len(here) == len(by_id.tables) else 0
        ids = {names[known]: int(known) for known in here}
        return cls(replace(by_id, tables=found, bytes=total_bytes), ids) if here else None

    def by_id(self) -> HotSet:
        """Return the set as a directory keeps it."""
        tables = {str(self.ids[name]): keys for name, keys in self.hot_set.tables.items()}
        return replace(self.hot_set, tables=tables)

    def without(self, gone: Container[int]) -> "_Wanted | None":
        """Return the set without the tables of some ids; None: nothing is left."""
        ids = {name: known for name, known in self.ids.items() if known not in gone}
        if len(ids) == len(self.ids) > 0:
            return self
        tables = {name: keys for name, keys in self.hot_set.tables.items() if name in ids}
        return _Wanted(replace(self.hot_set, tables=tables, bytes=0), ids) if ids else None


@dataclass(eq=False)
class _HotRows:
    """The hot rows of one table, and which of them are pinned."""

    table: TableState
    keys: Keys  # (k,) ascending row keys
    states: NDArray[np.int8]  # (k,)
    pinned_count: int = 0
    begin: int = 0
    """Where the next piece is looked for: the places before have been dealt with."""

    def take_over(self, other: "_HotRows", here: Places, there: Places) -> None:
        """Take the pins of rows that another set has too: its places `there`, `here` in this."""
        pinned = other.states[there] == _PINNED
        other.mark(there[pinned], _WANTED)
        self.mark(here[pinned], _PINNED)

    def piece(self, state: int) -> Places:
        """Return the places of a piece of the rows in a state.

        Rows are processed once: all of one state are selected, and marked, one piece after the
        other, before any of another state.
        """
        while self.begin < len(self.keys):
            here = self.states[self.begin : self.begin + _LOOKED_AT] == state
            places: Places = self.begin + np.flatnonzero(here)[:PIECE_ROWS]
            if len(places):
                return places
            self.begin += _LOOKED_AT
        return np.empty(0, np.int64)

    def mark(self, places: Places, state: int) -> None:
        """Note the state of rows; places are unique."""
        self.pinned_count -= int(np.count_nonzero(self.states[places] == _PINNED))
        self.states[places] = state
        self.pinned_count += len(places) if state == _PINNED else 0


class HotPins:
    """The pinned hot set of one store. Any thread; sets are swapped one after the other.

    One class, because a swap, rows that lose their pins meanwhile and the wanted set change
    together, in one turn with the engine.
    """

    def __init__(self, tables: Tables, kept: KeptProfiles) -> None:
        self._tables = tables
        self._kept_files = kept
        self._background = Background("hot set")
        self._swapping = threading.Lock()
        self._rows: list[_HotRows] = []  # of the wanted set
        self._old: list[_HotRows] = []  # of the one before, while it is let go
        by_id, self._wanted = kept.hot_set(), None
        if by_id is not None:
            self._wanted = _Wanted.kept(by_id, tables.by_id.values())
            if self._wanted is None or len(self._wanted.ids) < len(by_id.tables):
                with suppress(EmbstoreError):  # tables that are gone are kept no longer
                    self._keep()

    @property
    def wanted(self) -> HotSet | None:
        """The set that was requested last."""
        wanted = self._wanted
        return None if wanted is None else wanted.hot_set

    def pin(self, hot_set: HotSet | None) -> HotSetFacts:
        """Pin a set in place of the one that is pinned, as `Store.pin_hot_set`.

        After an error, also of the disk or of a row that cannot be read, the set before is pinned.
        Waits for other swaps, which need the engine: not with the engine.
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
        """Pin the wanted rows that are not pinned, as far as possible; in the background where
        another swap runs.

        Its caller may hold the engine, for which that swap waits between two pieces, so nothing is
        waited for here.
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
        """Do as `pin_wanted`, after other swaps. Without the engine."""
        with suppress(EmbstoreError), Slices(self._tables.frame).after_others(self._swapping):
            self._pin_possible()

    def _pin_possible(self) -> None:
        wanted = self._wanted
        if wanted is not None or self._all_rows:
            possible = HotSet({}) if wanted is None else self._possible(wanted)
            self._swap(possible, at_all_costs=False)

    def _want(self, hot_set: HotSet | None) -> None:
        """Take a set for the one wanted."""
        with self._tables.reading():
            names = hot_set.tables if hot_set is not None else ()
            ids = {name: self._tables.find(name).table_id for name in names}
            self._wanted = _Wanted(hot_set, ids) if hot_set is not None and ids else None

    def _keep(self) -> None:
        """Write the wanted set to the directory, again where it changes while it is written."""
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
        """Have pools take the slabs that there are for these hot rows; return how many each has."""
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
        """Return as much of a set as there are tables and slots for now."""
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
        """Pin a set in place of the pinned one; without `at_all_costs`, as much as is possible."""
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
            rows.begin = len(rows.keys)  # no more of them

    def _pin_places(self, rows: _HotRows, places: Places, at_all_costs: bool) -> None:
        """Bring rows in and pin them; those that cannot be read are passed over, or raised."""
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
        """Let a piece of the set before go, in a pool; False: nothing of it is left there."""
        for rows in self._old:
            if rows.table.pool is pool and len(places := rows.piece(_PINNED)):
                self._unpin(rows, places)
                return True
        return False

    def _unpin_some(self) -> bool:
        with self._tables.background():
            return any(self._unpin_of(rows.table.pool) for rows in self._old)

    def _unpin(self, rows: _HotRows, places: Places) -> None:
        """Take the pins of rows, which are where they were pinned. Engine thread."""
        pool = rows.table.pool
        d_slots, missing = pool.finder.locate(pool.device.memory.upload(rows.keys[places]))
        assert not missing, "a pinned row does not leave"
        self._tables.storage.begin_change()
        pool.pins.unpin(d_slots)
        rows.mark(places, _WANTED)

    # Taking pins away. Engine thread

    def reclaim(self, pins: PoolPins, pinned: PinnedSlots | None) -> None:
        """Take pins of a pool back, before its slots go; the wanted rows are pinned again."""
        here = [rows for rows in self._all_rows if rows.table.pool.pins is pins]
        if self._unpin_all(here, None if pinned is None else pinned.keys):
            self._background.start(self._pin_later)

    def release_tables(self, tables: Sequence[TableState], *, are_dropped: bool) -> None:
        """Take the pins of tables back, before these go or become others. Engine thread."""
        gone = [rows for rows in self._all_rows if rows.table in tables]
        self._unpin_all(gone)
        self._rows = [rows for rows in self._rows if rows not in gone]
        self._old = [rows for rows in self._old if rows not in gone]
        if are_dropped:
            self._forget({table.table_id for table in tables})

    def forget_missing(self) -> None:
        """Want no rows of tables any more that are not there. Engine thread."""
        ids = set() if self._wanted is None else set(self._wanted.ids.values())
        self._forget(ids.difference(self._tables.by_id))

    def _forget(self, gone: Container[int]) -> None:
        """Want no rows of tables any more, given by id."""
        wanted = self._wanted
        if wanted is None:
            return
        self._wanted = wanted.without(gone)
        if self._wanted is not wanted:
            with suppress(EmbstoreError):  # the kept set then names tables that are gone
                self._keep()

    def _unpin_all(self, gone: list[_HotRows], keys: Keys | None = None) -> bool:
        """Take the pins of rows, or of those that have these row keys; say whether any had one."""
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
        """Pin the wanted set, in the background, if anything is missing."""
        if not self.is_complete:
            self._background.start(self._pin_later)

    def stop(self) -> None:
        """Begin no more work in the background."""
        self._background.stop()

    def join_threads(self) -> None:
        """Wait for the work in the background. Not with the engine."""
        self._background.join()

    # Looking

    @property
    def is_complete(self) -> bool:
        """Whether all that is wanted is pinned."""
        wanted = self.wanted.row_count if self.wanted is not None else 0
        return self.facts().pinned_rows >= wanted

    def facts(self) -> HotSetFacts:
        """Return which set is wanted, and how much of it is pinned."""
        wanted = self.wanted
        pinned = sum(rows.pinned_count for rows in self._rows)
        if wanted is None:
            return HotSetFacts(0, 0, 0, pinned)
        return HotSetFacts(wanted.version, wanted.row_count, wanted.bytes, pinned)


def _hot_max(pool: Pool) -> int:
    """Return how many hot rows a pool takes, of the slots that it has."""
    return pool.slots.count * _HOT_QUARTERS // 4


def _no_room(pool: Pool, rows: int) -> CapacityError:
    return CapacityError(
        f"hot set: {rows} rows are more than {_hot_max(pool)}, three quarters of the slots for "
        f"rows of dim {pool.layout.dim}; choose fewer rows, or give a larger cache_bytes"
    )
