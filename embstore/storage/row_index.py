"""The log index: from a row key to the position of the row's newest record in the log.

The index is a hash table with open addressing and linear probing at a load of at most 0.7, because
lookups come in thousands, and each then touches one cache line. When an entry is removed, the
entries after it are shifted back, so that no marks of removed entries slow down a probe. The index
has one entry, (key, position), per distinct row since the last fold.

A **position** is ``place << 40 | byte offset``. A place is a small number that a log segment has as
long as its records can be found (log.py). `live` counts, per place, the records that are the newest
record of their key. Records begin at multiples of eight bytes, so the lowest bit of an offset is
free. This bit, TOMBSTONE, is set if the record marks its row as deleted.

The table grows little by little, because moving all entries at once takes seconds at tens of
millions of rows. During the growth, an entry is either in the new table or in the old one. Every
call that adds keys moves the entries of these keys, and some other entries, so that the old table
is empty long before the new one is full.

A key may occur several times in one call: entries are written in order, so the key's last position
counts. The loops are pure functions of their arguments, and use host memory only.
"""

from contextlib import suppress

import numpy as np
from numpy.typing import NDArray

from embstore.arithmetic.jit import (
    Int,
    Int64Rows,
    Int64RowsIn,
    Int64s,
    Int64sIn,
    Uint8sIn,
    building_block,
    kernel,
    prefetch,
)
from embstore.arrays import Keys
from embstore.errors import CapacityError
from embstore.host.memory import reserve

PLACE_BITS = 40
TOMBSTONE = 1
OFFSET_MASK = (1 << PLACE_BITS) - 8
_AHEAD = 12
"""Number of keys by which prefetching is ahead of the lookup. This lead covers a few memory
latencies."""
_INITIAL = 1 << 12
_ALL = 1 << 62
_MOVED_LEAST = 1 << 15
"""Number of entries that one call moves to the new table; this takes a few milliseconds."""
_SHRINK = 16
"""The table shrinks if less than one entry in _SHRINK is used, for example after a fold."""


@building_block
def mixed(key: np.int64) -> np.uint64:
    """Return a hash of a key. Each bit of the hash depends on each bit of the key."""
    h = np.uint64(key)
    h = (h ^ (h >> np.uint64(32))) * np.uint64(0xD6E8FEB86659FD93)
    h = (h ^ (h >> np.uint64(32))) * np.uint64(0xD6E8FEB86659FD93)
    return h ^ (h >> np.uint64(32))


@building_block
def _home(key: np.int64, mask: np.int64) -> np.int64:
    return np.int64(mixed(key)) & mask


@building_block
def _place(entries: Int64RowsIn, key: np.int64) -> np.int64:
    """Return the index of a key's entry, or, if it has none, the index at which to add the
    entry."""
    mask = np.int64(entries.shape[0] - 1)
    at = _home(key, mask)
    while entries[at, 0] != key + 1 and entries[at, 0] != 0:
        at = (at + 1) & mask
    return at


@building_block
def _has(entries: Int64RowsIn, at: np.int64, key: np.int64) -> bool:
    return bool(entries[at, 0] == key + 1)


@building_block
def _ask(entries: Int64RowsIn, keys: Int64sIn, i: int) -> None:
    """Prefetch the entry of a key that will be looked up soon after keys[i]."""
    key = keys[min(i + _AHEAD, keys.shape[0] - 1)]
    prefetch(entries.ctypes.data + _home(key, np.int64(entries.shape[0] - 1)) * 16)


@building_block
def position_of(entries: Int64RowsIn, old: Int64RowsIn, keys: Int64sIn, i: int) -> int:
    """Return the position of keys[i], or -1, from the new table or the old one. The entries of the
    keys after keys[i] are prefetched."""
    _ask(entries, keys, i)
    if old.shape[0] > 1:
        _ask(old, keys, i)
    at = _place(entries, keys[i])
    if _has(entries, at, keys[i]):
        return int(entries[at, 1])
    at = _place(old, keys[i])
    return int(old[at, 1]) if _has(old, at, keys[i]) else -1


