// Memory of a pool: the addresses of the row, the key, the score and the flag of a slot.
//
// Rows are in **slabs** of C = 1 << slab_shift slots (embstore/device/slabs.py), which are added
// and dropped without a copy. A slab is two blocks of memory:
//
//     rows  C x stride elements    and    keys  C int64 | scores  C int64 | dirty  C uint8
//
// The rows may be in pinned host memory; the metadata is always in the GPU's memory. An address
// takes one load more than in one array; the table of slabs is small, and stays in the nearest
// cache. Flat arrays of rows, without metadata, are one slab with slab_shift 62. Kernels take the
// table of slabs, (slab count, 2) addresses of rows and of metadata; slab_shift; and the stride,
// the number of elements of a row, a multiple of 4.

#include "types.cuh"

__device__ __forceinline__ int64 place_in_slab(int32 slab_shift, int64 slot) {
    return slot & ((1ll << slab_shift) - 1);
}

__device__ __forceinline__ uint64 rows_of_slab(const uint64* slabs, int32 slab_shift, int64 slot) {
    return __ldg(slabs + 2 * (slot >> slab_shift));
}

__device__ __forceinline__ uint64 metadata_of_slab(
    const uint64* slabs, int32 slab_shift, int64 slot) {
    return __ldg(slabs + 2 * (slot >> slab_shift) + 1);
}

__device__ __forceinline__ element* row_of(
    const uint64* slabs, int32 slab_shift, int32 stride, int64 slot) {
    return reinterpret_cast<element*>(rows_of_slab(slabs, slab_shift, slot)) +
           place_in_slab(slab_shift, slot) * stride;
}

__device__ __forceinline__ int64* key_of(
    const uint64* slabs, int32 slab_shift, int32 stride, int64 slot) {
    return reinterpret_cast<int64*>(metadata_of_slab(slabs, slab_shift, slot)) +
           place_in_slab(slab_shift, slot);
}

__device__ __forceinline__ int64* score_of(
    const uint64* slabs, int32 slab_shift, int32 stride, int64 slot) {
    uint64 scores = metadata_of_slab(slabs, slab_shift, slot) + (8ull << slab_shift);
    return reinterpret_cast<int64*>(scores) + place_in_slab(slab_shift, slot);
}

__device__ __forceinline__ uint8* dirty_of(
    const uint64* slabs, int32 slab_shift, int32 stride, int64 slot) {
    uint64 dirty = metadata_of_slab(slabs, slab_shift, slot) + (16ull << slab_shift);
    return reinterpret_cast<uint8*>(dirty) + place_in_slab(slab_shift, slot);
}
