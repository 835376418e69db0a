// Updates by row: a row has state of its own, which depends on the sum of the squares of its
// gradient (rule 3).
//
// A warp is a group, with pieces of 4 bytes, because lane l adds the squares of elements l, l + 32,
// ...; then the warp adds up the lanes' sums by shuffles. The first COLUMNS_HELD pieces of a lane
// stay in registers. ROWS_UPDATED rows that have no more pieces are in flight together. Longer rows
// are read twice.

#include "floats.cuh"
#include "pieces.cuh"
#include "types.cuh"
#include "updates.cuh"

#define COLUMNS_HELD 4
#define ROWS_UPDATED 2  // together
#define HELD (COLUMNS_HELD * WARP_THREADS)  // elements of a warp

typedef float (*RowFormula)(float squares, float& s, const float* scalars);
typedef float (*ScaledFormula)(float g, float w, float scalar);

// Reads a lane's elements from column `begin` on; 0 beyond the row.
template <typename E>
__device__ __forceinline__ void read_columns(
    const E* row, int32 begin, int32 dim, float* values) {
    UNROLLED(c, COLUMNS_HELD) {
        const int32 d = begin + c * WARP_THREADS + threadIdx.x % WARP_THREADS;
        values[c] = d < dim ? static_cast<float>(row[d]) : 0.0f;
    }
}

// Updates one row that has more elements than the warp's registers hold.
template <RowFormula OF_ROW, ScaledFormula OF_ELEMENT>
__device__ __forceinline__ void update_long_row(const Update& of, int32 dim) {
    const int32 lane = threadIdx.x % WARP_THREADS;
    element* weights = of.weights;
    float g_held[COLUMNS_HELD], w_held[COLUMNS_HELD];
    const float weight_decay = __ldg(of.scalars + DECAY), kept = __ldg(of.scalars + KEPT);
    float s = lane == 0 ? static_cast<float>(weights[dim]) : 0.0f;
    float sum = 0.0f;  // not the first square: a square is never -0.0
    for (int32 begin = 0; begin < dim; begin += HELD) {
        read_columns(of.g.at, begin, dim, g_held);
        scale_elements(of.g, COLUMNS_HELD, g_held);
        if (weight_decay > 0.0f) {
            read_columns(weights, begin, dim, w_held);
            decay_gradients(weight_decay, COLUMNS_HELD, w_held, g_held);
        }
        UNROLLED(c, COLUMNS_HELD) {
            sum += g_held[c] * g_held[c];
        }
    }
#pragma unroll
    for (int32 half = WARP_THREADS / 2; half > 0; half >>= 1) {
        sum += __shfl_down_sync(FULL_WARP, sum, half);
    }
    float scalar = 0.0f;  // valid in lane 0: other lanes add values from beyond the warp
    if (lane == 0) {
        scalar = OF_ROW(sum, s, of.scalars);
        weights[dim] = static_cast<element>(canonical(s));
    }
    scalar = __shfl_sync(FULL_WARP, scalar, 0);
    for (int32 begin = 0; begin < dim; begin += HELD) {
        read_columns(of.g.at, begin, dim, g_held);
        read_columns(weights, begin, dim, w_held);
        scale_elements(of.g, COLUMNS_HELD, g_held);
        decay_gradients(weight_decay, COLUMNS_HELD, w_held, g_held);
        keep_weights(kept, COLUMNS_HELD, w_held);
        UNROLLED(c, COLUMNS_HELD) {
            const int32 d = begin + c * WARP_THREADS + lane;
            if (d < dim) {
                const float w = OF_ELEMENT(g_held[c], w_held[c], scalar);
                weights[d] = static_cast<element>(canonical(w));
            }
        }
    }
}

// Updates ROWS_UPDATED rows of at most HELD elements, whose loads are in flight together. Lane r
// has the state of the r-th row. All lanes of the warp must call it.
template <RowFormula OF_ROW, ScaledFormula OF_ELEMENT>
__device__ __forceinline__ void update_short_rows(
    const Update (&of)[ROWS_UPDATED], int32 dim) {
    const int32 lane = threadIdx.x % WARP_THREADS;
    float g_held[ROWS_UPDATED][COLUMNS_HELD], w_held[ROWS_UPDATED][COLUMNS_HELD];
    element* own = nullptr;
    const float* of_table = nullptr;
    UNROLLED(r, ROWS_UPDATED) {
        const int32 here = of[r].weights != nullptr ? dim : 0;
        read_columns(of[r].weights, 0, here, w_held[r]);
        read_columns(of[r].g.at, 0, here, g_held[r]);
        own = lane == r ? of[r].weights : own;
        of_table = lane == r ? of[r].scalars : of_table;
    }
    float s = own != nullptr ? static_cast<float>(own[dim]) : 0.0f;
    float sum = 0.0f;  // in lane r, of the r-th row
    UNROLLED(r, ROWS_UPDATED) {
        scale_elements(of[r].g, COLUMNS_HELD, g_held[r]);
        if (of[r].weights != nullptr) {
            decay_gradients(__ldg(of[r].scalars + DECAY), COLUMNS_HELD, w_held[r], g_held[r]);
            keep_weights(__ldg(of[r].scalars + KEPT), COLUMNS_HELD, w_held[r]);
        }
        float squares = 0.0f;  // not the first square: a square is never -0.0
        UNROLLED(c, COLUMNS_HELD) {
            squares += g_held[r][c] * g_held[r][c];
        }
#pragma unroll
        for (int32 half = WARP_THREADS / 2; half > 0; half >>= 1) {
            squares += __shfl_down_sync(FULL_WARP, squares, half);
        }
        squares = __shfl_sync(FULL_WARP, squares, 0);
        sum = lane == r ? squares : sum;
    }
    float scalar = 0.0f;
    if (own != nullptr) {
        scalar = OF_ROW(sum, s, of_table);
        own[dim] = static_cast<element>(canonical(s));
    }
    UNROLLED(r, ROWS_UPDATED) {
        const float of_row = __shfl_sync(FULL_WARP, scalar, r);
        UNROLLED(c, COLUMNS_HELD) {
            const int32 d = c * WARP_THREADS + lane;
            if (of[r].weights != nullptr && d < dim) {
                const float w = OF_ELEMENT(g_held[r][c], w_held[r][c], of_row);
                of[r].weights[d] = static_cast<element>(canonical(w));
            }
        }
    }
}

template <RowFormula OF_ROW, ScaledFormula OF_ELEMENT>
__device__ __forceinline__ void apply_rows(
    const uint64* slabs, int32 slab_shift, int32 stride, int32 dim, const float* scalars,
    const Rows& rows) {
    const Group group = group_of(WARP_THREADS);
    for_rows<ROWS_UPDATED>(slabs, slab_shift, stride, dim, scalars, rows, group,
                           [&](const Update (&of)[ROWS_UPDATED]) {
        if (dim <= HELD) {
            update_short_rows<OF_ROW, OF_ELEMENT>(of, dim);
            return;
        }
        UNROLLED(r, ROWS_UPDATED) {
            if (of[r].weights != nullptr) {
                update_long_row<OF_ROW, OF_ELEMENT>(of[r], dim);
            }
        }
    });
}
