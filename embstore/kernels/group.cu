// Positions by id, and where those of each id begin.
//
//     positions[k]  = the k-th of the positions p in the order of (ids[p], p): a stable sort
//     starts[id]    = the first k with ids[positions[k]] = id; starts[unique count] = n
//
// Slots are grouped in the same way, and what they group is numbered then: a group begins at k where
// the k-th slot is not the one before, or is none (-1), and the groups before it are its id.
//
// One launch. The items are cut into tiles of TILE, and the work into **tickets**, one for each tile
// in each phase, which blocks draw in order until none is left:
//
//     count   totals[pass][digit] += items of the tile with that digit
//     sort    a pass for each digit of 8 bits, from the lowest up, a stable sort of what the pass
//             before left: the r-th item of a digit in a tile goes behind the items of lower digits
//             (totals), those of its digit in the tiles before, and r
//     number  of sorted items: ids, starts, and of each group its slot and row key
//
// A ticket waits only for tickets before it, which blocks that run have drawn: for all of the phase
// before, and for what the tiles before count in its own phase. So it cannot deadlock, however few
// blocks run at a time and whatever else runs. A tile tells the tiles behind it its own count, and,
// when it has looked back as far as a tile that knows it, the count of all tiles so far.
//
// Grid: any. A warp has ROUNDS * WARP_THREADS items in a row, of which its lanes take neighbours each
// round; an item's rank is the sum of how many of its digit the warps before have, the rounds before
// in its warp, and the lanes before in its round. The lanes of one digit find each other by a ballot
// a bit, whatever digits there are: where all ids are alike nothing queues. Rejected: counting in
// each lane by atomics, whose order is not that of items; a launch for each step, with running sums
// of all tiles' counts between them (13 launches of 3 passes); a barrier of all blocks, for which
// all of them must run at the same time.
//
// Preconditions: ids are below n < 2^31, each from 0 to the largest at least once; progress is zero.
// Deterministic: ranks are counts, so the result is a function of the ids alone. CPU twin: group.py.
// Bytes: 4 n, and of each pass 16 n (4 less in the first) and 16 for each 8 items of looking back,
// in the L2 cache; then 4 n and 8 for each id; of slots 8 n and 56 for each id.

#define DIGIT_BITS 8
#define DIGITS (1 << DIGIT_BITS)
#define ROUNDS 8
#define TILE (ROUNDS * BLOCK_THREADS)
#define RESIDENT_BLOCKS 4
#define LOOKED_AT 8  // tiles before, in flight

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

__device__ __forceinline__ uint32 lanes_before() {
    return (1u << threadIdx.x % WARP_THREADS) - 1;
}

// Counts of the tiles before, `own` of this one; `states` has a place for each tile and thread. A
// state is a count, and above it twice the phase, plus 1 where the tiles before are in it.
__device__ __forceinline__ uint32 count_before(uint64* states, const Tile& tile, uint32 own) {
    const uint64 of_tile = 2ull * tile.phase;
    volatile uint64* told = states + static_cast<int64>(tile.index) * DIGITS + threadIdx.x;
    *told = (of_tile + (tile.index == 0)) << 32 | own;
    uint32 before = 0;
    int32 next = static_cast<int32>(tile.index) - 1;
    while (next >= 0) {
        uint64 seen[LOOKED_AT];
        UNROLLED(j, LOOKED_AT) {
            seen[j] = fresh(states + static_cast<int64>(max(next - j, 0)) * DIGITS + threadIdx.x);
        }
        bool is_told = true;
        UNROLLED(j, LOOKED_AT) {
            const uint64 status = seen[j] >> 32;
            is_told = is_told && next >= 0 && status >= of_tile;
            if (is_told) {
                before += static_cast<uint32>(seen[j]);
                next = status > of_tile ? -1 : next - 1;
            }
        }
        if (!is_told && next >= 0) {
            __nanosleep(20);
        }
    }
    if (tile.index > 0) {
        *told = (of_tile + 1) << 32 | (before + own);
    }
    return before;
}

// Phases

