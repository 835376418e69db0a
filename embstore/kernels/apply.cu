// One optimizer update of each row: contract.md rule 4 on rows[slots[i]] with g = sums[i], the
// scalars those of table keys[i] >> 40; dirty[slots[i]] = 1. A row is its dim weights, then its
// state:
//
//     apply_sgd                none
//     apply_adagrad            s (dim,)
//     apply_rowwise_adagrad    s (1,)
//     apply_adam               m (dim,), v (dim,)
//
// Grid: a group of lanes, a power of two up to a warp, by the pieces of a row, takes ROWS_TOGETHER
// consecutive rows, and walks over columns where a row has more pieces than lanes. Every load of
// their pieces comes before the first store. apply_rowwise_adagrad: a warp owns a row, a piece is
// 4 bytes, because lane l adds the squares of elements l, l + 32, ... (rule 3), then the warp folds
// by shuffles; the first COLUMNS_HELD pieces of a lane are loaded once and stay in registers. Any
// grid size.
//
// A piece is 16 bytes where dim % 4 == 0, since a slot's row always begins at 16, else 4.
//
// Preconditions: keys, hence slots, unique; sums begins at 16.
//
// Determinism: an element is updated by one lane, and the order of rule 3 is fixed. A NaN that
// arises is written as 0x7fc00000. Twin: apply.py.
//
// Bytes: 16 n of slots and keys, 4 n dim of sums, and the rows read and written.

#define ROWS_TOGETHER 2
#define COLUMNS_HELD 4

#define SCALARS 8  // columns: embstore/arithmetic/optimizers.py

// Rows of a group, and what their update needs; a row past the end has null weights.
struct Updates {
    float* weights[ROWS_TOGETHER];
    const float* g[ROWS_TOGETHER];
    const float* scalars[ROWS_TOGETHER];
};

// As load_piece, of rows that are written to here.
__device__ __forceinline__ float4 read_piece(const float* at, const int32 width) {
    if (width == 4) {
        return *reinterpret_cast<const float4*>(at);
    }
    return make_float4(*at, 0.0f, 0.0f, 0.0f);
}

// Likewise, for what is read once.
__device__ __forceinline__ float4 stream_in_piece(const float* at, const int32 width) {
    if (width == 4) {
        return __ldcs(reinterpret_cast<const float4*>(at));
    }
    return make_float4(__ldcs(at), 0.0f, 0.0f, 0.0f);
}

// Stores what a row may hold: any NaN as the one of contract.md, rule 1.
__device__ __forceinline__ void store_piece(float* at, float4 piece, const int32 width) {
    if (width == 4) {
        *reinterpret_cast<float4*>(at) = make_float4(
            canonical(piece.x), canonical(piece.y), canonical(piece.z), canonical(piece.w));
    } else {
        *at = canonical(piece.x);
    }
}

__device__ __forceinline__ float4 operator+(float4 a, float4 b) {
    return make_float4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w);
}

__device__ __forceinline__ float4 operator-(float4 a, float4 b) {
    return make_float4(a.x - b.x, a.y - b.y, a.z - b.z, a.w - b.w);
}

__device__ __forceinline__ float4 operator*(float4 a, float4 b) {
    return make_float4(a.x * b.x, a.y * b.y, a.z * b.z, a.w * b.w);
}

__device__ __forceinline__ float4 operator*(float a, float4 b) {
    return constant(a) * b;
}

__device__ __forceinline__ float4 operator/(float4 a, float4 b) {
    return make_float4(a.x / b.x, a.y / b.y, a.z / b.z, a.w / b.w);
}

__device__ __forceinline__ float4 square_root(float4 a) {
    return make_float4(sqrtf(a.x), sqrtf(a.y), sqrtf(a.z), sqrtf(a.w));
}

// The rows from `begin` on; `lane` 0 marks them dirty.
__device__ __forceinline__ Updates updates_from(
    const uint64* slabs,
    int32 slab_shift,
    int32 stride,
    const int64* slots,
    const int64* keys,
    const float* sums,
    int32 dim,
    const float* scalars,
    int64 n,
    int64 begin,
    int32 lane) {
    Updates updates;
    int64 found[ROWS_TOGETHER];
#pragma unroll
    for (int32 r = 0; r < ROWS_TOGETHER; ++r) {
        const int64 i = min(begin + r, n - 1);
        found[r] = __ldg(slots + i);
        updates.scalars[r] = scalars + (__ldg(keys + i) >> KEY_BITS) * SCALARS;
        updates.g[r] = sums + i * dim;
    }
#pragma unroll
    for (int32 r = 0; r < ROWS_TOGETHER; ++r) {
        float* row = row_of(slabs, slab_shift, stride, found[r]);
        updates.weights[r] = begin + r < n ? row : nullptr;
    }
#pragma unroll
    for (int32 r = 0; r < ROWS_TOGETHER; ++r) {
        if (lane == 0 && begin + r < n) {
            *dirty_of(slabs, slab_shift, stride, found[r]) = 1;
        }
    }
    return updates;
}

