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
// A ticket waits for all of the phase before, and for the counts of tiles before it in its own. Items
// leave a tile in the order of their digits, so that those of a digit are stored together.
//
// group_large has tiles twice as large. They look at the counts of half as many, but each takes longer:
// it is for calls of many items.
//
// Grid: any. An item's rank is the sum of how many of its digit the warps before have, the rounds
// before in its warp, and the lanes before in its round. The lanes of one digit find each other by a
// ballot a bit, whatever digits there are: where all ids are alike nothing queues. Rejected: a barrier
// of all blocks, which then must run at the same time; 13 launches, with running sums between.
//
// Preconditions: ids are below n < 2^31, each from 0 to the largest at least once; progress is zero.
// Deterministic: ranks are counts, so the result is a function of the ids alone. CPU twin: group.py.
// Bytes: 4 n, and of each pass 16 n (4 less in the first) and 16 for each 8 items of looking back,
// in the L2 cache; then 4 n and 8 for each id; of slots 8 n and 56 for each id.

#include "block_sums.cuh"
#include "findings.cuh"
#include "keys.cuh"
#include "slabs.cuh"
#include "tiles.cuh"
#include "types.cuh"

#define DIGIT_BITS 8
#define DIGITS (1 << DIGIT_BITS)

// Of progress: tickets that were drawn, tickets that are done, and totals.
#define DRAWN 0
#define FINISHED 1
#define TOTALS 2

static_assert(DIGITS == BLOCK_THREADS, "a thread has the counts of one digit");

struct Items {
    const int32* values;     // ids or slots
    const int32* positions;  // or null: each value's index
    uint32 n;
};

struct Tile {
    uint32 index, phase, begin;  // the lane's first item
};

struct Groups {
    int32* ids;
    int64* starts;
    int64* unique_slots;  // or null: the values are ids
    int64* unique_keys;
    int64* findings;
};

// The arguments of the kernels.
struct Call {
    const uint64* slabs;
    int32 slab_shift, stride;
    const int32* values;
    uint32 n;
    int32 passes;
    uint32* progress;
    uint64* states;
    int32 *sorted_values, *positions;
    int32 *other_values, *other_positions;
    Groups groups;
};

// Of a block.
template <int32 EACH>
struct Shared {
    // Of a warp's digits, how many so far, then where in the tile the first goes.
    int32 places[WARPS][DIGITS];
    int32 warp_sums[WARPS];
    int32 moves[DIGITS];  // of a digit's items, from the tile's order to that of all
    int32 values[EACH * BLOCK_THREADS], positions[EACH * BLOCK_THREADS];  // in the tile's order
};

__device__ __forceinline__ int32 digit_of(int32 id, int32 shift) {
    return (id >> shift) & (DIGITS - 1);
}

// The lanes whose digit is the caller's, of those that have an item.
__device__ __forceinline__ uint32 lanes_alike(int32 digit, bool has_item) {
    uint32 alike = __ballot_sync(FULL_WARP, has_item);
    UNROLLED(bit, DIGIT_BITS) {
        const bool is_set = (digit >> bit & 1) != 0;
        const uint32 set = __ballot_sync(FULL_WARP, is_set);
        alike &= is_set ? set : ~set;
    }
    return alike;
}

// Phases

template <int32 EACH>
__device__ __forceinline__ void count_tile(
    const Items& of, const Tile& tile, int32 passes, uint32* totals, uint64* states,
    int32 (*found)[DIGITS]) {
    int32 values[EACH];
    UNROLLED(j, EACH) {
        const uint32 i = tile.begin + j * WARP_THREADS;
        values[j] = i < of.n ? __ldg(of.values + i) : 0;
    }
    states[static_cast<int64>(tile.index) * DIGITS + threadIdx.x] = 0;
    for (int32 pass = 0; pass < passes; ++pass) {
        found[pass][threadIdx.x] = 0;
    }
    __syncthreads();
    for (int32 pass = 0; pass < passes; ++pass) {
        UNROLLED(j, EACH) {
            if (tile.begin + j * WARP_THREADS < of.n) {
                atomicAdd(found[pass] + digit_of(values[j], pass * DIGIT_BITS), 1);
            }
        }
    }
    __syncthreads();
    for (int32 pass = 0; pass < passes; ++pass) {
        const int32 count = found[pass][threadIdx.x];
        if (count > 0) {
            atomicAdd(totals + pass * DIGITS + threadIdx.x, static_cast<uint32>(count));
        }
    }
}

