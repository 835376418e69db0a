// The scaled sum of each id's gradients. The result is that of its twin: sum_by_key.py; the lowest
// id whose scaled sum has a large element is findings[LARGE_SUM].
//
// Rule 2 lets a hot key be shared (contract.md): chunk 0 of every id is summed into sums by
// sum_first, which is all for an id of up to CHUNK_OCCURRENCES. For the others
//
//     sum_more   more[k / CHUNK_OCCURRENCES] = chunk c > 0 of id, where positions[k] is its first
//     sum_last   sums[id] = scale * (sums[id] + chunk 1 + chunk 2 + ...)
//
// Chunks other than 0 begin CHUNK_OCCURRENCES apart or more, so at most one begins in a window of as
// many positions, and its place in `more` is the window's number: nothing has to be counted before.
// The id that ends a window has the one that begins in it, or the id that the window begins with.
//
// Grid: sum_first and sum_more: a group owns a chunk; ROWS_TOGETHER occurrences at a time, their
// indices, then their rows, then the additions. sum_last: a thread per element of a window, in which
// the first extra chunk of an id begins; ITEMS_TOGETHER chunks in flight, since one thread may add
// thousands, and those of all elements wait at the same time. Any grid size; the number of ids is
// findings[UNIQUE_COUNT]. A piece is 4 bytes also where the rows of a segment do not begin at 16.
//
// Preconditions: the occurrences of an id lie in one segment; sums and more begin at 16; sum_more
// and sum_last follow sum_first; coefficients are present unless the form is PLAIN.
//
// Determinism: every addition of an element has one place in one order, by whatever lane.
//
// Bytes: 4 n of positions and 4 n dim of rows read, 4 dim written for each id and extra chunk, 8 n
// of starts, and of each window 8 of ids and 24 of starts; source and coefficients 4 n each for
// every 512 bytes of a row.

#define ROWS_TOGETHER 4
#define ITEMS_TOGETHER 32

// What a segment gives, and where the positions of an id stand.
struct Occurrences {
    const int32* positions;
    int64 shift;                // position of the segment's first
    const float* rows;
    const int32* source;        // or null
    const float* coefficients;  // or null
    int32 form;
};

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

__device__ __forceinline__ Occurrences occurrences_of(
    const int32* positions, const int64* bounds, const uint64* row_addresses,
    const uint64* source_addresses, const uint64* coefficient_addresses, const int64* forms,
    int32 segments, int64 first) {
    const int32 segment = segment_of(bounds, segments, __ldg(positions + first));
    return {
        positions,
        __ldg(bounds + segment),
        reinterpret_cast<const float*>(__ldg(row_addresses + segment)),
        reinterpret_cast<const int32*>(__ldg(source_addresses + segment)),
        reinterpret_cast<const float*>(__ldg(coefficient_addresses + segment)),
        static_cast<int32>(__ldg(forms + segment))};
}

