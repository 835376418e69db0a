// Scores of slots, as calls, policies, pins and announced steps change them. The result is that of
// its twin: scores.py; the number that a function returns there is added to `count` here.
//
// touch_once is touch for slots that repeat, each of which it counts once. A thread that finds a
// slot without the clock of the call, and is the first to write this clock, has touched the slot.
// The clock is newer than every other clock; in the score of a foreseen slot its bits have another
// meaning. Within a block a slot is touched once, or a few times if two slots share a place in
// `places`: else each thread that finds the old score of a hot key would queue an atomic there.
//
// Grid: a thread takes a slot, in touch_once up to TOUCHED_TOGETHER, with a grid-stride loop.
// Counts are added up in the block, and then by an atomic of one thread. Preconditions: slots are
// unique, except for -1, which is skipped; in arrive there is no -1; ranks are at most CLOCK_MASK,
// counts at most COUNT_MAX; count is zeroed. Deterministic: sums of integers. Bytes for n slots:
// touch, add_pins, arrive 72 n, foresee and set_counts 80 n, count_pending 40 n, age_scores 16 n,
// touch_once 4 n, and 64 for each slot.

#include "block_sums.cuh"
#include "findings.cuh"
#include "score.cuh"
#include "slabs.cuh"
#include "types.cuh"

extern "C" __global__ void __launch_bounds__(BLOCK_THREADS) touch(
    const uint64* __restrict__ slabs, const int32 slab_shift, const int32 stride,
    const int64* __restrict__ slots,  // (n,), -1: skipped
    const int64 n,
    const int64 clock,
    const int32 counting,
    const int64* __restrict__ findings,  // (8,) of the batch that was probed, or null
    const int32 always) {                // also if keys are missing
    const bool goes_on = !findings || always || may_go_on(findings);
    const int64 count_of_slots = goes_on ? (findings ? findings[UNIQUE_COUNT] : n) : 0;
    for (int64 i = thread_index(); i < count_of_slots; i += thread_count()) {
        const int64 slot = __ldg(slots + i);
        if (slot < 0) {
            continue;
        }
        int64* score = score_of(slabs, slab_shift, stride, slot);
        *score = touched(*score, clock, counting);
    }
}

#define TOUCHED_TOGETHER 2    // per thread, if there are many
#define TOUCHED_SPREAD 16384  // slots up to which a thread has one
#define TOUCHED_PLACES (BLOCK_THREADS * TOUCHED_TOGETHER)

// Whether the caller is the thread that writes the clock of the call to a score, read as `before`.
__device__ __forceinline__ bool is_first_to_touch(
    int64* score, int64 before, int64 clock, int32 counting) {
    while (before & FORESEEN || (before & CLOCK_MASK) != clock) {
        const uint64 seen = atomicCAS(
            reinterpret_cast<uint64*>(score), static_cast<uint64>(before),
            static_cast<uint64>(touched(before, clock, counting)));
        if (static_cast<int64>(seen) == before) {
            return true;
        }
        before = static_cast<int64>(seen);
    }
    return false;
}

extern "C" __global__ void __launch_bounds__(BLOCK_THREADS, 4) touch_once(
    const uint64* __restrict__ slabs, const int32 slab_shift, const int32 stride,
    const int32* __restrict__ slots,  // (n,)
    const int64 n,
    const int64 clock,
    const int32 counting,
    int64* findings) {
    __shared__ int64 counts[WARPS];
    __shared__ uint64 places[TOUCHED_PLACES];  // one of the slots with each place, and its thread
    const int64 count = may_go_on(findings) ? n : 0;
    const int32 each = static_cast<int32>(
        max(min(count / TOUCHED_SPREAD, static_cast<int64>(TOUCHED_TOGETHER)), 1ll));
    const int64 step = thread_count() * each;
    int64 won = 0;
    const int64 first = static_cast<int64>(blockIdx.x) * BLOCK_THREADS * each;
    for (int64 begin = first; begin < count; begin += step) {
        int32 found[TOUCHED_TOGETHER];
        int64* scores[TOUCHED_TOGETHER];
        int64 before[TOUCHED_TOGETHER];
        UNROLLED(j, TOUCHED_TOGETHER) {
            const int64 i = begin + j * BLOCK_THREADS + threadIdx.x;
            found[j] = j < each && i < count ? __ldg(slots + i) : -1;
        }
        UNROLLED(j, TOUCHED_TOGETHER) {
            if (found[j] >= 0) {
                const uint32 own = j * BLOCK_THREADS + threadIdx.x;
                places[found[j] & (TOUCHED_PLACES - 1)] = static_cast<uint64>(found[j]) << 32 | own;
            }
        }
        __syncthreads();
        UNROLLED(j, TOUCHED_TOGETHER) {
            if (found[j] >= 0) {
                const uint64 place = places[found[j] & (TOUCHED_PLACES - 1)];
                const uint32 own = j * BLOCK_THREADS + threadIdx.x;
                const bool is_same = static_cast<int32>(place >> 32) == found[j];
                found[j] = is_same && static_cast<uint32>(place) != own ? -1 : found[j];
            }
        }
        __syncthreads();
        UNROLLED(j, TOUCHED_TOGETHER) {
            scores[j] = score_of(slabs, slab_shift, stride, max(found[j], 0));
        }
        UNROLLED(j, TOUCHED_TOGETHER) {
            before[j] = found[j] >= 0 ? *scores[j] : clock;
        }
        UNROLLED(j, TOUCHED_TOGETHER) {
            won += found[j] >= 0 && is_first_to_touch(scores[j], before[j], clock, counting);
        }
    }
    add_of_block(findings + UNIQUE_COUNT, won, counts);
}

