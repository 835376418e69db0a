"""Inserting keys into the index of `probe.py`, and erasing keys from it, in place.

    insert   afterwards probe(keys[i]) = slots[i]
    erase    afterwards probe(keys[i]) = -1

A new key is put into its first bucket if this bucket has two free places, else into the emptier of
its two buckets. If both buckets are full, one of the 16 keys in these buckets moves to its other
bucket, if its other bucket has room. If no key can move, the new key is put into the stash. These
rules were simulated with an index that was two thirds full, the highest load of an index from
`allocate_index`. Every key was replaced four times: one insertion in four hundred moved a key, and
no insertion needed the stash. The stash is therefore needed only for keys that were chosen to
collide. `insert` fails only if the stash is full. Four keys in five are in their first bucket, and
`probe` reads only one bucket for them. Rejected: always using the emptier bucket. Then only three
keys in five are in their first bucket; a probe took 1.2 times as long if the index was in the
processor's cache, and 1.7 times as long if it was in memory.

Preconditions: keys are unique and absent (insert), or unique and present (erase); slots < 2**32.
The kernels cannot be split over threads. The place of a key depends on the order of insertions, but
no result that a caller sees depends on this place.
"""

import numpy as np

from embstore.arithmetic import jit
from embstore.arithmetic.jit import (
    bit_count,
    building_block,
    equal_among_8,
    kernel,
    prefetch_to_write,
)
from embstore.arrays import EMPTY_KEY
from embstore.kernels.probe import (
    BLOCK_KEYS,
    BUCKET_WIDTH,
    buckets_of,
    place_in,
    place_of,
    stash_place_of,
)

FIRST_FREE_MIN = 2
"""If a key's first bucket has this many free places or more, the second bucket is not read."""


@building_block
def _free_count(start: int, bucket: int) -> int:
    count: int = bit_count(equal_among_8(start + bucket * 64, EMPTY_KEY))
    return count


@building_block
def _move_one_out(bucket_keys: jit.Int64Rows, bucket_slots: jit.Uint32Rows, bucket: int) -> int:
    """Move a key of a full bucket to the other bucket of that key. Return the place that this
    frees, or -1 if no key can move."""
    for way in range(BUCKET_WIDTH):
        key = bucket_keys[bucket, way]
        first, second = buckets_of(key, bucket_keys.shape[0])
        other = second if first == bucket else first
        place = place_in(bucket_keys.ctypes.data, other, EMPTY_KEY)
        if place >= 0:
            bucket_keys[other, place & 7] = key
            bucket_slots[other, place & 7] = bucket_slots[bucket, way]
            bucket_keys[bucket, way] = EMPTY_KEY
            return bucket * BUCKET_WIDTH + way
    return -1


@building_block
def _free_place(
    bucket_keys: jit.Int64Rows, bucket_slots: jit.Uint32Rows, first: int, second: int
) -> int:
    """Return a free place in one of the two buckets; if both are full, move a key to free a place.
    Return -1 if no key can move."""
    start = bucket_keys.ctypes.data
    free, bucket = _free_count(start, first), first
    if free < FIRST_FREE_MIN and _free_count(start, second) > free:
        bucket = second
    place = place_in(start, bucket, EMPTY_KEY)
    if place < 0:
        place = _move_one_out(bucket_keys, bucket_slots, first)
    if place < 0:
        place = _move_one_out(bucket_keys, bucket_slots, second)
    return place


@kernel
def insert(
    bucket_keys: jit.Int64Rows,  # (buckets, 8)
    bucket_slots: jit.Uint32Rows,  # (buckets, 8)
    stash_keys: jit.Int64s,
    stash_slots: jit.Uint32s,
    stash_count: jit.Int64s,  # (1,)
    keys: jit.Int64sIn,  # (n,)
    slots: jit.Int64sIn,  # (n,)
) -> bool:
    """Insert all keys. Return False if the stash has no room for a key; keys inserted before it
    stay."""
    firsts, seconds = np.empty(BLOCK_KEYS, np.int64), np.empty(BLOCK_KEYS, np.int64)
    keys_start, slots_start = bucket_keys.ctypes.data, bucket_slots.ctypes.data
    for begin in range(0, keys.shape[0], BLOCK_KEYS):
        size = min(BLOCK_KEYS, keys.shape[0] - begin)
        for i in range(size):
            firsts[i], seconds[i] = buckets_of(keys[begin + i], bucket_keys.shape[0])
            prefetch_to_write(keys_start + firsts[i] * 64)
            prefetch_to_write(keys_start + seconds[i] * 64)
            prefetch_to_write(slots_start + firsts[i] * 32)
            prefetch_to_write(slots_start + seconds[i] * 32)
        for i in range(size):
            key, slot = keys[begin + i], np.uint32(slots[begin + i])
            place = _free_place(bucket_keys, bucket_slots, firsts[i], seconds[i])
            if place >= 0:
                bucket_keys[place >> 3, place & 7] = key
                bucket_slots[place >> 3, place & 7] = slot
                continue
            if stash_count[0] == stash_keys.shape[0]:
                return False
            stash_keys[stash_count[0]] = key
            stash_slots[stash_count[0]] = slot
            stash_count[0] += 1
    return True


@kernel
def erase(
    bucket_keys: jit.Int64Rows,  # (buckets, 8)
    stash_keys: jit.Int64s,
    stash_slots: jit.Uint32s,
    stash_count: jit.Int64s,  # (1,)
    keys: jit.Int64sIn,  # (n,)
) -> None:
    """Erase all keys. If a key is erased from the stash, the stash's last key moves to its
    place."""
    firsts, seconds = np.empty(BLOCK_KEYS, np.int64), np.empty(BLOCK_KEYS, np.int64)
    keys_start = bucket_keys.ctypes.data
    for begin in range(0, keys.shape[0], BLOCK_KEYS):
        size = min(BLOCK_KEYS, keys.shape[0] - begin)
        for i in range(size):
            firsts[i], seconds[i] = buckets_of(keys[begin + i], bucket_keys.shape[0])
            prefetch_to_write(keys_start + firsts[i] * 64)
            prefetch_to_write(keys_start + seconds[i] * 64)
        for i in range(size):
            place = place_of(keys_start, firsts[i], seconds[i], keys[begin + i])
            if place >= 0:
                bucket_keys[place >> 3, place & 7] = EMPTY_KEY
                continue
            place = stash_place_of(stash_keys, stash_count[0], keys[begin + i])
            if place >= 0:
                stash_count[0] -= 1
                stash_keys[place] = stash_keys[stash_count[0]]
                stash_slots[place] = stash_slots[stash_count[0]]
