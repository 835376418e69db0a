// Insert into and erase from the index of probe.cu, in place.
//
//     insert, insert_rest              afterwards probe(keys[i]) = slots[i]
//     insert_slots, insert_slots_rest  the same for every slot that has a key (a rebuild)
//     erase, erase_rest                afterwards probe(keys[i]) = -1
//
// insert: a thread takes a key, with a grid-stride loop. The key is put into the emptier of its two
// buckets, the first if both are alike. An atomicCAS claims a free place, or finds that it is no
// longer free; then the next place is tried, until none of the 16 is left. Places are only filled
// while these kernels run, so a place that was once taken need not be read again, and there are at
// most 16 attempts. A key without a place is left to insert_rest. This is one thread, which moves a
// key out of a full bucket to that key's other bucket, if it has room, as insert.py does. Else the
// new key is put into the stash. If the stash is full too, findings[REFUSED] is set, and the host
// must build a larger index.
//
// This was simulated at two thirds full, the highest load of an index, with every one of 3.2
// million keys replaced eight times: one insertion in 2,400 ended in `rest` (0.041 %), and none of
// these keys needed the stash. The rule of insert.py (the first bucket, while it has two free
// places) leaves six times as many keys to `rest`; its advantage, that most probes read one bucket
// only, does not count here, since probe.cu reads both.
//
// Preconditions: keys are unique and absent (insert), or unique and present (erase); slots < 2**32;
// *rest_count = 0 before the first of two kernels, and the second kernel is launched after it with
// the same arguments. The place of a key and the order of `rest` depend on the order of threads,
// but no result that a caller sees depends on either.
// The index: bucket_keys and bucket_slots (bucket_count, 8), stash_keys and stash_slots (256,),
// stash_count (1,). The first of two kernels leaves the stash to the second; erase does not change
// bucket_slots.
// CPU twin: insert.py. Bytes for n keys: 272 n (two buckets, a sector of keys and a sector of slots
// written back, key and slot); erase 200 n.

#include "findings.cuh"
#include "index.cuh"
#include "index_writes.cuh"
#include "keys.cuh"
#include "slabs.cuh"
#include "types.cuh"

extern "C" __global__ void __launch_bounds__(BLOCK_THREADS) insert(
    int64* bucket_keys, uint32* __restrict__ bucket_slots, const int64 bucket_count,
    int64* stash_keys, uint32* stash_slots, int64* stash_count,
    const int64* __restrict__ keys,   // (n,)
    const int64* __restrict__ slots,  // (n,)
    const int64 n,
    int64* __restrict__ rest,  // (n,) out: each i without a place, rest_count are written
    int64* rest_count) {       // (1,), 0 before
    for (int64 i = thread_index(); i < n; i += thread_count()) {
        if (!insert_beside(
                bucket_keys, bucket_slots, bucket_count, __ldg(keys + i), __ldg(slots + i))) {
            append(rest, rest_count, n, i);
        }
    }
}

extern "C" __global__ void __launch_bounds__(BLOCK_THREADS) insert_rest(
    int64* bucket_keys, uint32* bucket_slots, const int64 bucket_count,
    int64* stash_keys, uint32* stash_slots, int64* stash_count,
    const int64* __restrict__ keys,        // (n,)
    const int64* __restrict__ slots,       // (n,)
    const int64* __restrict__ rest,        // (rest_count,), of insert
    const int64* __restrict__ rest_count,  // (1,)
    int64* findings) {
    if (thread_index() != 0) {
        return;
    }
    const Index index = {
        bucket_keys, bucket_slots, bucket_count, stash_keys, stash_slots, stash_count};
    for (int64 item = 0; item < *rest_count; ++item) {
        if (!insert_alone(index, keys[rest[item]], slots[rest[item]])) {
            findings[REFUSED] = 1;
            return;
        }
    }
}