extern "C" __global__ void __launch_bounds__(BLOCK_THREADS) set_counts(
    const uint64* __restrict__ slabs, const int32 slab_shift, const int32 stride,
    const int64* __restrict__ slots,   // (n,), -1: skipped
    const int64* __restrict__ counts,  // (n,)
    const int64 n) {
    for (int64 i = thread_index(); i < n; i += thread_count()) {
        const int64 slot = __ldg(slots + i);
        if (slot < 0) {
            continue;
        }
        int64* score = score_of(slabs, slab_shift, stride, slot);
        *score = with_count(*score, __ldg(counts + i));
    }
}

extern "C" __global__ void __launch_bounds__(BLOCK_THREADS) age_scores(
    const uint64* __restrict__ slabs, const int32 slab_shift, const int32 stride,
    const int64 slot_count) {
    for (int64 slot = thread_index(); slot < slot_count; slot += thread_count()) {
        int64* score = score_of(slabs, slab_shift, stride, slot);
        *score = with_count(*score, count_of(*score) >> 1);
    }
}

extern "C" __global__ void __launch_bounds__(BLOCK_THREADS) add_pins(
    const uint64* __restrict__ slabs, const int32 slab_shift, const int32 stride,
    const int64* __restrict__ slots,  // (n,), -1: skipped
    const int64 n,
    const int64 step,  // 1 or -1
    int64* count) {    // (1,), zeroed
    __shared__ int64 counts[WARPS];
    int64 alone = 0;
    for (int64 i = thread_index(); i < n; i += thread_count()) {
        const int64 slot = __ldg(slots + i);
        if (slot >= 0) {
            int64* score = score_of(slabs, slab_shift, stride, slot);
            const int64 before = *score, after = before + step * PIN_ONE;
            alone += pins_of(before) == 0 || pins_of(after) == 0;
            *score = after;
        }
    }
    add_of_block(count, alone, counts);
}

extern "C" __global__ void __launch_bounds__(BLOCK_THREADS) count_pending(
    const uint64* __restrict__ slabs, const int32 slab_shift, const int32 stride,
    const int64* __restrict__ slots,  // (n,), -1: skipped
    const int64 n,
    int64* count) {  // (1,), zeroed
    __shared__ int64 counts[WARPS];
    int64 pending = 0;
    for (int64 i = thread_index(); i < n; i += thread_count()) {
        const int64 slot = __ldg(slots + i);
        pending += slot >= 0 && __ldg(score_of(slabs, slab_shift, stride, slot)) < 0;
    }
    add_of_block(count, pending, counts);
}

extern "C" __global__ void __launch_bounds__(BLOCK_THREADS) arrive(
    const uint64* __restrict__ slabs, const int32 slab_shift, const int32 stride,
    const int64* __restrict__ slots,  // (n,)
    const int64 n) {
    for (int64 i = thread_index(); i < n; i += thread_count()) {
        *score_of(slabs, slab_shift, stride, __ldg(slots + i)) &= ~PENDING;
    }
}

extern "C" __global__ void __launch_bounds__(BLOCK_THREADS) foresee(
    const uint64* __restrict__ slabs, const int32 slab_shift, const int32 stride,
    const int64* __restrict__ slots,  // (n,), -1: skipped
    const int64* __restrict__ ranks,  // (n,), negative: no use is known, or UNCHANGED
    const int64 n,
    const int64 clock) {
    for (int64 i = thread_index(); i < n; i += thread_count()) {
        const int64 slot = __ldg(slots + i), rank = __ldg(ranks + i);
        if (slot < 0 || rank == UNCHANGED) {
            continue;
        }
        int64* score = score_of(slabs, slab_shift, stride, slot);
        const int64 above = *score & ABOVE_RANK, count = count_of(*score);
        if (rank >= 0) {
            *score = above | FORESEEN | rank << RANK_SHIFT | count;
        } else if (*score & FORESEEN) {
            *score = above | count << CLOCK_BITS | clock;
        }
    }
}
