"""The loops that measure reuse (reuse.py). They use a hash table (host/key_table.py) with an entry

    (row key, the time at which it was looked up last)

for each key in the sample. A key is in the sample if `mix(row key) >> 1 <= limit`. Times begin with
1 and grow by one with each key that is looked up, whether or not it is in the sample.

`note_reuses` does the following for the sampled keys of keys[start:]. It stops at a key that has no
entry if `taken` is `entries_max`:

    histogram[place of (now - last time), or NEVER where there is no entry] += weight

The histogram's place of a time t is t itself below 16. From 16 on, an octave has eight places, so
the place gives the time to within an eighth: place = 8 s + (t >> s), where s is such that 8 <= t >>
s < 16.

`thin` removes, in place, the entries whose keys are no longer in the sample.

These loops use host memory only: no device has a version of them.
"""

import numpy as np

from embstore.arithmetic.compiled import mix
from embstore.arithmetic.jit import (
    Int,
    Int64Rows,
    Int64s,
    Int64sIn,
    bit_count,
    building_block,
    kernel,
)

PLACES = 512
NEVER = 0
"""The histogram's place for keys that were not looked up before. No reuse time has this place,
because a reuse time is never 0."""
_STEP_BITS = 3
_BLOCK_KEYS = 512
_NEXT = np.uint64(1)
_ONE_BIT = np.uint64(1)


@building_block
def _is_sampled(h: np.uint64, limit: int) -> bool:
    return bool(np.int64(h >> _ONE_BIT) <= limit)


@building_block
def _place_of(time: int) -> int:
    below = time  # every bit up to the highest
    for shift in (1, 2, 4, 8, 16, 32):
        below |= below >> shift
    octave = max(bit_count(below) - 1 - _STEP_BITS, 0)
    return int((octave << _STEP_BITS) + (time >> octave))


@kernel
def note_reuses(
    keys: Int64sIn,  # (n,) of one table; keys may repeat
    prefix: Int,  # of the table's row keys
    clock: Int,  # the time before the first key
    start: Int,
    table: Int64Rows,  # (places, 2)
    taken: Int,  # entries in the table
    entries_max: Int,  # fewer than places
    limit: Int,
    weight: Int,  # the number of keys that a sampled key stands for
    histogram: Int64s,  # (PLACES,)
) -> tuple[int, int]:
    """Count the reuse times of keys[start:] in the histogram, as long as the table has room. Return
    the first position that was not counted, and the number of entries taken."""
    mask = np.uint64(table.shape[0] - 1)
    sampled = np.empty(_BLOCK_KEYS, np.int64)
    for begin in range(start, keys.shape[0], _BLOCK_KEYS):
        # Adding the flag to `count` avoids a branch, which would be mispredicted: hashes are
        # random.
        count = 0
        for i in range(begin, min(begin + _BLOCK_KEYS, keys.shape[0])):
            sampled[count] = i
            count += _is_sampled(mix(prefix | keys[i]), limit)
        for i in sampled[:count]:
            key = prefix | keys[i]
            place = mix(key) & mask
            while table[place, 1] != 0 and table[place, 0] != key:
                place = (place + _NEXT) & mask
            now, last = clock + i + 1, table[place, 1]
            if last == 0:
                if taken == entries_max:
                    return i, taken
                taken += 1
                table[place, 0] = key
                histogram[NEVER] += weight
            else:
                histogram[_place_of(now - last)] += weight
            table[place, 1] = now
    return keys.shape[0], taken


@kernel
def thin(table: Int64Rows, limit: Int) -> int:
    """Remove the entries of keys outside the sample; return how many entries stay. As in
    `key_table.lower`, kept entries are inserted again."""
    mask = np.uint64(table.shape[0] - 1)
    first, kept = np.uint64(0), 0
    while table[first, 1] != 0:
        first += _NEXT
    for i in range(table.shape[0]):
        place = (first + np.uint64(i)) & mask
        key, time = table[place, 0], table[place, 1]
        table[place, 1] = 0
        h = mix(key)
        if time != 0 and _is_sampled(h, limit):
            place = h & mask
            while table[place, 1] != 0:
                place = (place + _NEXT) & mask
            table[place, 0] = key
            table[place, 1] = time
            kept += 1
    return kept
