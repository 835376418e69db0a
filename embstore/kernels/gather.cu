// Copies of rows: gather, gather_rows and copy_slots of its twin: gather.py. (look_up is locate of
// probe.cu, touch_once of scores.cu, and gather.)
//
// Grid: a group takes ROWS_GATHERED or ROWS_TOGETHER consecutive positions, so that a warp covers
// 512 bytes of rows or more. For latencies to overlap, each kind of index is loaded for all of
// these positions before the first is used, and all rows of a column before the first store. The
// search for the segment overlaps the first of these loads. A slot is kept for each position, not
// an address, because registers are needed for the rows. Any grid size. Stores are streamed:
// nothing here reads them.
//
// Preconditions: bounds ascend from 0 to n, an empty segment repeats its bound; slabs has an entry,
// which is read for absent rows; the out of gather_rows is aligned to 16 bytes. Either side of
// copy_slots may be pinned host memory, which is read and written over the bus.
//
// Determinism: bits are copied, NaNs included; no two groups write the same element.
//
// Bytes: gather reads 4 n of inverse, 8 n of slots, which are in the L2 cache like hot rows, and 4
// dim of each row at least once; it writes 4 n dim. gather_rows moves 8 n + 8 n stride, copy_slots
// 8 n more.

#include "findings.cuh"
#include "pieces.cuh"
#include "segments.cuh"
#include "slabs.cuh"
#include "types.cuh"

#define ROWS_TOGETHER 4
#define ROWS_GATHERED 8  // in gather, which has fewer addresses to keep
#define GATHER_BLOCKS 3  // per multiprocessor: registers for the rows in flight

// Copies a lane's columns of the rows of slots that are not negative, to target_of(r) for slots[r].
template <int32 ROWS, typename TargetOf>
__device__ __forceinline__ void copy_rows(
    const uint64* slabs, const int32 slab_shift, const int32 stride,
    const int32 (&slots)[ROWS], const TargetOf& target_of, const Group& group, int32 dim,
    const int32 width) {
    for (int32 d = group.lane * width; d < dim; d += group.lanes * width) {
        const element* rows[ROWS];
        float4 pieces[ROWS];
        UNROLLED(r, ROWS) {
            rows[r] = row_of(slabs, slab_shift, stride, max(slots[r], 0)) + d;
        }
        UNROLLED(r, ROWS) {
            if (slots[r] >= 0) {
                pieces[r] = load_piece(rows[r], width);
            }
        }
        UNROLLED(r, ROWS) {
            if (slots[r] >= 0) {
                stream_piece(target_of(r) + d, pieces[r], width);
            }
        }
    }
}

extern "C" __global__ void __launch_bounds__(BLOCK_THREADS, GATHER_BLOCKS) gather(
    const uint64* __restrict__ slabs, const int32 slab_shift, const int32 stride,
    const int64* __restrict__ slots,    // (u,), -1: absent; or null: ids are slots
    const int32* __restrict__ inverse,  // (n,) ids
    const int64* __restrict__ bounds,   // (segments + 1,)
    const uint64* __restrict__ outs,    // (segments,) addresses, each of (its positions, dim)
    const int32 segments,
    const int64 n,
    const int32 dim,
    const int64* __restrict__ findings,  // (8,), or null: all rows have slots
    int64* __restrict__ answer) {          // (8,) out, findings
    if (!tells_and_may_go_on(findings, answer)) {
        return;
    }
    by_width(dim % 4 == 0, [&](const int32 width) {
        const Group group = group_of(dim / width);
        const int64 step = group.count * ROWS_GATHERED;
        for (int64 begin = group.index * ROWS_GATHERED; begin < n; begin += step) {
            int32 found[ROWS_GATHERED];
            UNROLLED(r, ROWS_GATHERED) {
                found[r] = begin + r < n ? __ldg(inverse + begin + r) : -1;
            }
            const int32 segment = segment_of(bounds, segments, begin);
            UNROLLED(r, ROWS_GATHERED) {
                if (slots != nullptr && found[r] >= 0) {
                    found[r] = static_cast<int32>(__ldg(slots + found[r]));
                }
            }
            copy_rows(slabs, slab_shift, stride, found, [&](const int32 r) {
                int32 of_row = segment;
                while (of_row + 1 < segments && __ldg(bounds + of_row + 1) <= begin + r) {
                    ++of_row;
                }
                float* out = reinterpret_cast<float*>(__ldg(outs + of_row));
                return out + (begin + r - __ldg(bounds + of_row)) * dim;
            }, group, dim, width);
        }
    });
}

// Copies whole rows; the row of slots[i] is copied to target_of(i).
template <typename TargetOf>
__device__ __forceinline__ void copy_records(
    const uint64* slabs, const int32 slab_shift, const int32 stride, const int64* slots,
    const int64 n, const TargetOf& target_of) {
    const Group group = group_of(stride / 4);
    const int64 step = group.count * ROWS_TOGETHER;
    for (int64 begin = group.index * ROWS_TOGETHER; begin < n; begin += step) {
        int32 found[ROWS_TOGETHER];
        UNROLLED(r, ROWS_TOGETHER) {
            found[r] = begin + r < n ? static_cast<int32>(__ldg(slots + begin + r)) : -1;
        }
        copy_rows(slabs, slab_shift, stride, found, [&](const int32 r) {
            return target_of(begin + r);
        }, group, stride, 4);
    }
}

extern "C" __global__ void __launch_bounds__(BLOCK_THREADS) gather_rows(
    const uint64* __restrict__ slabs, const int32 slab_shift, const int32 stride,
    const int64* __restrict__ slots,   // (n,), -1: absent
    const int64 n,
    element* __restrict__ out) {       // (n, stride)
    copy_records(slabs, slab_shift, stride, slots, n, [&](const int64 i) {
        return out + i * stride;
    });
}

extern "C" __global__ void __launch_bounds__(BLOCK_THREADS) copy_slots(
    const uint64* __restrict__ slabs, const int32 slab_shift, const int32 stride,
    const int64* __restrict__ slots,   // (n,)
    const uint64* __restrict__ target_slabs, const int32 target_shift,
    const int64* __restrict__ places,  // (n,), unique
    const int64 n) {
    copy_records(slabs, slab_shift, stride, slots, n, [&](const int64 i) {
        return row_of(target_slabs, target_shift, stride, __ldg(places + i));
    });
}
