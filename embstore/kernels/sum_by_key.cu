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
// chunks that begin there, also beyond its end (sum_stretch.cuh). A piece is 4 bytes also where the rows
// of a segment do not begin at 16.
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

#include "chunks.cuh"
#include "findings.cuh"
#include "floats.cuh"
#include "pieces.cuh"
#include "segments.cuh"
#include "sum_stretch.cuh"
#include "types.cuh"

#define SUM_BLOCKS 3  // of a multiprocessor: registers for the rows in flight
#define ITEMS_TOGETHER 16
#define COMBINED_COLUMNS 8
#define SHARERS (WARP_THREADS / COMBINED_COLUMNS)

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
