// What every kernel shares: types, where a slot's row and metadata lie, bits of keys and floats.
//
// Joined as text in front of each .cu file (CuPy's disk cache is keyed by source text, and would go
// on serving a kernel whose header has changed). No toolkit header: NVRTC and the host compiler of
// the emulation (tests/kernels) both compile this as it is.
//
// Memory of a pool. Rows live in **slabs** of C = 1 << slab_shift slots, which come and go without a
// copy. A slab is two blocks of memory:
//
//     rows  C x stride elements    and    keys  C int64 | scores  C int64 | dirty  C uint8
//
// The rows may be pinned memory of the host; the metadata is always the GPU's. An address costs one
// load more than in one array; the table of slabs is small, and stays in the nearest cache. Flat
// arrays of rows, without metadata, are one slab with slab_shift 62. Kernels take the table of slabs,
// (slab count, 2) addresses of rows and of metadata, slab_shift, and the stride, the elements of a
// row, a multiple of 4.

typedef long long int64;
typedef unsigned long long uint64;
typedef int int32;
typedef unsigned int uint32;
typedef unsigned char uint8;

#define BLOCK_THREADS 256
#define WARP_THREADS 32
#define WARPS (BLOCK_THREADS / WARP_THREADS)
#define FULL_WARP 0xffffffffu

// An element of a row as it is kept (embstore/layout.py). Arithmetic is in float, and so are lookups,
// gradients and sums: a kernel loads elements as floats and stores floats as elements, by what stands
// here under "Elements".
typedef float element;
#define ELEMENT_BYTES 4ull

#define KEY_BITS 40
#define KEY_MASK ((1ll << KEY_BITS) - 1)
#define EMPTY_KEY (-1ll)

// The number of a row key's table, by which the parameters of a pool's tables are; `mask` has the
// key's bits (embstore/row_keys.py).
__device__ __forceinline__ long long table_of(long long row_key, long long mask) {
    return (row_key & ~mask) >> KEY_BITS;
}

// Whether a table has a key, both unsigned.
__device__ __forceinline__ bool is_inside(long long key, long long row_count) {
    return static_cast<unsigned long long>(key) < static_cast<unsigned long long>(row_count);
}

// What the kernels of a call find out, for the one time that the host waits: int64 each, one row of
// them for each batch. Positions and ids are the lowest, by atomicMin from the largest int64.
#define NOTHING 0x7fffffffffffffffll
#define UNIQUE_COUNT 0
#define OUTSIDE 1     // position of a key outside its table
#define MISSING 2     // unique keys that have no slot
#define LARGE_SUM 3   // id whose scaled sum has a large element: the host looks at all sums
#define ACCESSES 4
#define HITS 5
#define REFUSED 6     // the index has no room for a key
#define FINDINGS 8

// Whether a call that was queued before the host knew may be done: all of its keys are there.
__device__ __forceinline__ bool may_go_on(const int64* findings) {
    return findings[MISSING] == 0 && findings[OUTSIDE] == NOTHING;
}

// Optimizer chunks (contract.md, rule 2), and what an occurrence adds.
#define CHUNK_OCCURRENCES 64
#define PLAIN 0
#define WEIGHTED 1
#define DIVIDED 2

// Fields of a score (embstore/score.py).
#define CLOCK_BITS KEY_BITS
#define CLOCK_MASK KEY_MASK
#define RANK_SHIFT 11
#define UNCHANGED (-2ll)
#define COUNT_MAX ((1ll << 11) - 1)
#define COUNT_NONE 0
#define COUNT_UP 1
#define FORESEEN (1ll << 51)
#define ABOVE_COUNT (-FORESEEN)  // bits 51..63
#define PIN_SHIFT 52
#define PIN_ONE (1ll << PIN_SHIFT)
#define PINS_MAX ((1ll << 11) - 1)
#define ABOVE_RANK (-PIN_ONE)  // bits 52..63
#define PENDING static_cast<int64>(1ull << 63)

