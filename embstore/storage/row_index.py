"""The log index: row key -> where the row's newest record is in the log.

Open addressing with linear probing at a load of at most 0.7, because its lookups are by the
thousand and touch one cache line each; removal shifts the following entries back, so that no
tombstone ever slows a probe. It has one entry per distinct row since the last fold.

A **position** is ``place << 40 | byte offset``: a place is a small number that a log segment has
while records of it can be found (log.py). `live` counts, by place, the records that are some key's
newest.

It grows little by little: all entries at once are seconds for tens of millions. An entry is in the
new table or in the old one; every call that adds keys moves their entries, and some others, so that
the old table is gone long before the new one is full.

Keys given to one call may repeat: entries are written in order, so the last counts. The loops are
pure functions of their arguments; host memory only.
"""

from contextlib import suppress
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from embstore.arithmetic.jit import (
    Int,
    Int64s,
    Int64sIn,
    Uint8sIn,
    building_block,
    kernel,
    prefetch,
)
from embstore.arrays import EMPTY_KEY, Keys
from embstore.errors import CapacityError
from embstore.host.memory import reserve

PLACE_BITS = 40
OFFSET_MASK = (1 << PLACE_BITS) - 1
_AHEAD = 12
"""How many keys ahead the entry is asked for: a few memory latencies."""
_INITIAL = 1 << 12
_ALL = 1 << 62
_MOVED_LEAST = 1 << 15
"""Entries that a call moves: a few milliseconds."""
_SHRINK = 16
"""A fold can empty the index; below one entry in so many its memory is freed."""


@building_block
def _home(key: np.int64, mask: np.int64) -> np.int64:
    h = np.uint64(key)
    h = (h ^ (h >> np.uint64(32))) * np.uint64(0xD6E8FEB86659FD93)
    h = (h ^ (h >> np.uint64(32))) * np.uint64(0xD6E8FEB86659FD93)
    return np.int64(h ^ (h >> np.uint64(32))) & mask


@building_block
def _place(index_keys: Int64sIn, key: np.int64, mask: np.int64) -> np.int64:
    """Return where a key is, or where it would be added."""
    at = _home(key, mask)
    while index_keys[at] != key and index_keys[at] != -1:
        at = (at + 1) & mask
    return at


@building_block
def _ask(index_keys: Int64sIn, index_positions: Int64sIn, key: np.int64, mask: np.int64) -> None:
    at = _home(key, mask)
    prefetch(index_keys.ctypes.data + at * 8)
    prefetch(index_positions.ctypes.data + at * 8)


@kernel
def find(
    index_keys: Int64sIn,
    index_positions: Int64sIn,
    keys: Int64sIn,
    positions: Int64s,
) -> None:
    """Write each key's position, or -1, into `positions`."""
    mask = np.int64(index_keys.shape[0] - 1)
    count = keys.shape[0]
    for i in range(count):
        _ask(index_keys, index_positions, keys[min(i + _AHEAD, count - 1)], mask)
        at = _place(index_keys, keys[i], mask)
        positions[i] = index_positions[at] if index_keys[at] == keys[i] else -1


@kernel
def put(
    index_keys: Int64s,
    index_positions: Int64s,
    keys: Int64sIn,
    positions: Int64sIn,
    live: Int64s,
    frozen: Uint8sIn,
) -> int:
    """Point each key at its position, counting in `live`; return how many keys are new."""
    mask = np.int64(index_keys.shape[0] - 1)
    added = 0
    count = keys.shape[0]
    for i in range(count):
        _ask(index_keys, index_positions, keys[min(i + _AHEAD, count - 1)], mask)
        at = _place(index_keys, keys[i], mask)
        if index_keys[at] == keys[i]:
            place = index_positions[at] >> PLACE_BITS
            if not frozen[place]:
                live[place] -= 1
        else:
            index_keys[at] = keys[i]
            added += 1
        index_positions[at] = positions[i]
        live[positions[i] >> PLACE_BITS] += 1
    return added


