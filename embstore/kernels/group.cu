// Positions by id, and where those of each id begin.
//
//     positions[k]  = the k-th of the positions p in the order of (ids[p], p): a stable sort
//     starts[id]    = the first k with ids[positions[k]] = id; starts[unique count] = n
//
// Slots are grouped in the same way, and what they group is numbered then: a group begins at k where
// the k-th slot is not the one before, or is none (-1), and the groups before it are its id.
//
// One launch. The items are cut into tiles, EACH items for every thread of a block, and the work into
// **tickets**, one for each tile in each phase, which blocks draw in order until none is left:
//
//     count   totals[pass][digit] += items of the tile with that digit
//     sort    a pass for each digit of 8 bits, from the lowest up, a stable sort of what the pass
//             before left: the r-th item of a digit in a tile goes behind the items of lower digits
//             (totals), those of its digit in the tiles before, and r
//     number  of sorted items: ids, starts, and of each group its slot and row key
//
// A ticket waits for all of the phase before, and for the counts of tiles before it in its own.
// radix_sort.cuh has a tile's count and sort, number_groups.cuh its numbers.
//
// group_large has tiles twice as large. They look at the counts of half as many, but each takes longer:
// it is for calls of many items.
//
// Grid: any. Rejected: a barrier of all blocks, which then must run at the same time; 13 launches, with
// running sums between.
//
// Preconditions: ids are below n < 2^31, each from 0 to the largest at least once; progress is zero.
// Deterministic: ranks are counts, so the result is a function of the ids alone. CPU twin: group.py.
// Bytes: 4 n, and of each pass 16 n (4 less in the first) and 16 for each 8 items of looking back,
// in the L2 cache; then 4 n and 8 for each id; of slots 8 n and 56 for each id.

#include "number_groups.cuh"
#include "radix_sort.cuh"
#include "tiles.cuh"
#include "types.cuh"

// Of progress: tickets that were drawn, tickets that are done, and totals.
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
        const bool is_odd = phase % 2 == 1;  // what an odd pass leaves, an even phase reads
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
    const int32 passes,    // as many digits as the values have
    uint32* progress,      // (TOTALS + DIGITS * passes,), zero
    uint64* states,        // (DIGITS * tiles,)
    int32* sorted_values, int32* positions,  // (n,) each, out: of an odd pass, and, where there
    int32* other_values, int32* other_positions,  // are several, of an even one
    int32* ids,            // (n,) out, of the sorted slots, or null
    int64* starts,         // (n + 1,) out, unique count + 1 of them written
    int64* unique_slots,   // (n,) out, unique count of them written; null: values are ids
    int64* unique_keys,    // as unique_slots
    int64* findings) {     // the unique count is written, which of ids is known
    __shared__ Shared<ROUNDS> shared;
    group_all<ROUNDS>(
        {slabs, slab_shift, stride, values, static_cast<uint32>(n), passes, progress, states,
         sorted_values, positions, other_values, other_positions,
         {ids, starts, unique_slots, unique_keys, findings}}, shared);
}

// As group. Two blocks of a multiprocessor have the registers for tiles twice as large.
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