__device__ __forceinline__ void update_sgd(
    const Updates& of, int32 dim, int32 lane, int32 lanes, const int32 width) {
    for (int32 d = lane * width; d < dim; d += lanes * width) {
        float4 w[ROWS_TOGETHER], g[ROWS_TOGETHER];
#pragma unroll
        for (int32 r = 0; r < ROWS_TOGETHER; ++r) {
            if (of.weights[r] != nullptr) {
                w[r] = read_piece(of.weights[r] + d, width);
                g[r] = stream_in_piece(of.g[r] + d, width);
            }
        }
#pragma unroll
        for (int32 r = 0; r < ROWS_TOGETHER; ++r) {
            if (of.weights[r] != nullptr) {
                const float lr = __ldg(of.scalars[r]);
                store_piece(of.weights[r] + d, w[r] - lr * g[r], width);
            }
        }
    }
}

__device__ __forceinline__ void update_adagrad(
    const Updates& of, int32 dim, int32 lane, int32 lanes, const int32 width) {
    for (int32 d = lane * width; d < dim; d += lanes * width) {
        float4 w[ROWS_TOGETHER], s[ROWS_TOGETHER], g[ROWS_TOGETHER];
#pragma unroll
        for (int32 r = 0; r < ROWS_TOGETHER; ++r) {
            if (of.weights[r] != nullptr) {
                w[r] = read_piece(of.weights[r] + d, width);
                s[r] = read_piece(of.weights[r] + dim + d, width);
                g[r] = stream_in_piece(of.g[r] + d, width);
            }
        }
#pragma unroll
        for (int32 r = 0; r < ROWS_TOGETHER; ++r) {
            if (of.weights[r] != nullptr) {
                const float lr = __ldg(of.scalars[r]), epsilon = __ldg(of.scalars[r] + 1);
                const float4 s_new = s[r] + g[r] * g[r];
                store_piece(of.weights[r] + dim + d, s_new, width);
                const float4 step = (lr * g[r]) / (square_root(s_new) + constant(epsilon));
                store_piece(of.weights[r] + d, w[r] - step, width);
            }
        }
    }
}

__device__ __forceinline__ void update_adam(
    const Updates& of, int32 dim, int32 lane, int32 lanes, const int32 width) {
    for (int32 d = lane * width; d < dim; d += lanes * width) {
        float4 w[ROWS_TOGETHER], m[ROWS_TOGETHER], v[ROWS_TOGETHER], g[ROWS_TOGETHER];
#pragma unroll
        for (int32 r = 0; r < ROWS_TOGETHER; ++r) {
            if (of.weights[r] != nullptr) {
                w[r] = read_piece(of.weights[r] + d, width);
                m[r] = read_piece(of.weights[r] + dim + d, width);
                v[r] = read_piece(of.weights[r] + 2 * dim + d, width);
                g[r] = stream_in_piece(of.g[r] + d, width);
            }
        }
#pragma unroll
        for (int32 r = 0; r < ROWS_TOGETHER; ++r) {
            if (of.weights[r] != nullptr) {
                const float* scalars = of.scalars[r];
                const float lr_t = __ldg(scalars), eps_t = __ldg(scalars + 1);
                const float b1 = __ldg(scalars + 2), one_minus_b1 = __ldg(scalars + 3);
                const float b2 = __ldg(scalars + 4), one_minus_b2 = __ldg(scalars + 5);
                const float4 m_new = b1 * m[r] + one_minus_b1 * g[r];
                const float4 v_new = b2 * v[r] + (one_minus_b2 * g[r]) * g[r];
                store_piece(of.weights[r] + dim + d, m_new, width);
                store_piece(of.weights[r] + 2 * dim + d, v_new, width);
                const float4 step = (lr_t * m_new) / (square_root(v_new) + constant(eps_t));
                store_piece(of.weights[r] + d, w[r] - step, width);
            }
        }
    }
}

extern "C" __global__ void __launch_bounds__(BLOCK_THREADS) apply_sgd(
    const uint64* __restrict__ slabs,   // (slab count,) addresses
    const int32 slab_shift,
    const int32 stride,                 // fp32 of a row, multiple of 4
    const int64* __restrict__ slots,    // (n,), unique
    const int64* __restrict__ keys,     // (n,)
    const float* __restrict__ sums,     // (n, dim)
    const int32 dim,
    const float* __restrict__ scalars,  // (tables, 8)
    const int64 n) {
    const int32 lane_bits = lane_bits_of(dim % 4 == 0 ? dim / 4 : dim), lanes = 1 << lane_bits;
    const int32 lane = threadIdx.x & (lanes - 1);
    const int64 step = (thread_count() >> lane_bits) * ROWS_TOGETHER;
    for (int64 begin = (thread_index() >> lane_bits) * ROWS_TOGETHER; begin < n; begin += step) {
        const Updates updates = updates_from(
            slabs, slab_shift, stride, slots, keys, sums, dim, scalars, n, begin, lane);
        if (dim % 4 == 0) {
            update_sgd(updates, dim, lane, lanes, 4);
        } else {
            update_sgd(updates, dim, lane, lanes, 1);
        }
    }
}

