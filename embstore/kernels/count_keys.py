"""The loops of counting by key (frequency/counter.py, frequency/recorder.py).

    table[place] = (key, count), or (anything, 0): free

A place is found by linear probing from the key's home; the table is a power of two in size, and
never full. Any int64 may be a key.

count_keys, over keys[start:], until one has no entry and `taken` is `limit`:

    entry of keys[i] += counts[i], or 1 where no counts are given

lower, over all entries: those of at most `amount` go, the others lose that much (a Misra-Gries
summary's decrement, all at once).

record_keys, over the tables j of one call, whose keys are keys[bounds[j]:bounds[j + 1]]: how many
keys differ within their table, and the events

    (tables[j], key, sum of its counts)    for each key whose hash is at most the table's limit

once each, in the order of their first occurrences. The hash is `spatial_hash` of
frequency/profile.py, to the bit. Its high bits decide what is in, its low bits find a place in the
scratch, which is cleared for each table as far as that needs it. The table's seed has its highest
bit set and keys are >= 0, so no hash is 0 and 0 is a free place.

keep_events: of the first `count` events those stay, in order, whose hash is at most the limit.

Not split: they are memory accesses, which a prefetch overlaps. Host memory only: no device has a
twin of these.
"""

import numpy as np

from embstore.arithmetic.compiled import mix
from embstore.arithmetic.jit import (
    Int,
    Int32s,
    Int32sIn,
    Int64Rows,
    Int64RowsIn,
    Int64s,
    Int64sIn,
    Uint64RowsIn,
    Uint64s,
    building_block,
    kernel,
    prefetch_to_write,
)

_NEXT = np.uint64(1)
_AHEAD = 16
"""How many keys ahead the place is asked for: a few memory latencies."""


@kernel
def count_keys(
    table: Int64Rows,  # (places, 2)
    keys: Int64sIn,  # (n,), repeats allowed
    counts: Int64sIn,  # (n,), each >= 1; or (0,): each key once
    start: Int,
    taken: Int,  # entries in the table
    limit: Int,  # entries that it may have, fewer than places
) -> tuple[int, int]:
    """Count keys[start:]; return the first position that is not counted, and entries taken."""
    address, mask = table.ctypes.data, np.uint64(table.shape[0] - 1)
    key_count, weighted = keys.shape[0], counts.shape[0] > 0
    for i in range(start, key_count):
        ahead = mix(keys[min(i + _AHEAD, key_count - 1)]) & mask
        prefetch_to_write(address + np.int64(ahead) * 16)
        key = keys[i]
        place = mix(key) & mask
        while table[place, 1] != 0 and table[place, 0] != key:
            place = (place + _NEXT) & mask
        if table[place, 1] == 0:
            if taken == limit:
                return i, taken
            taken += 1
            table[place, 0] = key
        table[place, 1] += counts[i] if weighted else 1
    return key_count, taken


