// One optimizer update of each row. The result is that of its twin: apply.py.
//
// Formulas and scalars are those of embstore/optimizers.py, by hand: a formula of elements, and
// where a row has state of its own, a formula of rows before it. An optimizer is its formulas, and
// one kernel at the end of this file that names them.
//
// Grid, apply_elements: a group takes ROWS_TOGETHER consecutive rows. Every load of their pieces
// comes before the first store.
//
// Grid, apply_rows: a warp owns a row, a piece is 4 bytes, because lane l adds the squares of
// elements l, l + 32, ... (rule 3), then the warp folds by shuffles; the first COLUMNS_HELD pieces of
// a lane are loaded once and stay in registers. Any grid size.
//
// Preconditions: keys, hence slots, unique; sums begins at 16.
//
// Determinism: an element is updated by one lane, and the order of rule 3 is fixed. A NaN that
// arises is written as 0x7fc00000.
//
// Bytes: 16 n of slots and keys, 4 n dim of sums, and the rows read and written.

#define ROWS_TOGETHER 2
#define COLUMNS_HELD 4
#define PIECE_ELEMENTS 4  // at most

#define SCALAR_COLUMNS 8  // embstore/arithmetic/optimizers.py

// Formulas of elements: w and state, one float for each of its arrays, become the new ones.

__device__ __forceinline__ void sgd(float g, float& w, float*, const float* scalars) {
    const float lr = scalars[0];
    w = w - lr * g;
}

__device__ __forceinline__ void adagrad(float g, float& w, float* state, const float* scalars) {
    const float lr = scalars[0], epsilon = scalars[1];
    float& s = state[0];
    s = s + g * g;
    w = w - (lr * g) / (sqrtf(s) + epsilon);
}

__device__ __forceinline__ void adam(float g, float& w, float* state, const float* scalars) {
    const float lr_t = scalars[0], eps_t = scalars[1];
    const float b1 = scalars[2], one_minus_b1 = scalars[3];
    const float b2 = scalars[4], one_minus_b2 = scalars[5];
    float &m = state[0], &v = state[1];
    m = b1 * m + one_minus_b1 * g;
    v = b2 * v + (one_minus_b2 * g) * g;
    w = w - (lr_t * m) / (sqrtf(v) + eps_t);
}

__device__ __forceinline__ void ftrl(float g, float& w, float* state, const float* scalars) {
    const float lr = scalars[0], beta = scalars[1], l1 = scalars[2], l2 = scalars[3];
    float &z = state[0], &n = state[1];
    const float n1 = n + g * g;
    const float sigma = (sqrtf(n1) - sqrtf(n)) / lr;
    z = (z + g) - sigma * w;
    n = n1;
    w = fabsf(z) <= l1 ? 0.0f : -((z - copysignf(l1, z)) / ((beta + sqrtf(n1)) / lr + l2));
}

// A formula of rows, with rule 3 over g*g: the row's state s becomes the new one. Returns the scalar
// of the formula of elements after it.

__device__ __forceinline__ float rowwise_adagrad(float squares, float& s, const float* scalars) {
    const float lr = scalars[0], epsilon = scalars[1], dim = scalars[2];
    s = s + squares / dim;
    return lr / (sqrtf(s) + epsilon);
}

__device__ __forceinline__ float rowwise_adagrad_element(float g, float w, float rate) {
    return w - rate * g;
}

template <int32 COUNT>
__device__ __forceinline__ void load_scalars(const float* of_table, float* scalars) {
    UNROLLED(i, COUNT) {
        scalars[i] = __ldg(of_table + i);
    }
}

// Updates by element

// Rows of a group, and what their update needs; a row past the end has null weights.
struct Updates {
    element* weights[ROWS_TOGETHER];
    const float* g[ROWS_TOGETHER];
    const float* scalars[ROWS_TOGETHER];
};

// As load_piece, of rows that are written to here, or, where `is_once`, of what is read once; the
// rest of `piece` is left as it is.
__device__ __forceinline__ void read_piece(
    const float* at, const int32 width, const bool is_once, float* piece) {
    if (width == 4) {
        const float4* whole = reinterpret_cast<const float4*>(at);
        const float4 found = is_once ? __ldcs(whole) : *whole;
        piece[0] = found.x;
        piece[1] = found.y;
        piece[2] = found.z;
        piece[3] = found.w;
    } else {
        piece[0] = is_once ? __ldcs(at) : *at;
    }
}

template <typename E>
__device__ __forceinline__ void read_piece(
    const E* at, const int32 width, const bool is_once, float* piece) {
    UNROLLED(e, width) {
        piece[e] = static_cast<float>(at[e]);
    }
}

// Stores what a row may hold: any NaN as the one of contract.md, rule 1.
__device__ __forceinline__ void store_piece(element* at, const int32 width, const float* piece) {
    if (width == 4) {
        store_four(at, canonical(make_float4(piece[0], piece[1], piece[2], piece[3])));
    } else {
        *at = static_cast<element>(canonical(piece[0]));
    }
}

