// Metadata of slots: the key, score and dirty flag of each.
//
//     place_keys   slots[i] get key = keys[i], score = score, dirty = 0
//     clear_slots  slots[i] get key = EMPTY_KEY, dirty = 0
//     clear_range  slots [low, high) get key = EMPTY_KEY, score = 0, dirty = 0
//     read_slots   keys[i], scores[i], dirty[i] = those of slots[i], or of slot first + i
//     mark         slots[i] get dirty = dirty
//
// and, for the ids of a call:
//
//     put_slots    slots[ids[i]] = values[i]
//     take_absent  the i with slots[i] < 0, ascending, and keys[i] of each
//
// Grid: a thread takes an element, with a grid-stride loop. Preconditions: slots are unique where
// they are written, ids are unique in put_slots; there is no -1. Deterministic: one thread writes
// an element. CPU twin: slots.py; where it has no such function, the CPU device uses NumPy
// indexing. Bytes for n slots: 8 n, and a sector of 32 bytes, read and written back, for each field
// of a slot; for ranges only the fields themselves.

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
