"""The next use of each key of a session's steps.

The planner evicts the rows that are used farthest in the future (Belady's rule, over the announced
window). A step's late rows are the rows that the step before it uses too. Next uses and late rows
both depend on two consecutive uses of a key, so one table is enough. It contains each key with its
latest use, as (step, position in that step). A later step with the same key reads the previous use
from this entry, writes the next use to the array of the previous step, and overwrites the entry.

A step is **forgotten** when it is finished. Its array of next uses is freed at once. Its table
entries are removed when another key needs their place, or when the table is half full. In the
latter case all forgotten entries are purged. If the table then has fewer than 4 places per key, or
more than 32, it is rebuilt with 4 to 8 places per key. Memory is therefore bounded by the keys of
the window, independently of the length of the session.

    table[place] = (key, step << 28 | position), or (anything, 0): free

An entry records that the key at `position` of `step` has no known later use. The table has the form
that host/key_table.py defines, and is at most half full. Steps start at 1, so no entry has the
value 0. The loop is not split into slices: it handles 50,000 keys in a millisecond.

Rejected: a list of uses for each key (one allocation per key), and sorting the window's keys for
each step (a hundred times the work for a deep window).
"""

from itertools import takewhile

import numpy as np
from numpy.typing import NDArray

from embstore.arithmetic.compiled import mix
from embstore.arithmetic.jit import (
    Int,
    Int64Rows,
    Int64s,
    Int64sIn,
    address,
    carray,
    kernel,
    pointer_at,
    prefetch_to_write,
)
from embstore.arrays import Keys
from embstore.host.key_table import carry, lower, new_table

Steps = NDArray[np.int64]

POSITION_BITS = 28
"""The number of bits of an entry below the step number: a step has fewer than 2**28 keys."""
_POSITION_MASK = np.int64((1 << POSITION_BITS) - 1)
_NEXT = np.uint64(1)
_AHEAD = 12
"""The distance in keys at which table places are prefetched: a few memory latencies."""
_PLACES = 1 << 12
_WINDOW = 16
STEP_MAX = (1 << (63 - POSITION_BITS)) - 1
"""The largest step number that fits into an entry: one step per millisecond for a year."""


@kernel
def note(
    table: Int64Rows,  # (places, 2)
    row_keys: Int64sIn,  # (u,), distinct
    step: Int,  # greater than all steps noted before
    forgotten: Int,
    addresses: Int64sIn,  # (a power of two,), of next_uses: step s at s modulo length
    previous: Int64s,  # (u,)
) -> int:
    """Record this step as the latest use of each key; return the number of free places taken.

        previous[i]                                       = the last earlier step with it, or 0
        next_uses of that step [its position of the key]  = this step

    Steps up to `forgotten` do not count: their arrays are freed, and their entries can be
    overwritten. Overwriting entries postpones the next purge.
    """
    start, mask = table.ctypes.data, np.uint64(table.shape[0] - 1)
    count, taken = row_keys.shape[0], 0
    for i in range(count):
        ahead = mix(row_keys[min(i + _AHEAD, count - 1)]) & mask
        prefetch_to_write(start + np.int64(ahead) * 16)
        place = mix(row_keys[i]) & mask
        over, found_over = place, False
        while table[place, 1] != 0 and table[place, 0] != row_keys[i]:
            if not found_over and table[place, 1] >> POSITION_BITS <= forgotten:
                over, found_over = place, True
            place = (place + _NEXT) & mask
        entry = table[place, 1]
        if entry == 0:  # The table has no entry of the key: a forgotten entry can be overwritten.
            place = over if found_over else place
            taken += not found_over
        used = entry >> POSITION_BITS
        if used > forgotten:
            next_uses = carray(
                pointer_at(addresses[used & (addresses.shape[0] - 1)]), _POSITION_MASK, np.int64
            )
            next_uses[entry & _POSITION_MASK] = step
            previous[i] = used
        else:
            previous[i] = 0
        table[place, 0] = row_keys[i]
        table[place, 1] = step << POSITION_BITS | i
    return taken


class Uses:
    """The uses of every key in the steps of one session, except forgotten steps.

    One thread at a time. Steps are noted in ascending order, each step once. A step has each key
    once.
    """

    def __init__(self) -> None:
        self._table = new_table(_PLACES)
        self._taken = 0  # places of the table that are not free
        self._next_uses: dict[int, Steps] = {}  # by step (noted, not forgotten), ascending
        self._addresses = np.zeros(_WINDOW, np.int64)  # of `_next_uses`: step s at s % length
        self._newest = 0
        self._forgotten = 0

    @property
    def memory_bytes(self) -> int:
        """Bytes of host memory of the table and of the arrays of next uses."""
        arrays = sum(next_uses.nbytes for next_uses in self._next_uses.values())
        return self._table.nbytes + self._addresses.nbytes + arrays

    def note(self, row_keys: Keys, step: int) -> Steps:
        """Record that `step` uses these keys; return the latest earlier step of each key.

        Parameters
        ----------
        row_keys : (u,) int64, distinct, u < 2**28
        step : a number that is greater than every step noted before, and not forgotten

        Returns
        -------
        previous : (u,) int64; 0 for a key that no earlier step uses, apart from forgotten steps.
            For every other key, the next use after this earlier step is now known: it is `step`
        """
        assert max(self._newest, self._forgotten) < step <= STEP_MAX, "steps are noted in order"
        assert len(row_keys) < 1 << POSITION_BITS, "a position has so many bits"
        self._make_room(len(row_keys))
        self._enter(step, np.zeros(len(row_keys), np.int64))
        previous = np.empty(len(row_keys), np.int64)
        self._taken += note(self._table, row_keys, step, self._forgotten, self._addresses, previous)
        return previous

    def next_uses(self, step: int) -> Steps:
        """Return the next use of each key of `step`: the first later step with the key.

        Keys are in the order in which they were passed to `note`.

        The value is 0 as long as no later step is known to use the key. The array is not a copy:
        noting a later step updates the array, so only read it. After `forget` the array does not
        change any more.
        """
        return self._next_uses[step]

    def forget(self, up_to_step: int) -> None:
        """Drop the uses in every step up to this step. Idempotent."""
        self._forgotten = max(self._forgotten, up_to_step)
        for step in list(takewhile(lambda step: step <= up_to_step, self._next_uses)):
            del self._next_uses[step]

    def _enter(self, step: int, next_uses: Steps) -> None:
        """Register the array to which the next uses of a step's keys will be written."""
        self._next_uses[step] = next_uses
        self._newest = step
        oldest = next(iter(self._next_uses))
        length = len(self._addresses)
        if step - oldest < length:
            self._addresses[step % length] = address(next_uses)
            return
        length = 1 << (2 * (step - oldest + 1) - 1).bit_length()
        self._addresses = np.zeros(length, np.int64)
        for known, array in self._next_uses.items():
            self._addresses[known % length] = address(array)

    def _make_room(self, count: int) -> None:
        """Make room for `count` more keys in the table, so that at most half of its places are
        taken."""
        if 2 * (self._taken + count) <= len(self._table):
            return
        forgotten = (self._forgotten + 1 << POSITION_BITS) - 1
        self._taken = lower(self._table, forgotten, 0)
        needed = self._taken + count
        if not 4 * needed <= len(self._table) <= max(32 * needed, _PLACES):
            table = new_table(max(_PLACES, 1 << (4 * needed - 1).bit_length()))
            carry(self._table, table)
            self._table = table
