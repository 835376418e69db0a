// Pieces of rows: a **group** of lanes owns a row. Its number of lanes is the number of the row's
// pieces, rounded up to a power of two, and at most a warp; if a row has more pieces than lanes,
// the group loops over columns. A piece is what a lane moves at a time: 16 bytes if dim % 4 == 0,
// since a slot's row is always aligned to 16 bytes, else 4. To an address that is not aligned to 16
// bytes a piece is stored by 4 bytes at a time.
//
// Sums start from -0.0, and short groups of occurrences are padded with it: x + -0.0 is x for every
// x, also for -0.0, which 0.0 would not preserve.
//
// Elements as rows store them are loaded as floats, and stored from floats, only by the functions
// here.

#include "types.cuh"

// A thread's group: the thread's lane in the group, and the number of the group in the grid.
struct Group {
    int32 lane, lanes;
    int64 count, index;
};

// The thread's group, if each group owns a row of `pieces` pieces.
__device__ __forceinline__ Group group_of(int32 pieces) {
    const int32 lane_bits = pieces < WARP_THREADS ? 32 - __clz(pieces - 1) : 5;
    const int32 lanes = 1 << lane_bits, lane = threadIdx.x & (lanes - 1);
    return {lane, lanes, thread_count() >> lane_bits, thread_index() >> lane_bits};
}

// The pointer of lane `lane`, in all lanes; all lanes of the warp must call it.
template <typename T>
__device__ __forceinline__ T* of_lane(T* pointer, int32 lane) {
    return reinterpret_cast<T*>(
        __shfl_sync(FULL_WARP, reinterpret_cast<uint64>(pointer), lane));
}

__device__ __forceinline__ bool is_aligned_16(const void* address) {
    return (reinterpret_cast<uint64>(address) & 15) == 0;
}

// Calls body(4) if pieces have 16 bytes, else body(1): the width is a literal in both.
template <typename Body>
__device__ __forceinline__ void by_width(bool is_wide, const Body& body) {
    if (is_wide) {
        body(4);
    } else {
        body(1);
    }
}

// `width` consecutive elements, 4 or 1; the others are 0. `width` is a literal wherever this is
// inlined.
__device__ __forceinline__ float4 load_piece(const float* at, const int32 width) {
    if (width == 4) {
        return __ldg(reinterpret_cast<const float4*>(at));
    }
    return make_float4(__ldg(at), 0.0f, 0.0f, 0.0f);
}

__device__ __forceinline__ void stream_piece(float* at, float4 piece, const int32 width) {
    if (width == 4 && is_aligned_16(at)) {
        __stcs(reinterpret_cast<float4*>(at), piece);
        return;
    }
    __stcs(at, piece.x);
    if (width == 4) {
        __stcs(at + 1, piece.y);
        __stcs(at + 2, piece.z);
        __stcs(at + 3, piece.w);
    }
}

// Elements of any type that can be converted to and from float. They are moved one by one. Elements
// of type float are moved 16 bytes at a time, by the overloads that take pointers to float.

template <typename E>
__device__ __forceinline__ float4 load_piece(const E* at, const int32 width) {
    const bool is_wide = width == 4;
    return make_float4(static_cast<float>(at[0]), is_wide ? static_cast<float>(at[1]) : 0.0f,
                       is_wide ? static_cast<float>(at[2]) : 0.0f,
                       is_wide ? static_cast<float>(at[3]) : 0.0f);
}

template <typename E>
__device__ __forceinline__ void stream_piece(E* at, float4 piece, const int32 width) {
    at[0] = static_cast<E>(piece.x);
    if (width == 4) {
        at[1] = static_cast<E>(piece.y);
        at[2] = static_cast<E>(piece.z);
        at[3] = static_cast<E>(piece.w);
    }
}

// Four elements, aligned to 16 bytes, that are read once.
__device__ __forceinline__ float4 load_four_once(const float* at) {
    return __ldcs(reinterpret_cast<const float4*>(at));
}

template <typename E>
__device__ __forceinline__ float4 load_four_once(const E* at) {
    return load_piece(at, 4);
}

// Four elements, aligned to 16 bytes.
__device__ __forceinline__ void store_four(float* at, float4 piece) {
    *reinterpret_cast<float4*>(at) = piece;
}

template <typename E>
__device__ __forceinline__ void store_four(E* at, float4 piece) {
    stream_piece(at, piece, 4);
}