@building_block
def _erase(index_keys: Int64s, index_positions: Int64s, at: np.int64, mask: np.int64) -> None:
    hole = at
    while True:
        at = (at + 1) & mask
        if index_keys[at] == -1:
            break
        home = _home(index_keys[at], mask)
        # The entry may move to the hole only if the hole lies on its way from home to here.
        if ((at - home) & mask) >= ((at - hole) & mask):
            index_keys[hole] = index_keys[at]
            index_positions[hole] = index_positions[at]
            hole = at
    index_keys[hole] = -1


@kernel
def repoint(
    index_keys: Int64s,
    index_positions: Int64s,
    keys: Int64sIn,
    olds: Int64sIn,
    news: Int64sIn,
    live: Int64s,
) -> int:
    """Move entries that point to `olds` to `news`, or remove them (-1); return how many went."""
    mask = np.int64(index_keys.shape[0] - 1)
    removed = 0
    count = keys.shape[0]
    for i in range(count):
        _ask(index_keys, index_positions, keys[min(i + _AHEAD, count - 1)], mask)
        at = _place(index_keys, keys[i], mask)
        if index_keys[at] != keys[i] or index_positions[at] != olds[i]:
            continue
        if news[i] < 0:
            _erase(index_keys, index_positions, at, mask)
            removed += 1
        else:
            index_positions[at] = news[i]
            live[news[i] >> PLACE_BITS] += 1
    return removed


@building_block
def _insert(index_keys: Int64s, index_positions: Int64s, key: np.int64, position: np.int64) -> None:
    """Add a key that is not there."""
    mask = np.int64(index_keys.shape[0] - 1)
    at = _place(index_keys, key, mask)
    index_keys[at] = key
    index_positions[at] = position


@kernel
def move_keys(
    old_keys: Int64s,
    old_positions: Int64s,
    index_keys: Int64s,
    index_positions: Int64s,
    keys: Int64sIn,
) -> None:
    """Move the entries of `keys` that the old table has to the new one."""
    mask = np.int64(old_keys.shape[0] - 1)
    count = keys.shape[0]
    for i in range(count):
        _ask(old_keys, old_positions, keys[min(i + _AHEAD, count - 1)], mask)
        at = _place(old_keys, keys[i], mask)
        if old_keys[at] == keys[i]:
            _insert(index_keys, index_positions, keys[i], old_positions[at])
            _erase(old_keys, old_positions, at, mask)


@kernel
def move_some(
    old_keys: Int64s,
    old_positions: Int64s,
    index_keys: Int64s,
    index_positions: Int64s,
    at: Int,
    count: Int,
) -> int:
    """Move up to `count` entries from the old table's places `at` and up, or look at so many that
    have none; return where to go on."""
    mask = np.int64(old_keys.shape[0] - 1)
    empty = count
    while at <= mask and count > 0 and empty > 0:
        if old_keys[at] == -1:
            at += 1
            empty -= 1
        else:
            _insert(index_keys, index_positions, old_keys[at], old_positions[at])
            # Another entry may come to this place.
            _erase(old_keys, old_positions, np.int64(at), mask)
            count -= 1
    return int(at)


@kernel
def add_keys(index_keys: Int64s, keys: Int64sIn, shift: Int) -> int:
    """Add every key >> shift to a table of keys alone; return how many are new."""
    mask = np.int64(index_keys.shape[0] - 1)
    added = 0
    for i in range(keys.shape[0]):
        key = keys[i] >> shift
        at = _home(key, mask)
        while index_keys[at] != key and index_keys[at] != -1:
            at = (at + 1) & mask
        if index_keys[at] == -1:
            index_keys[at] = key
            added += 1
    return added


def _entries(capacity: int) -> tuple[Keys, NDArray[np.int64]]:
    """Return empty keys and their positions, in memory of its own: huge pages spare page walks."""
    keys = reserve(8 * capacity).view(np.int64)
    keys.fill(EMPTY_KEY)
    return keys, reserve(8 * capacity).view(np.int64)


