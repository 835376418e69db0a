// Pooled rows. The result is that of its twin: gather_pooled.py.
//
// Grid: a group owns a bag. It processes ROWS_TOGETHER occurrences at a time: it loads their
// indices, then their rows, and then adds, so that the latencies of the dependent loads overlap.
// Any grid size.
//
// Preconditions: no slot is -1; weights only without mean.
//
// Determinism: one lane sums an element, in the order of positions and chunks.
//
// Bytes: 12 n of indices (16 n with weights) for each 512 bytes of a row, 4 n dim of rows, hot rows
// from the L2 cache, and 4 bags dim written.

#include "findings.cuh"
#include "floats.cuh"
#include "pieces.cuh"
#include "segments.cuh"
#include "slabs.cuh"
#include "types.cuh"

#define ROWS_TOGETHER 4

// The sum, in order, over positions [first, last) of the pieces at column d.
__device__ __forceinline__ float4 sum_of_chunk(
    const uint64* slabs, int32 slab_shift, int32 stride,
    const int64* slots, const int32* inverse, const float* weights, int64 first, int64 last,
    int32 d, const int32 width) {
    float4 total = constant(-0.0f);
    for (int64 begin = first; begin < last; begin += ROWS_TOGETHER) {
        int32 ids[ROWS_TOGETHER];
        int64 found[ROWS_TOGETHER];
        const element* rows[ROWS_TOGETHER];
        float4 pieces[ROWS_TOGETHER];
        UNROLLED(r, ROWS_TOGETHER) {
            ids[r] = __ldg(inverse + min(begin + r, last - 1));
        }
        UNROLLED(r, ROWS_TOGETHER) {
            found[r] = __ldg(slots + ids[r]);
        }
        UNROLLED(r, ROWS_TOGETHER) {
            rows[r] = row_of(slabs, slab_shift, stride, found[r]) + d;
        }
        UNROLLED(r, ROWS_TOGETHER) {
            pieces[r] = constant(-0.0f);
            if (begin + r < last) {
                pieces[r] = load_piece(rows[r], width);
            }
        }
        if (weights != nullptr) {
            UNROLLED(r, ROWS_TOGETHER) {
                const float weight = __ldg(weights + min(begin + r, last - 1));
                pieces[r] = multiply(weight, pieces[r]);
            }
        }
        UNROLLED(r, ROWS_TOGETHER) {
            total = add(total, begin + r < last ? pieces[r] : constant(-0.0f));
        }
    }
    return total;
}

__device__ __forceinline__ void gather_pooled_by(
    const uint64* slabs, int32 slab_shift, int32 stride,
    const int64* slots, const int32* inverse, const int64* offsets, int64 bags, int32 mean,
    const float* weights, float* out, int32 dim, const int32 width) {
    const Group group = group_of(dim / width);
    for (int64 bag = group.index; bag < bags; bag += group.count) {
        const int64 first = __ldg(offsets + bag), last = __ldg(offsets + bag + 1);
        for (int32 d = group.lane * width; d < dim; d += group.lanes * width) {
            float4 total = constant(first < last ? -0.0f : 0.0f);
            for (int64 chunk = first; chunk < last; chunk += CHUNK_OCCURRENCES) {
                const int64 end = min(chunk + CHUNK_OCCURRENCES, last);
                total = add(total, sum_of_chunk(slabs, slab_shift, stride, slots, inverse,
                                                weights, chunk, end, d, width));
            }
            if (mean && first < last) {
                total = divide(total, static_cast<float>(last - first));
            }
            stream_piece(out + bag * dim + d, canonical(total), width);
        }
    }
}

extern "C" __global__ void __launch_bounds__(BLOCK_THREADS) gather_pooled(
    const uint64* __restrict__ slabs, const int32 slab_shift, const int32 stride,
    const int64* __restrict__ slots,    // (u,)
    const int32* __restrict__ inverse,  // (n,)
    const int64* __restrict__ offsets,  // (bags + 1,)
    const int64 bags,
    const int32 mean,                   // 0 or 1
    const float* __restrict__ weights,  // (n,), or null
    float* __restrict__ out,            // (bags, dim)
    const int32 dim,
    const int64* __restrict__ findings,  // (8,), or null: all rows have slots
    int64* __restrict__ answer) {        // (8,) out, findings
    if (!tells_and_may_go_on(findings, answer)) {
        return;
    }
    by_width(dim % 4 == 0, [&](const int32 width) {
        gather_pooled_by(slabs, slab_shift, stride, slots, inverse, offsets, bags, mean, weights,
                         out, dim, width);
    });
}
