// A tile of items in a stable sort by one digit of 8 bits (group.cu): items are counted by digit,
// and moved to their places by digit and, within a digit, in their order. A tile writes its items
// in the order of their digits, so that items of the same digit are stored together.
//
// The rank of an item is the number of items of its digit in earlier warps, plus those in earlier
// rounds of its warp, plus those in earlier lanes of its round. The lanes with the same digit find
// each other by one ballot per bit, whatever the digits are, so nothing queues if all items are
// alike.

#include "tiles.cuh"
#include "types.cuh"

#define DIGIT_BITS 8
#define DIGITS (1 << DIGIT_BITS)

static_assert(DIGITS == BLOCK_THREADS, "a thread has the counts of one digit");

struct Items {
    const int32* values;     // ids or slots
    const int32* positions;  // or null: the index of each value
    uint32 n;
};

struct Tile {
    uint32 index, phase, begin;  // begin: the lane's first item
};

// Shared memory of a block.
template <int32 EACH>
struct Shared {
    // For each digit of a warp, the number so far; then the place of the first in the tile.
    int32 places[WARPS][DIGITS];
    int32 warp_sums[WARPS];
    int32 moves[DIGITS];  // per digit, from the tile's order to the order of all items
    int32 values[EACH * BLOCK_THREADS], positions[EACH * BLOCK_THREADS];  // in the tile's order
};

__device__ __forceinline__ int32 digit_of(int32 id, int32 shift) {
    return (id >> shift) & (DIGITS - 1);
}

// The lanes that have an item with the caller's digit.
__device__ __forceinline__ uint32 lanes_alike(int32 digit, bool has_item) {
    uint32 alike = __ballot_sync(FULL_WARP, has_item);
    UNROLLED(bit, DIGIT_BITS) {
        const bool is_set = (digit >> bit & 1) != 0;
        const uint32 set = __ballot_sync(FULL_WARP, is_set);
        alike &= is_set ? set : ~set;
    }
    return alike;
}

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

// ranks[j]: the number of items of the same digit in the warp before the lane's j-th item.
// Afterwards `counts` has the number of the warp's items of each digit.
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
    const int32 in_tile = sum_before(own, shared.warp_sums, all);  // count of items of lower digits
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
