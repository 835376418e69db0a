"""Row numbers of a sparse table: from id to number, and from number to id.

The keys of a sparse table are any 64-bit ids. Files identify the rows of every table by row keys;
for a sparse table the row key is ``table_id << 40 | row number``. When the row of an id is
logged for the first time, the id gets the next number, which it keeps. Therefore row keys have no
gaps, whatever the ids are, and code that works on row keys (log index, key indexes, merges) needs
no ids.

Two arrays are in memory: the ids in the order of their numbers; and an open-addressing table of
numbers, which compares ids in the first array. The table has 4 bytes per slot at a load of 0.53 to
0.8, so that an id takes 13 to 15.5 bytes in both arrays together. A single table of (id, number)
would take 23 to 46 bytes per id. The price is a second cache line per lookup; both lines are
prefetched.

The table grows little by little, like the table of the log index. As long as an old table exists,
each call enters some of the old table's numbers, in order, into the new table; an id that is not in
the new table is looked up in the old one. No number is ever removed: a restore builds new row
numbers from files (id_files.py).

The id of a number never changes, so other threads can read the ids of assigned numbers while more
numbers are assigned.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from embstore.arithmetic.jit import (
    Int,
    Int64s,
    Int64sIn,
    Uint32s,
    Uint32sIn,
    building_block,
    kernel,
    prefetch,
    prefetch_to_write,
)
from embstore.arrays import EMPTY_KEY, KEY_BITS, KEY_MASK, Keys
from embstore.errors import CapacityError
from embstore.host.memory import reserve
from embstore.host.workers import Workers
from embstore.storage.row_index import mixed

NUMBERS_MAX = 3 << 30
"""Maximum number of rows of one sparse table: a slot of 32 bits contains number + 1."""
NOWHERE = KEY_MASK
"""The row number that stands for "no number"; no row has it."""
_AHEAD, _NEAR = 24, 12
"""Numbers of ids by which prefetching is ahead of the lookup: for the slot, and for the id to which
the slot refers."""
_INITIAL = 1 << 10
_IDS_INITIAL = 1 << 16
"""Number of ids for which a small table reserves address space. A larger table reserves address
space for all ids that it can ever have, because an array must be copied to grow."""
_MOVED_LEAST = 1 << 15
"""Number of row numbers that one call moves to the new table; this takes a few milliseconds."""
_CHECKED = 1 << 20
"""Maximum number of row numbers that a check of integrity looks up. The check is limited because
the engine waits for it."""
_LOOKED_BYTES = 128
"""Bytes of memory traffic per lookup: one cache line of the table, and one of the ids."""


@building_block
def _home(key: np.int64, slots: Uint32sIn) -> np.int64:
    high = mixed(key) >> np.uint64(32)
    return np.int64((high * np.uint64(slots.shape[0])) >> np.uint64(32))


@building_block
def _slot_of(slots: Uint32sIn, ids: Int64sIn, key: np.int64) -> np.int64:
    """Return the row number of an id, plus 1; 0 if the id has no row number."""
    at = _home(key, slots)
    while slots[at] != 0 and ids[slots[at]] != key:
        at += 1
        if at == slots.shape[0]:
            at = np.int64(0)
    return np.int64(slots[at])


@building_block
def _ask(slots: Uint32sIn, ids: Int64sIn, keys: Int64sIn, i: int) -> None:
    """Prefetch the cache lines for ids that will be looked up soon after keys[i]."""
    last = keys.shape[0] - 1
    prefetch(slots.ctypes.data + _home(keys[min(i + _AHEAD, last)], slots) * 4)
    near = slots[_home(keys[min(i + _NEAR, last)], slots)]
    prefetch(ids.ctypes.data + np.int64(near) * 8)


@kernel
def find(
    slots: Uint32sIn,  # (slots,) number + 1; 0: empty
    old: Uint32sIn,  # the old table, as long as the new one lacks some of its numbers
    ids: Int64sIn,  # (numbers + 1,) ids[number + 1] is the id of number; ids[0] is not used
    keys: Int64sIn,  # (n,)
    first: Int,  # row key of number 0
    row_keys: Int64s,  # (n,) written; with number NOWHERE if an id has no number
    low: Int,
    high: Int,
) -> None:
    """Write the row keys of keys[low:high]."""
    for i in range(low, high):
        _ask(slots, ids, keys, i)
        slot = _slot_of(slots, ids, keys[i])
        if slot == 0 and old.shape[0] > 1:
            slot = _slot_of(old, ids, keys[i])
        row_keys[i] = first | ((slot - 1) & KEY_MASK)


@kernel
def enter(
    slots: Uint32s,
    ids: Int64sIn,
    low: Int,
    high: Int,
) -> None:
    """Enter the numbers `low` to `high` - 1, which must not be in the table yet."""
    for number in range(low, high):
        ahead = ids[min(number + _AHEAD, high - 1) + 1]
        prefetch_to_write(slots.ctypes.data + _home(ahead, slots) * 4)
        at = _home(ids[number + 1], slots)
        while slots[at] != 0:
            at += 1
            if at == slots.shape[0]:
                at = np.int64(0)
        slots[at] = np.uint32(number + 1)


_NO_SLOTS = np.zeros(1, np.uint32)


def _reserved(count: int, dtype: type) -> NDArray[Any]:
    return reserve(count * np.dtype(dtype).itemsize).view(dtype)


class RowNumbers:
    """The row numbers of one sparse table. Engine thread only, except `ids_of` and `first_ids`."""

    def __init__(self, table_id: int) -> None:
        self.table_id = table_id
        self.count = 0
        """Number of ids that have row numbers. It is increased only after the new ids have been
        written, so that threads can read these ids."""
        self._ids: NDArray[np.int64] = _reserved(_IDS_INITIAL, np.int64)
        self._ids[0] = EMPTY_KEY
        self._slots: NDArray[np.uint32] = _reserved(_INITIAL, np.uint32)
        self._old = _NO_SLOTS
        self._moved = self._of_old = 0  # counts of the old table: moved numbers, all numbers

    @property
    def memory_bytes(self) -> int:
        """Bytes of host memory that the ids and the tables take."""
        return 8 * (self.count + 1) + self._slots.nbytes + self._old.nbytes

    def row_keys_of(self, ids: Keys, workers: Workers | None = None) -> Keys:
        """Return the row key of each id. If an id has no row number, its row key contains NOWHERE,
        the number that no row has."""
        row_keys = np.empty(len(ids), np.int64)
        tables = self._slots, self._old, self._ids

        def work(low: int, high: int) -> None:
            find(*tables, ids, self.table_id << KEY_BITS, row_keys, low, high)

        if workers is None:
            work(0, len(ids))
        else:
            workers.share(work, len(ids), _LOOKED_BYTES)
        return row_keys

    def assign(self, ids: Keys, workers: Workers | None = None) -> Keys:
        """Return the row keys of unique ids. Ids that have no row number get one, in the order of
        `ids`.

        Raises
        ------
        CapacityError : there is not enough memory, or there are too many ids. Nothing has changed.
            This error is never raised if `make_room` has made room for these ids.
        """
        row_keys = self.row_keys_of(ids, workers)
        new = np.flatnonzero(row_keys & KEY_MASK == NOWHERE)
        if len(new):
            row_keys[new] = (self.table_id << KEY_BITS) + self.count + np.arange(len(new))
            self.add(ids[new])
        return row_keys

    def add(self, ids: Keys) -> None:
        """Give row numbers to unique ids that have none yet."""
        self.make_room(len(ids))
        low, high = self.count, self.count + len(ids)
        self._ids[low + 1 : high + 1] = ids
        enter(self._slots, self._ids, low, high)
        self.count = high
        self._move(max(_MOVED_LEAST, 4 * len(ids)))

    def make_room(self, count: int) -> None:
        """Make room for `count` more ids, so that `add` cannot fail for these ids.

        Raises CapacityError if there is not enough memory; nothing has changed then.
        """
        size = self.count + count
        if size > NUMBERS_MAX:
            raise CapacityError(
                f"expected at most {NUMBERS_MAX} rows of a table with sparse keys, found {size}"
            )
        if size >= len(self._ids):
            try:
                ids = _reserved(NUMBERS_MAX + 1, np.int64)
            except CapacityError:  # this system counts reserved address space as memory
                ids = _reserved(2 * size + 1, np.int64)
            ids[: self.count + 1] = self._ids[: self.count + 1]
            self._ids = ids  # threads that still read the old array find all their ids there
        if 5 * size > 4 * len(self._slots):
            slots = _reserved(15 * size // 8, np.uint32)
            self._move(self.count)
            self._old, self._moved, self._of_old = self._slots, 0, self.count
            self._slots = slots
            self._move(_MOVED_LEAST)

    def _move(self, count: int) -> None:
        """Enter `count` more numbers of the old table into the new one."""
        if len(self._old) == 1:
            return
        low, self._moved = self._moved, min(self._moved + count, self._of_old)
        enter(self._slots, self._ids, low, self._moved)
        if self._moved == self._of_old:
            self._old = _NO_SLOTS

    def ids_of(self, numbers: NDArray[np.int64]) -> Keys:
        """Return the ids of row numbers, which must have been assigned. Any thread."""
        ids: Keys = self._ids[numbers + 1]
        return ids

    def first_ids(self, low: int, high: int) -> Keys:
        """Return a view of the ids of the row numbers `low` to `high` - 1, which must have been
        assigned. Any thread."""
        return self._ids[low + 1 : high + 1]

    def check_integrity(self) -> None:
        """Raise AssertionError if a row number is not found by its id. If there are many numbers,
        only a sample of them is checked."""
        numbers = np.arange(0, self.count, 1 + self.count // _CHECKED)
        found = self.row_keys_of(self.ids_of(numbers))
        if not np.array_equal(found & KEY_MASK, numbers):
            raise AssertionError(f"table {self.table_id}: an id has not the number that it had")