@kernel
def find(
    entries: Int64RowsIn,
    old: Int64RowsIn,
    keys: Int64sIn,
    positions: Int64s,
) -> None:
    """Write each key's position, or -1, into `positions`."""
    for i in range(keys.shape[0]):
        positions[i] = position_of(entries, old, keys, i)


@kernel
def put(
    entries: Int64Rows,
    keys: Int64sIn,
    positions: Int64sIn,
    live: Int64s,
    frozen: Uint8sIn,
) -> int:
    """Point each key at its position, and update `live`; return the number of new keys."""
    added = 0
    for i in range(keys.shape[0]):
        _ask(entries, keys, i)
        at = _place(entries, keys[i])
        if _has(entries, at, keys[i]):
            place = entries[at, 1] >> PLACE_BITS
            if not frozen[place]:
                live[place] -= 1
        else:
            entries[at, 0] = keys[i] + 1
            added += 1
        entries[at, 1] = positions[i]
        live[positions[i] >> PLACE_BITS] += 1
    return added


@building_block
def _erase(entries: Int64Rows, at: np.int64) -> None:
    mask = np.int64(entries.shape[0] - 1)
    hole = at
    while True:
        at = (at + 1) & mask
        if entries[at, 0] == 0:
            break
        home = _home(entries[at, 0] - 1, mask)
        # The entry may move to the hole only if the hole is on the entry's path from home to here.
        if ((at - home) & mask) >= ((at - hole) & mask):
            entries[hole, 0] = entries[at, 0]
            entries[hole, 1] = entries[at, 1]
            hole = at
    entries[hole, 0] = 0


@kernel
def repoint(
    entries: Int64Rows,
    keys: Int64sIn,
    olds: Int64sIn,
    news: Int64sIn,
    live: Int64s,
) -> int:
    """Change the positions of entries that are still `olds` to `news`; a new position of -1 removes
    the entry. Return the number of removed entries."""
    removed = 0
    for i in range(keys.shape[0]):
        _ask(entries, keys, i)
        at = _place(entries, keys[i])
        if not _has(entries, at, keys[i]) or entries[at, 1] != olds[i]:
            continue
        if news[i] < 0:
            _erase(entries, at)
            removed += 1
        else:
            entries[at, 1] = news[i]
            live[news[i] >> PLACE_BITS] += 1
    return removed


@building_block
def _insert(entries: Int64Rows, key: np.int64, position: np.int64) -> None:
    """Add a key that the table does not have."""
    at = _place(entries, key)
    entries[at, 0] = key + 1
    entries[at, 1] = position


@kernel
def move_keys(old: Int64Rows, entries: Int64Rows, keys: Int64sIn) -> None:
    """Move the entries of `keys` from the old table to the new one, if the old table has them."""
    for i in range(keys.shape[0]):
        _ask(old, keys, i)
        at = _place(old, keys[i])
        if _has(old, at, keys[i]):
            _insert(entries, keys[i], old[at, 1])
            _erase(old, at)


@kernel
def move_some(old: Int64Rows, entries: Int64Rows, at: Int, count: Int) -> int:
    """Move up to `count` entries, starting at index `at` of the old table; stop also after `count`
    empty entries. Return the index at which to continue."""
    empty = count
    while at < old.shape[0] and count > 0 and empty > 0:
        if old[at, 0] == 0:
            at += 1
            empty -= 1
        else:
            _insert(entries, old[at, 0] - 1, old[at, 1])
            # Erasing may shift another entry to this index.
            _erase(old, np.int64(at))
            count -= 1
    return int(at)


@kernel
def add_keys(index_keys: Int64s, keys: Int64sIn, shift: Int) -> int:
    """Add every key >> shift to a set of keys; return the number of new keys."""
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


