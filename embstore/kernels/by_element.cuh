// Updates by element: an element of the new row depends only on the same element of gradient,
// weights and state. A group owns a row, 16 bytes to a lane if dim % 4 == 0, else 4.

#include "floats.cuh"
#include "pieces.cuh"
#include "types.cuh"
#include "updates.cuh"

#define PIECE_ELEMENTS 4  // at most

// As load_piece, for rows that are written here; the rest of `piece` does not change.
__device__ __forceinline__ void read_piece(const float* at, const int32 width, float* piece) {
    if (width == 4) {
        const float4 whole = *reinterpret_cast<const float4*>(at);
        piece[0] = whole.x, piece[1] = whole.y, piece[2] = whole.z, piece[3] = whole.w;
    } else {
        piece[0] = *at;
    }
}

template <typename E>
__device__ __forceinline__ void read_piece(const E* at, const int32 width, float* piece) {
    UNROLLED(e, width) {
        piece[e] = static_cast<float>(at[e]);
    }
}

// For gradients, which are read once, and may have any alignment.
__device__ __forceinline__ void read_gradient(const float* at, const int32 width, float* piece) {
    if (width == 4 && is_aligned_16(at)) {
        const float4 whole = load_four_once(at);
        piece[0] = whole.x, piece[1] = whole.y, piece[2] = whole.z, piece[3] = whole.w;
    } else {
        UNROLLED(e, width) {
            piece[e] = __ldcs(at + e);
        }
    }
}

// Stores values of a row, with every NaN as the one of contract.md, rule 1.
__device__ __forceinline__ void store_piece(element* at, const int32 width, const float* piece) {
    if (width == 4) {
        store_four(at, canonical(make_float4(piece[0], piece[1], piece[2], piece[3])));
    } else {
        *at = static_cast<element>(canonical(piece[0]));
    }
}

typedef void (*ElementFormula)(float g, float& w, float* state, const float* scalars);

// Updates a group's columns of a row; `width`, 4 or 1, is a literal wherever this is inlined.
template <ElementFormula FORMULA, int32 STATES, int32 SCALARS>
__device__ __forceinline__ void update_columns(
    const Update& of, const Group& group, int32 dim, const int32 width) {
    for (int32 d = group.lane * width; d < dim; d += group.lanes * width) {
        float parts[1 + STATES][PIECE_ELEMENTS], g[PIECE_ELEMENTS];  // weights, then state
        UNROLLED(p, 1 + STATES) {
            read_piece(of.weights + p * dim + d, width, parts[p]);
        }
        read_gradient(of.g.at + d, width, g);
        scale_elements(of.g, width, g);
        decay_gradients(__ldg(of.scalars + DECAY), width, parts[0], g);
        keep_weights(__ldg(of.scalars + KEPT), width, parts[0]);
        float scalars[SCALARS];
        UNROLLED(i, SCALARS) {
            scalars[i] = __ldg(of.scalars + i);
        }
        UNROLLED(e, width) {
            float state[1 + STATES];  // at least one element
            UNROLLED(p, STATES) {
                state[p] = parts[1 + p][e];
            }
            FORMULA(g[e], parts[0][e], state, scalars);
            UNROLLED(p, STATES) {
                parts[1 + p][e] = state[p];
            }
        }
        UNROLLED(p, 1 + STATES) {
            store_piece(of.weights + p * dim + d, width, parts[p]);
        }
    }
}

template <ElementFormula FORMULA, int32 STATES, int32 SCALARS>
__device__ __forceinline__ void apply_elements(
    const uint64* slabs, int32 slab_shift, int32 stride, int32 dim, const float* scalars,
    const Rows& rows) {
    const Group group = group_of(dim % 4 == 0 ? dim / 4 : dim);
    for_rows<1>(slabs, slab_shift, stride, dim, scalars, rows, group, [&](const Update (&of)[1]) {
        if (of[0].weights != nullptr) {
            by_width(dim % 4 == 0, [&](const int32 width) {
                update_columns<FORMULA, STATES, SCALARS>(of[0], group, dim, width);
            });
        }
    });
}
