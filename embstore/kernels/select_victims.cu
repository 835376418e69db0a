// The slots of lowest score.
//
// A **candidate** is a slot with a key that is foreseen or does not have the present clock, and
// whose score (embstore/score.py) is in [floor, ceiling), floor >= 0, ceiling <= PIN_ONE: neither
// pending nor pinned. The threshold is the highest score of the victims. It is found as in
// `threshold.py`, but on the device; its state is in the array `search`:
//
//     score_range      candidates from FLOOR to below CEILING: COUNT, LOWEST, HIGHEST
//     count_scores     bins[b] += candidates with (score - LOWEST) >> shift = b
//     narrow_search    takes the bin that has the last victim; or the threshold is found (DONE)
//
// These three kernels are repeated until the threshold is found, usually after one or two rounds. A
// superfluous round costs three launches that do nothing, so the host queues several rounds at
// once, and waits for one answer. Then
//
//     count_victims    counts[b], counts[ranges + b] = the number of candidates of range b below
//                      the threshold, and at it
//     collect_victims  the candidates below the threshold and the first TIES at it, ascending:
//                      victims[v] = the slot that v of them precede, with its score
//
// find_threshold.cuh has the first three kernels, candidates.cuh the code by which all read scores.
//
// Grid: in count_victims and collect_victims a block has range_slots slots, from blockIdx.x *
// range_slots on. collect_victims processes them in tiles of PER_THREAD * BLOCK_THREADS. The rank
// of a slot is the sum of the counts of the ranges, the tiles, the warps and the lanes before it.
//
// Preconditions: below 2^31 slots; bins zeroed; search = 0, PIN_ONE, 0, 0, PIN_ONE, wanted, wanted,
// SEEKING; no score changes until it is DONE. Deterministic: sums, minima and maxima of integers,
// and ranks. CPU twin: select_victims.py, by threshold.py. Bytes for n slots: a pass reads 8 n, and
// up to 8 n more of keys.

#include "block_sums.cuh"
#include "candidates.cuh"
#include "find_threshold.cuh"
#include "search.cuh"
#include "tiles.cuh"
#include "types.cuh"

extern "C" __global__ void __launch_bounds__(BLOCK_THREADS) count_victims(
    const uint64* __restrict__ slabs, const int32 slab_shift, const int32 stride,
    const int64 slot_count, const int64 clock,
    const int64* __restrict__ search,  // (8,)
    const int64 range_slots,
    int32* __restrict__ counts) {  // (2 * ranges,) out
    __shared__ int64 below_counts[WARPS], tie_counts[WARPS];
    const int64 threshold = threshold_of(search);
    const int64 low = blockIdx.x * range_slots;
    const int64 high = min(low + range_slots, slot_count);
    int64 below_count = 0, tie_count = 0;
    for (int64 begin = low + threadIdx.x; begin < high; begin += PER_THREAD * BLOCK_THREADS) {
        int64 scores[PER_THREAD];
        load_candidates(
            slabs, slab_shift, stride, begin, BLOCK_THREADS, high, clock, 0, threshold + 1,
            scores);
        UNROLLED(j, PER_THREAD) {
            below_count += scores[j] != NO_SCORE && scores[j] < threshold;
            tie_count += scores[j] == threshold;
        }
    }
    below_count = block_sum(below_count, below_counts);
    tie_count = block_sum(tie_count, tie_counts);
    if (threadIdx.x == 0) {
        counts[blockIdx.x] = static_cast<int32>(below_count);
        counts[gridDim.x + blockIdx.x] = static_cast<int32>(tie_count);
    }
}

// A tile's two counts are in one word: candidates below the threshold, plus TIE times those at it.
#define TIE (1u << 16)
#define TILE_WARPS (PER_THREAD * WARPS)  // a lane for each

// The counts of the ranges before the block's, in all threads: candidates below the threshold, plus
// 2**32 times those at it.
__device__ __forceinline__ int64 count_before_range(const int32* counts) {
    __shared__ int64 sums[WARPS], shared;
    int64 before = 0;
    for (uint32 range = threadIdx.x; range < blockIdx.x; range += BLOCK_THREADS) {
        const int64 ties_of_range = __ldg(counts + gridDim.x + range);
        before += __ldg(counts + range) + (ties_of_range << 32);
    }
    before = block_sum(before, sums);
    if (threadIdx.x == 0) {
        shared = before;
    }
    __syncthreads();
    return shared;
}

extern "C" __global__ void __launch_bounds__(BLOCK_THREADS) collect_victims(
    const uint64* __restrict__ slabs, const int32 slab_shift, const int32 stride,
    const int64 slot_count, const int64 clock,
    const int64* __restrict__ search,     // (8,)
    const int64 range_slots,
    const int32* __restrict__ counts,     // (2 * ranges,), of count_victims
    int64* __restrict__ victims,          // (VICTIMS,) out
    int64* __restrict__ victim_scores) {  // (VICTIMS,) out
    // Two arrays in turn: a warp may write the next tile's counts while another still reads this
    // tile's.
    __shared__ uint32 tile_counts[2][TILE_WARPS];
    const int32 lane = threadIdx.x % WARP_THREADS, warp = threadIdx.x / WARP_THREADS;
    const int64 low = blockIdx.x * range_slots;
    const int64 high = min(low + range_slots, slot_count);
    const int64 threshold = threshold_of(search), ties = search[TIES];
    const int64 first_ranks = count_before_range(counts);
    int64 below_rank = first_ranks & 0xffffffffll, tie_rank = first_ranks >> 32;
    int32 turn = 0;
    for (int64 tile = low; tile < high; tile += PER_THREAD * BLOCK_THREADS) {
        int64 scores[PER_THREAD];
        load_candidates(
            slabs, slab_shift, stride, tile + threadIdx.x, BLOCK_THREADS, high, clock, 0,
            threshold + 1, scores);
        uint32 ranks[PER_THREAD];
        UNROLLED(j, PER_THREAD) {
            const bool tied = scores[j] == threshold;
            const uint32 at = __ballot_sync(FULL_WARP, tied);
            const uint32 under = __ballot_sync(FULL_WARP, scores[j] != NO_SCORE && !tied);
            ranks[j] = __popc(under & lanes_before()) + TIE * __popc(at & lanes_before());
            if (lane == 0) {
                tile_counts[turn][j * WARPS + warp] = __popc(under) + TIE * __popc(at);
            }
        }
        __syncthreads();
        // Every warp adds up the tile's counts by itself: a shuffle costs less than a barrier.
        uint32 sum = tile_counts[turn][lane];
        for (int32 distance = 1; distance < WARP_THREADS; distance *= 2) {
            const uint32 before = __shfl_sync(FULL_WARP, sum, max(lane - distance, 0));
            sum += lane >= distance ? before : 0;
        }
        UNROLLED(j, PER_THREAD) {
            const int32 mine = j * WARPS + warp;
            const uint32 before = __shfl_sync(FULL_WARP, sum, max(mine - 1, 0));
            const uint32 rank = ranks[j] + (mine > 0 ? before : 0);
            const int64 tie = tie_rank + rank / TIE;
            if (scores[j] != NO_SCORE && (scores[j] < threshold || tie < ties)) {
                const int64 victim = below_rank + rank % TIE + min(tie, ties);
                victims[victim] = tile + j * BLOCK_THREADS + threadIdx.x;
                victim_scores[victim] = scores[j];
            }
        }
        const uint32 all = __shfl_sync(FULL_WARP, sum, WARP_THREADS - 1);
        below_rank += all % TIE;
        tie_rank += all / TIE;
        turn ^= 1;
    }
}
