"""The unique keys of a call.

unique, over segments s and positions p in [bounds[s], bounds[s + 1]):

    row_key[p]        = table_ids[s] << 40 | keys of s [p - bounds[s]]
    unique_keys[id]   = the id-th distinct row key in order of first occurrence
    inverse[p]        = the id with unique_keys[id] = row_key[p]
    id_bounds[s]      = how many ids the segments before s have

Preconditions: every table id occurs at most once (so that the ids of a segment are consecutive);
fewer than 2**31 positions. A key outside [0, row_counts[s]), compared as unsigned numbers, ends the
call: the position of the key is returned. The other results are then unusable, but the hash table
can be used again. The result depends only on the arguments. The kernel cannot be split: a thread
would need to know the ids that were assigned to all keys before its part. 50,000 keys take a third
of a millisecond.
"""

import numpy as np

from embstore.arithmetic import jit
from embstore.arithmetic.compiled import UNIQUE_BLOCK_KEYS, unique_block
from embstore.arithmetic.jit import building_block, carray, kernel, pointer_at
from embstore.arrays import KEY_BITS


@building_block
def first_outside(keys: jit.Int64sIn, begin: int, end: int, row_count: np.int64) -> int:
    """Return the first i in [begin, end) whose keys[i] is outside [0, row_count), or -1."""
    outside, limit = 0, np.uint64(row_count)
    for i in range(begin, end):
        outside += bool(np.uint64(keys[i]) >= limit)
    if outside:
        for i in range(begin, end):
            if np.uint64(keys[i]) >= limit:
                return i
    return -1


@kernel
def unique(
    key_addresses: jit.Int64sIn,  # (segments,)
    bounds: jit.Int64sIn,  # (segments + 1,)
    table_ids: jit.Int64sIn,  # (segments,)
    row_counts: jit.Int64sIn,  # (segments,)
    table: jit.Int64Rows,  # (place_count or more, 2), see embstore.arithmetic.compiled
    place_count: jit.Int,  # a power of two, at least twice the positions
    base: jit.Int,  # greater than all values of earlier calls in the table
    unique_keys: jit.Int64s,  # (n,)
    inverse: jit.Int32s,  # (n,)
    id_bounds: jit.Int64s,  # (segments + 1,)
) -> int:
    """Return -1, or the first position whose key is outside its table."""
    places = np.empty(UNIQUE_BLOCK_KEYS, np.uint64)
    count = 0
    for segment in range(key_addresses.shape[0]):
        id_bounds[segment] = count
        shift = bounds[segment]
        key_count = bounds[segment + 1] - shift
        keys = carray(pointer_at(key_addresses[segment]), key_count, np.int64)
        prefix = table_ids[segment] << KEY_BITS
        for begin in range(0, key_count, UNIQUE_BLOCK_KEYS):
            end = min(begin + UNIQUE_BLOCK_KEYS, key_count)
            outside = first_outside(keys, begin, end, row_counts[segment])
            if outside >= 0:
                return int(shift + outside)
            count = unique_block(
                keys, begin, end, prefix, table, place_count, base, count, unique_keys,
                inverse, shift, places,
            )  # fmt: skip
    id_bounds[key_addresses.shape[0]] = count
    return -1