// The rows from `begin` on; `lane` 0 marks them dirty.
__device__ __forceinline__ Updates updates_from(
    const uint64* slabs, int32 slab_shift, int32 stride,
    const int64* slots, const int64* keys, const float* sums, int32 dim, const float* scalars,
    int64 n, int64 begin, int32 lane) {
    Updates updates;
    int64 found[ROWS_TOGETHER];
    UNROLLED(r, ROWS_TOGETHER) {
        const int64 i = min(begin + r, n - 1);
        found[r] = __ldg(slots + i);
        updates.scalars[r] = scalars + (__ldg(keys + i) >> KEY_BITS) * SCALAR_COLUMNS;
        updates.g[r] = sums + i * dim;
    }
    UNROLLED(r, ROWS_TOGETHER) {
        element* row = row_of(slabs, slab_shift, stride, found[r]);
        updates.weights[r] = begin + r < n ? row : nullptr;
    }
    UNROLLED(r, ROWS_TOGETHER) {
        if (lane == 0 && begin + r < n) {
            *dirty_of(slabs, slab_shift, stride, found[r]) = 1;
        }
    }
    return updates;
}

typedef void (*ElementFormula)(float g, float& w, float* state, const float* scalars);

// A group's columns of its rows; `width`, 4 or 1, is a literal wherever this is inlined.
template <ElementFormula FORMULA, int32 STATES, int32 SCALARS>
__device__ __forceinline__ void update_rows(
    const Updates& of, const Group& group, int32 dim, const int32 width) {
    for (int32 d = group.lane * width; d < dim; d += group.lanes * width) {
        float parts[ROWS_TOGETHER][1 + STATES][PIECE_ELEMENTS];  // weights, then state
        float g[ROWS_TOGETHER][PIECE_ELEMENTS];
        UNROLLED(r, ROWS_TOGETHER) {
            if (of.weights[r] != nullptr) {
                UNROLLED(p, 1 + STATES) {
                    read_piece(of.weights[r] + p * dim + d, width, false, parts[r][p]);
                }
                read_piece(of.g[r] + d, width, true, g[r]);
            }
        }
        UNROLLED(r, ROWS_TOGETHER) {
            if (of.weights[r] != nullptr) {
                float scalars[SCALARS];
                load_scalars<SCALARS>(of.scalars[r], scalars);
                UNROLLED(e, width) {
                    float state[1 + STATES];  // not of no elements
                    UNROLLED(p, STATES) {
                        state[p] = parts[r][1 + p][e];
                    }
                    FORMULA(g[r][e], parts[r][0][e], state, scalars);
                    UNROLLED(p, STATES) {
                        parts[r][1 + p][e] = state[p];
                    }
                }
                UNROLLED(p, 1 + STATES) {
                    store_piece(of.weights[r] + p * dim + d, width, parts[r][p]);
                }
            }
        }
    }
}

template <ElementFormula FORMULA, int32 STATES, int32 SCALARS>
__device__ __forceinline__ void apply_elements(
    const uint64* slabs, int32 slab_shift, int32 stride,
    const int64* slots,    // (n,), unique
    const int64* keys,     // (n,)
    const float* sums,     // (n, dim)
    int32 dim,
    const float* scalars,  // (tables, 8)
    int64 n) {
    const Group group = group_of(dim % 4 == 0 ? dim / 4 : dim);
    const int64 step = group.count * ROWS_TOGETHER;
    for (int64 begin = group.index * ROWS_TOGETHER; begin < n; begin += step) {
        const Updates updates = updates_from(
            slabs, slab_shift, stride, slots, keys, sums, dim, scalars, n, begin, group.lane);
        by_width(dim % 4 == 0, [&](const int32 width) {
            update_rows<FORMULA, STATES, SCALARS>(updates, group, dim, width);
        });
    }
}

// Updates by row

typedef float (*RowFormula)(float squares, float& s, const float* scalars);
typedef float (*ScaledFormula)(float g, float w, float scalar);