// Fields of a search for victims (select_victims.cu). TIES: victims from FLOOR on; once it is DONE, the
// most at the threshold, HIGHEST.
#define COUNT 0
#define LOWEST 1
#define HIGHEST 2
#define FLOOR 3
#define CEILING 4
#define TIES 5
#define VICTIMS 6
#define STATE 7
#define SEEKING 0  // COUNT, LOWEST, HIGHEST are not known
#define COUNTING 1
#define DONE 2

#define NAN_BITS 0x7fc00000u
#define INFINITY_BITS 0x7f800000u
#define LARGE_EXPONENT 0x5c000000u  // of 2**57 (embstore/arithmetic/sums.py)
#define MAGNITUDE_BITS 0x7fffffffu

// A loop whose rounds are all in flight: its arrays are registers. `count` is known when it compiles.
#define UNROLLED(i, count) _Pragma("unroll") for (int32 i = 0; i < (count); ++i)

__device__ __forceinline__ int64 thread_index() {
    return static_cast<int64>(blockIdx.x) * blockDim.x + threadIdx.x;
}

__device__ __forceinline__ int64 thread_count() {
    return static_cast<int64>(gridDim.x) * blockDim.x;
}

// Values as they are in memory now, past the multiprocessor's own cache.
template <typename T>
__device__ __forceinline__ T fresh(const T* address) {
    return *static_cast<const volatile T*>(address);
}

// may_go_on, of a kernel that also copies what the host is told, unless answer is null; findings may
// be null: all is there.
__device__ __forceinline__ bool tells_and_may_go_on(const int64* findings, int64* answer) {
    if (findings == nullptr) {
        return true;
    }
    for (int64 i = thread_index(); answer && i < FINDINGS; i += thread_count()) {
        answer[i] = findings[i];
    }
    return may_go_on(findings);
}

// Slots

__device__ __forceinline__ int64 place_in_slab(int32 slab_shift, int64 slot) {
    return slot & ((1ll << slab_shift) - 1);
}

__device__ __forceinline__ uint64 rows_of_slab(const uint64* slabs, int32 slab_shift, int64 slot) {
    return __ldg(slabs + 2 * (slot >> slab_shift));
}

__device__ __forceinline__ uint64 metadata_of_slab(
    const uint64* slabs, int32 slab_shift, int64 slot) {
    return __ldg(slabs + 2 * (slot >> slab_shift) + 1);
}

__device__ __forceinline__ element* row_of(
    const uint64* slabs, int32 slab_shift, int32 stride, int64 slot) {
    return reinterpret_cast<element*>(rows_of_slab(slabs, slab_shift, slot)) +
           place_in_slab(slab_shift, slot) * stride;
}

__device__ __forceinline__ int64* key_of(
    const uint64* slabs, int32 slab_shift, int32 stride, int64 slot) {
    return reinterpret_cast<int64*>(metadata_of_slab(slabs, slab_shift, slot)) +
           place_in_slab(slab_shift, slot);
}

__device__ __forceinline__ int64* score_of(
    const uint64* slabs, int32 slab_shift, int32 stride, int64 slot) {
    uint64 scores = metadata_of_slab(slabs, slab_shift, slot) + (8ull << slab_shift);
    return reinterpret_cast<int64*>(scores) + place_in_slab(slab_shift, slot);
}

__device__ __forceinline__ uint8* dirty_of(
    const uint64* slabs, int32 slab_shift, int32 stride, int64 slot) {
    uint64 dirty = metadata_of_slab(slabs, slab_shift, slot) + (16ull << slab_shift);
    return reinterpret_cast<uint8*>(dirty) + place_in_slab(slab_shift, slot);
}

// Scores

__device__ __forceinline__ int64 count_of(int64 score) {
    return (score & FORESEEN ? score : score >> CLOCK_BITS) & COUNT_MAX;
}

__device__ __forceinline__ int64 touched(int64 score, int64 clock, int32 counting) {
    const int64 more = counting == COUNT_UP;
    const int64 count = counting == COUNT_NONE ? 0 : min(count_of(score) + more, COUNT_MAX);
    return (score & ABOVE_RANK) | count << CLOCK_BITS | clock;
}

// Keys

