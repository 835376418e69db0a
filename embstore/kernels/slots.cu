// Metadata of slots: the key, score and dirty flag of each.
//
//     place_keys   of slots[i]: key = keys[i], score = score, dirty = 0
//     clear_slots  of slots[i]: key = EMPTY_KEY, dirty = 0
//     clear_range  of the slots of [low, high): key = EMPTY_KEY, score = 0, dirty = 0
//     read_slots   keys[i], scores[i], dirty[i] = those of slots[i], or of slot first + i
//     mark         of slots[i]: dirty = dirty
//
// and, of a call's ids:
//
//     put_slots    slots[ids[i]] = values[i]
//     take_absent  the i with slots[i] < 0, ascending, and keys[i] of each
//
// Grid: a thread an element, grid-stride. Preconditions: slots unique where they are written, ids
// unique in put_slots; no -1 among them. Deterministic: an element is written by one thread.
// CPU twin: slots.py; the kernels that it lacks are an indexing there. Bytes of n slots: 8 n, and a
// sector of 32 bytes, read and written back, for each field of a slot; ranges only what they name.

#include "keys.cuh"
#include "slabs.cuh"
#include "tiles.cuh"
#include "types.cuh"

extern "C" __global__ void __launch_bounds__(BLOCK_THREADS) place_keys(
    const uint64* __restrict__ slabs, const int32 slab_shift, const int32 stride,
    const int64* __restrict__ slots,  // (n,)
    const int64* __restrict__ keys,   // (n,)
    const int64 n,
    const int64 score) {
    for (int64 i = thread_index(); i < n; i += thread_count()) {
        const int64 slot = __ldg(slots + i);
        *key_of(slabs, slab_shift, stride, slot) = __ldg(keys + i);
        *score_of(slabs, slab_shift, stride, slot) = score;
        *dirty_of(slabs, slab_shift, stride, slot) = 0;
    }
}

extern "C" __global__ void __launch_bounds__(BLOCK_THREADS) clear_slots(
    const uint64* __restrict__ slabs, const int32 slab_shift, const int32 stride,
    const int64* __restrict__ slots,  // (n,)
    const int64 n) {
    for (int64 i = thread_index(); i < n; i += thread_count()) {
        const int64 slot = __ldg(slots + i);
        *key_of(slabs, slab_shift, stride, slot) = EMPTY_KEY;
        *dirty_of(slabs, slab_shift, stride, slot) = 0;
    }
}

extern "C" __global__ void __launch_bounds__(BLOCK_THREADS) clear_range(
    const uint64* __restrict__ slabs, const int32 slab_shift, const int32 stride,
    const int64 low,
    const int64 high) {
    for (int64 slot = low + thread_index(); slot < high; slot += thread_count()) {
        *key_of(slabs, slab_shift, stride, slot) = EMPTY_KEY;
        *score_of(slabs, slab_shift, stride, slot) = 0;
        *dirty_of(slabs, slab_shift, stride, slot) = 0;
    }
}

extern "C" __global__ void __launch_bounds__(BLOCK_THREADS) read_slots(
    const uint64* __restrict__ slabs, const int32 slab_shift, const int32 stride,
    const int64* __restrict__ slots,  // (n,), or null: the slots from `first` on
    const int64 first,
    const int64 n,
    int64* __restrict__ keys,     // (n,) out
    int64* __restrict__ scores,   // (n,) out
    uint8* __restrict__ dirty) {  // (n,) out
    for (int64 i = thread_index(); i < n; i += thread_count()) {
        const int64 slot = slots ? __ldg(slots + i) : first + i;
        keys[i] = *key_of(slabs, slab_shift, stride, slot);
        scores[i] = *score_of(slabs, slab_shift, stride, slot);
        dirty[i] = *dirty_of(slabs, slab_shift, stride, slot);
    }
}

extern "C" __global__ void __launch_bounds__(BLOCK_THREADS) mark(
    const uint64* __restrict__ slabs, const int32 slab_shift, const int32 stride,
    const int64* __restrict__ slots,  // (n,)
    const int64 n,
    const int32 dirty) {
    for (int64 i = thread_index(); i < n; i += thread_count()) {
        *dirty_of(slabs, slab_shift, stride, __ldg(slots + i)) = dirty;
    }
}

extern "C" __global__ void __launch_bounds__(BLOCK_THREADS) put_slots(
    int64* __restrict__ slots,         // (u,)
    const int32* __restrict__ ids,     // (n,)
    const int64* __restrict__ values,  // (n,)
    const int64 n) {
    for (int64 i = thread_index(); i < n; i += thread_count()) {
        slots[__ldg(ids + i)] = __ldg(values + i);
    }
}

extern "C" __global__ void __launch_bounds__(BLOCK_THREADS) take_absent(
    const int64* __restrict__ slots,  // (u,)
    const int64* __restrict__ keys,   // (u,)
    const int64 u,
    int64* __restrict__ places,       // (absent,) out
    int64* __restrict__ absent_keys,  // (absent,) out
    uint64* progress) {               // (1 + tiles,), zero
    number_flagged(
        u, progress, nullptr, [&](uint32 i) { return __ldg(slots + i) < 0; },
        [&](uint32 i, int32 at) {
            places[at] = i;
            absent_keys[at] = __ldg(keys + i);
        });
}