// The sum over positions[first:last], one after the other, of the piece at column d.
__device__ __forceinline__ float4 sum_of_chunk(
    const Occurrences& of, int64 first, int64 last, int32 dim, int32 d, const int32 width) {
    float4 total = constant(-0.0f);
    for (int64 begin = first; begin < last; begin += ROWS_TOGETHER) {
        int64 indices[ROWS_TOGETHER];
        float coefficients[ROWS_TOGETHER];
        float4 pieces[ROWS_TOGETHER];
        UNROLLED(r, ROWS_TOGETHER) {
            indices[r] = __ldg(of.positions + min(begin + r, last - 1)) - of.shift;
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
            if (begin + r < last) {
                pieces[r] = load_piece(of.rows + indices[r] * dim + d, width);
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
            total = add(total, begin + r < last ? pieces[r] : constant(-0.0f));
        }
    }
    return total;
}

// Columns of a chunk; scaled and tested where that is `all` of the id.
__device__ __forceinline__ void sum_columns(
    const Occurrences& of, const Group& group, int64 first, int64 last, float* sums, int32 dim,
    bool all, float scale, int64 id, int64* findings, const int32 width) {
    for (int32 d = group.lane * width; d < dim; d += group.lanes * width) {
        float4 total = sum_of_chunk(of, first, last, dim, d, width);
        if (all) {
            total = multiply(scale, total);
            if (is_piece_large(total, width)) {
                find_large(findings, id);
            }
        }
        store_piece(sums + d, total, width);
    }
}

struct Chunk {
    int64 id, first;  // first: 0 where no chunk begins in the window
};

// The extra chunk that begins in a window of positions, if any.
__device__ __forceinline__ Chunk chunk_in(
    const int32* sorted_ids, const int64* starts, int64 n, int64 window) {
    const int64 low = window * CHUNK_OCCURRENCES, high = min(low + CHUNK_OCCURRENCES, n);
    const int64 last_id = __ldg(sorted_ids + high - 1), begin = __ldg(starts + last_id);
    const int64 first = begin + (high - 1 - begin) / CHUNK_OCCURRENCES * CHUNK_OCCURRENCES;
    if (first >= low && first > begin) {
        return {last_id, first};
    }
    const int64 id = __ldg(sorted_ids + low), start = __ldg(starts + id);
    const int64 chunks = (low - start + CHUNK_OCCURRENCES - 1) / CHUNK_OCCURRENCES;
    const int64 next = start + chunks * CHUNK_OCCURRENCES;
    return {id, next > start && next < min(high, __ldg(starts + id + 1)) ? next : 0};
}

extern "C" __global__ void __launch_bounds__(BLOCK_THREADS) sum_first(
    const int64* __restrict__ starts,                  // (u + 1,)
    const int32* __restrict__ positions,               // (n,)
    const int64* __restrict__ bounds,                  // (segments + 1,)
    const uint64* __restrict__ row_addresses,          // (segments,), each (rows, dim) float32
    const uint64* __restrict__ source_addresses,       // (segments,), each int32; 0: absent
    const uint64* __restrict__ coefficient_addresses,  // (segments,), each float32; 0 with PLAIN
    const int64* __restrict__ forms,                   // (segments,), PLAIN, WEIGHTED or DIVIDED
    const int32 segments,
    const float scale,
    float* __restrict__ sums,                          // (u, dim)
    const int32 dim,
    int64* __restrict__ findings) {                    // (8,)
    const int64 ids = findings[UNIQUE_COUNT];
    const Group group = group_of(dim % 4 == 0 ? dim / 4 : dim);
    for (int64 id = group.index; id < ids; id += group.count) {
        const int64 first = __ldg(starts + id), end = __ldg(starts + id + 1);
        const int64 last = min(end, first + CHUNK_OCCURRENCES);
        const Occurrences of = occurrences_of(
            positions, bounds, row_addresses, source_addresses, coefficient_addresses, forms,
            segments, first);
        const bool all = last == end;
        float* target = sums + id * dim;
        by_width(dim % 4 == 0 && is_aligned_16(of.rows), [&](const int32 width) {
            sum_columns(of, group, first, last, target, dim, all, scale, id, findings, width);
        });
    }
}

extern "C" __global__ void __launch_bounds__(BLOCK_THREADS) sum_more(
    const int64* __restrict__ starts, const int32* __restrict__ positions,
    const int64* __restrict__ bounds, const uint64* __restrict__ row_addresses,
    const uint64* __restrict__ source_addresses,
    const uint64* __restrict__ coefficient_addresses, const int64* __restrict__ forms,
    const int32 segments,                   // all as those of sum_first
    const int32* __restrict__ sorted_ids,   // (n,), of the positions
    const int64 n,
    float* __restrict__ more,               // (windows, dim)
    const int32 dim) {
    const int64 windows = (n + CHUNK_OCCURRENCES - 1) / CHUNK_OCCURRENCES;
    const Group group = group_of(dim % 4 == 0 ? dim / 4 : dim);
    for (int64 window = group.index; window < windows; window += group.count) {
        const Chunk chunk = chunk_in(sorted_ids, starts, n, window);
        if (chunk.first == 0) {
            continue;
        }
        const int64 last = min(chunk.first + CHUNK_OCCURRENCES, __ldg(starts + chunk.id + 1));
        const Occurrences of = occurrences_of(
            positions, bounds, row_addresses, source_addresses, coefficient_addresses, forms,
            segments, chunk.first);
        float* target = more + window * dim;
        by_width(dim % 4 == 0 && is_aligned_16(of.rows), [&](const int32 width) {
            sum_columns(
                of, group, chunk.first, last, target, dim, false, 1.0f, chunk.id, nullptr, width);
        });
    }
}

extern "C" __global__ void __launch_bounds__(BLOCK_THREADS) sum_last(
    const int64* __restrict__ starts,      // (u + 1,)
    const int32* __restrict__ sorted_ids,  // (n,), of the positions
    const int64 n,
    float* __restrict__ sums,              // (u, dim)
    const float* __restrict__ more,        // (windows, dim)
    const float scale,
    const int32 dim,
    int64* __restrict__ findings) {        // (8,)
    const int64 elements = (n + CHUNK_OCCURRENCES - 1) / CHUNK_OCCURRENCES * dim;
    for (int64 element = thread_index(); element < elements; element += thread_count()) {
        const int64 window = element / dim, d = element % dim;
        const Chunk chunk = chunk_in(sorted_ids, starts, n, window);
        const int64 start = __ldg(starts + chunk.id);
        if (chunk.first != start + CHUNK_OCCURRENCES) {
            continue;  // none, or one that is added with the id's first
        }
        const int64 chunks = (__ldg(starts + chunk.id + 1) - start - 1) / CHUNK_OCCURRENCES;
        const int64 end = window + chunks;
        float total = sums[chunk.id * dim + d];
        for (int64 begin = window; begin < end; begin += ITEMS_TOGETHER) {
            float pieces[ITEMS_TOGETHER];
            UNROLLED(c, ITEMS_TOGETHER) {
                pieces[c] = begin + c < end ? __ldg(more + (begin + c) * dim + d) : -0.0f;
            }
            UNROLLED(c, ITEMS_TOGETHER) {
                total += pieces[c];
            }
        }
        total = scale * total;
        if (is_large(total)) {
            find_large(findings, chunk.id);
        }
        sums[chunk.id * dim + d] = total;
    }
}
