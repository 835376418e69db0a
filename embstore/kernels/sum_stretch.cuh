// The sums of the chunks that begin in a stretch of positions (sum_by_key.cu). Each lane of a group
// finds the row of one position, all at the same time. Then the rows are added one after the other,
// ROWS_TOGETHER of them in flight, whichever chunks they belong to. Most chunks have one row, and a
// group that processed chunk after chunk would wait for memory at each.

#include "chunks.cuh"
#include "findings.cuh"
#include "floats.cuh"
#include "pieces.cuh"
#include "segments.cuh"
#include "types.cuh"

#define ROWS_TOGETHER 8

// By an intrinsic: from a plain store of four registers, compilers make four stores of 4 bytes.
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

// Read before write: if all of a batch is large, few ids are lower than the lowest so far.
__device__ __forceinline__ void find_large(int64* findings, int64 id) {
    if (findings[LARGE_SUM] > id) {
        atomicMin(findings + LARGE_SUM, id);
    }
}

// The lanes of the caller's group in which `holds` is true, bit 0 for the first lane. All lanes of
// the warp must call it.
__device__ __forceinline__ uint32 lanes_where(bool holds, const Group& group) {
    const uint32 all = __ballot_sync(FULL_WARP, holds) >> (threadIdx.x % WARP_THREADS - group.lane);
    return group.lanes == WARP_THREADS ? all : all & ((1u << group.lanes) - 1);
}

struct Sums {
    const int64* starts;
    const int32* positions;
    const int32* sorted_ids;
    uint32 n;
    const int64* of_segments;
    int32 segments;
    float scale;
    float* sums;
    float* more;
    int32 dim, keeps_all;
    int64* findings;
};

// Loads the values added at the group's lanes from `r0` to below `stop`, at most ROWS_TOGETHER, for
// the columns from `d` on: all loads are in flight together. All lanes of the warp must call it.
__device__ __forceinline__ void load_rows(
    const Occurrence& own, bool is_any_scaled, const Group& group, int32 r0, int32 stop, int32 d,
    bool has_columns, const int32 width, float4 (&pieces)[ROWS_TOGETHER]) {
    const int32 base = threadIdx.x % WARP_THREADS - group.lane;
    const float* rows[ROWS_TOGETHER];
    UNROLLED(r, ROWS_TOGETHER) {
        rows[r] = of_lane(own.row, base + min(r0 + r, group.lanes - 1));
    }
    UNROLLED(r, ROWS_TOGETHER) {
        pieces[r] = constant(-0.0f);
        if (r0 + r < stop && has_columns) {
            pieces[r] = load_piece(rows[r] + d, width);
        }
    }
    if (is_any_scaled) {
        UNROLLED(r, ROWS_TOGETHER) {
            const int32 lane = base + min(r0 + r, group.lanes - 1);
            const float coefficient = __shfl_sync(FULL_WARP, own.coefficient, lane);
            const int32 form = __shfl_sync(FULL_WARP, own.form, lane);
            if (r0 + r < stop && form == WEIGHTED) {
                pieces[r] = multiply(coefficient, pieces[r]);
            } else if (r0 + r < stop && form == DIVIDED) {
                pieces[r] = divide(pieces[r], coefficient);
            }
        }
    }
}

// Stores the sums of the chunks that begin at one of `share` positions from `low` on, for the
// group's columns from `column` on. All lanes of the warp must call it.
__device__ __forceinline__ void sum_stretch(
    const Sums& of, const Group& group, uint32 low, uint32 share, int32 column, const int32 width) {
    const int32 d = column + group.lane * width, base = threadIdx.x % WARP_THREADS - group.lane;
    const bool has_columns = d < of.dim;
    float4 total = constant(-0.0f);
    uint32 end = 0;  // one past the last position of the chunks that begin here
    int32 from = 0;  // the first lane with an occurrence of these chunks
    for (uint32 begin = low; begin == low || __ballot_sync(FULL_WARP, begin < end);
         begin += group.lanes) {
        const uint32 k = begin + group.lane;
        Occurrence own = {nullptr, 1.0f, PLAIN, 0, -1, false, false, false, false};
        if (k < (begin == low ? of.n : end)) {
            own = chunk_at(of.starts, of.sorted_ids, of.keeps_all, k);
        }
        if (begin == low) {
            const uint32 firsts = lanes_where(own.is_first && k < low + share, group);
            const int32 last = firsts ? 31 - __clz(firsts) : 0;
            const uint32 stop = __shfl_sync(FULL_WARP, own.stop, base + last);
            end = firsts ? stop : 0;
            from = firsts ? __ffs(firsts) - 1 : 0;
        } else {
            from = 0;
        }
        const bool is_here = k >= begin + from && k < end;
        if (is_here) {
            find_row(of.positions, of.of_segments, of.segments, of.dim, k, own);
        }
        const uint32 lasts = lanes_where(own.is_last, group);
        const uint32 extras = lanes_where(own.is_extra, group);
        const uint32 alls = lanes_where(own.is_all, group);
        const bool is_any_scaled = __ballot_sync(FULL_WARP, own.form != PLAIN) != 0;
        const uint32 left = begin < end ? end - begin : 0;
        const int32 stop = static_cast<int32>(min(left, static_cast<uint32>(group.lanes)));
#pragma unroll 1
        for (int32 r0 = from; __ballot_sync(FULL_WARP, r0 < stop); r0 += ROWS_TOGETHER) {
            float4 pieces[ROWS_TOGETHER];
            load_rows(own, is_any_scaled, group, r0, stop, d, has_columns, width, pieces);
            UNROLLED(r, ROWS_TOGETHER) {
                const int32 lane = base + min(r0 + r, group.lanes - 1);
                const int64 target = __shfl_sync(FULL_WARP, own.target, lane);
                total = add(total, pieces[r]);
                if (r0 + r < stop && (lasts >> (r0 + r) & 1)) {
                    if (alls >> (r0 + r) & 1) {
                        total = multiply(of.scale, total);
                        if (has_columns && is_piece_large(total, width)) {
                            find_large(of.findings, id_at(of.sorted_ids, begin + r0 + r));
                        }
                    }
                    if (target >= 0 && has_columns) {
                        float* to = extras >> (r0 + r) & 1 ? of.more : of.sums;
                        store_piece(to + target * of.dim + d, total, width);
                    }
                    total = constant(-0.0f);
                }
            }
        }
    }
}
