// Counts over tiles of items, in one pass. Blocks draw the tiles in order, by **tickets**, and a
// tile waits only for earlier tiles, which running blocks have drawn. So a kernel cannot deadlock,
// however few of its blocks run at a time and whatever else runs.

#include "block_sums.cuh"
#include "types.cuh"

#define ROUNDS 8
#define TILE (ROUNDS * BLOCK_THREADS)  // embstore/device/gpu_work.py
#define LOOKED_AT 8                    // states of earlier tiles in flight

__device__ __forceinline__ uint32 lanes_before() {
    return (1u << threadIdx.x % WARP_THREADS) - 1;
}

// The lane's first item in a tile, of which a warp has EACH * WARP_THREADS consecutive items; the
// lane's next items are WARP_THREADS apart.
template <int32 EACH = ROUNDS>
__device__ __forceinline__ uint32 first_item(uint32 tile) {
    const uint32 lane = threadIdx.x % WARP_THREADS;
    return tile * EACH * BLOCK_THREADS + (threadIdx.x - lane) * EACH + lane;
}

// The block's next ticket. All threads must call it, and be done with the last one; `drawn` was 0
// at first.
__device__ __forceinline__ uint32 next_ticket(uint32* drawn) {
    __shared__ uint32 ticket;
    __syncthreads();
    if (threadIdx.x == 0) {
        ticket = atomicAdd(drawn, 1u);
    }
    __syncthreads();
    return ticket;
}

// The count of the tiles before this one, whose own count is `own`. `states` has an element for
// each tile, `step` apart: a count in the lower half and, in the upper half, `phase`, plus 1 if the
// count includes the earlier tiles. Before, the upper half was less than phase, an even number that
// is not 0.
__device__ __forceinline__ uint32 count_before(
    uint64* states, uint32 step, uint32 tile, uint64 phase, uint32 own) {
    volatile uint64* told = states + static_cast<int64>(tile) * step;
    *told = (phase + (tile == 0)) << 32 | own;
    uint32 before = 0;
    int32 next = static_cast<int32>(tile) - 1;
    while (next >= 0) {
        uint64 seen[LOOKED_AT];
        UNROLLED(j, LOOKED_AT) {
            seen[j] = fresh(states + static_cast<int64>(max(next - j, 0)) * step);
        }
        bool is_told = true;
        UNROLLED(j, LOOKED_AT) {
            is_told = is_told && next >= 0 && seen[j] >> 32 >= phase;
            if (is_told) {
                before += static_cast<uint32>(seen[j]);
                next = seen[j] >> 32 > phase ? -1 : next - 1;
            }
        }
        if (!is_told && next >= 0) {
            __nanosleep(20);
        }
    }
    if (tile > 0) {
        *told = (phase + 1) << 32 | (before + own);
    }
    return before;
}

// The count of the warps before this one, in this and earlier tiles; `own` is the count of this
// warp.
__device__ __forceinline__ int32 count_before_warp(
    uint64* states, uint32 step, uint32 tile, uint64 phase, int32 own) {
    __shared__ int32 warp_sums[WARPS];
    __shared__ uint32 shared;
    int32 all;
    const int32 in_tile = sum_before(threadIdx.x % WARP_THREADS ? 0 : own, warp_sums, all);
    if (threadIdx.x == 0) {
        shared = count_before(states, step, tile, phase, static_cast<uint32>(all));
    }
    __syncthreads();
    return __shfl_sync(FULL_WARP, in_tile, 0) + static_cast<int32>(shared);
}

// How many items with a flag, 0 or 1, precede the warp's items; the flags become the ballots of all
// lanes.
template <int32 EACH>
__device__ __forceinline__ int32 flagged_before(
    uint64* states, uint32 step, uint32 tile, uint64 phase, uint32 (&flags)[EACH]) {
    int32 count = 0;
    UNROLLED(j, EACH) {
        flags[j] = __ballot_sync(FULL_WARP, flags[j]);
        count += __popc(flags[j]);
    }
    return count_before_warp(states, step, tile, phase, count);
}

__device__ __forceinline__ bool has_flag(uint32 flags) {
    return (flags >> threadIdx.x % WARP_THREADS & 1) != 0;
}

// Calls use(i, rank) for every item i < n that has a flag, where `rank` is the number of items with
// a flag before it. `count`, if not null, becomes the number of items with a flag. `progress` is (1
// + tiles,), zero.
template <typename Flag, typename Use>
__device__ __forceinline__ void number_flagged(
    int64 n, uint64* progress, int64* count, const Flag& flag, const Use& use) {
    const uint32 tiles = static_cast<uint32>((n + TILE - 1) / TILE);
    for (uint32 tile; (tile = next_ticket(reinterpret_cast<uint32*>(progress))) < tiles;) {
        uint32 flags[ROUNDS];
        UNROLLED(j, ROUNDS) {
            const uint32 i = first_item(tile) + j * WARP_THREADS;
            flags[j] = i < n && flag(i);
        }
        int32 rank = flagged_before(progress + 1, 1, tile, 2, flags);
        UNROLLED(j, ROUNDS) {
            const uint32 i = first_item(tile) + j * WARP_THREADS;
            if (has_flag(flags[j])) {
                use(i, rank + __popc(flags[j] & lanes_before()));
            }
            rank += __popc(flags[j]);
            if (count && i == n - 1) {
                *count = rank;
            }
        }
    }
}
