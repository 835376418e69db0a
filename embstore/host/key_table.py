"""Hash tables of (key, value) in host memory, and the loops that all of them share.

    table[place] = (key, value), or (anything, 0): the place is free

The place of a key is found by linear probing from its home place. The size of the table is a power
of two, and the table is never full. Any int64 can be a key. These loops exist for the host only,
not for devices.
"""

import numpy as np

from embstore.arithmetic.compiled import mix
from embstore.arithmetic.jit import Int, Int64Rows, Int64RowsIn, kernel
from embstore.host.memory import reserve

PLACE_BYTES = 16
_NEXT = np.uint64(1)


def new_table(places: int) -> Int64Rows:
    """Return an empty table (places, 2) of int64; `places` is a power of two."""
    return reserve(PLACE_BYTES * places).view(np.int64).reshape(places, 2)


@kernel
def lower(table: Int64Rows, limit: Int, amount: Int) -> int:
    """Free the places of values up to `limit`, and subtract `amount` from the other values.

    Returns the number of entries that stay. The loop begins at a free place and goes once around
    the table. It takes each entry out and enters the entry again. All places from the entry's home
    place to its old place have been visited by then, so the entry is put into one of these places.
    Therefore no entry moves to a place that the loop has yet to visit.
    """
    mask = np.uint64(table.shape[0] - 1)
    first, kept = np.uint64(0), 0
    while table[first, 1] != 0:
        first += _NEXT
    for i in range(table.shape[0]):
        place = (first + np.uint64(i)) & mask
        key, value = table[place, 0], table[place, 1]
        table[place, 1] = 0
        if value > limit:
            place = mix(key) & mask
            while table[place, 1] != 0:
                place = (place + _NEXT) & mask
            table[place, 0] = key
            table[place, 1] = value - amount
            kept += 1
    return kept


@kernel
def carry(table: Int64RowsIn, other: Int64Rows) -> None:
    """Enter every entry of a table into an empty table that has space for all of them."""
    mask = np.uint64(other.shape[0] - 1)
    for old in range(table.shape[0]):
        if table[old, 1] != 0:
            place = mix(table[old, 0]) & mask
            while other[place, 1] != 0:
                place = (place + _NEXT) & mask
            other[place, 0] = table[old, 0]
            other[place, 1] = table[old, 1]
