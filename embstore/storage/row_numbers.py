"""Row numbers of a sparse table: from id to number, and from number to id.

A sparse table's keys are any 64-bit ids. Files name its rows by row keys, as every other table's:
``table_id << 40 | row number``. An id gets the next number when a row of it is logged for the first
time, and keeps it. Therefore rows are packed, for any ids, and code that works on row keys (log
index, key indexes, merges) needs no ids.

Two arrays in memory: the id of every number, in order; and an open-addressing table of numbers,
which compares ids in the first array. It holds 4 bytes a place at a load of 0.53 to 0.8, so that an
id costs 13 to 15.5 bytes, where a table of (id, number) alone takes 23 to 46. The price is a second
cache line per lookup; both are prefetched.

The table grows little by little, as that of the log's index: while an old table is there, numbers
are entered into the new one in order, some with each call, and an id that is not in the new one is
looked for in the old one. Nothing is ever removed: a restore makes the numbers anew from files
(id_files.py).

Ids that have numbers never change, so that other threads may read them while more are assigned.
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
"""Rows of one sparse table: places are below 2**32."""
NOWHERE = KEY_MASK
"""The number of an id without one; no row has this number."""
_AHEAD, _NEAR = 24, 12
"""Ids ahead for which the place in the table, and the id that is there, are prefetched."""
_INITIAL = 1 << 10
_IDS_INITIAL = 1 << 16
"""Ids that a small table has address space for; then it is for all that it may ever have, as to
grow means to copy."""
_MOVED_LEAST = 1 << 15
"""Numbers that a call moves to the new table: a few milliseconds."""
_CHECKED = 1 << 20
"""Numbers that a check of integrity looks for, at most: it takes the engine at once."""
_LOOKED_BYTES = 128
"""Bytes that a lookup of an id moves: a line of the table, and one of the ids."""


@building_block
def _home(key: np.int64, slots: Uint32sIn) -> np.int64:
    high = mixed(key) >> np.uint64(32)
    return np.int64((high * np.uint64(slots.shape[0])) >> np.uint64(32))


@building_block
def _slot_of(slots: Uint32sIn, ids: Int64sIn, key: np.int64) -> np.int64:
    """Return number + 1 of an id, or 0."""
    at = _home(key, slots)
    while slots[at] != 0 and ids[slots[at]] != key:
        at += 1
        if at == slots.shape[0]:
            at = np.int64(0)
    return np.int64(slots[at])


@building_block
def _ask(slots: Uint32sIn, ids: Int64sIn, keys: Int64sIn, i: int) -> None:
    """Prefetch the lines for ids that are looked for soon after keys[i]."""
    last = keys.shape[0] - 1
    prefetch(slots.ctypes.data + _home(keys[min(i + _AHEAD, last)], slots) * 4)
    near = slots[_home(keys[min(i + _NEAR, last)], slots)]
    prefetch(ids.ctypes.data + np.int64(near) * 8)


@kernel
def find(
    slots: Uint32sIn,  # (places,) number + 1, or 0
    old: Uint32sIn,  # the table before, as long as not all numbers are in the new one
    ids: Int64sIn,  # (numbers + 1,) of number - 1; the first is none
    keys: Int64sIn,  # (n,)
    first: Int,  # row key of number 0
    row_keys: Int64s,  # (n,) written: of NOWHERE where an id has no number
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
    """Enter the numbers from `low` up to, but not including, `high`, which are not there."""
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
    """The row numbers of one sparse table. Engine thread only, but `ids_of` and `first_ids`."""

    def __init__(self, table_id: int) -> None:
        self.table_id = table_id
        self.count = 0
        """Ids that have numbers, which are below it. Written last, when they can be read."""
        self._ids: NDArray[np.int64] = _reserved(_IDS_INITIAL, np.int64)
        self._ids[0] = EMPTY_KEY
        self._slots: NDArray[np.uint32] = _reserved(_INITIAL, np.uint32)
        self._old = _NO_SLOTS
        self._moved = self._of_old = 0  # numbers of the old table: in the new one too, and all

    @property
    def memory_bytes(self) -> int:
        """Bytes of host memory that ids and table take."""
        return 8 * (self.count + 1) + self._slots.nbytes + self._old.nbytes

    def row_keys_of(self, ids: Keys, workers: Workers | None = None) -> Keys:
        """Return the row key of each id; of number NOWHERE, which no row has, where it has no
        number."""
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
        """Return the row key of each of some unique ids; those that have no number get one, in
        their order.

        Raises
        ------
        CapacityError : no memory, or too many ids. Nothing has changed. Never where `make_room` has
            made room for them.
        """
        row_keys = self.row_keys_of(ids, workers)
        new = np.flatnonzero(row_keys & KEY_MASK == NOWHERE)
        if len(new):
            row_keys[new] = (self.table_id << KEY_BITS) + self.count + np.arange(len(new))
            self.add(ids[new])
        return row_keys

    def add(self, ids: Keys) -> None:
        """Give numbers to ids that are unique and have none."""
        self.make_room(len(ids))
        low, high = self.count, self.count + len(ids)
        self._ids[low + 1 : high + 1] = ids
        enter(self._slots, self._ids, low, high)
        self.count = high
        self._move(max(_MOVED_LEAST, 4 * len(ids)))

    def make_room(self, count: int) -> None:
        """Make room for `count` more ids, so that numbering them cannot fail.

        Raises CapacityError: nothing has changed.
        """
        size = self.count + count
        if size > NUMBERS_MAX:
            raise CapacityError(
                f"expected at most {NUMBERS_MAX} rows of a table with sparse keys, found {size}"
            )
        if size >= len(self._ids):
            try:
                ids = _reserved(NUMBERS_MAX + 1, np.int64)
            except CapacityError:  # the system counts address space as memory
                ids = _reserved(2 * size + 1, np.int64)
            ids[: self.count + 1] = self._ids[: self.count + 1]
            self._ids = ids  # readers of the old array have all that they need
        if 5 * size > 4 * len(self._slots):
            slots = _reserved(15 * size // 8, np.uint32)
            self._move(self.count)
            self._old, self._moved, self._of_old = self._slots, 0, self.count
            self._slots = slots
            self._move(_MOVED_LEAST)

    def _move(self, count: int) -> None:
        """Enter `count` numbers of the old table into the new one."""
        if len(self._old) == 1:
            return
        low, self._moved = self._moved, min(self._moved + count, self._of_old)
        enter(self._slots, self._ids, low, self._moved)
        if self._moved == self._of_old:
            self._old = _NO_SLOTS

    def ids_of(self, numbers: NDArray[np.int64]) -> Keys:
        """Return the ids of numbers that were assigned. Any thread."""
        ids: Keys = self._ids[numbers + 1]
        return ids

    def first_ids(self, low: int, high: int) -> Keys:
        """Return the ids of the assigned numbers from `low` up to, but not including, `high`: a
        view. Any thread."""
        return self._ids[low + 1 : high + 1]

    def check_integrity(self) -> None:
        """Raise AssertionError if a number is not found by its id; of many numbers, some are."""
        numbers = np.arange(0, self.count, 1 + self.count // _CHECKED)
        found = self.row_keys_of(self.ids_of(numbers))
        if not np.array_equal(found & KEY_MASK, numbers):
            raise AssertionError(f"table {self.table_id}: an id has not the number that it had")
