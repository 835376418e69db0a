// Positions by id, and where those of each id begin.
//
//     positions[k]  = the k-th of the positions p in the order of (ids[p], p): a stable sort
//     starts[id]    = the first k with ids[positions[k]] = id; starts[unique count] = n
//
// A radix sort from the lowest digit of 8 bits up: a pass for each digit that n - 1 has, as ids are
// below n. Every pass is a stable sort of what the pass before left by one digit; the first takes
// the ids as they are, each with its index as position. An array is cut into tiles of TILE items:
//
//     count_digits    counts[digit * tiles + tile] = items of the tile with that digit
//     (the caller)    ends = inclusive sum of counts: in the order of digits, then of tiles
//     scatter_digits  the r-th item of a digit in a tile goes to ends[digit * tiles + tile - 1] + r
//                     (of one tile the block adds up its own counts)
//     group_starts    after the last pass, of its ids
//
// Slots are sorted as ids are, all of a call's positions; what they group is given ids then:
//
//     group_firsts    firsts[k] = the k-th slot is not the one before, or is none (-1)
//     (the caller)    ids = inclusive sum of firsts
//     group_slots     ids[k] less one; starts, and of each id its slot and row key
//
// Grid: count_digits and scatter_digits: a block a tile, the grid strides over tiles. In
// scatter_digits a warp has ROUNDS * WARP_THREADS items in a row, of which its lanes take
// neighbours each round; an item's rank is the sum of how many of its digit the warps before have,
// the rounds before in its warp, and the lanes before in its round. The lanes of one digit find
// each other by a ballot a bit, whatever digits there are: where all ids are alike nothing queues.
// Rejected: counting in each lane by atomics, whose order is not that of items.
// group_starts: a thread takes PER_THREAD ids a round, a whole grid apart; group_firsts and
// group_slots: one.
//
// Preconditions: 0 <= ids[p] < n < 2^31, where they are not slots; a pass reads no array that it writes. Deterministic: ranks
// are counts, so the result is a function of the ids alone. CPU twin: group.py.
// Bytes of a pass: 22 n with its sum, 4 n less in the first; 2 n of them are of counts, whose
// sectors a tile shares with its neighbours, in the L2 cache. Then 4 n and 8 for each id; of slots
// 20 n, the sum's, and 56 for each id.

#define PER_THREAD 4
#define DIGIT_BITS 8
#define DIGITS (1 << DIGIT_BITS)
#define ROUNDS 8
#define TILE (ROUNDS * BLOCK_THREADS)

static_assert(DIGITS == BLOCK_THREADS, "a thread has the counts of one digit");

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

extern "C" __global__ void __launch_bounds__(BLOCK_THREADS) count_digits(
    const int32* __restrict__ ids,  // (n,)
    const int64 n,
    const int32 shift,             // of the digit
    int32* __restrict__ counts) {  // (DIGITS * tiles,) out
    __shared__ uint32 found[DIGITS];
    const int64 tiles = (n + TILE - 1) / TILE;
    for (int64 tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
        const int64 begin = tile * TILE + threadIdx.x;
        int32 tile_ids[ROUNDS];
        UNROLLED(j, ROUNDS) {
            const int64 i = begin + j * BLOCK_THREADS;
            tile_ids[j] = i < n ? __ldg(ids + i) : 0;
        }
        found[threadIdx.x] = 0;
        __syncthreads();
        UNROLLED(j, ROUNDS) {
            if (begin + j * BLOCK_THREADS < n) {
                atomicAdd(found + digit_of(tile_ids[j], shift), 1u);
            }
        }
        __syncthreads();
        counts[threadIdx.x * tiles + tile] = static_cast<int32>(found[threadIdx.x]);
    }
}