// 64 bits, each of which depends on every bit of the key (MurmurHash3's fmix64); one to one.
__device__ __forceinline__ uint64 mix(int64 key) {
    uint64 h = static_cast<uint64>(key);
    h = (h ^ (h >> 33)) * 0xff51afd7ed558ccdull;
    h = (h ^ (h >> 33)) * 0xc4ceb9fe1a85ec53ull;
    return h ^ (h >> 33);
}

// Keys of an index's bucket, 64 bytes.
#define BUCKET_WIDTH 8

// The two buckets of a key, which may be the same: each half of its mixed bits, scaled.
__device__ __forceinline__ void buckets_of(
    int64 key, int64 bucket_count, int64& first, int64& second) {
    uint64 h = mix(key);
    first = static_cast<int64>(((h >> 32) * static_cast<uint64>(bucket_count)) >> 32);
    second = static_cast<int64>(((h & 0xffffffffull) * static_cast<uint64>(bucket_count)) >> 32);
}

// The keys of a bucket, loaded 16 bytes at a time.
struct Bucket {
    longlong2 pairs[BUCKET_WIDTH / 2];
};

// Bit w is set where way w of the bucket has the key.
__device__ __forceinline__ uint32 equal_ways(const Bucket& bucket, int64 key) {
    uint32 equal = 0;
    UNROLLED(pair, BUCKET_WIDTH / 2) {
        equal |= (bucket.pairs[pair].x == key ? 1u : 0u) << (2 * pair);
        equal |= (bucket.pairs[pair].y == key ? 2u : 0u) << (2 * pair);
    }
    return equal;
}

__device__ __forceinline__ Bucket load_bucket(const int64* bucket_keys, int64 bucket) {
    const longlong2* pairs =
        reinterpret_cast<const longlong2*>(bucket_keys + bucket * BUCKET_WIDTH);
    Bucket loaded;
    UNROLLED(pair, BUCKET_WIDTH / 2) {
        loaded.pairs[pair] = __ldg(pairs + pair);
    }
    return loaded;
}

// The slot of a key, -1: it has none.
__device__ __forceinline__ int64 slot_of(
    const int64* bucket_keys, const uint32* bucket_slots, const int64 bucket_count,
    const int64* stash_keys, const uint32* stash_slots, const int64* stash_count, const int64 key) {
    int64 first, second;
    buckets_of(key, bucket_count, first, second);
    const Bucket one = load_bucket(bucket_keys, first);
    const Bucket other = load_bucket(bucket_keys, second);
    const uint32 equal = equal_ways(one, key) | equal_ways(other, key) << BUCKET_WIDTH;
    if (equal) {
        const int32 way = __ffs(equal) - 1;
        const int64 bucket = way < BUCKET_WIDTH ? first : second;
        return __ldg(bucket_slots + bucket * BUCKET_WIDTH + (way & (BUCKET_WIDTH - 1)));
    }
    int64 slot = -1;
    const int64 stashed = __ldg(stash_count);
    for (int64 place = 0; place < stashed; ++place) {
        if (__ldg(stash_keys + place) == key) {
            slot = __ldg(stash_slots + place);
        }
    }
    return slot;
}

// The segment of a position: bounds[segment] <= position < bounds[segment + 1].
__device__ __forceinline__ int32 segment_of(const int64* bounds, int32 segments, int64 position) {
    int32 low = 0, high = segments;
    while (high - low > 1) {
        int32 middle = (low + high) >> 1;
        if (__ldg(bounds + middle) <= position) {
            low = middle;
        } else {
            high = middle;
        }
    }
    return low;
}

// What the occurrences of a segment receive (Gradients of embstore/device/base.py). Those of all
// segments are one array of int64: bounds (segments + 1,), then, (segments,) each, addresses of rows,
// of source and of coefficients (0: absent), and forms.
struct Occurrences {
    int32 shift;                // position of the segment's first
    const float* rows;          // (rows, dim)
    const int32* source;        // or null
    const float* coefficients;  // or null
    int32 form;                 // PLAIN, WEIGHTED or DIVIDED
};

__device__ __forceinline__ Occurrences occurrences_in(
    const int64* of_segments, int32 segments, int32 segment) {
    const int64* own = of_segments + segments + 1 + segment;
    return {
        static_cast<int32>(__ldg(of_segments + segment)),
        reinterpret_cast<const float*>(__ldg(own)),
        reinterpret_cast<const int32*>(__ldg(own + segments)),
        reinterpret_cast<const float*>(__ldg(own + 2 * segments)),
        static_cast<int32>(__ldg(own + 3 * segments))};
}

