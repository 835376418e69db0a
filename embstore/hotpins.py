"""A hot set in the cache: its rows are brought in, and pinned until another set takes its place.

A set is pinned piece by piece, so that calls get on in between. When a new version comes, a row
that both have keeps its pin; rows of the new one are pinned while there is room, and where there
is none, as many of the old one are let go before. So there is no moment at which the hot rows are
out of the cache together, and the whole is never twice as large. Pins say where rows are and never
what they are: a swap changes no bit, whatever runs beside it.

Hot rows take at most three quarters of a pool's slots. Steps of look-ahead sessions have what is
left of the slots that may be pinned; where a session's pins stand in a hot row's way they are taken
from it, and its steps planned again.

Slots that go (a smaller cache) take their pins along, as does a restore or a dropped table; then
more is wanted than is pinned, and `pin_wanted` makes up for it.
"""

import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from embstore.arrays import KEY_BITS, Keys
from embstore.cache.pool import Pool
from embstore.engine import Engine
from embstore.errors import (
    CapacityError,
    EmbstoreError,
    InvalidArgumentError,
    TableNotFoundError,
)
from embstore.frequency.hotset import HotSet
from embstore.results import HotSetFacts
from embstore.tablestate import TableState

PIECE_ROWS = 1024
"""Pinned at once: a few milliseconds of the engine's where all must be read."""
_HOT_QUARTERS = 3
_LOOKED_AT = 16 * PIECE_ROWS


@dataclass(eq=False)
class _HotRows:
    """The hot rows of one table, and which of them are pinned."""

    table: TableState
    keys: Keys  # (k,) ascending row keys
    is_pinned: NDArray[np.bool_]  # (k,)
    pinned_count: int = 0
    _begin: int = 0
    """Where the next piece is looked for: the places before have been dealt with."""

    @classmethod
    def of(cls, table: TableState, keys: Keys) -> "_HotRows":
        """Return rows of which none is pinned."""
        return cls(table, table.table_id << KEY_BITS | keys, np.zeros(len(keys), np.bool_))

    def take_over(self, other: "_HotRows") -> None:
        """Take the pins of rows that another set has too."""
        _, here, there = np.intersect1d(self.keys, other.keys, True, return_indices=True)
        taken = here[other.is_pinned[there]]
        other.mark(there[other.is_pinned[there]], pinned=False)
        self.mark(taken, pinned=True)

    def piece(self, *, pinned: bool) -> NDArray[np.int64]:
        """Return the places of a piece of the rows that are, or are not, pinned.

        A set's rows are gone through once: all of one are asked for, and marked, one after the
        other, before any of the other kind.
        """
        while self._begin < len(self.keys):
            here = self.is_pinned[self._begin : self._begin + _LOOKED_AT] == pinned
            places = self._begin + np.flatnonzero(here)[:PIECE_ROWS]
            if len(places):
                return places
            self._begin += _LOOKED_AT
        return np.empty(0, np.int64)

    def mark(self, places: NDArray[np.int64], *, pinned: bool) -> None:
        """Note that rows are pinned now, which were not, or the other way round."""
        self.is_pinned[places] = pinned
        self.pinned_count += len(places) if pinned else -len(places)

    def begin_again(self) -> None:
        """Look for pieces from the first row on."""
        self._begin = 0