extern "C" __global__ void __launch_bounds__(BLOCK_THREADS) scatter_digits(
    const int32* __restrict__ ids,        // (n,)
    const int32* __restrict__ positions,  // (n,), or null: each id's index
    const int64 n,
    const int32 shift,                       // of the digit
    const int32* __restrict__ ends,          // (DIGITS * tiles,), running sum; null: one tile
    int32* __restrict__ sorted_ids,          // (n,) out
    int32* __restrict__ sorted_positions) {  // (n,) out
    // Of a warp's digits: how many so far, then where the first goes.
    __shared__ int32 places[WARPS][DIGITS], warp_sums[WARPS];
    const int32 lane = threadIdx.x % WARP_THREADS, warp = threadIdx.x / WARP_THREADS;
    const uint32 lanes_before = (1u << lane) - 1;
    const int64 tiles = (n + TILE - 1) / TILE;
    for (int64 tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
        const int64 begin = tile * TILE + warp * ROUNDS * WARP_THREADS;
        int32 warp_ids[ROUNDS], warp_positions[ROUNDS], ranks[ROUNDS];
        UNROLLED(j, ROUNDS) {
            const int64 i = begin + j * WARP_THREADS + lane;
            warp_ids[j] = i < n ? __ldg(ids + i) : 0;
            warp_positions[j] = i < n && positions ? __ldg(positions + i) : static_cast<int32>(i);
        }
        for (int32 digit = lane; digit < DIGITS; digit += WARP_THREADS) {
            places[warp][digit] = 0;
        }
        __syncwarp();
        UNROLLED(j, ROUNDS) {
            if (begin + j * WARP_THREADS < n) {
                const bool has_item = begin + j * WARP_THREADS + lane < n;
                const int32 digit = digit_of(warp_ids[j], shift);
                const uint32 alike = lanes_alike(digit, has_item);
                const int32 before = places[warp][digit];
                ranks[j] = before + __popc(alike & lanes_before);
                __syncwarp();
                if (has_item && (alike & lanes_before) == 0) {
                    places[warp][digit] = before + __popc(alike);
                }
                __syncwarp();
            }
        }
        __syncthreads();
        const int64 count_at = threadIdx.x * tiles + tile;
        int32 place = ends && count_at > 0 ? __ldg(ends + count_at - 1) : 0;
        if (!ends) {
            int32 own = 0, all;
            UNROLLED(w, WARPS) {
                own += places[w][threadIdx.x];
            }
            place = sum_before(own, warp_sums, all);
        }
        UNROLLED(w, WARPS) {
            const int32 count = places[w][threadIdx.x];
            places[w][threadIdx.x] = place;
            place += count;
        }
        __syncthreads();
        UNROLLED(j, ROUNDS) {
            if (begin + j * WARP_THREADS + lane < n) {
                const int32 k = places[warp][digit_of(warp_ids[j], shift)] + ranks[j];
                sorted_ids[k] = warp_ids[j];
                sorted_positions[k] = warp_positions[j];
            }
        }
        __syncwarp();  // the next tile's counts begin at 0, where these are read
    }
}

extern "C" __global__ void __launch_bounds__(BLOCK_THREADS) group_starts(
    const int32* __restrict__ sorted_ids,  // (n,)
    const int64 n,
    const int64* __restrict__ findings,
    int64* __restrict__ starts) {  // (n + 1,) out, unique count + 1 of them written
    if (thread_index() == 0) {
        starts[findings[UNIQUE_COUNT]] = n;
    }
    const int64 step = thread_count();
    for (int64 begin = thread_index(); begin < n; begin += PER_THREAD * step) {
        int32 ids[PER_THREAD], before[PER_THREAD];
        UNROLLED(j, PER_THREAD) {
            const int64 k = begin + j * step;
            ids[j] = k < n ? __ldg(sorted_ids + k) : -1;
            before[j] = k > 0 && k < n ? __ldg(sorted_ids + k - 1) : -1;
        }
        UNROLLED(j, PER_THREAD) {
            if (ids[j] != before[j]) {
                starts[ids[j]] = begin + j * step;
            }
        }
    }
}

extern "C" __global__ void __launch_bounds__(BLOCK_THREADS) group_firsts(
    const int32* __restrict__ sorted_slots,  // (n,)
    const int64 n,
    int32* __restrict__ firsts) {  // (n,) out
    for (int64 k = thread_index(); k < n; k += thread_count()) {
        const int32 slot = __ldg(sorted_slots + k);
        firsts[k] = k == 0 || slot < 0 || slot != __ldg(sorted_slots + k - 1);
    }
}

extern "C" __global__ void __launch_bounds__(BLOCK_THREADS) group_slots(
    const uint64* __restrict__ slabs, const int32 slab_shift, const int32 stride,
    const int32* __restrict__ sorted_slots,  // (n,)
    const int64 n,
    int32* __restrict__ ids,             // (n,), running sum of firsts, then out
    int64* __restrict__ starts,          // (n + 1,) out, unique count + 1 of them written
    int64* __restrict__ unique_slots,    // (n,) out, unique count of them written
    int64* __restrict__ unique_keys,     // as unique_slots
    int64* __restrict__ findings) {
    for (int64 k = thread_index(); k < n; k += thread_count()) {
        const int32 slot = __ldg(sorted_slots + k), id = ids[k] - 1;
        ids[k] = id;
        if (k == 0 || slot < 0 || slot != __ldg(sorted_slots + k - 1)) {
            starts[id] = k;
            unique_slots[id] = slot;
            unique_keys[id] = slot < 0 ? EMPTY_KEY : *key_of(slabs, slab_shift, stride, slot);
        }
        if (k == n - 1) {
            starts[id + 1] = n;
            findings[UNIQUE_COUNT] = id + 1;
        }
    }
}