// The row of an id's sum. Where not all are kept, keys that occur once have none: of the others no two
// begin in the same pair of positions.
__device__ __forceinline__ int64 place_of_sum(int32 keeps_all, int64 id, int64 start) {
    return keeps_all ? id : start >> 1;
}

// Floats

__device__ __forceinline__ float canonical(float value) {
    return value == value ? value : __uint_as_float(NAN_BITS);
}

__device__ __forceinline__ float4 canonical(float4 piece) {
    return make_float4(
        canonical(piece.x), canonical(piece.y), canonical(piece.z), canonical(piece.w));
}

__device__ __forceinline__ bool is_large(float value) {
    return (__float_as_uint(value) & INFINITY_BITS) >= LARGE_EXPONENT;
}

__device__ __forceinline__ bool is_aligned_16(const void* address) {
    return (reinterpret_cast<uint64>(address) & 15) == 0;
}

// Pieces of rows: a **group** of lanes, a power of two up to a warp, by the pieces of a row, owns a
// row, and walks over columns where a row has more pieces than lanes. A piece is what a lane moves at
// a time: 16 bytes where dim % 4 == 0, since a slot's row always begins at 16, else 4; what does not
// begin at 16 is stored by 4 bytes.
//
// Sums start from -0.0, and short groups of occurrences are filled up with it: x + -0.0 is x for
// every x, -0.0 included, which 0.0 would lose.

// A thread's group: which of its lanes the thread is, and which of the grid's groups.
struct Group {
    int32 lane, lanes;
    int64 count, index;
};

// Of groups that own a row of so many pieces each.
__device__ __forceinline__ Group group_of(int32 pieces) {
    const int32 lane_bits = pieces < WARP_THREADS ? 32 - __clz(pieces - 1) : 5;
    const int32 lanes = 1 << lane_bits, lane = threadIdx.x & (lanes - 1);
    return {lane, lanes, thread_count() >> lane_bits, thread_index() >> lane_bits};
}

// body(4) where pieces are of 16 bytes, else body(1): the width is a literal in both.
template <typename Body>
__device__ __forceinline__ void by_width(bool is_wide, const Body& body) {
    if (is_wide) {
        body(4);
    } else {
        body(1);
    }
}

// `width` consecutive elements, 4 or 1; the others are 0. It is a literal wherever this is inlined.
__device__ __forceinline__ float4 load_piece(const float* at, const int32 width) {
    if (width == 4) {
        return __ldg(reinterpret_cast<const float4*>(at));
    }
    return make_float4(__ldg(at), 0.0f, 0.0f, 0.0f);
}

__device__ __forceinline__ void stream_piece(float* at, float4 piece, const int32 width) {
    if (width == 4 && is_aligned_16(at)) {
        __stcs(reinterpret_cast<float4*>(at), piece);
        return;
    }
    __stcs(at, piece.x);
    if (width == 4) {
        __stcs(at + 1, piece.y);
        __stcs(at + 2, piece.z);
        __stcs(at + 3, piece.w);
    }
}

// Elements of any type that a float can be converted to and from. They are moved one by one; those of
// float, by the functions that take pointers to float, 16 bytes at a time.

template <typename E>
__device__ __forceinline__ float4 load_piece(const E* at, const int32 width) {
    const bool is_wide = width == 4;
    return make_float4(static_cast<float>(at[0]), is_wide ? static_cast<float>(at[1]) : 0.0f,
                       is_wide ? static_cast<float>(at[2]) : 0.0f,
                       is_wide ? static_cast<float>(at[3]) : 0.0f);
}

template <typename E>
__device__ __forceinline__ void stream_piece(E* at, float4 piece, const int32 width) {
    at[0] = static_cast<E>(piece.x);
    if (width == 4) {
        at[1] = static_cast<E>(piece.y);
        at[2] = static_cast<E>(piece.z);
        at[3] = static_cast<E>(piece.w);
    }
}