class HotPins:
    """The pinned hot set of one store. Any thread; sets are swapped one after the other."""

    def __init__(self, engine: Engine) -> None:
        self.wanted: HotSet | None = engine.frequencies.kept.hot_set()
        self.lost: Callable[[], None] = _nothing
        """Is called when pins were taken away, with the engine; must not wait."""
        self._engine = engine
        self._swapping = threading.Lock()
        self._rows: list[_HotRows] = []  # of the wanted set
        self._old: list[_HotRows] = []  # of the one before, while it is let go
        engine.before_going = self._let_tables_go

    def pin(self, hot_set: HotSet | None) -> HotSetFacts:
        """Pin a set in place of the one that is pinned; None: none.

        Raises
        ------
        InvalidArgumentError : its version is not above that of the one pinned, or a key is beyond
            its table. TableNotFoundError : a table is not there. CapacityError : more rows than
            may be pinned. Nothing has changed.
        """
        with self._swapping:
            if hot_set is not None and not self._is_wanted(hot_set):
                with self._engine.reading():
                    self._check(hot_set)
            elif hot_set is None:
                hot_set = HotSet({})
            self._swap(hot_set)
            self.wanted = hot_set if hot_set.tables else None
            self._engine.frequencies.kept.keep_hot_set(self.wanted)
            return self.facts()

    def pin_wanted(self) -> None:
        """Pin what is wanted and not pinned, as far as it can be.

        Tables may be gone, or slots; a row that cannot be read is told to whoever asks for it.
        """
        with self._swapping, suppress(EmbstoreError):
            if self.wanted is not None:
                self._swap(self._possible(self.wanted))

    def _is_wanted(self, hot_set: HotSet) -> bool:
        """Say whether the set is the pinned one, asked for again."""
        wanted = self.wanted
        if wanted is None:
            return False
        if hot_set.version == wanted.version and _same(hot_set, wanted):
            return True
        if hot_set.version <= wanted.version:
            raise InvalidArgumentError(
                f"expected a hot set of a version above {wanted.version}, which is pinned, found "
                f"{hot_set.version}; unpin it first, or give a larger version"
            )
        return False

    def _check(self, hot_set: HotSet) -> None:
        needed: dict[Pool, int] = {}
        for name, keys in hot_set.tables.items():
            table = self._engine.find(name)
            if len(keys) and keys[-1] >= table.rows:
                raise InvalidArgumentError(
                    f"hot set: table {name!r}: expected keys in [0, {table.rows}), found {keys[-1]}"
                )
            needed[table.pool] = needed.get(table.pool, 0) + len(keys)
        for pool, rows in needed.items():
            if not _has_room(pool, rows):
                raise CapacityError(
                    f"hot set: {rows} rows are more than {_hot_max(pool)}, three quarters of the "
                    f"slots for rows of dim {pool.layout.dim}; a larger cache_bytes has more"
                )

    def _possible(self, hot_set: HotSet) -> HotSet:
        """Return as much of a set as there are tables and slots for now."""
        tables, left = {}, dict[Pool, int]()
        with self._engine.reading():
            for name, keys in hot_set.tables.items():
                try:
                    table = self._engine.find(name)
                except TableNotFoundError:
                    continue
                pool, here = table.pool, keys[keys < table.rows]
                if pool not in left:
                    _has_room(pool, hot_set.row_count)
                    left[pool] = _hot_max(pool)
                tables[name] = here[: left[pool]]
                left[pool] -= len(tables[name])
        return HotSet(tables, hot_set.version, hot_set.threshold, hot_set.bytes)

    def _swap(self, hot_set: HotSet) -> None:
        with self._engine.reading():
            self._old = [*self._old, *self._rows]
            for old in self._old:
                old.begin_again()
            tables = {name: self._engine.find(name) for name in hot_set.tables}
            self._rows = [_HotRows.of(t, hot_set.tables[n]) for n, t in tables.items()]
            for rows in self._rows:
                for old in self._old:
                    if old.table.table_id == rows.table.table_id:
                        rows.take_over(old)
        while self._pin_some():
            pass
        while self._unpin_some():
            pass
        self._old = []

    def _pin_some(self) -> bool:
        with self._engine.background():
            for rows in self._rows:
                places = rows.piece(pinned=False)
                if len(places):
                    self._pin_piece(rows, places)
                    return True
        return False

    def _pin_piece(self, rows: _HotRows, places: NDArray[np.int64]) -> None:
        pool = rows.table.pool
        pool.unpinners["hot set"] = lambda: self._let_pool_go(pool)
        while not self._fits(pool, len(places)) and self._unpin_of(pool):
            pass
        if pool.pinned_count + len(places) > pool.pinned_max:
            pool.unpinners.get("lookahead", _nothing)()
        places = places[: pool.part_keys(len(places))]
        slots = pool.hold(pool.device.upload(rows.keys[places]))
        pool.pin(slots)
        rows.mark(places, pinned=True)

    def _fits(self, pool: Pool, rows: int) -> bool:
        return _has_room(pool, self._pinned_in(pool) + rows)

    def _pinned_in(self, pool: Pool) -> int:
        here = [rows for rows in (*self._rows, *self._old) if rows.table.pool is pool]
        return sum(rows.pinned_count for rows in here)

    def _unpin_of(self, pool: Pool) -> bool:
        """Let a piece of the set before go, in a pool; False: nothing of it is left there."""
        for rows in self._old:
            places = rows.piece(pinned=True)
            if rows.table.pool is pool and len(places):
                self._unpin(rows, places)
                return True
        return False

    def _unpin_some(self) -> bool:
        with self._engine.background():
            return any(self._unpin_of(rows.table.pool) for rows in self._old)

    def _unpin(self, rows: _HotRows, places: NDArray[np.int64]) -> None:
        """Take the pins of rows, which are where they were pinned. Engine thread."""
        pool = rows.table.pool
        d_slots = pool.device.allocate(len(places), np.int64)
        missing = pool.device.find(
            pool.index.arrays, pool.device.upload(rows.keys[places]), d_slots
        )
        assert not missing, "a pinned row does not leave"
        pool.unpin(d_slots)
        rows.mark(places, pinned=False)

    # What takes pins away. Engine thread

    def _let_pool_go(self, pool: Pool) -> None:
        self._let_go([rows for rows in (*self._rows, *self._old) if rows.table.pool is pool])
        self.lost()

    def _let_tables_go(self, tables: Iterable[TableState]) -> None:
        ids = {table.table_id for table in tables}
        gone = [rows for rows in (*self._rows, *self._old) if rows.table.table_id in ids]
        self._let_go(gone)
        self._rows = [rows for rows in self._rows if rows not in gone]
        self._old = [rows for rows in self._old if rows not in gone]

    def _let_go(self, gone: list[_HotRows]) -> None:
        for rows in gone:
            places = np.flatnonzero(rows.is_pinned)
            if len(places):
                self._unpin(rows, places)
            rows.begin_again()

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
    return pool.slot_count * _HOT_QUARTERS // 4


def _has_room(pool: Pool, rows: int) -> bool:
    """Say whether so many hot rows may be in a pool; add the slabs that it needs."""
    while _hot_max(pool) < rows and pool.grow():
        pass
    return rows <= _hot_max(pool)


def _same(one: HotSet, other: HotSet) -> bool:
    return one.tables.keys() == other.tables.keys() and all(
        np.array_equal(keys, other.tables[name]) for name, keys in one.tables.items()
    )


def _nothing() -> None:
    """Take no pins, tell nobody: there is none."""
