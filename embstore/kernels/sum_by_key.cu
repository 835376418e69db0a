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
// Grid, sum_chunks: a group takes a chunk a round, those of windows first, which are the longest; its
// lanes look for the chunks of as many rounds at the same time. Of a chunk ROWS_TOGETHER occurrences
// are in flight. A piece is 4 bytes also where the rows of a segment do not begin at 16.
//
// Grid, combine: a warp owns COMBINED_COLUMNS elements, a sector of 32 bytes, of the ids whose first
// extra chunk begins in one of as many windows as it has lanes. The additions of an element have one
// order and cannot be shared; but a thread that also loaded its chunks, thousands for a key that is a
// tenth of a batch, would wait for memory again and again. So SHARERS lanes load ITEMS_TOGETHER chunks
// each, and all of them add what each has, in the order of chunks, by shuffles.
//
// Preconditions: the occurrences of an id lie in one segment; sums and more begin at 16; combine
// follows sum_chunks; coefficients are present unless the form is PLAIN.
// Deterministic: every addition of an element has one place in one order, by whatever lane.
//
// Bytes: 4 n of positions and 4 n dim of rows read, 4 dim written for each id (that occurs again,
// where not all are kept) and extra chunk, 8 n of starts, and of each window 8 of ids and 24 of
// starts; source and coefficients 4 n each for every 512 bytes of a row.

#define ROWS_TOGETHER 4
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

// The sum over positions[:count], one after the other, of the piece at column d.
__device__ __forceinline__ float4 sum_of_chunk(
    const Occurrences& of, const int32* positions, int32 count, int32 dim, int32 d,
    const int32 width) {
    float4 total = constant(-0.0f);
    for (int32 begin = 0; begin < count; begin += ROWS_TOGETHER) {
        int32 indices[ROWS_TOGETHER];
        float coefficients[ROWS_TOGETHER];
        float4 pieces[ROWS_TOGETHER];
        UNROLLED(r, ROWS_TOGETHER) {
            indices[r] = __ldg(positions + min(begin + r, count - 1)) - of.shift;
            coefficients[r] = 1.0f;
        }
        if (of.form != PLAIN) {
            UNROLLED(r, ROWS_TOGETHER) {
                coefficients[r] = __ldg(of.coefficients + indices[r]);
            }
        }
        if (of.source != nullptr) {
            UNROLLED(r, ROWS_TOGETHER) {
                indices[r] = __ldg(of.source + indices[r]);
            }
        }
        UNROLLED(r, ROWS_TOGETHER) {
            pieces[r] = constant(-0.0f);
            if (begin + r < count) {
                pieces[r] = load_piece(of.rows + static_cast<int64>(indices[r]) * dim + d, width);
            }
        }
        if (of.form == WEIGHTED) {
            UNROLLED(r, ROWS_TOGETHER) {
                pieces[r] = multiply(coefficients[r], pieces[r]);
            }
        } else if (of.form == DIVIDED) {
            UNROLLED(r, ROWS_TOGETHER) {
                pieces[r] = divide(pieces[r], coefficients[r]);
            }
        }
        UNROLLED(r, ROWS_TOGETHER) {
            total = add(total, begin + r < count ? pieces[r] : constant(-0.0f));
        }
    }
    return total;
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

extern "C" __global__ void __launch_bounds__(BLOCK_THREADS, 3) sum_chunks(
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
    const int64 ids = findings[UNIQUE_COUNT];
    const int64 windows = sorted_ids ? (n + CHUNK_OCCURRENCES - 1) / CHUNK_OCCURRENCES : 0;
    const Group group = group_of(dim % 4 == 0 ? dim / 4 : dim);
    const int32 rounds = static_cast<int32>((windows + ids + group.count - 1) / group.count);
    for (int32 begin = 0; begin < rounds; begin += group.lanes) {
        const int64 item = group.index + (begin + group.lane) * group.count;
        Chunk found = {0, 0};
        int32 end = 0, segment = 0;  // of a lane's item
        if (item < windows) {
            found = chunk_in(sorted_ids, starts, n, item);
        } else if (item < windows + ids) {
            found.id = static_cast<int32>(item - windows);
            found.first = static_cast<int32>(__ldg(starts + found.id));
        }
        if (item < windows + ids && (item >= windows || found.first > 0)) {
            end = static_cast<int32>(__ldg(starts + found.id + 1));
            segment = segment_of(of_segments, segments, __ldg(positions + found.first));
        }
        for (int32 r = 0; r < min(rounds - begin, group.lanes); ++r) {
            const int32 from = threadIdx.x % WARP_THREADS - group.lane + r;
            const Chunk chunk = {__shfl_sync(FULL_WARP, found.id, from),
                                 __shfl_sync(FULL_WARP, found.first, from)};
            const int32 end_of_id = __shfl_sync(FULL_WARP, end, from);
            const Occurrences of = occurrences_in(
                of_segments, segments, __shfl_sync(FULL_WARP, segment, from));
            const int64 window = group.index + (begin + r) * group.count;
            if (end_of_id == 0) {
                continue;  // no chunk
            }
            const bool is_extra = window < windows;
            const int32 left = end_of_id - chunk.first, count = min(left, CHUNK_OCCURRENCES);
            const bool is_all = !is_extra && count == left;
            const bool is_stored = keeps_all || !is_all || count > 1;
            float* target = is_extra ? more + window * dim
                                     : sums + place_of_sum(keeps_all, chunk.id, chunk.first) * dim;
            by_width(dim % 4 == 0 && is_aligned_16(of.rows), [&](const int32 width) {
                for (int32 d = group.lane * width; d < dim; d += group.lanes * width) {
                    float4 total = sum_of_chunk(of, positions + chunk.first, count, dim, d, width);
                    if (is_all) {
                        total = multiply(scale, total);
                        if (is_piece_large(total, width)) {
                            find_large(findings, chunk.id);
                        }
                    }
                    if (is_stored) {
                        store_piece(target + d, total, width);
                    }
                }
            });
        }
    }
}

// chunk 0 + the `chunks` after it, `from` the first: all lanes come here, and those that share an
// element find the same.
__device__ __forceinline__ float sum_of_chunks(
    float total, const float* from, int32 chunks, int32 dim, bool has_element) {
    const int32 column = threadIdx.x % COMBINED_COLUMNS, share = threadIdx.x % WARP_THREADS / COMBINED_COLUMNS;
    for (int32 begin = 0; begin < chunks; begin += SHARERS * ITEMS_TOGETHER) {
        float pieces[ITEMS_TOGETHER];
        UNROLLED(c, ITEMS_TOGETHER) {
            const int64 chunk = begin + share * ITEMS_TOGETHER + c;
            pieces[c] = has_element && chunk < chunks ? __ldg(from + chunk * dim) : -0.0f;
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