// Four that begin at 16 bytes and are read once.
__device__ __forceinline__ float4 load_four_once(const float* at) {
    return __ldcs(reinterpret_cast<const float4*>(at));
}

template <typename E>
__device__ __forceinline__ float4 load_four_once(const E* at) {
    return load_piece(at, 4);
}

// Four that begin at 16 bytes.
__device__ __forceinline__ void store_four(float* at, float4 piece) {
    *reinterpret_cast<float4*>(at) = piece;
}

template <typename E>
__device__ __forceinline__ void store_four(E* at, float4 piece) {
    stream_piece(at, piece, 4);
}

__device__ __forceinline__ float4 constant(float value) {
    return make_float4(value, value, value, value);
}

__device__ __forceinline__ float4 add(float4 a, float4 b) {
    return make_float4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w);
}

__device__ __forceinline__ float4 multiply(float a, float4 b) {
    return make_float4(a * b.x, a * b.y, a * b.z, a * b.w);
}

__device__ __forceinline__ float4 divide(float4 a, float b) {
    return make_float4(a.x / b, a.y / b, a.z / b, a.w / b);
}

// Sums over a block

// The sum over the block, in thread 0; `shared` has room for one of each warp.
__device__ __forceinline__ int64 block_sum(int64 value, int64* shared) {
    for (int32 half = WARP_THREADS / 2; half > 0; half /= 2) {
        value += __shfl_down_sync(FULL_WARP, value, half);
    }
    if (threadIdx.x % WARP_THREADS == 0) {
        shared[threadIdx.x / WARP_THREADS] = value;
    }
    __syncthreads();
    for (int32 warp = 1; threadIdx.x == 0 && warp < WARPS; ++warp) {
        value += shared[warp];
    }
    return value;
}

// The sum over the threads of the block before this one, and `all`, over the block; `shared` has
// room for one of each warp, and is free again at the end.
__device__ __forceinline__ int32 sum_before(int32 value, int32* shared, int32& all) {
    const int32 lane = threadIdx.x % WARP_THREADS, warp = threadIdx.x / WARP_THREADS;
    int32 up_to = value;  // of the warp's threads, this one included
    for (int32 delta = 1; delta < WARP_THREADS; delta *= 2) {
        const int32 other = __shfl_sync(FULL_WARP, up_to, max(lane - delta, 0));
        up_to += lane >= delta ? other : 0;
    }
    if (lane == WARP_THREADS - 1) {
        shared[warp] = up_to;
    }
    __syncthreads();
    int32 before = up_to - value;
    all = 0;
    UNROLLED(w, WARPS) {
        before += w < warp ? shared[w] : 0;
        all += shared[w];
    }
    __syncthreads();
    return before;
}

// Counts over tiles of items, in one pass: blocks draw the tiles in order, by **tickets**, and a tile
// waits only for tiles before it, which blocks that run have drawn. So a kernel cannot deadlock,
// however few of its blocks run at a time and whatever else runs.

#define ROUNDS 8
#define TILE (ROUNDS * BLOCK_THREADS)  // embstore/device/gpu_work.py
#define LOOKED_AT 8                    // states of tiles before, in flight

__device__ __forceinline__ uint32 lanes_before() {
    return (1u << threadIdx.x % WARP_THREADS) - 1;
}

// The lane's first item in a tile, of which a warp has EACH * WARP_THREADS in a row; the next are
// WARP_THREADS apart.
template <int32 EACH = ROUNDS>
__device__ __forceinline__ uint32 first_item(uint32 tile) {
    const uint32 lane = threadIdx.x % WARP_THREADS;
    return tile * EACH * BLOCK_THREADS + (threadIdx.x - lane) * EACH + lane;
}

// The block's next ticket. All threads come here, and have done with the last; `drawn` was 0.
__device__ __forceinline__ uint32 next_ticket(uint32* drawn) {
    __shared__ uint32 ticket;
    __syncthreads();
    if (threadIdx.x == 0) {
        ticket = atomicAdd(drawn, 1u);
    }
    __syncthreads();
    return ticket;
}

