// Records into slots. The result is that of its twin: scatter.py.
//
// Grid: a group takes ROWS_TOGETHER consecutive records. Slots are loaded before the first record,
// and the records' pieces, 16 bytes each, before the first store. Any grid size.
//
// Preconditions: slots are unique, except for -1, which is skipped; slabs has an entry, which is
// read for -1; source is aligned to 16 bytes.
//
// Determinism: no two groups write the same element.
//
// Bytes: 8 n of slots, and 4 stride n read and written.

#include "floats.cuh"
#include "pieces.cuh"
#include "slabs.cuh"
#include "types.cuh"

#define ROWS_TOGETHER 4

extern "C" __global__ void __launch_bounds__(BLOCK_THREADS) scatter_rows(
    const element* __restrict__ source,  // (n, stride)
    const uint64* __restrict__ slabs, const int32 slab_shift, const int32 stride,
    const int64* __restrict__ slots,   // (n,), unique; -1: skipped
    const int64 n) {
    const Group group = group_of(stride / 4);
    const int64 step = group.count * ROWS_TOGETHER;
    for (int64 begin = group.index * ROWS_TOGETHER; begin < n; begin += step) {
        int64 found[ROWS_TOGETHER];
        element* rows[ROWS_TOGETHER];
        UNROLLED(r, ROWS_TOGETHER) {
            found[r] = __ldg(slots + min(begin + r, n - 1));
        }
        UNROLLED(r, ROWS_TOGETHER) {
            element* row = row_of(slabs, slab_shift, stride, max(found[r], 0ll));
            rows[r] = begin + r < n && found[r] >= 0 ? row : nullptr;
        }
        for (int32 d = group.lane * 4; d < stride; d += group.lanes * 4) {
            float4 pieces[ROWS_TOGETHER];
            UNROLLED(r, ROWS_TOGETHER) {
                if (rows[r] != nullptr) {
                    const element* record = source + (begin + r) * stride;
                    pieces[r] = load_four_once(record + d);
                }
            }
            UNROLLED(r, ROWS_TOGETHER) {
                if (rows[r] != nullptr) {
                    store_four(rows[r] + d, canonical(pieces[r]));
                }
            }
        }
    }
}
