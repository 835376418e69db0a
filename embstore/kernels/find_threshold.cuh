// The kernels that find the threshold of a search for victims (select_victims.cu): score_range,
// count_scores and narrow_search, repeated until it is found.
//
// In score_range and count_scores a thread takes PER_THREAD slots a round, a whole grid apart, so
// that their loads are in flight together. Results are combined in registers, then in the block,
// and then by atomics: of one thread in score_range, one per bin in count_scores. Grids are no
// larger than fills the device. A thread of count_scores adds to a bin's counter only when it meets
// another bin, so that threads do not queue at one counter under an LRU whose scores are nearly all
// alike. narrow_search is one block, in which each thread has neighbouring bins.

#include "block_sums.cuh"
#include "candidates.cuh"
#include "score.cuh"
#include "search.cuh"
#include "types.cuh"

#define BIN_BITS 11
#define BINS (1 << BIN_BITS)
#define BINS_PER_THREAD (BINS / BLOCK_THREADS)

// log2 of the scores in a bin; bin 0 begins at the lowest score.
__device__ __forceinline__ int32 shift_of(int64 lowest, int64 highest) {
    return max(64 - BIN_BITS - __clzll(highest - lowest), 0);
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
    if (ties >= count) {  // all candidates are victims
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
    // The one thread whose bins contain the last victim continues.
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
