// Rows change levels of the cache: rows that a call misses come up from level two, and victims of
// level one go down into the slots that these rows leave. Rows of level two are in pinned host
// memory, and are read and written over the bus.
//
//     find_below    the i with slots[i] < 0, ascending, keys[i] of each, and its slot in level
//                   two, -1 where it has none; *missing = their number
//     part_missing  the same keys, parted: those without a slot in level two first, in their order,
//                   the others from the end on backwards; *absent = the number of the former.
//                   It also begins the search for victims (select_victims.cu): their number is
//                   the number of missing keys beyond `free`
//     count_dirty   *count += the number of dirty slots among `slots`; -1 is skipped
//     count_tables  counts[t] += keys of table t
//     exchange      for pair i: from first_up on, the row of below[i] is copied to slots[i], for
//                   keys[i]; from first_down on, the row that was in slots[i] is copied to
//                   below[i], or nowhere where that is -1, and left_keys[i] = its key. A slot
//                   that loses its row and gets none becomes free. In level two a dirty row has a
//                   count of 1 in its score: clean rows leave first.
//
// Grid: in exchange, a group takes ROWS_TOGETHER consecutive pairs. All their pieces, in both
// directions, are loaded before the first is stored, so that the bus carries both directions at
// once. find_below and part_missing draw tiles. In the other kernels a thread takes an element,
// with a grid-stride loop.
//
// Preconditions: slots and below are unique, except for -1; below[i] >= 0 where a row comes up; a
// slot of level one whose row does not leave is free. Deterministic: bits are copied, and one
// thread writes an element. Bytes for n pairs: 4 stride n in each direction over the bus, as much
// from and to level one, and some 150 n of metadata. CPU twin: none, a CPU has one level
// (tests/kernels/test_exchange.py has the formulas).

#include "block_sums.cuh"
#include "exchange_rows.cuh"
#include "index.cuh"
#include "keys.cuh"
#include "pieces.cuh"
#include "score.cuh"
#include "search.cuh"
#include "slabs.cuh"
#include "tiles.cuh"
#include "types.cuh"

#define EXCHANGE_BLOCKS 3  // per multiprocessor: registers for the rows in flight
#define FIND_BLOCKS 5      // registers for two buckets

extern "C" __global__ void __launch_bounds__(BLOCK_THREADS, FIND_BLOCKS) find_below(
    const int64* __restrict__ slots,  // (u,)
    const int64* __restrict__ keys,   // (u,)
    const int64* __restrict__ count_at,  // (1,) or null: u is the number of keys
    const int64 u,
    const int64* __restrict__ bucket_keys,    // (bucket_count, 8), of level two
    const uint32* __restrict__ bucket_slots,  // (bucket_count, 8)
    const int64 bucket_count,
    const int64* __restrict__ stash_keys,    // (256,)
    const uint32* __restrict__ stash_slots,  // (256,)
    const int64* __restrict__ stash_count,   // (1,)
    int64* __restrict__ missing_keys,  // (missing,) out
    int32* __restrict__ places,        // (missing,) out
    int64* __restrict__ below,         // (missing,) out
    int64* missing,                    // (1,), 0 before
    uint64* progress) {                // (1 + tiles,), zero
    number_flagged(
        count_at ? __ldg(count_at) : u, progress, missing, [&](uint32 i) { return __ldg(slots + i) < 0; },
        [&](uint32 i, int32 at) {
            const int64 key = __ldg(keys + i);
            missing_keys[at] = key;
            places[at] = i;
            below[at] = slot_of(
                bucket_keys, bucket_slots, bucket_count, stash_keys, stash_slots, stash_count, key);
        });
}

extern "C" __global__ void __launch_bounds__(BLOCK_THREADS) part_missing(
    const int64* __restrict__ keys,    // (n,)
    const int32* __restrict__ places,  // (n,)
    const int64* __restrict__ below,   // (n,)
    const int64* __restrict__ missing,  // (1,), n
    const int64 free,
    int64* __restrict__ parted_keys,    // (n,) out
    int32* __restrict__ parted_places,  // (n,) out
    int64* __restrict__ parted_below,   // (n,) out
    int64* absent,           // (1,), 0 before
    int64* search,           // (8,)
    uint64* progress_below,  // (1 + tiles,), zero, as progress
    uint64* progress) {
    const int64 n = __ldg(missing);
    if (thread_index() == 0) {
        search[TIES] = search[VICTIMS] = max(n - free, 0ll);
        search[STATE] = n > free ? SEEKING : DONE;
    }
    const auto put = [&](uint32 i, int64 at) {
        parted_keys[at] = __ldg(keys + i);
        parted_places[at] = __ldg(places + i);
        parted_below[at] = __ldg(below + i);
    };
    number_flagged(
        n, progress, absent, [&](uint32 i) { return __ldg(below + i) < 0; },
        [&](uint32 i, int32 at) { put(i, at); });
    number_flagged(
        n, progress_below, nullptr, [&](uint32 i) { return __ldg(below + i) >= 0; },
        [&](uint32 i, int32 at) { put(i, n - 1 - at); });
}

