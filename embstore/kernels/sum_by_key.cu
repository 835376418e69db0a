// The scaled sum of each id's gradients. The result is that of its twin: sum_by_key.py; the lowest
// id whose scaled sum has a large element is findings[LARGE_SUM].
//
// Rule 2 lets a hot key be shared (contract.md):
//
//     sum_chunks  the sum of chunk 0 of every id, which is all for one of up to CHUNK_OCCURRENCES, and
//                 more[k / CHUNK_OCCURRENCES] = chunk c > 0 of id, where positions[k] is its first
//     combine     scale * (chunk 0 + chunk 1 + chunk 2 + ...) of the others
//
// Chunks other than 0 begin CHUNK_OCCURRENCES apart or more, so at most one begins in a window of as
// many positions, and its place in `more` is the window's number: nothing has to be counted before.
// The id that ends a window has the one that begins in it, or the id that the window begins with.
//
// Where not all sums are kept, a key that occurs once, as most do, stores none: its gradient is read
// and tested, and read again by apply.cu.
//
// Grid, sum_chunks: a group has a stretch of positions, as many as it has lanes or fewer, and sums the
// chunks that begin there, also beyond its end. Its lanes look at as many positions at the same time:
// where each one's row is, and whether a chunk ends with it. Then the rows come one after the other,
// ROWS_TOGETHER of them in flight, of whatever chunks they are: most chunks have one, and a group that
// took chunk after chunk would wait for memory at each. A piece is 4 bytes also where the rows of a
// segment do not begin at 16.
//
// Grid, combine: a warp owns COMBINED_COLUMNS elements, a sector of 32 bytes, of the ids whose first
// extra chunk begins in one of as many windows as it has lanes. The additions of an element have one
// order and cannot be shared; but a thread that also loaded its chunks, thousands for a key that is a
// tenth of a batch, would wait for memory again and again. So SHARERS lanes load ITEMS_TOGETHER chunks
// each, and all of them add what each has, in the order of chunks, by shuffles, while their next loads
// are on the way.
//
// Preconditions: the occurrences of an id lie in one segment; sums and more begin at 16; combine
// follows sum_chunks; coefficients are present unless the form is PLAIN.
// Deterministic: every addition of an element has one place in one order, by whatever lane.
//
// Bytes: 8 n of positions and ids and 4 n dim of rows read, 4 dim written for each id (that occurs
// again, where not all are kept) and extra chunk, 8 of starts for each id; source and coefficients 4 n
// each. All but rows and sums are read again for every 512 bytes of a row.

#include "findings.cuh"
#include "floats.cuh"
#include "pieces.cuh"
#include "segments.cuh"
#include "types.cuh"

#define ROWS_TOGETHER 8
#define SUM_BLOCKS 3  // of a multiprocessor: registers for the rows in flight
#define ITEMS_TOGETHER 16
#define COMBINED_COLUMNS 8
#define SHARERS (WARP_THREADS / COMBINED_COLUMNS)

// By name: of a plain store of the four, which are in registers, compilers make four of 4 bytes.
__device__ __forceinline__ void store_piece(float* at, float4 piece, const int32 width) {
    if (width == 4) {
        __stwb(reinterpret_cast<float4*>(at), piece);
    } else {
        *at = piece.x;
    }
}

__device__ __forceinline__ bool is_piece_large(float4 piece, const int32 width) {
    return is_large(piece.x) || (width == 4 && (is_large(piece.y) || is_large(piece.z) ||
                                                is_large(piece.w)));
}

// Read before write: where all of a batch is large, few ids are lower than the lowest so far.
__device__ __forceinline__ void find_large(int64* findings, int64 id) {
    if (findings[LARGE_SUM] > id) {
        atomicMin(findings + LARGE_SUM, id);
    }
}

struct Chunk {
    int32 id, first;  // first: 0 where no chunk begins in the window
};

// The extra chunk that begins in a window of positions, if any.
__device__ __forceinline__ Chunk chunk_in(
    const int32* sorted_ids, const int64* starts, int64 n, int64 window) {
    const int64 low = window * CHUNK_OCCURRENCES, high = min(low + CHUNK_OCCURRENCES, n);
    const int64 last_id = __ldg(sorted_ids + high - 1), begin = __ldg(starts + last_id);
    const int64 first = begin + (high - 1 - begin) / CHUNK_OCCURRENCES * CHUNK_OCCURRENCES;
    if (first >= low && first > begin) {
        return {static_cast<int32>(last_id), static_cast<int32>(first)};
    }
    const int64 id = __ldg(sorted_ids + low), start = __ldg(starts + id);
    const int64 chunks = (low - start + CHUNK_OCCURRENCES - 1) / CHUNK_OCCURRENCES;
    const int64 next = start + chunks * CHUNK_OCCURRENCES;
    const bool is_here = next > start && next < min(high, __ldg(starts + id + 1));
    return {static_cast<int32>(id), is_here ? static_cast<int32>(next) : 0};
}