extern "C" __global__ void __launch_bounds__(BLOCK_THREADS) apply_adagrad(
    const uint64* __restrict__ slabs,   // (slab count,) addresses
    const int32 slab_shift,
    const int32 stride,                 // fp32 of a row, multiple of 4
    const int64* __restrict__ slots,    // (n,), unique
    const int64* __restrict__ keys,     // (n,)
    const float* __restrict__ sums,     // (n, dim)
    const int32 dim,
    const float* __restrict__ scalars,  // (tables, 8)
    const int64 n) {
    const int32 lane_bits = lane_bits_of(dim % 4 == 0 ? dim / 4 : dim), lanes = 1 << lane_bits;
    const int32 lane = threadIdx.x & (lanes - 1);
    const int64 step = (thread_count() >> lane_bits) * ROWS_TOGETHER;
    for (int64 begin = (thread_index() >> lane_bits) * ROWS_TOGETHER; begin < n; begin += step) {
        const Updates updates = updates_from(
            slabs, slab_shift, stride, slots, keys, sums, dim, scalars, n, begin, lane);
        if (dim % 4 == 0) {
            update_adagrad(updates, dim, lane, lanes, 4);
        } else {
            update_adagrad(updates, dim, lane, lanes, 1);
        }
    }
}

extern "C" __global__ void __launch_bounds__(BLOCK_THREADS) apply_adam(
    const uint64* __restrict__ slabs,   // (slab count,) addresses
    const int32 slab_shift,
    const int32 stride,                 // fp32 of a row, multiple of 4
    const int64* __restrict__ slots,    // (n,), unique
    const int64* __restrict__ keys,     // (n,)
    const float* __restrict__ sums,     // (n, dim)
    const int32 dim,
    const float* __restrict__ scalars,  // (tables, 8)
    const int64 n) {
    const int32 lane_bits = lane_bits_of(dim % 4 == 0 ? dim / 4 : dim), lanes = 1 << lane_bits;
    const int32 lane = threadIdx.x & (lanes - 1);
    const int64 step = (thread_count() >> lane_bits) * ROWS_TOGETHER;
    for (int64 begin = (thread_index() >> lane_bits) * ROWS_TOGETHER; begin < n; begin += step) {
        const Updates updates = updates_from(
            slabs, slab_shift, stride, slots, keys, sums, dim, scalars, n, begin, lane);
        if (dim % 4 == 0) {
            update_adam(updates, dim, lane, lanes, 4);
        } else {
            update_adam(updates, dim, lane, lanes, 1);
        }
    }
}

extern "C" __global__ void __launch_bounds__(BLOCK_THREADS) apply_rowwise_adagrad(
    const uint64* __restrict__ slabs,   // (slab count,) addresses
    const int32 slab_shift,
    const int32 stride,                 // fp32 of a row, multiple of 4
    const int64* __restrict__ slots,    // (n,), unique
    const int64* __restrict__ keys,     // (n,)
    const float* __restrict__ sums,     // (n, dim)
    const int32 dim,
    const float* __restrict__ scalars,  // (tables, 8)
    const int64 n) {
    const int32 lane = threadIdx.x % WARP_THREADS;
    const int64 step = thread_count() / WARP_THREADS;
    for (int64 i = thread_index() / WARP_THREADS; i < n; i += step) {
        const int64 slot = __ldg(slots + i);
        const float* of_table = scalars + (__ldg(keys + i) >> KEY_BITS) * SCALARS;
        const float* g = sums + i * dim;
        float* weights = row_of(slabs, slab_shift, stride, slot);
        float g_held[COLUMNS_HELD], w_held[COLUMNS_HELD];
#pragma unroll
        for (int32 c = 0; c < COLUMNS_HELD; ++c) {
            const int32 d = c * WARP_THREADS + lane;
            g_held[c] = d < dim ? __ldg(g + d) : 0.0f;
            w_held[c] = d < dim ? weights[d] : 0.0f;
        }
        const float s = lane == 0 ? weights[dim] : 0.0f;

        float sum = 0.0f;  // not the first square: no square is -0.0
#pragma unroll
        for (int32 c = 0; c < COLUMNS_HELD; ++c) {
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

        float rate = 0.0f;  // lane 0's is the row's: the others fold what lies beyond the warp
        if (lane == 0) {
            const float s_new = s + sum / __ldg(of_table + 2);
            rate = __ldg(of_table) / (sqrtf(s_new) + __ldg(of_table + 1));
            weights[dim] = canonical(s_new);
            *dirty_of(slabs, slab_shift, stride, slot) = 1;
        }
        rate = __shfl_sync(FULL_WARP, rate, 0);
#pragma unroll
        for (int32 c = 0; c < COLUMNS_HELD; ++c) {
            const int32 d = c * WARP_THREADS + lane;
            if (d < dim) {
                weights[d] = canonical(w_held[c] - rate * g_held[c]);
            }
        }
#pragma unroll 4
        for (int32 d = COLUMNS_HELD * WARP_THREADS + lane; d < dim; d += WARP_THREADS) {
            weights[d] = canonical(weights[d] - rate * __ldg(g + d));
        }
    }
}
