// Records into slots: rows[slots[i], d] = canonical(source[i, d]), d < stride.
//
// Bits are copied, but any NaN becomes 0x7fc00000: together with apply.cu this is all that writes
// values from outside, so no row ever holds another NaN (contract.md, rule 1).
//
// Grid: a group of lanes, a power of two up to a warp, by the 16-byte pieces of a record, takes
// ROWS_TOGETHER consecutive records, and walks over columns where a record has more pieces than
// lanes. Slots are loaded before the first record, and the records' pieces before the first store.
// Any grid size.
//
// Preconditions: slots are unique but for -1, which is passed over; slabs has an entry, which is
// read for them; source begins at 16 bytes.
//
// Determinism: no two groups write one element. Twin: scatter.py.
//
// Bytes: 8 n of slots, and 4 stride n read and written.

#define ROWS_TOGETHER 4

extern "C" __global__ void __launch_bounds__(BLOCK_THREADS) scatter_rows(
    const float* __restrict__ source,  // (n, stride)
    const uint64* __restrict__ slabs,  // (slab count,) addresses
    const int32 slab_shift,
    const int32 stride,                // fp32 of a row, multiple of 4
    const int64* __restrict__ slots,   // (n,), unique; -1: passed over
    const int64 n) {
    const int32 lane_bits = lane_bits_of(stride / 4), lanes = 1 << lane_bits;
    const int32 lane = threadIdx.x & (lanes - 1);
    const int64 step = (thread_count() >> lane_bits) * ROWS_TOGETHER;
    for (int64 begin = (thread_index() >> lane_bits) * ROWS_TOGETHER; begin < n; begin += step) {
        int64 found[ROWS_TOGETHER];
        float* rows[ROWS_TOGETHER];
#pragma unroll
        for (int32 r = 0; r < ROWS_TOGETHER; ++r) {
            found[r] = __ldg(slots + min(begin + r, n - 1));
        }
#pragma unroll
        for (int32 r = 0; r < ROWS_TOGETHER; ++r) {
            float* row = row_of(slabs, slab_shift, stride, max(found[r], 0ll));
            rows[r] = begin + r < n && found[r] >= 0 ? row : nullptr;
        }
        for (int32 d = lane * 4; d < stride; d += lanes * 4) {
            float4 pieces[ROWS_TOGETHER];
#pragma unroll
            for (int32 r = 0; r < ROWS_TOGETHER; ++r) {
                if (rows[r] != nullptr) {
                    const float* record = source + (begin + r) * stride;
                    pieces[r] = __ldcs(reinterpret_cast<const float4*>(record + d));
                }
            }
#pragma unroll
            for (int32 r = 0; r < ROWS_TOGETHER; ++r) {
                if (rows[r] != nullptr) {
                    *reinterpret_cast<float4*>(rows[r] + d) = make_float4(
                        canonical(pieces[r].x), canonical(pieces[r].y),
                        canonical(pieces[r].z), canonical(pieces[r].w));
                }
            }
        }
    }
}
