"""The loops that count by key (hotness/counter.py, hotness/recorder.py).

count_keys goes over keys[start:]. If `taken` has reached `limit`, it stops at the first key that is
not in the hash table of keys and counts (host/key_table.py). For each key:

    entry of keys[i] += counts[i], or 1 if no counts are given

record_keys returns, for the keys of one table in one call, the number of distinct keys, and the
events

    (key, sum of its counts)    for each key whose hash is at most the table's limit

each key once, in the order of first occurrences. The hash is equal to `spatial_hash` of
profiles/profile.py in every bit. The high bits of the hash decide whether the key is in the sample.
The low bits of the hash are the key's place in a scratch table; only the part of the table that the
call needs is cleared. Only -1, which is no key, has the hash 0, so 0 marks a free place.

keep_events removes, from the first `count` events, the events whose hash is above the limit.

The loops run on one thread: they consist of memory accesses, which prefetching overlaps. They run
on the host only; no device has such loops.
"""

import numpy as np

from embstore.arithmetic.compiled import mix
from embstore.arithmetic.jit import (
    Int,
    Int32s,
    Int64Rows,
    Int64RowsIn,
    Int64s,
    Int64sIn,
    Uint64RowsIn,
    Uint64s,
    Uint64sIn,
    building_block,
    kernel,
    prefetch_to_write,
)

_NEXT = np.uint64(1)
_AHEAD = 16
"""Number of keys by which prefetching is ahead of the count. This lead covers a few memory
latencies."""


@kernel
def count_keys(
    table: Int64Rows,  # (places, 2)
    keys: Int64sIn,  # (n,), repeats allowed
    counts: Int64sIn,  # (n,), each >= 1; or (0,): each key once
    start: Int,
    taken: Int,  # entries in the table
    limit: Int,  # maximum number of entries, less than the number of places
) -> tuple[int, int]:
    """Count keys[start:]; return the index of the first key that was not counted, and the new
    `taken`."""
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
def entries_of(table: Int64RowsIn, keys: Int64s, counts: Int64s) -> None:
    """Copy all entries to `keys` and `counts`, in the order of the table."""
    found = 0
    for place in range(table.shape[0]):
        if table[place, 1] != 0:
            keys[found] = table[place, 0]
            counts[found] = table[place, 1]
            found += 1


@building_block
def spatial_hash_of(key: np.int64, seed: np.uint64) -> np.uint64:
    """Return the hash of a key of the table whose seed is `seed`."""
    return mix(np.int64(np.uint64(key + 1) * seed))


@building_block
def _clear(scratch: Uint64s, keys: int) -> np.uint64:
    """Clear as many places as `keys` keys need, a power of two; return the mask that maps a hash to
    a place."""
    places = 2
    while places < 2 * keys:
        places *= 2
    for place in range(places):
        scratch[place] = 0
    return np.uint64(places - 1)


@building_block
def _merge(scratch: Uint64s, keys: Int64s, counts: Int64s, count: int) -> int:
    """Merge the first `count` events, in place, so that each key has one event; return their
    number."""
    mask = _clear(scratch, count)
    end = 0
    for i in range(count):
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
    keys: Int64sIn,  # (n,), without -1, repeats allowed
    counts: Int64sIn,  # (n,), each >= 1; or (0,): each key once
    sample: Uint64sIn,  # (2,): the seed of the table, and the limit of a hash
    scratch: Uint64s,  # its length is a power of two, at least 2 and at least 2 n
    event_keys: Int64s,  # (n,)
    event_counts: Int64s,  # (n,)
) -> tuple[int, int]:
    """Collect the events of one table in one call; return the numbers of unique keys and events."""
    weighted = counts.shape[0] > 0
    seed, limit = sample[0], sample[1]
    unique, end = 0, 0
    mask = _clear(scratch, keys.shape[0])
    for i in range(keys.shape[0]):
        key = keys[i]
        h = spatial_hash_of(key, seed)
        place = h & mask
        found = scratch[place]
        while (found != h) & (found != 0):
            place = (place + _NEXT) & mask
            found = scratch[place]
        # It is random whether a key is new or in the sample: adding a truth value avoids a branch.
        unique += found != h
        scratch[place] = h
        event_keys[end] = key
        event_counts[end] = counts[i] if weighted else 1
        end += h <= limit
    return unique, _merge(scratch, event_keys, event_counts, end)


@kernel
def keep_events(
    calls: Int32s,  # (e,)
    tables: Int32s,  # (e,), indexes of rows of `samples`
    keys: Int64s,  # (e,)
    counts: Int64s,  # (e,)
    count: Int,
    samples: Uint64RowsIn,  # (tables, 2): the seed of each table, and the limit of a hash
) -> int:
    """Drop the events whose keys are no longer in the sample; return the number of events kept."""
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