// What is added at a position, as the lane found it that looked for it.
struct Occurrence {
    const float* row;    // null: none
    float coefficient;
    int32 form;
    uint32 stop;         // of the chunk
    int32 target;        // of its sum: a row of `more` or `sums`; -1: it is not stored
    bool is_first, is_last, is_extra, is_all;  // of the chunk; it is chunk c > 0; it is all of its id
};

__device__ __forceinline__ int32 id_at(const int32* sorted_ids, uint32 k) {
    return sorted_ids ? __ldg(sorted_ids + k) : static_cast<int32>(k);
}

// The chunk that position k of the order lies in.
__device__ __forceinline__ Occurrence chunk_at(
    const int64* starts, const int32* sorted_ids, int32 keeps_all, uint32 k) {
    const int32 id = id_at(sorted_ids, k);
    const uint32 start = static_cast<uint32>(__ldg(starts + id));
    const uint32 end = static_cast<uint32>(__ldg(starts + id + 1));
    const uint32 before = (k - start) / CHUNK_OCCURRENCES * CHUNK_OCCURRENCES;
    const uint32 first = start + before, stop = min(end, first + CHUNK_OCCURRENCES);
    const bool is_extra = before > 0, is_stored = keeps_all || end - start > 1;
    const int64 target = is_extra ? first / CHUNK_OCCURRENCES : place_of_sum(keeps_all, id, start);
    return {nullptr, 1.0f, PLAIN, stop, is_stored ? static_cast<int32>(target) : -1, k == first,
            k + 1 == stop, is_extra, end - start <= CHUNK_OCCURRENCES};
}

// And the row that it adds.
__device__ __forceinline__ void find_row(
    const int32* positions, const int64* of_segments, int32 segments, int32 dim, uint32 k,
    Occurrence& own) {
    const int32 position = __ldg(positions + k);
    const int32 segment = segments > 1 ? segment_of(of_segments, segments, position) : 0;
    const Occurrences of = occurrences_in(of_segments, segments, segment);
    const int32 index = position - of.shift;
    const int64 row = of.source ? __ldg(of.source + index) : index;
    own.form = of.form;
    own.coefficient = of.form == PLAIN ? 1.0f : __ldg(of.coefficients + index);
    own.row = of.rows + row * dim;
}

// Lanes of the caller's group for which it holds, bit 0 the first. All lanes of the warp come here.
__device__ __forceinline__ uint32 lanes_where(bool holds, const Group& group) {
    const uint32 all = __ballot_sync(FULL_WARP, holds) >> (threadIdx.x % WARP_THREADS - group.lane);
    return group.lanes == WARP_THREADS ? all : all & ((1u << group.lanes) - 1);
}

struct Sums {
    const int64* starts;
    const int32* positions;
    const int32* sorted_ids;
    uint32 n;
    const int64* of_segments;
    int32 segments;
    float scale;
    float* sums;
    float* more;
    int32 dim, keeps_all;
    int64* findings;
};

// What is added at the group's lanes from `r0` to below `stop`, ROWS_TOGETHER at most, of the columns
// from `d` on: all loads are in flight together. All lanes of the warp come here.
__device__ __forceinline__ void load_rows(
    const Occurrence& own, bool is_any_scaled, const Group& group, int32 r0, int32 stop, int32 d,
    bool has_columns, const int32 width, float4 (&pieces)[ROWS_TOGETHER]) {
    const int32 base = threadIdx.x % WARP_THREADS - group.lane;
    const float* rows[ROWS_TOGETHER];
    UNROLLED(r, ROWS_TOGETHER) {
        rows[r] = of_lane(own.row, base + min(r0 + r, group.lanes - 1));
    }
    UNROLLED(r, ROWS_TOGETHER) {
        pieces[r] = constant(-0.0f);
        if (r0 + r < stop && has_columns) {
            pieces[r] = load_piece(rows[r] + d, width);
        }
    }
    if (is_any_scaled) {
        UNROLLED(r, ROWS_TOGETHER) {
            const int32 lane = base + min(r0 + r, group.lanes - 1);
            const float coefficient = __shfl_sync(FULL_WARP, own.coefficient, lane);
            const int32 form = __shfl_sync(FULL_WARP, own.form, lane);
            if (r0 + r < stop && form == WEIGHTED) {
                pieces[r] = multiply(coefficient, pieces[r]);
            } else if (r0 + r < stop && form == DIVIDED) {
                pieces[r] = divide(pieces[r], coefficient);
            }
        }
    }
}

