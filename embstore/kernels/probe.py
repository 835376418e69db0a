"""The slot of each key: slots[i] = the slot of keys[i] in the index, or -1.

The index is an IndexArrays of `embstore.device.values`; here a bucket is 8 keys, one cache line.
The numbers of a key's two buckets follow from the upper and the lower half of its mixed 64 bits:
each half is multiplied by the number of buckets and divided by 2**32. So the number of buckets need
not be a power of two, and the choices of the two buckets are independent. Every key is in one of
two cache lines, unless it is in the stash, which is nearly always empty.

Keys may repeat. The result does not depend on the place of a key in its buckets. A block of keys is
processed in three rounds. The first prefetches the cache line of each key's first bucket; the
second prefetches the line of the slot, or of the second bucket; the third reads the slots. So the
latency of memory is paid three times per block, and not per key. Blocks of 256 keys were twice as
fast as blocks of 32.
"""

from typing import Any

import numpy as np

from embstore.arithmetic import jit
from embstore.arithmetic.compiled import mix
from embstore.arithmetic.jit import (
    building_block,
    carray,
    equal_among_8,
    kernel,
    lowest_bit,
    pointer_at,
    prefetch,
)

BUCKET_WIDTH = 8
BLOCK_KEYS = 256
_SLOT_BYTES = 4
_HALF = np.uint64(32)
_LOWER = np.uint64(0xFFFFFFFF)


@building_block
def buckets_of(key: np.int64, bucket_count: int) -> tuple[int, int]:
    """Return the two buckets of a key; they may be the same. bucket_count < 2**31."""
    h, count = mix(key), np.uint64(bucket_count)
    first: Any = np.int64(((h >> _HALF) * count) >> _HALF)
    second: Any = np.int64(((h & _LOWER) * count) >> _HALF)
    return first, second


@building_block
def place_in(start: int, bucket: int, key: np.int64) -> int:
    """Return bucket * 8 + the key's place in the bucket, or -1 if the key is not in it. The index's
    keys begin at address `start`."""
    equal: int = equal_among_8(start + bucket * 64, key)
    return bucket * BUCKET_WIDTH + lowest_bit(equal) if equal else -1


@building_block
def place_of(start: int, first: int, second: int, key: np.int64) -> int:
    """Return bucket * 8 + the key's place in the one of its two buckets that contains it, or -1. No
    branch depends on which bucket this is, since such a branch would be mispredicted every other
    time."""
    one: int = equal_among_8(start + first * 64, key)
    other = equal_among_8(start + second * 64, key)
    bucket = first if one else second
    equal = one | other
    place = bucket * BUCKET_WIDTH + (lowest_bit(equal) & (BUCKET_WIDTH - 1))
    return place if equal else -1


@building_block
def stash_place_of(stash_keys: jit.Int64sIn, stash_size: int, key: np.int64) -> int:
    """Return the key's place in the stash, or -1."""
    for place in range(stash_size):
        if stash_keys[place] == key:
            return place
    return -1


@building_block
def probe_block(
    bucket_keys: jit.Int64RowsIn,
    bucket_slots: jit.Uint32RowsIn,
    stash_keys: jit.Int64sIn,
    stash_slots: jit.Uint32sIn,
    stash_count: jit.Int64sIn,
    keys: jit.Int64sIn,
    prefix: np.int64,  # of row keys; 0 if keys are row keys
    begin: int,
    end: int,  # at most begin + BLOCK_KEYS
    slots: jit.Int64s,
    shift: int,
    places: jit.Int64s,  # (BLOCK_KEYS,) scratch, as is `seconds`
    seconds: jit.Int64s,
) -> int:
    """Write the slots of keys[begin:end] from slots[shift + begin] on; return how many of them are
    -1."""
    keys_start, slots_start = bucket_keys.ctypes.data, bucket_slots.ctypes.data
    flat_slots = carray(pointer_at(slots_start), bucket_slots.size, np.uint32)
    absent = 0
    for i in range(end - begin):
        places[i], seconds[i] = buckets_of(keys[begin + i] | prefix, bucket_keys.shape[0])
        prefetch(keys_start + places[i] * 64)
    for i in range(end - begin):
        place = place_in(keys_start, places[i], keys[begin + i] | prefix)
        places[i] = place
        prefetch(slots_start + place * _SLOT_BYTES if place >= 0 else keys_start + seconds[i] * 64)
    for i in range(end - begin):
        place, key = places[i], keys[begin + i] | prefix
        if place < 0:
            place = place_in(keys_start, seconds[i], key)
        slot = np.int64(-1)
        if place >= 0:
            slot = np.int64(flat_slots[place])
        else:
            place = stash_place_of(stash_keys, stash_count[0], key)
            if place >= 0:
                slot = np.int64(stash_slots[place])
            else:
                absent += 1
        slots[shift + begin + i] = slot
    return absent


@kernel
def probe(
    bucket_keys: jit.Int64RowsIn,  # (buckets, 8), 64-byte aligned
    bucket_slots: jit.Uint32RowsIn,  # (buckets, 8)
    stash_keys: jit.Int64sIn,
    stash_slots: jit.Uint32sIn,
    stash_count: jit.Int64sIn,  # (1,)
    keys: jit.Int64sIn,  # (n,)
    slots: jit.Int64s,  # (n,)
    low: jit.Int,
    high: jit.Int,
) -> int:
    """Write slots[low:high]; return how many of them are -1."""
    seconds, places = np.empty(BLOCK_KEYS, np.int64), np.empty(BLOCK_KEYS, np.int64)
    absent = 0
    for begin in range(low, high, BLOCK_KEYS):
        absent += probe_block(
            bucket_keys, bucket_slots, stash_keys, stash_slots, stash_count, keys, np.int64(0),
            begin, min(begin + BLOCK_KEYS, high), slots, 0, places, seconds,
        )  # fmt: skip
    return absent
