// The slots of lowest score.
//
// A **candidate** is a slot with a key, foreseen or without the present clock, whose score
// (embstore/score.py) is in [floor, ceiling), floor >= 0, ceiling <= PIN_ONE: neither pending nor
// pinned. The threshold is the highest score of the victims. It is found as `threshold.py` does,
// but on the device, in what is called `search` here:
//
//     score_range      candidates from FLOOR to below CEILING: COUNT, LOWEST, HIGHEST
//     count_scores     bins[b] += candidates with (score - LOWEST) >> shift = b
//     narrow_search    takes the bin that has the last victim; or the threshold is found (DONE)
//
// as often as it takes, mostly once or twice. A round too many costs three launches that do nothing;
// so the host asks for some at once, and waits for one answer. Then
//
//     count_victims    counts[b], counts[ranges + b] = candidates of range b below the threshold,
//                      and at it
//     collect_victims  the candidates below the threshold and the first TIES at it, ascending:
//                      victims[v] = the slot before which v of them stand, with its score
//
// A pass reads the score of every slot, and the key of those alone whose score is a candidate's: in
// all passes but the first that is a small part.
//
// Grid: score_range and count_scores take PER_THREAD slots a round, a whole grid apart, so that
// their loads are under way together, add up in registers, then in the block, and end in atomics of
// one thread, or one a bin: grids no larger than fill the device. A thread of count_scores notes a
// bin when it meets another, so that an LRU whose scores are nearly all alike does not queue at one
// counter. narrow_search: one block, each thread has neighbouring bins.
// count_victims and collect_victims: a block has range_slots slots, from
// blockIdx.x * range_slots on. collect_victims goes through them in tiles of
// PER_THREAD * BLOCK_THREADS, and a slot's rank is the sum of what the ranges, the tiles, the warps
// and the lanes before it have.
//
// Preconditions: below 2^31 slots; bins zeroed; search = 0, PIN_ONE, 0, 0, PIN_ONE, wanted, wanted,
// SEEKING; no score changes until it is DONE. Deterministic: sums, minima and maxima of integers,
// and ranks. CPU twin: select_victims.py, by threshold.py. Bytes
// of n slots: a pass 8 n, and up to 8 n more of keys.

#include "block_sums.cuh"
#include "keys.cuh"
#include "score.cuh"
#include "search.cuh"
#include "slabs.cuh"
#include "tiles.cuh"
#include "types.cuh"

#define PER_THREAD 4
#define BIN_BITS 11
#define BINS (1 << BIN_BITS)
#define BINS_PER_THREAD (BINS / BLOCK_THREADS)
#define NO_SCORE (-1ll)  // below every floor

// A bin is 1 << shift scores; bin 0 begins at the lowest.
__device__ __forceinline__ int32 shift_of(int64 lowest, int64 highest) {
    return max(64 - BIN_BITS - __clzll(highest - lowest), 0);
}

__device__ __forceinline__ int64 threshold_of(const int64* search) {
    return search[STATE] == DONE ? search[HIGHEST] : NO_SCORE;
}

// As far as the score says.
__device__ __forceinline__ bool may_go(int64 score, int64 clock, int64 floor, int64 ceiling) {
    return score >= floor && score < ceiling && (score & (FORESEEN | CLOCK_MASK)) != clock;
}

// The scores of the slots begin, begin + step, ... below end, NO_SCORE where there is no candidate.
__device__ __forceinline__ void load_candidates(
    const uint64* slabs, int32 slab_shift, int32 stride, int64 begin, int64 step, int64 end,
    int64 clock, int64 floor, int64 ceiling, int64 (&scores)[PER_THREAD]) {
    UNROLLED(j, PER_THREAD) {
        const int64 slot = begin + j * step;
        scores[j] = slot < end ? __ldg(score_of(slabs, slab_shift, stride, slot)) : NO_SCORE;
    }
    int64 keys[PER_THREAD];
    UNROLLED(j, PER_THREAD) {
        const int64 slot = begin + j * step;
        keys[j] = may_go(scores[j], clock, floor, ceiling)
                      ? __ldg(key_of(slabs, slab_shift, stride, slot))
                      : EMPTY_KEY;
    }
    UNROLLED(j, PER_THREAD) {
        scores[j] = keys[j] == EMPTY_KEY ? NO_SCORE : scores[j];
    }
}