// What the tiles before have, `own` being what this one has; `states` has one for each tile, `step`
// apart: a count, and above it `phase`, plus 1 where the tiles before are in it. It was less than
// phase, an even number, which is not 0.
__device__ __forceinline__ uint32 count_before(
    uint64* states, uint32 step, uint32 tile, uint64 phase, uint32 own) {
    volatile uint64* told = states + static_cast<int64>(tile) * step;
    *told = (phase + (tile == 0)) << 32 | own;
    uint32 before = 0;
    int32 next = static_cast<int32>(tile) - 1;
    while (next >= 0) {
        uint64 seen[LOOKED_AT];
        UNROLLED(j, LOOKED_AT) {
            seen[j] = fresh(states + static_cast<int64>(max(next - j, 0)) * step);
        }
        bool is_told = true;
        UNROLLED(j, LOOKED_AT) {
            is_told = is_told && next >= 0 && seen[j] >> 32 >= phase;
            if (is_told) {
                before += static_cast<uint32>(seen[j]);
                next = seen[j] >> 32 > phase ? -1 : next - 1;
            }
        }
        if (!is_told && next >= 0) {
            __nanosleep(20);
        }
    }
    if (tile > 0) {
        *told = (phase + 1) << 32 | (before + own);
    }
    return before;
}

// What the warps before have, also those of the tiles before; `own` is what the warp has.
__device__ __forceinline__ int32 count_before_warp(
    uint64* states, uint32 step, uint32 tile, uint64 phase, int32 own) {
    __shared__ int32 warp_sums[WARPS];
    __shared__ uint32 shared;
    int32 all;
    const int32 in_tile = sum_before(threadIdx.x % WARP_THREADS ? 0 : own, warp_sums, all);
    if (threadIdx.x == 0) {
        shared = count_before(states, step, tile, phase, static_cast<uint32>(all));
    }
    __syncthreads();
    return __shfl_sync(FULL_WARP, in_tile, 0) + static_cast<int32>(shared);
}

// How many items with a flag, 0 or 1, stand before the warp's; the flags become those of all lanes.
template <int32 EACH>
__device__ __forceinline__ int32 flagged_before(
    uint64* states, uint32 step, uint32 tile, uint64 phase, uint32 (&flags)[EACH]) {
    int32 count = 0;
    UNROLLED(j, EACH) {
        flags[j] = __ballot_sync(FULL_WARP, flags[j]);
        count += __popc(flags[j]);
    }
    return count_before_warp(states, step, tile, phase, count);
}

__device__ __forceinline__ bool has_flag(uint32 flags) {
    return (flags >> threadIdx.x % WARP_THREADS & 1) != 0;
}

// use(i, rank) for every item i < n that has a flag, `rank` being how many have one before it; `count`,
// if any, becomes how many have one. `progress` is (1 + tiles,), zero.
template <typename Flag, typename Use>
__device__ __forceinline__ void number_flagged(
    int64 n, uint64* progress, int64* count, const Flag& flag, const Use& use) {
    const uint32 tiles = static_cast<uint32>((n + TILE - 1) / TILE);
    for (uint32 tile; (tile = next_ticket(reinterpret_cast<uint32*>(progress))) < tiles;) {
        uint32 flags[ROUNDS];
        UNROLLED(j, ROUNDS) {
            const uint32 i = first_item(tile) + j * WARP_THREADS;
            flags[j] = i < n && flag(i);
        }
        int32 rank = flagged_before(progress + 1, 1, tile, 2, flags);
        UNROLLED(j, ROUNDS) {
            const uint32 i = first_item(tile) + j * WARP_THREADS;
            if (has_flag(flags[j])) {
                use(i, rank + __popc(flags[j] & lanes_before()));
            }
            rank += __popc(flags[j]);
            if (count && i == n - 1) {
                *count = rank;
            }
        }
    }
}

__device__ __forceinline__ void add_to(int64* address, int64 value) {
    atomicAdd(reinterpret_cast<uint64*>(address), static_cast<uint64>(value));
}

// Adds what the threads of the block have; all of them come here.
__device__ __forceinline__ void add_of_block(int64* address, int64 value, int64* shared) {
    value = block_sum(value, shared);
    if (threadIdx.x == 0 && value > 0) {
        add_to(address, value);
    }
}
