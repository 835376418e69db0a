// Copies of rows.
//
//     gather        outs[s][p - bounds[s], d] = rows[slots[inverse[p]], d]   d < dim, p of s
//     gather_rows   out[i, d]                 = rows[slots[i], d]            d < stride
//
// Grid: a group of lanes, a power of two up to a warp, by the pieces of a row, takes ROWS_TOGETHER
// consecutive positions, and walks over columns where a row has more pieces than lanes: so a warp
// covers 512 bytes of rows or more. Each kind of index is loaded for all of them before the first
// is used, and all rows of a column before the first store, so that latencies overlap; the search
// of the segment falls into the first of them. Any grid size.
//
// A piece is 16 bytes where dim % 4 == 0, since a slot's row always begins at 16, else 4; an out
// that does not begin at 16 is stored by 4 bytes. Stores are streamed: nothing here reads them.
//
// Where the slot is -1, the output is left alone, so that a call can be answered in parts.
//
// Preconditions: bounds ascend from 0 to n, an empty segment repeats its bound; slabs has an
// entry, which is read for absent rows; the out of gather_rows begins at 16.
//
// Determinism: bits are copied, NaNs included; no two groups write one element. Twin: gather.py.
//
// Bytes: gather reads 4 n of inverse, 8 n of slots, which come from L2 like hot rows, and 4 dim of
// each row at least once; it writes 4 n dim. gather_rows moves 8 n + 8 n stride.

#define ROWS_TOGETHER 4

// Copies columns lane * width, ... of each row that is not null.
__device__ __forceinline__ void copy_rows(
    const float* const* rows,  // (ROWS_TOGETHER,)
    float* const* targets,     // (ROWS_TOGETHER,)
    int32 dim,
    int32 lane,
    int32 lanes,
    const int32 width) {
    for (int32 d = lane * width; d < dim; d += lanes * width) {
        float4 pieces[ROWS_TOGETHER];
#pragma unroll
        for (int32 r = 0; r < ROWS_TOGETHER; ++r) {
            if (rows[r] != nullptr) {
                pieces[r] = load_piece(rows[r] + d, width);
            }
        }
#pragma unroll
        for (int32 r = 0; r < ROWS_TOGETHER; ++r) {
            if (rows[r] != nullptr) {
                stream_piece(targets[r] + d, pieces[r], width);
            }
        }
    }
}

__device__ __forceinline__ void gather_by(
    const uint64* slabs,
    int32 slab_shift,
    int32 stride,
    const int64* slots,
    const int32* inverse,
    const int64* bounds,
    const uint64* outs,
    int32 segments,
    int64 n,
    int32 dim,
    const int32 width) {
    const int32 lane_bits = lane_bits_of(dim / width), lanes = 1 << lane_bits;
    const int32 lane = threadIdx.x & (lanes - 1);
    const int64 step = (thread_count() >> lane_bits) * ROWS_TOGETHER;
    for (int64 begin = (thread_index() >> lane_bits) * ROWS_TOGETHER; begin < n; begin += step) {
        int32 ids[ROWS_TOGETHER];
        int64 found[ROWS_TOGETHER];
        const float* rows[ROWS_TOGETHER];
        float* targets[ROWS_TOGETHER];
#pragma unroll
        for (int32 r = 0; r < ROWS_TOGETHER; ++r) {
            ids[r] = __ldg(inverse + min(begin + r, n - 1));
        }
        int32 segment = segment_of(bounds, segments, begin);
#pragma unroll
        for (int32 r = 0; r < ROWS_TOGETHER; ++r) {
            while (segment + 1 < segments && __ldg(bounds + segment + 1) <= begin + r) {
                ++segment;
            }
            float* out = reinterpret_cast<float*>(__ldg(outs + segment));
            targets[r] = out + (begin + r - __ldg(bounds + segment)) * dim;
        }
#pragma unroll
        for (int32 r = 0; r < ROWS_TOGETHER; ++r) {
            found[r] = __ldg(slots + ids[r]);
        }
#pragma unroll
        for (int32 r = 0; r < ROWS_TOGETHER; ++r) {
            const float* row = row_of(slabs, slab_shift, stride, max(found[r], 0ll));
            rows[r] = begin + r < n && found[r] >= 0 ? row : nullptr;
        }
        copy_rows(rows, targets, dim, lane, lanes, width);
    }
}

extern "C" __global__ void __launch_bounds__(BLOCK_THREADS) gather(
    const uint64* __restrict__ slabs,   // (slab count,) addresses
    const int32 slab_shift,
    const int32 stride,                 // fp32 of a row, multiple of 4
    const int64* __restrict__ slots,    // (u,), -1: absent
    const int32* __restrict__ inverse,  // (n,)
    const int64* __restrict__ bounds,   // (segments + 1,)
    const uint64* __restrict__ outs,    // (segments,) addresses, (positions of it, dim) each
    const int32 segments,
    const int64 n,
    const int32 dim) {
    if (dim % 4 == 0) {
        gather_by(slabs, slab_shift, stride, slots, inverse, bounds, outs, segments, n, dim, 4);
    } else {
        gather_by(slabs, slab_shift, stride, slots, inverse, bounds, outs, segments, n, dim, 1);
    }
}

extern "C" __global__ void __launch_bounds__(BLOCK_THREADS) gather_rows(
    const uint64* __restrict__ slabs,  // (slab count,) addresses
    const int32 slab_shift,
    const int32 stride,                // fp32 of a row, multiple of 4
    const int64* __restrict__ slots,   // (n,), -1: absent
    const int64 n,
    float* __restrict__ out) {         // (n, stride)
    const int32 lane_bits = lane_bits_of(stride / 4), lanes = 1 << lane_bits;
    const int32 lane = threadIdx.x & (lanes - 1);
    const int64 step = (thread_count() >> lane_bits) * ROWS_TOGETHER;
    for (int64 begin = (thread_index() >> lane_bits) * ROWS_TOGETHER; begin < n; begin += step) {
        int64 found[ROWS_TOGETHER];
        const float* rows[ROWS_TOGETHER];
        float* targets[ROWS_TOGETHER];
#pragma unroll
        for (int32 r = 0; r < ROWS_TOGETHER; ++r) {
            found[r] = __ldg(slots + min(begin + r, n - 1));
        }
#pragma unroll
        for (int32 r = 0; r < ROWS_TOGETHER; ++r) {
            const float* row = row_of(slabs, slab_shift, stride, max(found[r], 0ll));
            rows[r] = begin + r < n && found[r] >= 0 ? row : nullptr;
            targets[r] = out + (begin + r) * stride;
        }
        copy_rows(rows, targets, stride, lane, lanes, 4);
    }
}
