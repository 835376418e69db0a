// The scaled sum of each id's gradients. The result is that of its twin: sum_by_key.py;
// findings[LARGE_SUM] is the lowest id whose scaled sum has a large element.
//
// By rule 2 several groups can share the sum of a hot key (contract.md):
//
//     sum_chunks  the sum of chunk 0 of every id, which is the whole sum for an id of up to
//                 CHUNK_OCCURRENCES, and more[k / CHUNK_OCCURRENCES] = the sum of chunk c > 0 of an
//                 id, where positions[k] is its first occurrence
//     combine     scale * (chunk 0 + chunk 1 + chunk 2 + ...) of the other ids
//
// Chunks other than 0 begin CHUNK_OCCURRENCES apart or more. So at most one of them begins in a
// window of as many positions, and its place in `more` is the number of the window: nothing has to
// be counted before. The chunk that begins in a window belongs to the id at the window's end, or to
// the id at its beginning.
//
// If not all sums are kept, no sum is stored for a key that occurs once, as most keys do: its
// gradient is read and tested here, and read again by apply.cu.
//
// Grid, sum_chunks: a group has a stretch of positions, at most as many as it has lanes, and sums
// the chunks that begin there, also beyond the end of the stretch (sum_stretch.cuh). A piece has 4
// bytes if the rows of a segment are not aligned to 16 bytes.
//
// Grid, combine: a warp owns COMBINED_COLUMNS elements, a sector of 32 bytes, of the ids whose
// first extra chunk begins in one of as many windows as it has lanes. The additions of an element
// have one order and cannot be shared. But a thread that also loaded all its chunks, thousands for
// a key that is a tenth of a batch, would wait for memory again and again. So SHARERS lanes load
// ITEMS_TOGETHER chunks each. All of them add the chunks of every lane, in the order of chunks, by
// shuffles, while their next loads are in flight.
//
// Preconditions: the occurrences of an id are in one segment; sums and more are aligned to 16
// bytes; combine follows sum_chunks; coefficients are present unless the form is PLAIN.
// Deterministic: every addition of an element has one place in one order, whichever lane does it.
//
// Bytes: 8 n of positions and ids and 4 n dim of rows are read, 4 dim are written for each stored
// sum and extra chunk, 8 of starts are read for each id, and 4 n each of source and coefficients.
// All but rows and sums are read again for every 512 bytes of a row.

#include "chunks.cuh"
#include "findings.cuh"
#include "floats.cuh"
#include "pieces.cuh"
#include "segments.cuh"
#include "sum_stretch.cuh"
#include "types.cuh"

#define SUM_BLOCKS 3  // per multiprocessor: registers for the rows in flight
#define ITEMS_TOGETHER 16
#define COMBINED_COLUMNS 8
#define SHARERS (WARP_THREADS / COMBINED_COLUMNS)

extern "C" __global__ void __launch_bounds__(BLOCK_THREADS, SUM_BLOCKS) sum_chunks(
    const int64* __restrict__ starts,       // (u + 1,)
    const int32* __restrict__ positions,    // (n,)
    const int32* __restrict__ sorted_ids,   // (n,), by position; null: each id occurs once
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

// The sum of chunk 0, `total`, and the `chunks` chunks after it, of which `from` is the first. All
// lanes must call it; lanes that share an element get the same result.
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
    const int32* __restrict__ sorted_ids,  // (n,), by position
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
        int32 id = 0, start = 0, chunks = 0;  // for the lane's window
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
