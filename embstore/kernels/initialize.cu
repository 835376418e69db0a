// Records of rows that were never written. The result is that of its twin: initialize.py.
//
// Grid: a group owns a record. A thread computes 4 consecutive elements at a time, from one Philox
// block if they are uniform, from four if they are normal. Any grid size.
//
// Preconditions: slots are unique, except for -1, which is skipped.
//
// Determinism: each element is a pure function of the arguments.
//
// Bytes: 16 n read, 4 stride n written; the tables' parameters are in the nearest cache.

#include "keys.cuh"
#include "pieces.cuh"
#include "slabs.cuh"
#include "types.cuh"

#define UNIFORM 1
#define NORMAL 2

#define UNIFORM_STREAM 0u
#define NORMAL_STREAM 1u
#define PHILOX_ROUNDS 10

struct Words {
    uint32 w0, w1, w2, w3;
};

// One Philox4x32-10 block.
__device__ __forceinline__ Words philox(uint64 row_key, uint32 block, uint32 stream, uint64 seed) {
    uint32 c0 = static_cast<uint32>(row_key), c1 = static_cast<uint32>(row_key >> 32);
    uint32 c2 = block, c3 = stream;
    uint32 k0 = static_cast<uint32>(seed), k1 = static_cast<uint32>(seed >> 32);
    UNROLLED(round, PHILOX_ROUNDS) {
        const uint32 high0 = __umulhi(c0, 0xd2511f53u), low0 = c0 * 0xd2511f53u;
        const uint32 high1 = __umulhi(c2, 0xcd9e8d57u), low1 = c2 * 0xcd9e8d57u;
        c0 = high1 ^ c1 ^ k0;
        c1 = low1;
        c2 = high0 ^ c3 ^ k1;
        c3 = low0;
        k0 += 0x9e3779b9u;
        k1 += 0xbb67ae85u;
    }
    return {c0, c1, c2, c3};
}

__device__ __forceinline__ float uniform(uint32 word, float low, float span) {
    return low + span * (static_cast<float>(word >> 8) * 0x1p-24f);
}

__device__ __forceinline__ int32 halves(uint32 word) {
    return static_cast<int32>((word & 0xffffu) + (word >> 16));
}

__device__ __forceinline__ float normal(
    uint64 row_key, int32 element, uint64 seed, float mean, float std) {
    const Words words = philox(row_key, element, NORMAL_STREAM, seed);
    const int32 sum = halves(words.w0) + halves(words.w1) + halves(words.w2) + halves(words.w3);
    const float deviation = static_cast<float>(sum - 262140);  // exact: below 2**24
    return mean + std * (deviation * static_cast<float>(1 / 53509.9));
}

extern "C" __global__ void __launch_bounds__(BLOCK_THREADS) initialize(
    const uint64* __restrict__ slabs, const int32 slab_shift, const int32 stride,
    const int64* __restrict__ slots,          // (n,), unique; -1: skipped
    const int64* __restrict__ keys,           // (n,)
    const int64 key_mask,                     // see table_of
    const int64 n,
    const signed char* __restrict__ kinds,    // (tables,), constant 0, UNIFORM or NORMAL
    const float* __restrict__ values,         // (tables, 2): value, 0; low, high - low; mean, std
    const uint64* __restrict__ seeds,         // (tables,)
    const float* __restrict__ initial_state,  // (tables,)
    const int32 dim,
    const int32 state_dim) {
    const Group group = group_of(stride / 4);
    for (int64 i = group.index; i < n; i += group.count) {
        const int64 slot = __ldg(slots + i), key = __ldg(keys + i);
        if (slot < 0) {
            continue;
        }
        const int64 table = table_of(key, key_mask);
        const uint64 row_key = static_cast<uint64>(key & key_mask), seed = __ldg(seeds + table);
        const float first = __ldg(values + 2 * table), second = __ldg(values + 2 * table + 1);
        const float state = __ldg(initial_state + table);
        const int32 kind = kinds[table];
        element* row = row_of(slabs, slab_shift, stride, slot);
        for (int32 d = group.lane * 4; d < stride; d += group.lanes * 4) {
            float piece[4] = {first, first, first, first};
            if (d < dim && kind == UNIFORM) {
                const Words words = philox(row_key, d >> 2, UNIFORM_STREAM, seed);
                piece[0] = uniform(words.w0, first, second);
                piece[1] = uniform(words.w1, first, second);
                piece[2] = uniform(words.w2, first, second);
                piece[3] = uniform(words.w3, first, second);
            } else if (d < dim && kind == NORMAL) {
                UNROLLED(e, 4) {
                    piece[e] = normal(row_key, d + e, seed, first, second);
                }
            }
            UNROLLED(e, 4) {
                if (d + e >= dim) {
                    piece[e] = d + e < dim + state_dim ? state : 0.0f;
                }
            }
            store_four(row + d, make_float4(piece[0], piece[1], piece[2], piece[3]));
        }
    }
}
