// Positions by id, and where the positions of each id begin.
//
//     positions[k]  = the k-th of the positions p in the order of (ids[p], p): a stable sort
//     starts[id]    = the first k with ids[positions[k]] = id; starts[unique count] = n
//
// Positions can also be grouped by slot. In this case the groups are numbered after the sort: a
// group begins at k if the k-th slot differs from the slot before it, or is -1, and the number of
// groups before it is its id.
//
// There is one launch. The items are cut into tiles, with EACH items for every thread of a block.
// The work is cut into **tickets**, one for each tile in each phase, which blocks draw in order
// until no ticket is left:
//
//     count   totals[pass][digit] += items of the tile with that digit
//     sort    a pass for each digit of 8 bits, from the lowest up: a stable sort of the last pass's
//             result. The place of the r-th item of a digit in a tile is the number of items of
//             lower digits (totals), plus the number of items of its digit in earlier tiles, plus r
//     number  for sorted items: ids, starts, and for each group its slot and row key
//
// A ticket waits for all tickets of the phase before, and for the counts of earlier tiles in its
// own phase. radix_sort.cuh counts and sorts a tile, number_groups.cuh numbers it.
//
// group_large has tiles twice as large. Its tiles look at the counts of half as many tiles, but
// each look takes longer: it is for calls of many items.
//
// Grid: any. Rejected: a barrier of all blocks, which would all have to run at the same time; 13
// launches, with running sums between them.
//
// Preconditions: ids are below n < 2^31, and each id from 0 to the largest occurs; progress is
// zero. Deterministic: ranks are counts, so the result is a function of the ids alone. CPU twin:
// group.py. Bytes: 4 n; for each pass 16 n (4 n less in the first), and 16 for each 8 items for
// looking back, in the L2 cache; then 4 n and 8 for each id; with slots 8 n and 56 for each id.

#include "number_groups.cuh"
#include "radix_sort.cuh"
#include "tiles.cuh"
#include "types.cuh"

// Positions in progress: the number of tickets drawn, the number of tickets done, and totals.
#define DRAWN 0
#define FINISHED 1
#define TOTALS 2

template <int32 EACH>
__device__ __forceinline__ void group_all(const Call& call, Shared<EACH>& shared) {
    const uint32 tile_items = EACH * BLOCK_THREADS;
    const uint32 tiles = (call.n + tile_items - 1) / tile_items;
    const uint32 last = static_cast<uint32>(call.passes) + 1;
    uint32* totals = call.progress + TOTALS;
    for (;;) {
        const uint32 ticket = next_ticket(call.progress + DRAWN), phase = ticket / tiles;
        if (phase > last) {
            return;
        }
        if (threadIdx.x == 0) {
            while (fresh(call.progress + FINISHED) < phase * tiles) {
                __nanosleep(20);
            }
            __threadfence();
        }
        __syncthreads();
        const Tile tile = {ticket % tiles, phase, first_item<EACH>(ticket % tiles)};
        const bool is_odd = phase % 2 == 1;  // odd passes write where even phases read
        const Items items = {
            phase < 2 ? call.values : is_odd ? call.other_values : call.sorted_values,
            phase < 2 ? nullptr : is_odd ? call.other_positions : call.positions, call.n};
        if (phase == 0) {
            count_tile<EACH>(items, tile, call.passes, totals, call.states, shared.places);
        } else if (phase < last) {
            sort_tile<EACH>(items, tile, (phase - 1) * DIGIT_BITS, totals + (phase - 1) * DIGITS,
                            call.states, shared, is_odd ? call.sorted_values : call.other_values,
                            is_odd ? call.positions : call.other_positions);
        } else {
            number_tile<EACH>(call, items, tile);
        }
        __threadfence();
        __syncthreads();
        if (threadIdx.x == 0) {
            atomicAdd(call.progress + FINISHED, 1u);
        }
    }
}

extern "C" __global__ void __launch_bounds__(BLOCK_THREADS, 3) group(
    const uint64* __restrict__ slabs, const int32 slab_shift, const int32 stride,
    const int32* values,   // (n,) ids or slots
    const int64 n,
    const int32 passes,    // the number of digits of the values
    uint32* progress,      // (TOTALS + DIGITS * passes,), zero
    uint64* states,        // (DIGITS * tiles,)
    int32* sorted_values, int32* positions,  // (n,) each, out: of an odd pass and,
    int32* other_values, int32* other_positions,  // if there are several, an even pass
    int32* ids,            // (n,) out, of the sorted slots, or null
    int64* starts,         // (n + 1,) out, unique count + 1 are written
    int64* unique_slots,   // (n,) out, unique count are written; null: values are ids
    int64* unique_keys,    // as unique_slots
    int64* findings) {     // the unique count is written; for ids it is known
    __shared__ Shared<ROUNDS> shared;
    group_all<ROUNDS>(
        {slabs, slab_shift, stride, values, static_cast<uint32>(n), passes, progress, states,
         sorted_values, positions, other_values, other_positions,
         {ids, starts, unique_slots, unique_keys, findings}}, shared);
}

// As group. With two blocks per multiprocessor there are registers for tiles twice as large.
extern "C" __global__ void __launch_bounds__(BLOCK_THREADS, 2) group_large(
    const uint64* __restrict__ slabs, const int32 slab_shift, const int32 stride,
    const int32* values, const int64 n, const int32 passes, uint32* progress, uint64* states,
    int32* sorted_values, int32* positions, int32* other_values, int32* other_positions,
    int32* ids, int64* starts, int64* unique_slots, int64* unique_keys, int64* findings) {
    __shared__ Shared<2 * ROUNDS> shared;
    group_all<2 * ROUNDS>(
        {slabs, slab_shift, stride, values, static_cast<uint32>(n), passes, progress, states,
         sorted_values, positions, other_values, other_positions,
         {ids, starts, unique_slots, unique_keys, findings}}, shared);
}