// The sums of the chunks that begin at one of `share` positions from `low` on, of the group's columns
// from `column` on. All lanes of the warp come here.
__device__ __forceinline__ void sum_stretch(
    const Sums& of, const Group& group, uint32 low, uint32 share, int32 column, const int32 width) {
    const int32 d = column + group.lane * width, base = threadIdx.x % WARP_THREADS - group.lane;
    const bool has_columns = d < of.dim;
    float4 total = constant(-0.0f);
    uint32 end = 0;  // one past the last position of the chunks that begin here
    int32 from = 0;  // the first lane that has an occurrence of them
    for (uint32 begin = low; begin == low || __ballot_sync(FULL_WARP, begin < end);
         begin += group.lanes) {
        const uint32 k = begin + group.lane;
        Occurrence own = {nullptr, 1.0f, PLAIN, 0, -1, false, false, false, false};
        if (k < (begin == low ? of.n : end)) {
            own = chunk_at(of.starts, of.sorted_ids, of.keeps_all, k);
        }
        if (begin == low) {
            const uint32 firsts = lanes_where(own.is_first && k < low + share, group);
            const int32 last = firsts ? 31 - __clz(firsts) : 0;
            const uint32 stop = __shfl_sync(FULL_WARP, own.stop, base + last);
            end = firsts ? stop : 0;
            from = firsts ? __ffs(firsts) - 1 : 0;
        } else {
            from = 0;
        }
        const bool is_here = k >= begin + from && k < end;
        if (is_here) {
            find_row(of.positions, of.of_segments, of.segments, of.dim, k, own);
        }
        const uint32 lasts = lanes_where(own.is_last, group);
        const uint32 extras = lanes_where(own.is_extra, group);
        const uint32 alls = lanes_where(own.is_all, group);
        const bool is_any_scaled = __ballot_sync(FULL_WARP, own.form != PLAIN) != 0;
        const uint32 left = begin < end ? end - begin : 0;
        const int32 stop = static_cast<int32>(min(left, static_cast<uint32>(group.lanes)));
#pragma unroll 1
        for (int32 r0 = from; __ballot_sync(FULL_WARP, r0 < stop); r0 += ROWS_TOGETHER) {
            float4 pieces[ROWS_TOGETHER];
            load_rows(own, is_any_scaled, group, r0, stop, d, has_columns, width, pieces);
            UNROLLED(r, ROWS_TOGETHER) {
                const int32 lane = base + min(r0 + r, group.lanes - 1);
                const int64 target = __shfl_sync(FULL_WARP, own.target, lane);
                total = add(total, pieces[r]);
                if (r0 + r < stop && (lasts >> (r0 + r) & 1)) {
                    if (alls >> (r0 + r) & 1) {
                        total = multiply(of.scale, total);
                        if (has_columns && is_piece_large(total, width)) {
                            find_large(of.findings, id_at(of.sorted_ids, begin + r0 + r));
                        }
                    }
                    if (target >= 0 && has_columns) {
                        float* to = extras >> (r0 + r) & 1 ? of.more : of.sums;
                        store_piece(to + target * of.dim + d, total, width);
                    }
                    total = constant(-0.0f);
                }
            }
        }
    }
}

extern "C" __global__ void __launch_bounds__(BLOCK_THREADS, SUM_BLOCKS) sum_chunks(
    const int64* __restrict__ starts,       // (u + 1,)
    const int32* __restrict__ positions,    // (n,)
    const int32* __restrict__ sorted_ids,   // (n,), of the positions; null: each occurs once
    const int64 n,
    const int64* __restrict__ of_segments,  // (5 * segments + 1,), see Occurrences
    const int32 segments,
    const float scale,
    float* __restrict__ sums,               // out, see place_of_sum
    float* __restrict__ more,               // (windows, dim) out
    const int32 dim,
    const int32 keeps_all,
    int64* __restrict__ findings) {         // (8,)
    const Sums of = {starts, positions, sorted_ids, static_cast<uint32>(n), of_segments, segments,
                     scale, sums, more, dim, keeps_all, findings};
    const Group group = group_of(dim % 4 == 0 ? dim / 4 : dim);
    const int64 each = (n + group.count - 1) / group.count;
    const int64 share = min(each, static_cast<int64>(group.lanes)), step = group.count * share;
    bool is_aligned = dim % 4 == 0;
    for (int32 segment = 0; segment < segments; ++segment) {
        const Occurrences of_segment = occurrences_in(of_segments, segments, segment);
        is_aligned = is_aligned && is_aligned_16(of_segment.rows);
    }
    by_width(is_aligned, [&](const int32 width) {
        for (int64 low = group.index * share; __ballot_sync(FULL_WARP, low < n); low += step) {
            for (int32 column = 0; column < dim; column += group.lanes * width) {
                sum_stretch(of, group, static_cast<uint32>(min(low, n)), static_cast<uint32>(share),
                           column, width);
            }
        }
    });
}

