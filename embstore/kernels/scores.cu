// Scores of slots, as calls, policies, pins and announced steps change them. The
// result is that of its twin: scores.py; what a kernel returns there is added to `count` here.
//
// touch_once is touch for slots that repeat, which it counts once: whoever finds a slot without the
// clock of the call, and is the first to give it that, has touched it. The clock is newer than every
// other; in a score that is foreseen its bits are something else.
//
// Grid: a slot a thread, grid-stride; counts add up in the block, and end in an atomic of one
// thread. Preconditions: slots unique but for -1, which is skipped, or unique (arrive); ranks at
// most CLOCK_MASK, counts at most COUNT_MAX; count zeroed. Deterministic: sums of integers.
// Bytes of n slots: touch, add_pins, arrive 72 n, foresee and set_counts
// 80 n, count_pending 40 n, age_scores 16 n, touch_once 36 n.

__device__ __forceinline__ int64 with_count(int64 score, int64 count) {
    return score & FORESEEN ? (score & ~COUNT_MAX) | count
                            : (score & (ABOVE_COUNT | CLOCK_MASK)) | count << CLOCK_BITS;
}

__device__ __forceinline__ int64 pins_of(int64 score) {
    return (score >> PIN_SHIFT) & PINS_MAX;
}

extern "C" __global__ void __launch_bounds__(BLOCK_THREADS) touch(
    const uint64* __restrict__ slabs, const int32 slab_shift, const int32 stride,
    const int64* __restrict__ slots,  // (n,), -1: skipped
    const int64 n,
    const int64 clock,
    const int32 counting,
    const int64* __restrict__ findings,  // (8,) of what the slots were found for, or null
    const int32 always) {                // also where keys are missing
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

extern "C" __global__ void __launch_bounds__(BLOCK_THREADS) touch_once(
    const uint64* __restrict__ slabs, const int32 slab_shift, const int32 stride,
    const int32* __restrict__ slots,  // (n,)
    const int64 n,
    const int64 clock,
    const int32 counting,
    int64* findings) {
    __shared__ int64 counts[WARPS];
    const int64 count = may_go_on(findings) ? n : 0;
    int64 won = 0;
    for (int64 i = thread_index(); i < count; i += thread_count()) {
        int64* score = score_of(slabs, slab_shift, stride, __ldg(slots + i));
        int64 before = *score;
        while (before & FORESEEN || (before & CLOCK_MASK) != clock) {
            const uint64 seen = atomicCAS(
                reinterpret_cast<uint64*>(score), static_cast<uint64>(before),
                static_cast<uint64>(touched(before, clock, counting)));
            if (static_cast<int64>(seen) == before) {
                ++won;
                break;
            }
            before = static_cast<int64>(seen);
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
    const int64* __restrict__ ranks,  // (n,), negative: no use is known
    const int64 n,
    const int64 clock) {
    for (int64 i = thread_index(); i < n; i += thread_count()) {
        const int64 slot = __ldg(slots + i), rank = __ldg(ranks + i);
        if (slot < 0) {
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