template <RowFormula OF_ROW, ScaledFormula OF_ELEMENT, int32 SCALARS>
__device__ __forceinline__ void apply_rows(
    const uint64* slabs, int32 slab_shift, int32 stride,
    const int64* slots, const int64* keys, const float* sums, int32 dim, const float* scalars,
    int64 n) {
    const int32 lane = threadIdx.x % WARP_THREADS;
    const int64 step = thread_count() / WARP_THREADS;
    for (int64 i = thread_index() / WARP_THREADS; i < n; i += step) {
        const int64 slot = __ldg(slots + i);
        const float* of_table = scalars + (__ldg(keys + i) >> KEY_BITS) * SCALAR_COLUMNS;
        const float* g = sums + i * dim;
        element* weights = row_of(slabs, slab_shift, stride, slot);
        float g_held[COLUMNS_HELD], w_held[COLUMNS_HELD];
        UNROLLED(c, COLUMNS_HELD) {
            const int32 d = c * WARP_THREADS + lane;
            g_held[c] = d < dim ? __ldg(g + d) : 0.0f;
            w_held[c] = d < dim ? static_cast<float>(weights[d]) : 0.0f;
        }
        float s = lane == 0 ? static_cast<float>(weights[dim]) : 0.0f;

        float sum = 0.0f;  // not the first square: no square is -0.0
        UNROLLED(c, COLUMNS_HELD) {
            sum += g_held[c] * g_held[c];
        }
#pragma unroll 4
        for (int32 d = COLUMNS_HELD * WARP_THREADS + lane; d < dim; d += WARP_THREADS) {
            sum += __ldg(g + d) * __ldg(g + d);
        }
#pragma unroll
        for (int32 half = WARP_THREADS / 2; half > 0; half >>= 1) {
            sum += __shfl_down_sync(FULL_WARP, sum, half);
        }

        float scalar = 0.0f;  // lane 0's is the row's: the others fold what lies beyond the warp
        if (lane == 0) {
            float of_formula[SCALARS];
            load_scalars<SCALARS>(of_table, of_formula);
            scalar = OF_ROW(sum, s, of_formula);
            weights[dim] = static_cast<element>(canonical(s));
            *dirty_of(slabs, slab_shift, stride, slot) = 1;
        }
        scalar = __shfl_sync(FULL_WARP, scalar, 0);
        UNROLLED(c, COLUMNS_HELD) {
            const int32 d = c * WARP_THREADS + lane;
            if (d < dim) {
                weights[d] = static_cast<element>(canonical(OF_ELEMENT(g_held[c], w_held[c], scalar)));
            }
        }
#pragma unroll 4
        for (int32 d = COLUMNS_HELD * WARP_THREADS + lane; d < dim; d += WARP_THREADS) {
            const float w = OF_ELEMENT(__ldg(g + d), static_cast<float>(weights[d]), scalar);
            weights[d] = static_cast<element>(canonical(w));
        }
    }
}

// The kernels, apply_<kind> for each optimizer: its formulas, how many floats an element has as
// state, and how many scalars there are. What the parameters are: apply_elements.

extern "C" __global__ void __launch_bounds__(BLOCK_THREADS) apply_sgd(
    const uint64* __restrict__ slabs, const int32 slab_shift, const int32 stride,
    const int64* __restrict__ slots, const int64* __restrict__ keys,
    const float* __restrict__ sums, const int32 dim, const float* __restrict__ scalars,
    const int64 n) {
    apply_elements<sgd, 0, 1>(slabs, slab_shift, stride, slots, keys, sums, dim, scalars, n);
}

extern "C" __global__ void __launch_bounds__(BLOCK_THREADS) apply_adagrad(
    const uint64* __restrict__ slabs, const int32 slab_shift, const int32 stride,
    const int64* __restrict__ slots, const int64* __restrict__ keys,
    const float* __restrict__ sums, const int32 dim, const float* __restrict__ scalars,
    const int64 n) {
    apply_elements<adagrad, 1, 2>(slabs, slab_shift, stride, slots, keys, sums, dim, scalars, n);
}

extern "C" __global__ void __launch_bounds__(BLOCK_THREADS) apply_adam(
    const uint64* __restrict__ slabs, const int32 slab_shift, const int32 stride,
    const int64* __restrict__ slots, const int64* __restrict__ keys,
    const float* __restrict__ sums, const int32 dim, const float* __restrict__ scalars,
    const int64 n) {
    apply_elements<adam, 2, 6>(slabs, slab_shift, stride, slots, keys, sums, dim, scalars, n);
}

extern "C" __global__ void __launch_bounds__(BLOCK_THREADS) apply_ftrl(
    const uint64* __restrict__ slabs, const int32 slab_shift, const int32 stride,
    const int64* __restrict__ slots, const int64* __restrict__ keys,
    const float* __restrict__ sums, const int32 dim, const float* __restrict__ scalars,
    const int64 n) {
    apply_elements<ftrl, 2, 4>(slabs, slab_shift, stride, slots, keys, sums, dim, scalars, n);
}

extern "C" __global__ void __launch_bounds__(BLOCK_THREADS) apply_rowwise_adagrad(
    const uint64* __restrict__ slabs, const int32 slab_shift, const int32 stride,
    const int64* __restrict__ slots, const int64* __restrict__ keys,
    const float* __restrict__ sums, const int32 dim, const float* __restrict__ scalars,
    const int64 n) {
    apply_rows<rowwise_adagrad, rowwise_adagrad_element, 3>(
        slabs, slab_shift, stride, slots, keys, sums, dim, scalars, n);
}
