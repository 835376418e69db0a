// Pooled rows: out[b] = the rule 2 sum over i in [offsets[b], offsets[b + 1]) of
//
//     rows[slots[inverse[i]]]                  sum
//     weights[i] * rows[slots[inverse[i]]]     weighted sum, each product rounded
//
// and for mean that sum, divided by fp32(offsets[b + 1] - offsets[b]); zeros for an empty bag; a
// NaN is 0x7fc00000 (contract.md, rules 1, 2, 8).
//
// Grid: a group of lanes, a power of two up to a warp, by the pieces of a row, owns a bag, and
// walks over columns where a row has more pieces than lanes. ROWS_TOGETHER occurrences at a time:
// their indices, then their rows, then the additions, so that the latencies of the dependent loads
// overlap. Any grid size.
//
// A piece is 16 bytes where dim % 4 == 0, since a slot's row always begins at 16, else 4; an out
// that does not begin at 16 is stored by 4 bytes.
//
// Preconditions: all slots are present; weights only without mean.
//
// Determinism: an element is summed by one lane, in the order of positions and chunks. Sums start
// from -0.0, and short groups of occurrences are filled up with it: x + -0.0 is x for every x, -0.0
// included, which 0.0 would lose. Twin: gather_pooled.py.
//
// Bytes: 12 n of indices (16 n with weights) for each 512 bytes of a row, 4 n dim of rows, hot ones
// from L2, and 4 bags dim written.

#define ROWS_TOGETHER 4

// The sum over positions [first, last), one after the other, of the piece at column d.
__device__ __forceinline__ float4 sum_of_chunk(
    const uint64* slabs,
    int32 slab_shift,
    int32 stride,
    const int64* slots,
    const int32* inverse,
    const float* weights,
    int64 first,
    int64 last,
    int32 d,
    const int32 width) {
    float4 total = constant(-0.0f);
    for (int64 begin = first; begin < last; begin += ROWS_TOGETHER) {
        int32 ids[ROWS_TOGETHER];
        int64 found[ROWS_TOGETHER];
        const float* rows[ROWS_TOGETHER];
        float4 pieces[ROWS_TOGETHER];
#pragma unroll
        for (int32 r = 0; r < ROWS_TOGETHER; ++r) {
            ids[r] = __ldg(inverse + min(begin + r, last - 1));
        }
#pragma unroll
        for (int32 r = 0; r < ROWS_TOGETHER; ++r) {
            found[r] = __ldg(slots + ids[r]);
        }
#pragma unroll
        for (int32 r = 0; r < ROWS_TOGETHER; ++r) {
            rows[r] = row_of(slabs, slab_shift, stride, found[r]) + d;
        }
#pragma unroll
        for (int32 r = 0; r < ROWS_TOGETHER; ++r) {
            pieces[r] = constant(-0.0f);
            if (begin + r < last) {
                pieces[r] = load_piece(rows[r], width);
            }
        }
        if (weights != nullptr) {
#pragma unroll
            for (int32 r = 0; r < ROWS_TOGETHER; ++r) {
                const float weight = __ldg(weights + min(begin + r, last - 1));
                pieces[r] = multiply(weight, pieces[r]);
            }
        }
#pragma unroll
        for (int32 r = 0; r < ROWS_TOGETHER; ++r) {
            total = add(total, begin + r < last ? pieces[r] : constant(-0.0f));
        }
    }
    return total;
}

__device__ __forceinline__ void gather_pooled_by(
    const uint64* slabs,
    int32 slab_shift,
    int32 stride,
    const int64* slots,
    const int32* inverse,
    const int64* offsets,
    int64 bags,
    int32 mean,
    const float* weights,
    float* out,
    int32 dim,
    const int32 width) {
    const int32 lane_bits = lane_bits_of(dim / width), lanes = 1 << lane_bits;
    const int32 lane = threadIdx.x & (lanes - 1);
    const int64 step = thread_count() >> lane_bits;
    for (int64 bag = thread_index() >> lane_bits; bag < bags; bag += step) {
        const int64 first = __ldg(offsets + bag), last = __ldg(offsets + bag + 1);
        for (int32 d = lane * width; d < dim; d += lanes * width) {
            float4 total = constant(first < last ? -0.0f : 0.0f);
            for (int64 chunk = first; chunk < last; chunk += CHUNK_OCCURRENCES) {
                const int64 end = min(chunk + CHUNK_OCCURRENCES, last);
                total = add(total, sum_of_chunk(slabs, slab_shift, stride, slots, inverse,
                                                weights, chunk, end, d, width));
            }
            if (mean && first < last) {
                total = divide(total, static_cast<float>(last - first));
            }
            total = make_float4(
                canonical(total.x), canonical(total.y), canonical(total.z), canonical(total.w));
            stream_piece(out + bag * dim + d, total, width);
        }
    }
}

extern "C" __global__ void __launch_bounds__(BLOCK_THREADS) gather_pooled(
    const uint64* __restrict__ slabs,   // (slab count,) addresses
    const int32 slab_shift,
    const int32 stride,                 // fp32 of a row, multiple of 4
    const int64* __restrict__ slots,    // (u,)
    const int32* __restrict__ inverse,  // (n,)
    const int64* __restrict__ offsets,  // (bags + 1,)
    const int64 bags,
    const int32 mean,                   // 0 or 1
    const float* __restrict__ weights,  // (n,), or null
    float* __restrict__ out,            // (bags, dim)
    const int32 dim) {
    if (dim % 4 == 0) {
        gather_pooled_by(slabs, slab_shift, stride, slots, inverse, offsets, bags, mean, weights,
                         out, dim, 4);
    } else {
        gather_pooled_by(slabs, slab_shift, stride, slots, inverse, offsets, bags, mean, weights,
                         out, dim, 1);
    }
}