__device__ __forceinline__ void count_tile(
    const Items& of, const Tile& tile, int32 passes, uint32* totals, uint64* states,
    int32 (*found)[DIGITS]) {
    int32 values[ROUNDS];
    UNROLLED(j, ROUNDS) {
        const uint32 i = tile.begin + j * WARP_THREADS;
        values[j] = i < of.n ? __ldg(of.values + i) : 0;
    }
    states[static_cast<int64>(tile.index) * DIGITS + threadIdx.x] = 0;
    for (int32 pass = 0; pass < passes; ++pass) {
        found[pass][threadIdx.x] = 0;
    }
    __syncthreads();
    for (int32 pass = 0; pass < passes; ++pass) {
        UNROLLED(j, ROUNDS) {
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

// `places` has, of a warp's digits, how many so far, then where the first goes.
__device__ __forceinline__ void sort_tile(
    const Items& of, const Tile& tile, int32 shift, const uint32* totals, uint64* states,
    int32 (*places)[DIGITS], int32* warp_sums, int32* sorted_values, int32* sorted_positions) {
    const int32 lane = threadIdx.x % WARP_THREADS, warp = threadIdx.x / WARP_THREADS;
    int32 values[ROUNDS], positions[ROUNDS], ranks[ROUNDS];
    UNROLLED(j, ROUNDS) {
        const uint32 i = tile.begin + j * WARP_THREADS;
        values[j] = i < of.n ? __ldcg(of.values + i) : 0;
        positions[j] = i < of.n && of.positions ? __ldcg(of.positions + i) : static_cast<int32>(i);
    }
    const int32 total = static_cast<int32>(__ldcg(totals + threadIdx.x));
    for (int32 digit = lane; digit < DIGITS; digit += WARP_THREADS) {
        places[warp][digit] = 0;
    }
    __syncwarp();
    UNROLLED(j, ROUNDS) {
        if (tile.begin - lane + j * WARP_THREADS < of.n) {
            const bool has_item = tile.begin + j * WARP_THREADS < of.n;
            const int32 digit = digit_of(values[j], shift);
            const uint32 alike = lanes_alike(digit, has_item);
            const int32 before = places[warp][digit];
            ranks[j] = before + __popc(alike & lanes_before());
            __syncwarp();
            if (has_item && (alike & lanes_before()) == 0) {
                places[warp][digit] = before + __popc(alike);
            }
            __syncwarp();
        }
    }
    int32 all, place = sum_before(total, warp_sums, all);  // a barrier: all have counted
    int32 own = 0;
    UNROLLED(w, WARPS) {
        own += places[w][threadIdx.x];
    }
    place += static_cast<int32>(count_before(states, tile, static_cast<uint32>(own)));
    UNROLLED(w, WARPS) {
        const int32 count = places[w][threadIdx.x];
        places[w][threadIdx.x] = place;
        place += count;
    }
    __syncthreads();
    UNROLLED(j, ROUNDS) {
        if (tile.begin + j * WARP_THREADS < of.n) {
            const int32 k = places[warp][digit_of(values[j], shift)] + ranks[j];
            sorted_values[k] = values[j];
            sorted_positions[k] = positions[j];
        }
    }
}

// What groups are told: of ids nothing but `starts`.
struct Groups {
    int32* ids;
    int64* starts;
    int64* unique_slots;  // or null: the values are ids
    int64* unique_keys;
    int64* findings;
};

// The k-th item, whose groups before its round end with `id`; `firsts` are of the round's lanes.
__device__ __forceinline__ void store_group(
    const Groups& groups, const Items& of, uint32 k, int32 value, int64 key, int32 id,
    uint32 firsts) {
    const bool is_first = (firsts >> threadIdx.x % WARP_THREADS & 1) != 0;
    const int32 own =
        groups.unique_slots ? id + __popc(firsts & lanes_before()) + is_first : value;
    if (is_first) {
        groups.starts[own] = k;
    }
    if (k == of.n - 1) {
        groups.starts[own + 1] = of.n;
    }
    if (k >= of.n || !groups.unique_slots) {
        return;
    }
    groups.ids[k] = own;
    if (is_first) {
        groups.unique_slots[own] = value;
        groups.unique_keys[own] = key;
    }
    if (k == of.n - 1) {
        groups.findings[UNIQUE_COUNT] = own + 1;
    }
}

__device__ __forceinline__ void number_tile(
    const uint64* slabs, int32 slab_shift, int32 stride, const Items& of, const Tile& tile,
    uint64* states, int32* warp_sums, uint32* shared_before, const Groups& groups) {
    const int32 lane = threadIdx.x % WARP_THREADS;
    int32 values[ROUNDS];
    uint32 firsts[ROUNDS], count = 0;
    UNROLLED(j, ROUNDS) {
        const uint32 k = tile.begin + j * WARP_THREADS;
        values[j] = k < of.n ? __ldcg(of.values + k) : 0;
        const int32 before = k > 0 && k < of.n ? __ldcg(of.values + k - 1) : -1;
        firsts[j] = k < of.n && (values[j] < 0 || values[j] != before);
    }
    UNROLLED(j, ROUNDS) {
        firsts[j] = __ballot_sync(FULL_WARP, firsts[j]);
        count += __popc(firsts[j]);
    }
    int32 id = 0;  // of the last group before the round
    if (groups.unique_slots) {
        int32 all;
        id = sum_before(lane == 0 ? static_cast<int32>(count) : 0, warp_sums, all);
        if (threadIdx.x == 0) {
            *shared_before = count_before(states, tile, static_cast<uint32>(all));
        }
        __syncthreads();
        id = __shfl_sync(FULL_WARP, id, 0) + static_cast<int32>(*shared_before) - 1;
    }
    UNROLLED(half, 2) {
        const int32 low = half * (ROUNDS / 2);
        int64 keys[ROUNDS / 2];
        UNROLLED(j, ROUNDS / 2) {
            const int32 slot = values[low + j];
            keys[j] = (firsts[low + j] >> lane & 1) && groups.unique_slots && slot >= 0
                          ? __ldg(key_of(slabs, slab_shift, stride, slot)) : EMPTY_KEY;
        }
        UNROLLED(j, ROUNDS / 2) {
            const uint32 of_round = firsts[low + j];
            store_group(groups, of, tile.begin + (low + j) * WARP_THREADS, values[low + j], keys[j],
                        id, of_round);
            id += __popc(of_round);
        }
    }
}

extern "C" __global__ void __launch_bounds__(BLOCK_THREADS, RESIDENT_BLOCKS) group(
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
    int64* findings) {     // the unique count is written for slots alone
    __shared__ int32 places[WARPS][DIGITS], warp_sums[WARPS];
    __shared__ uint32 drawn, shared_before;
    const uint32 tiles = static_cast<uint32>((n + TILE - 1) / TILE);
    const uint32 last = static_cast<uint32>(passes) + 1;
    uint32* totals = progress + TOTALS;
    for (;;) {
        if (threadIdx.x == 0) {
            drawn = atomicAdd(progress + DRAWN, 1u);
            const uint32 before = min(drawn / tiles, last) * tiles;
            while (fresh(progress + FINISHED) < before && drawn < tiles * (last + 1)) {
                __nanosleep(20);
            }
            __threadfence();
        }
        __syncthreads();
        const uint32 ticket = drawn, phase = ticket / tiles;
        if (phase > last) {
            return;
        }
        const uint32 index = ticket % tiles, lane = threadIdx.x % WARP_THREADS;
        const uint32 of_warp = threadIdx.x / WARP_THREADS * ROUNDS * WARP_THREADS;
        const Tile tile = {index, phase, index * TILE + of_warp + lane};
        const bool is_odd = phase % 2 == 1;  // what an odd pass leaves, an even phase reads
        const Items items = {phase < 2 ? values : is_odd ? other_values : sorted_values,
                             phase < 2 ? nullptr : is_odd ? other_positions : positions,
                             static_cast<uint32>(n)};
        if (phase == 0) {
            count_tile(items, tile, passes, totals, states, places);
        } else if (phase < last) {
            sort_tile(items, tile, (phase - 1) * DIGIT_BITS, totals + (phase - 1) * DIGITS, states,
                      places, warp_sums, is_odd ? sorted_values : other_values,
                      is_odd ? positions : other_positions);
        } else {
            const Groups groups = {ids, starts, unique_slots, unique_keys, findings};
            number_tile(slabs, slab_shift, stride, items, tile, states, warp_sums, &shared_before,
                        groups);
        }
        __threadfence();
        __syncthreads();
        if (threadIdx.x == 0) {
            atomicAdd(progress + FINISHED, 1u);
        }
    }
}