_Entries = NDArray[np.int64]  # (capacity, 2): row key + 1 (0: empty) and position
_NO_ENTRIES = np.zeros((1, 2), np.int64)


def _empty(capacity: int) -> _Entries:
    """Return an empty table in memory of its own. The memory has huge pages, which save page walks.

    The empty mark is 0, because the system supplies zeroed pages on first use. Any other mark would
    have to be written, and calls would wait for a tenth of a second at millions of rows.
    """
    return reserve(16 * capacity).view(np.int64).reshape(capacity, 2)


class RowIndex:
    """Row keys and the positions of their newest records. Engine thread only."""

    def __init__(self) -> None:
        self.size = 0
        self._entries = _empty(_INITIAL)
        self._old = _NO_ENTRIES
        """The table before the last change of size, with the entries that have not been moved
        yet."""
        self._next = 0  # the old table has no entries before this index

    @property
    def memory_bytes(self) -> int:
        """Bytes of host memory that the index takes."""
        return self._entries.nbytes + self._old.nbytes

    @property
    def tables(self) -> tuple[_Entries, _Entries]:
        """The new and the old table, as `position_of` takes them; valid until the next change."""
        return self._entries, self._old

    def put(
        self,
        keys: Keys,
        positions: NDArray[np.int64],
        live: NDArray[np.int64],
        frozen: NDArray[np.uint8],
    ) -> None:
        """Point each key at its newer position, and update `live`.

        The count of a `frozen` place does not decrease: a kept checkpoint still needs the
        superseded record. If a key is given several times, its last position counts.
        """
        self.make_room(len(keys))
        move_keys(self._old, self._entries, keys)
        self._move(max(_MOVED_LEAST, 4 * len(keys)))
        self.size += put(self._entries, keys, positions, live, frozen)

    def repoint(
        self,
        keys: Keys,
        olds: NDArray[np.int64],
        news: NDArray[np.int64],
        live: NDArray[np.int64],
    ) -> None:
        """Give keys that still have their old position the new position; a new position of -1
        removes the key."""
        for table in self.tables:
            self.size -= repoint(table, keys, olds, news, live)
        if _SHRINK * self.size < len(self._entries) and len(self._entries) > _INITIAL:
            with suppress(CapacityError, MemoryError):  # the larger table still works
                self._begin_moving(max(_INITIAL, 1 << (2 * self.size).bit_length()))
                self._move(_ALL)

    def keys_between(self, low: int, high: int) -> Keys:
        """Return the row keys in [low, high), in no order."""
        return np.concatenate([k[(k >= low) & (k < high)] for k in self.copied_keys()])

    def copied_keys(self) -> list[Keys]:
        """Return a copy of all row keys, unordered, with -1 for empty entries. The copy is made at
        the speed of memory, and can be searched without the engine."""
        return [entries[:, 0] - 1 for entries in self.tables]

    def positions_of(self, keys: Keys) -> NDArray[np.int64]:
        """Return a new array of each key's position, or -1."""
        positions = np.empty(len(keys), np.int64)
        find(*self.tables, keys, positions)
        return positions

    def positions(self) -> NDArray[np.int64]:
        """Return every position, in no order."""
        return np.concatenate([e[e[:, 0] != 0, 1] for e in self.tables])

    def make_room(self, count: int) -> None:
        """Grow once for `count` more keys, rather than several times."""
        size = self.size + count
        if 10 * size > 7 * len(self._entries):
            self._begin_moving(1 << (2 * size - 1).bit_length())
            self._move(_MOVED_LEAST)

    def _begin_moving(self, capacity: int) -> None:
        """Begin a table of another size, to which the entries will be moved little by little."""
        # Memory first: a failure half-way must not lose entries.
        entries = _empty(capacity)
        self._move(_ALL)
        self._old, self._next, self._entries = self._entries, 0, entries

    def _move(self, count: int) -> None:
        self._next = move_some(self._old, self._entries, self._next, count)
        if self._next == len(self._old):
            self._old, self._next = _NO_ENTRIES, 0