extern "C" __global__ void __launch_bounds__(BLOCK_THREADS) insert_slots(
    int64* bucket_keys, uint32* __restrict__ bucket_slots, const int64 bucket_count,
    int64* stash_keys, uint32* stash_slots, int64* stash_count,
    const uint64* __restrict__ slabs, const int32 slab_shift, const int32 stride,
    const int64 slot_count,
    int64* __restrict__ rest,  // (rest_capacity,) out: each slot whose key has no place
    int64* rest_count,         // (1,), 0 before; slots beyond rest_capacity are not in rest
    const int64 rest_capacity) {
    for (int64 slot = thread_index(); slot < slot_count; slot += thread_count()) {
        const int64 key = *key_of(slabs, slab_shift, stride, slot);
        if (key != EMPTY_KEY &&
            !insert_beside(bucket_keys, bucket_slots, bucket_count, key, slot)) {
            append(rest, rest_count, rest_capacity, slot);
        }
    }
}

extern "C" __global__ void __launch_bounds__(BLOCK_THREADS) insert_slots_rest(
    int64* bucket_keys, uint32* bucket_slots, const int64 bucket_count,
    int64* stash_keys, uint32* stash_slots, int64* stash_count,
    const uint64* __restrict__ slabs, const int32 slab_shift, const int32 stride,
    const int64* __restrict__ rest,        // (rest_count,), of insert_slots
    const int64* __restrict__ rest_count,  // (1,)
    const int64 rest_capacity,
    int64* findings) {
    if (thread_index() != 0) {
        return;
    }
    if (*rest_count > rest_capacity) {
        findings[REFUSED] = 1;
        return;
    }
    const Index index = {
        bucket_keys, bucket_slots, bucket_count, stash_keys, stash_slots, stash_count};
    for (int64 item = 0; item < *rest_count; ++item) {
        const int64 slot = rest[item];
        if (!insert_alone(index, *key_of(slabs, slab_shift, stride, slot), slot)) {
            findings[REFUSED] = 1;
            return;
        }
    }
}

extern "C" __global__ void __launch_bounds__(BLOCK_THREADS) erase(
    int64* bucket_keys, uint32* bucket_slots, const int64 bucket_count,
    int64* stash_keys, uint32* stash_slots, int64* stash_count,
    const int64* __restrict__ keys,  // (n,)
    const int64 n,
    int64* __restrict__ rest,  // (n,) out: each i in neither bucket, rest_count are written
    int64* rest_count) {       // (1,), 0 before
    for (int64 i = thread_index(); i < n; i += thread_count()) {
        const int64 key = __ldg(keys + i);
        int64 first, second;
        buckets_of(key, bucket_count, first, second);
        uint32 equal = equal_ways(bucket_keys, first, key);
        equal |= equal_ways(bucket_keys, second, key) << BUCKET_WIDTH;
        if (equal) {
            bucket_keys[place_of_way(first, second, __ffs(equal) - 1)] = EMPTY_KEY;
        } else {
            append(rest, rest_count, n, i);
        }
    }
}

// The last key of the stash moves to the place of a key erased there.
extern "C" __global__ void __launch_bounds__(BLOCK_THREADS) erase_rest(
    int64* bucket_keys, uint32* bucket_slots, const int64 bucket_count,
    int64* stash_keys, uint32* stash_slots, int64* stash_count,
    const int64* __restrict__ keys,          // (n,)
    const int64* __restrict__ rest,          // (rest_count,), of erase
    const int64* __restrict__ rest_count) {  // (1,)
    if (thread_index() != 0) {
        return;
    }
    int64 stashed = *stash_count;
    for (int64 item = 0; item < *rest_count; ++item) {
        const int64 key = keys[rest[item]];
        for (int64 place = 0; place < stashed; ++place) {
            if (stash_keys[place] == key) {
                --stashed;
                stash_keys[place] = stash_keys[stashed];
                stash_slots[place] = stash_slots[stashed];
            }
        }
    }
    *stash_count = stashed;
}