extern "C" __global__ void __launch_bounds__(BLOCK_THREADS) count_dirty(
    const uint64* __restrict__ slabs, const int32 slab_shift, const int32 stride,
    const int64* __restrict__ slots,  // (n,), -1: skipped
    const int64* __restrict__ n_at,   // (1,), n
    int64* count) {
    __shared__ int64 counts[WARPS];
    const int64 n = __ldg(n_at);
    int64 dirty = 0;
    for (int64 i = thread_index(); i < n; i += thread_count()) {
        const int64 slot = __ldg(slots + i);
        dirty += slot >= 0 && *dirty_of(slabs, slab_shift, stride, slot) != 0;
    }
    add_of_block(count, dirty, counts);
}

extern "C" __global__ void __launch_bounds__(BLOCK_THREADS) count_tables(
    const int64* __restrict__ keys,  // (n,), usually those of a table together
    const int64 key_mask,            // see table_of
    const int64* __restrict__ n_at,  // (1,), n
    int64* counts) {  // (tables,)
    const int64 n = __ldg(n_at);
    const int64 whole = (n + WARP_THREADS - 1) / WARP_THREADS * WARP_THREADS;
    for (int64 i = thread_index(); i < whole; i += thread_count()) {
        const int64 table = i < n ? table_of(__ldg(keys + i), key_mask) : -1;
        const uint32 alike =
            __ballot_sync(FULL_WARP, table == __shfl_sync(FULL_WARP, table, 0));
        if (threadIdx.x % WARP_THREADS == 0) {
            add_to(counts + table, __popc(alike));
        } else if (table >= 0 && !has_flag(alike)) {
            add_to(counts + table, 1);
        }
    }
}

extern "C" __global__ void __launch_bounds__(BLOCK_THREADS, EXCHANGE_BLOCKS) exchange(
    const uint64* __restrict__ slabs, const int32 slab_shift, const int32 stride,
    const uint64* __restrict__ below_slabs, const int32 below_shift,
    const int64* __restrict__ slots,  // (n,)
    const int64* __restrict__ below,  // (n,)
    const int64* __restrict__ keys,   // (n,)
    const int64 n,
    const int64 first_up,
    const int64 first_down,
    const int64 score,
    const int64 below_score,
    int64* __restrict__ left_keys) {  // (n,) out
    const Group group = group_of(stride / 4);
    const int64 step = group.count * ROWS_TOGETHER;
    for (int64 begin = group.index * ROWS_TOGETHER; begin < n; begin += step) {
        element *here[ROWS_TOGETHER], *there[ROWS_TOGETHER];
        UNROLLED(r, ROWS_TOGETHER) {
            const int64 i = min(begin + r, n - 1), place = __ldg(below + i);
            here[r] = row_of(slabs, slab_shift, stride, __ldg(slots + i));
            there[r] = begin + r < n && place >= 0
                           ? row_of(below_slabs, below_shift, stride, place)
                           : nullptr;
        }
        exchange_rows(here, there, begin, first_up, first_down, group, stride);
        for (int64 i = begin + group.lane; i < min(begin + ROWS_TOGETHER, n); i += group.lanes) {
            const int64 slot = __ldg(slots + i), place = __ldg(below + i);
            const bool comes = i >= first_up, leaves = i >= first_down;
            int64* key = key_of(slabs, slab_shift, stride, slot);
            uint8* dirty = dirty_of(slabs, slab_shift, stride, slot);
            const int64 left_key = leaves ? *key : EMPTY_KEY;
            const uint8 left_dirty = leaves ? *dirty : 0;
            uint8 come_dirty = 0;
            if (place >= 0) {
                uint8* dirty_below = dirty_of(below_slabs, below_shift, stride, place);
                come_dirty = comes ? *dirty_below : 0;
                *dirty_below = left_dirty;
                *key_of(below_slabs, below_shift, stride, place) = left_key;
                *score_of(below_slabs, below_shift, stride, place) =
                    below_score | static_cast<int64>(left_dirty) << CLOCK_BITS;
            }
            left_keys[i] = left_key;
            *key = comes ? __ldg(keys + i) : EMPTY_KEY;
            *dirty = come_dirty;
            *score_of(slabs, slab_shift, stride, slot) = score;
        }
    }
}
