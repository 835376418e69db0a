"""The loops of next uses (lookahead/uses.py): a session's keys, each with its latest use.

    table[place] = (key, step << 28 | position), or (anything, 0): free

says that the key at `position` of `step` has not been used again yet. A place is found by linear
probing from the key's home; the table is a power of two in size and at most half full. Steps are
from 1, so that zeros are an empty table and any int64 may be a key.

note, over the distinct row_keys[i] of one step:

    previous[i]                                        = the step that had the key last, or 0
    next_uses of that step [its position of the key]   = this step

A step up to `forgotten` is as good as none: its array is gone, and its entries are free to be taken
over, which puts off the next purge. Not split: a millisecond does 50,000 keys. Host
memory only: no device has a twin of this.
"""

import numpy as np

from embstore.arithmetic.compiled import mix
from embstore.arithmetic.jit import (
    Int,
    Int64Rows,
    Int64RowsIn,
    Int64s,
    Int64sIn,
    carray,
    kernel,
    pointer_at,
    prefetch_to_write,
)

POSITION_BITS = 28
"""Bits of an entry below the step: a step has fewer keys than 2**28."""
_POSITION_MASK = np.int64((1 << POSITION_BITS) - 1)
_NEXT = np.uint64(1)
_AHEAD = 12
"""How many keys ahead the place is asked for: a few memory latencies."""


@kernel
def note(
    table: Int64Rows,  # (places, 2)
    row_keys: Int64sIn,  # (u,), distinct
    step: Int,  # above all steps noted before
    forgotten: Int,
    addresses: Int64sIn,  # (a power of two,), of next_uses of step s at s modulo its length
    previous: Int64s,  # (u,)
) -> int:
    """Point each key at this step; return how many free places were taken."""
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
        if entry == 0:  # The key has no entry further on either: now one may be taken over.
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


@kernel
def purge_uses(table: Int64Rows, forgotten: Int) -> int:
    """Free the places of every step up to `forgotten`, in place; return how many stay taken.

    From one free place round to it again, each entry is taken out and entered anew. All places
    between its home and where it was are settled by then, so it comes to lie there or before, and
    nothing is moved that still has to be seen.
    """
    mask = np.uint64(table.shape[0] - 1)
    first, kept = np.uint64(0), 0
    while table[first, 1] != 0:
        first += _NEXT
    for i in range(table.shape[0]):
        place = (first + np.uint64(i)) & mask
        key, entry = table[place, 0], table[place, 1]
        table[place, 1] = 0
        if entry >> POSITION_BITS > forgotten:
            place = mix(key) & mask
            while table[place, 1] != 0:
                place = (place + _NEXT) & mask
            table[place, 0] = key
            table[place, 1] = entry
            kept += 1
    return kept


@kernel
def carry_uses(table: Int64RowsIn, other: Int64Rows) -> None:
    """Enter every entry into an empty table that has room for them."""
    mask = np.uint64(other.shape[0] - 1)
    for old in range(table.shape[0]):
        if table[old, 1] != 0:
            place = mix(table[old, 0]) & mask
            while other[place, 1] != 0:
                place = (place + _NEXT) & mask
            other[place, 0] = table[old, 0]
            other[place, 1] = table[old, 1]