@kernel
def lower(table: Int64Rows, amount: Int) -> int:
    """Take `amount` from every count, in place; return how many entries stay.

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
        key, count = table[place, 0], table[place, 1]
        table[place, 1] = 0
        if count > amount:
            place = mix(key) & mask
            while table[place, 1] != 0:
                place = (place + _NEXT) & mask
            table[place, 0] = key
            table[place, 1] = count - amount
            kept += 1
    return kept


@kernel
def carry_counts(table: Int64RowsIn, other: Int64Rows) -> None:
    """Enter every entry into an empty table that has room for them."""
    mask = np.uint64(other.shape[0] - 1)
    for old in range(table.shape[0]):
        if table[old, 1] != 0:
            place = mix(table[old, 0]) & mask
            while other[place, 1] != 0:
                place = (place + _NEXT) & mask
            other[place, 0] = table[old, 0]
            other[place, 1] = table[old, 1]


@kernel
def entries_of(table: Int64RowsIn, keys: Int64s, counts: Int64s) -> None:
    """Copy every entry out, in the order of the table."""
    found = 0
    for place in range(table.shape[0]):
        if table[place, 1] != 0:
            keys[found] = table[place, 0]
            counts[found] = table[place, 1]
            found += 1


@building_block
def spatial_hash_of(key: np.int64, seed: np.uint64) -> np.uint64:
    """Return the hash of a key of the table with this seed."""
    return mix(key ^ np.int64(seed))


@building_block
def _clear(scratch: Uint64s, keys: int) -> np.uint64:
    """Free as many places as so many keys need, a power of two; return the mask of a place."""
    places = 2
    while places < 2 * keys:
        places *= 2
    for place in range(places):
        scratch[place] = 0
    return np.uint64(places - 1)


@building_block
def _merge(scratch: Uint64s, keys: Int64s, counts: Int64s, low: int, high: int) -> int:
    """Make the events [low, high) of one table one event a key, in place; return the new end."""
    mask = _clear(scratch, high - low)
    end = low
    for i in range(low, high):
        place = mix(keys[i]) & mask
        while scratch[place] != 0 and keys[np.int64(scratch[place]) - 1] != keys[i]:
            place = (place + _NEXT) & mask
        if scratch[place] == 0:
            keys[end] = keys[i]
            counts[end] = counts[i]
            end += 1
            scratch[place] = end
        else:
            counts[np.int64(scratch[place]) - 1] += counts[i]
    return end


@kernel
def record_keys(
    keys: Int64sIn,  # (n,), >= 0, repeats allowed
    counts: Int64sIn,  # (n,), each >= 1; or (0,): each key once
    bounds: Int64sIn,  # (t + 1,), from 0 to n
    tables: Int32sIn,  # (t,), places in `samples`, each once
    samples: Uint64RowsIn,  # (tables of the recorder, 2): seed, and limit of a hash
    scratch: Uint64s,  # a power of two, twice the keys of the largest table at least, and 2
    event_tables: Int32s,  # (n,)
    event_keys: Int64s,  # (n,)
    event_counts: Int64s,  # (n,)
) -> tuple[int, int]:
    """Collect the events of one call; return how many keys differ, and the number of events."""
    weighted = counts.shape[0] > 0
    unique, end = 0, 0
    for j in range(tables.shape[0]):
        seed, limit = samples[tables[j], 0], samples[tables[j], 1]
        first, low = bounds[j], end
        of_table = keys[first : bounds[j + 1]]
        mask = _clear(scratch, of_table.shape[0])
        for i in range(of_table.shape[0]):
            key = of_table[i]
            h = spatial_hash_of(key, seed)
            place = h & mask
            found = scratch[place]
            while (found != h) & (found != 0):
                place = (place + _NEXT) & mask
                found = scratch[place]
            # Whether a key is new or in is as random as a hash: added up, neither is a branch.
            unique += found != h
            scratch[place] = h
            event_keys[end] = key
            event_counts[end] = counts[first + i] if weighted else 1
            end += h <= limit
        end = _merge(scratch, event_keys, event_counts, low, end)
        event_tables[low:end] = tables[j]
    return unique, end


@kernel
def keep_events(
    calls: Int32s,  # (e,)
    tables: Int32s,  # (e,), places in `seeds`
    keys: Int64s,  # (e,)
    counts: Int64s,  # (e,)
    count: Int,
    samples: Uint64RowsIn,  # (tables, 2): the seed of each table, and the limit of a hash
) -> int:
    """Drop the events whose keys are no longer in the sample; return how many stay."""
    kept = 0
    for i in range(count):
        table = tables[i]
        if spatial_hash_of(keys[i], samples[table, 0]) <= samples[table, 1]:
            calls[kept] = calls[i]
            tables[kept] = table
            keys[kept] = keys[i]
            counts[kept] = counts[i]
            kept += 1
    return kept
