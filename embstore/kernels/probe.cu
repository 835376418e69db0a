// The slot of each key. The result of probe is that of its twin: probe.py. locate is the first part
// of look_up (gather.py), which does not make keys unique: the slot of each position is searched,
// unless the last call had the same key there, and no row has entered or left a slot since.
//
// The index is an IndexArrays of `embstore/device/values.py`; a bucket is 8 keys, 64 bytes. A
// thread owns a key. It loads both of the key's buckets at once (8 loads of 16 bytes), compares the
// 16 keys, then reads the one slot. So there are two round trips to memory per key, and no
// communication between threads; if a warp shared a bucket, it would need a ballot per key. The
// stash is read for a key that is in neither bucket, and is nearly always empty.
//
// Grid: a thread takes a key, with a grid-stride loop. Preconditions: bucket_keys aligned to 16
// bytes, bucket_count > 0; `count_at` is the address of the number of keys, or null: then it is
// `count`. Keys may repeat. findings[MISSING] grows by the number of keys without a slot; in locate
// also by the number of keys that are outside their table, or whose row is pending. Deterministic.
// Bytes for u keys: 180 u (two buckets, a sector of slots, key and result); locate 212 u (a score),
// or 24 u where slots are known.

#include "block_sums.cuh"
#include "findings.cuh"
#include "index.cuh"
#include "keys.cuh"
#include "segments.cuh"
#include "slabs.cuh"
#include "types.cuh"

// Blocks per multiprocessor, so that a thread of locate has registers for both of its buckets.
#define LOCATE_BLOCKS 6

extern "C" __global__ void __launch_bounds__(BLOCK_THREADS) probe(
    const int64* __restrict__ bucket_keys,    // (bucket_count, 8)
    const uint32* __restrict__ bucket_slots,  // (bucket_count, 8)
    const int64 bucket_count,
    const int64* __restrict__ stash_keys,    // (256,)
    const uint32* __restrict__ stash_slots,  // (256,)
    const int64* __restrict__ stash_count,   // (1,)
    const int64* __restrict__ keys,          // (count,)
    const int64* __restrict__ count_at,      // (1,) or null
    const int64 count,
    int64* __restrict__ slots,  // (count,) out
    int64* findings) {
    const int64 n = count_at ? __ldg(count_at) : count;
    for (int64 i = thread_index(); i < n; i += thread_count()) {
        const int64 key = __ldg(keys + i);
        const int64 slot = slot_of(
            bucket_keys, bucket_slots, bucket_count, stash_keys, stash_slots, stash_count, key);
        slots[i] = slot;
        if (slot < 0) {
            atomicAdd(reinterpret_cast<uint64*>(findings + MISSING), 1ull);
        }
    }
}

extern "C" __global__ void __launch_bounds__(BLOCK_THREADS, LOCATE_BLOCKS) locate(
    const int64* __restrict__ bucket_keys,    // (bucket_count, 8)
    const uint32* __restrict__ bucket_slots,  // (bucket_count, 8)
    const int64 bucket_count,
    const int64* __restrict__ stash_keys,    // (256,)
    const uint32* __restrict__ stash_slots,  // (256,)
    const int64* __restrict__ stash_count,   // (1,)
    const uint64* __restrict__ slabs, const int32 slab_shift, const int32 stride,
    const int64* __restrict__ keys,        // (n,), segment after segment
    const int64* __restrict__ bounds,      // (segments + 1,)
    const int64* __restrict__ prefixes,    // (segments,), table id << KEY_BITS
    const int64* __restrict__ row_counts,  // (segments,)
    const int32 segments,
    const int64* __restrict__ known_keys,   // (n,), or null: nothing is known
    const int32* __restrict__ known_slots,  // (n,), the slots of these keys
    const int64 n,
    int32* __restrict__ slots,  // (n,) out
    int64* findings) {
    __shared__ int64 counts[WARPS];
    int64 missing = 0;
    for (int64 i = thread_index(); i < n; i += thread_count()) {
        const int64 key = __ldg(keys + i);
        if (known_keys && __ldg(known_keys + i) == key) {
            slots[i] = __ldg(known_slots + i);
            continue;
        }
        const int32 segment = segment_of(bounds, segments, i);
        int64 slot = -1;
        if (is_inside(key, __ldg(row_counts + segment))) {
            slot = slot_of(
                bucket_keys, bucket_slots, bucket_count, stash_keys, stash_slots, stash_count,
                __ldg(prefixes + segment) | key);
        }
        slots[i] = static_cast<int32>(slot);
        missing += slot < 0 || __ldg(score_of(slabs, slab_shift, stride, slot)) < 0;
    }
    add_of_block(findings + MISSING, missing, counts);
}