// chunk 0 + the `chunks` after it, `from` the first: all lanes come here, and those that share an
// element find the same.
__device__ __forceinline__ float sum_of_chunks(
    float total, const float* from, int32 chunks, int32 dim, bool has_element) {
    const int32 column = threadIdx.x % COMBINED_COLUMNS;
    const int32 share = threadIdx.x % WARP_THREADS / COMBINED_COLUMNS;
    float pieces[ITEMS_TOGETHER], following[ITEMS_TOGETHER];
    UNROLLED(c, ITEMS_TOGETHER) {
        const int64 chunk = share * ITEMS_TOGETHER + c;
        following[c] = has_element && chunk < chunks ? __ldg(from + chunk * dim) : -0.0f;
    }
    for (int32 begin = 0; begin < chunks; begin += SHARERS * ITEMS_TOGETHER) {
        UNROLLED(c, ITEMS_TOGETHER) {
            const int64 chunk = begin + (SHARERS + share) * ITEMS_TOGETHER + c;
            pieces[c] = following[c];
            following[c] = has_element && chunk < chunks ? __ldg(from + chunk * dim) : -0.0f;
        }
        for (int32 s = 0; s < SHARERS && begin + s * ITEMS_TOGETHER < chunks; ++s) {
            UNROLLED(c, ITEMS_TOGETHER) {
                total += __shfl_sync(FULL_WARP, pieces[c], s * COMBINED_COLUMNS + column);
            }
        }
    }
    return total;
}

extern "C" __global__ void __launch_bounds__(BLOCK_THREADS, 3) combine(
    const int64* __restrict__ starts,      // (u + 1,)
    const int32* __restrict__ sorted_ids,  // (n,), of the positions
    const int64 n,
    float* __restrict__ sums,              // in and out, see place_of_sum
    const float* __restrict__ more,        // (windows, dim)
    const float scale,
    const int32 dim,
    const int32 keeps_all,
    int64* __restrict__ findings) {        // (8,)
    const int64 windows = (n + CHUNK_OCCURRENCES - 1) / CHUNK_OCCURRENCES;
    const int32 lane = threadIdx.x % WARP_THREADS, slices = (dim + COMBINED_COLUMNS - 1) / COMBINED_COLUMNS;
    const int64 items = (windows + WARP_THREADS - 1) / WARP_THREADS * slices;
    const int64 step = thread_count() / WARP_THREADS;
    for (int64 item = thread_index() / WARP_THREADS; item < items; item += step) {
        const int64 first_window = item / slices * WARP_THREADS;
        const int32 d = item % slices * COMBINED_COLUMNS + lane % COMBINED_COLUMNS;
        int32 id = 0, start = 0, chunks = 0;  // of the lane's window
        if (first_window + lane < windows) {
            const Chunk chunk = chunk_in(sorted_ids, starts, n, first_window + lane);
            const int64 of_id = __ldg(starts + chunk.id), end = __ldg(starts + chunk.id + 1);
            id = chunk.id, start = of_id;
            chunks = chunk.first == of_id + CHUNK_OCCURRENCES
                         ? (end - of_id - 1) / CHUNK_OCCURRENCES : 0;
        }
        for (uint32 left = __ballot_sync(FULL_WARP, chunks > 0); left; left &= left - 1) {
            const int32 from = __ffs(left) - 1, of_id = __shfl_sync(FULL_WARP, id, from);
            const int32 begin = __shfl_sync(FULL_WARP, start, from);
            float* sum = sums + place_of_sum(keeps_all, of_id, begin) * dim + d;
            const float total = scale * sum_of_chunks(
                d < dim ? *sum : 0.0f, more + (first_window + from) * dim + d,
                __shfl_sync(FULL_WARP, chunks, from), dim, d < dim);
            if (lane < COMBINED_COLUMNS && d < dim) {
                if (is_large(total)) {
                    find_large(findings, of_id);
                }
                *sum = total;
            }
        }
    }
}