class RowIndex:
    """Row keys and the positions of their newest records. Engine thread only."""

    def __init__(self) -> None:
        self.size = 0
        self._keys, self._positions = _entries(_INITIAL)
        self._old: _Old | None = None

    @property
    def memory_bytes(self) -> int:
        """Bytes of host memory that the index takes."""
        return sum(2 * keys.nbytes for keys, _ in self._tables())

    def find(self, keys: Keys, positions: NDArray[np.int64]) -> None:
        """Write each key's position, or -1, into `positions`."""
        find(self._keys, self._positions, keys, positions)
        if self._old is not None:
            missing = np.flatnonzero(positions < 0)
            others = np.empty(len(missing), np.int64)
            find(self._old.keys, self._old.positions, keys[missing], others)
            positions[missing] = others

    def put(
        self,
        keys: Keys,
        positions: NDArray[np.int64],
        live: NDArray[np.int64],
        frozen: NDArray[np.uint8],
    ) -> None:
        """Point each key at its newer position and account for it in `live`.

        A place that is `frozen` keeps its count: a kept checkpoint still needs the record that is
        superseded. Of a repeated key the last counts.
        """
        self.make_room(len(keys))
        if (old := self._old) is not None:
            move_keys(old.keys, old.positions, self._keys, self._positions, keys)
            self._move(max(_MOVED_LEAST, 4 * len(keys)))
        self.size += put(self._keys, self._positions, keys, positions, live, frozen)

    def repoint(
        self,
        keys: Keys,
        olds: NDArray[np.int64],
        news: NDArray[np.int64],
        live: NDArray[np.int64],
    ) -> None:
        """Point keys that still have their old position to the new one, or to none (-1)."""
        for table in self._tables():
            self.size -= repoint(*table, keys, olds, news, live)
        if _SHRINK * self.size < len(self._keys) and len(self._keys) > _INITIAL:
            with suppress(CapacityError, MemoryError):  # it is right as it is
                self._begin_moving(max(_INITIAL, 1 << (2 * self.size).bit_length()))
                self._move(_ALL)

    def keys_between(self, low: int, high: int) -> Keys:
        """Return the row keys in [low, high), in no order."""
        found = [keys[(keys >= low) & (keys < high)] for keys, _ in self._tables()]
        return np.concatenate(found)

    def copied_keys(self) -> list[Keys]:
        """Return all row keys, in no order, and others that are EMPTY_KEY: a copy as fast as memory
        is, to be looked through without the engine."""
        return [keys.copy() for keys, _ in self._tables()]

    def positions_of(self, keys: Keys) -> NDArray[np.int64]:
        """Return a new array of each key's position, or -1."""
        positions = np.empty(len(keys), np.int64)
        self.find(keys, positions)
        return positions

    def positions(self) -> NDArray[np.int64]:
        """Return every position, in no order."""
        return np.concatenate([p[keys != EMPTY_KEY] for keys, p in self._tables()])

    def make_room(self, count: int) -> None:
        """Grow once for `count` keys more, rather than again and again."""
        size = self.size + count
        if 10 * size > 7 * len(self._keys):
            self._begin_moving(1 << (2 * size - 1).bit_length())
            self._move(_MOVED_LEAST)

    def _tables(self) -> list[tuple[Keys, NDArray[np.int64]]]:
        tables = [(self._keys, self._positions)]
        if self._old is not None:
            tables.append((self._old.keys, self._old.positions))
        return tables

    def _begin_moving(self, capacity: int) -> None:
        """Begin a table of another size, to which the entries move little by little."""
        # Memory first: a failure half way must not leave an index without its rows.
        keys, positions = _entries(capacity)
        if self._old is not None:
            self._move(_ALL)
        self._old = _Old(self._keys, self._positions)
        self._keys, self._positions = keys, positions

    def _move(self, count: int) -> None:
        old = self._old
        assert old is not None
        old.next = move_some(old.keys, old.positions, self._keys, self._positions, old.next, count)
        if old.next == len(old.keys):
            self._old = None


@dataclass
class _Old:
    """The table before it was made larger: entries that have not been moved yet."""

    keys: Keys
    positions: NDArray[np.int64]
    next: int = 0