// ranks[j]: how many items of the same digit the warp has before the lane's j-th. counts, of the warp's
// digits, is how many it has in all then.
template <int32 EACH>
__device__ __forceinline__ void rank_in_warp(
    const int32 (&values)[EACH], const Tile& tile, uint32 n, int32 shift, int32 (&counts)[DIGITS],
    int32 (&ranks)[EACH]) {
    const int32 lane = threadIdx.x % WARP_THREADS;
    for (int32 digit = lane; digit < DIGITS; digit += WARP_THREADS) {
        counts[digit] = 0;
    }
    __syncwarp();
    UNROLLED(j, EACH) {
        if (tile.begin - lane + j * WARP_THREADS < n) {
            const bool has_item = tile.begin + j * WARP_THREADS < n;
            const int32 digit = digit_of(values[j], shift);
            const uint32 alike = lanes_alike(digit, has_item);
            const int32 before = counts[digit];
            ranks[j] = before + __popc(alike & lanes_before());
            __syncwarp();
            if (has_item && (alike & lanes_before()) == 0) {
                counts[digit] = before + __popc(alike);
            }
            __syncwarp();
        }
    }
}

template <int32 EACH>
__device__ __forceinline__ void sort_tile(
    const Items& of, const Tile& tile, int32 shift, const uint32* totals, uint64* states,
    Shared<EACH>& shared, int32* sorted_values, int32* sorted_positions) {
    int32 (&places)[WARPS][DIGITS] = shared.places;
    const int32 warp = threadIdx.x / WARP_THREADS;
    int32 values[EACH], positions[EACH], ranks[EACH];
    UNROLLED(j, EACH) {
        const uint32 i = tile.begin + j * WARP_THREADS;
        values[j] = i < of.n ? __ldcg(of.values + i) : 0;
        positions[j] = i < of.n && of.positions ? __ldcg(of.positions + i) : static_cast<int32>(i);
    }
    const int32 total = static_cast<int32>(__ldcg(totals + threadIdx.x));
    rank_in_warp(values, tile, of.n, shift, places[warp], ranks);
    int32 all, place = sum_before(total, shared.warp_sums, all);  // a barrier: all have counted
    int32 own = 0;
    UNROLLED(w, WARPS) {
        own += places[w][threadIdx.x];
    }
    const int32 in_tile = sum_before(own, shared.warp_sums, all);  // of items of lower digits
    place += static_cast<int32>(count_before(
        states + threadIdx.x, DIGITS, tile.index, 2 * tile.phase, static_cast<uint32>(own)));
    shared.moves[threadIdx.x] = place - in_tile;
    int32 next = in_tile;
    UNROLLED(w, WARPS) {
        const int32 count = places[w][threadIdx.x];
        places[w][threadIdx.x] = next;
        next += count;
    }
    __syncthreads();
    UNROLLED(j, EACH) {
        if (tile.begin + j * WARP_THREADS < of.n) {
            const int32 k = places[warp][digit_of(values[j], shift)] + ranks[j];
            shared.values[k] = values[j], shared.positions[k] = positions[j];
        }
    }
    __syncthreads();
    UNROLLED(j, EACH) {
        const int32 k = j * BLOCK_THREADS + threadIdx.x;
        if (k < all) {
            const int32 value = shared.values[k], to = k + shared.moves[digit_of(value, shift)];
            sorted_values[to] = value, sorted_positions[to] = shared.positions[k];
        }
    }
}

template <int32 EACH>
__device__ __forceinline__ void number_tile(
    const Call& call, const Items& of, const Tile& tile) {
    const Groups& groups = call.groups;
    int32 values[EACH];
    uint32 firsts[EACH];
    UNROLLED(j, EACH) {
        const uint32 k = tile.begin + j * WARP_THREADS;
        values[j] = k < of.n ? __ldcg(of.values + k) : 0;
        const int32 before = k > 0 && k < of.n ? __ldcg(of.values + k - 1) : -1;
        firsts[j] = k < of.n && (values[j] < 0 || values[j] != before);
    }
    int32 id = flagged_before(call.states, DIGITS, tile.index, 2 * tile.phase, firsts) - 1;
    UNROLLED(half, 2) {
        const int32 low = half * (EACH / 2);
        int64 keys[EACH / 2];
        UNROLLED(j, EACH / 2) {
            const int32 slot = values[low + j];
            keys[j] = has_flag(firsts[low + j]) && groups.unique_slots && slot >= 0
                          ? __ldg(key_of(call.slabs, call.slab_shift, call.stride, slot)) : EMPTY_KEY;
        }
        UNROLLED(j, EACH / 2) {
            const uint32 k = tile.begin + (low + j) * WARP_THREADS, of_round = firsts[low + j];
            const int32 own = id + __popc(of_round & (lanes_before() << 1 | 1));
            id += __popc(of_round);
            if (k < of.n && groups.unique_slots) {
                groups.ids[k] = own;
            }
            if (has_flag(of_round)) {
                groups.starts[own] = k;
                if (groups.unique_slots) {
                    groups.unique_slots[own] = values[low + j], groups.unique_keys[own] = keys[j];
                }
            }
            if (k == of.n - 1) {
                groups.starts[own + 1] = of.n;
                groups.findings[UNIQUE_COUNT] = own + 1;
            }
        }
    }
}

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