extern "C" __global__ void __launch_bounds__(BLOCK_THREADS) score_range(
    const uint64* __restrict__ slabs, const int32 slab_shift, const int32 stride,
    const int64 slot_count, const int64 clock,
    int64* search) {  // (8,)
    __shared__ int64 counts[WARPS], minima[WARPS], maxima[WARPS];
    if (search[STATE] != SEEKING) {
        return;
    }
    const int64 floor = search[FLOOR], ceiling = search[CEILING];
    const int64 step = thread_count();
    int64 count = 0, lowest = ceiling, highest = floor;
    for (int64 begin = thread_index(); begin < slot_count; begin += PER_THREAD * step) {
        int64 scores[PER_THREAD];
        load_candidates(
            slabs, slab_shift, stride, begin, step, slot_count, clock, floor, ceiling, scores);
        UNROLLED(j, PER_THREAD) {
            if (scores[j] != NO_SCORE) {
                ++count;
                lowest = min(lowest, scores[j]);
                highest = max(highest, scores[j]);
            }
        }
    }
    for (int32 half = WARP_THREADS / 2; half > 0; half /= 2) {
        lowest = min(lowest, __shfl_down_sync(FULL_WARP, lowest, half));
        highest = max(highest, __shfl_down_sync(FULL_WARP, highest, half));
    }
    if (threadIdx.x % WARP_THREADS == 0) {
        minima[threadIdx.x / WARP_THREADS] = lowest;
        maxima[threadIdx.x / WARP_THREADS] = highest;
    }
    count = block_sum(count, counts);
    if (threadIdx.x == 0 && count > 0) {
        for (int32 warp = 1; warp < WARPS; ++warp) {
            lowest = min(lowest, minima[warp]);
            highest = max(highest, maxima[warp]);
        }
        add_to(search + COUNT, count);
        atomicMin(search + LOWEST, lowest);
        atomicMax(search + HIGHEST, highest);
    }
}

extern "C" __global__ void __launch_bounds__(BLOCK_THREADS) count_scores(
    const uint64* __restrict__ slabs, const int32 slab_shift, const int32 stride,
    const int64 slot_count, const int64 clock,
    const int64* __restrict__ search,  // (8,)
    int64* bins) {                     // (BINS,)
    __shared__ uint32 counts[BINS];
    if (search[STATE] == DONE || search[TIES] >= search[COUNT]) {
        return;
    }
    const int64 floor = search[LOWEST], ceiling = search[HIGHEST] + 1;
    const int32 shift = shift_of(floor, ceiling - 1);
    for (int32 bin = threadIdx.x; bin < BINS; bin += BLOCK_THREADS) {
        counts[bin] = 0;
    }
    __syncthreads();
    const int64 step = thread_count();
    int32 met = 0;
    uint32 times = 0;
    for (int64 begin = thread_index(); begin < slot_count; begin += PER_THREAD * step) {
        int64 scores[PER_THREAD];
        load_candidates(
            slabs, slab_shift, stride, begin, step, slot_count, clock, floor, ceiling, scores);
        UNROLLED(j, PER_THREAD) {
            if (scores[j] != NO_SCORE) {
                const int32 bin = static_cast<int32>((scores[j] - floor) >> shift);
                if (bin != met && times > 0) {
                    atomicAdd(counts + met, times);
                    times = 0;
                }
                met = bin;
                ++times;
            }
        }
    }
    if (times > 0) {
        atomicAdd(counts + met, times);
    }
    __syncthreads();
    for (int32 bin = threadIdx.x; bin < BINS; bin += BLOCK_THREADS) {
        if (counts[bin] > 0) {
            add_to(bins + bin, counts[bin]);
        }
    }
}

extern "C" __global__ void __launch_bounds__(BLOCK_THREADS) narrow_search(
    int64* search,  // (8,)
    int64* bins) {  // (BINS,), zeroed again
    __shared__ int32 warp_sums[WARPS];
    const int64 state = search[STATE], count = search[COUNT], ties = search[TIES];
    const int64 lowest = search[LOWEST], highest = search[HIGHEST];
    __syncthreads();
    if (state == DONE) {
        return;
    }
    if (ties >= count) {  // all of them
        if (threadIdx.x == 0) {
            search[VICTIMS] -= ties - count;
            search[STATE] = DONE;
        }
        return;
    }
    int32 own[BINS_PER_THREAD], sum = 0, all;
    UNROLLED(j, BINS_PER_THREAD) {
        const int32 bin = threadIdx.x * BINS_PER_THREAD + j;
        own[j] = static_cast<int32>(bins[bin]);
        bins[bin] = 0;
        sum += own[j];
    }
    int64 end = sum_before(sum, warp_sums, all);
    if (end >= ties || end + sum < ties) {
        return;
    }
    // One thread has the bin in which the victims end.
    int32 place = 0;
    while (end + own[place] < ties) {
        end += own[place];
        ++place;
    }
    const int32 shift = shift_of(lowest, highest);
    const int64 bin = threadIdx.x * BINS_PER_THREAD + place;
    const int64 floor = lowest + (bin << shift);
    const int64 last = min(highest, floor + (1ll << shift) - 1);
    const bool is_done = end + own[place] == ties || shift == 0, is_near = shift <= BIN_BITS;
    search[TIES] = ties - end;
    search[COUNT] = is_done || is_near ? own[place] : 0;
    search[LOWEST] = is_done || is_near ? floor : last + 1;
    search[HIGHEST] = is_done || is_near ? last : floor;
    search[FLOOR] = floor;
    search[CEILING] = last + 1;
    search[STATE] = is_done ? DONE : is_near ? COUNTING : SEEKING;
}

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

// Counts of a tile are two in one word: those below the threshold, and TIE times those at it.
#define TIE (1u << 16)
#define TILE_WARPS (PER_THREAD * WARPS)  // a lane for each

// What the ranges before the block's have, in all threads: candidates below the threshold, and 2**32
// times those at it.
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
    // Two, by turns: a warp may fill the next tile's while another still reads this one's.
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
        // Every warp adds up the tile's counts for itself: a shuffle is less than a barrier.
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
