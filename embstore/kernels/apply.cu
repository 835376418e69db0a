// One optimizer update of each row. The result is that of its twin: apply.py.
//
// Formulas and scalars are those of embstore/optimizers.py, by hand: a formula of elements, and
// where a row has state of its own, a formula of rows before it. An optimizer is its formulas, and
// one kernel at the end of this file that names them.
//
// What is applied to which rows is a Call, and so is when: an update of rows that are all there is
// queued before the host knows what is wrong with it. It then changes nothing if anything is wrong
// with any batch of its command, by their findings, and touches the score of a row as it changes it.
// The gradient of a key that occurs once is read where the sum of one was: sum_by_key.cu keeps none.
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
// Bytes: 16 n of slots and keys, 4 n dim of gradients, and the rows read and written; where sums are
// not all kept 20 n of starts and positions; where rows are touched a sector, read and written.

#define ROWS_TOGETHER 2
#define COLUMNS_HELD 4
#define HELD (COLUMNS_HELD * WARP_THREADS)  // elements of a warp
#define PIECE_ELEMENTS 4  // at most

#define SCALAR_COLUMNS 8  // embstore/arithmetic/optimizers.py

// As GpuRows sends it, eight bytes each; the addresses of `gates` findings come after it. Zeros: all
// is right, all sums are kept, and scores stay.
struct Call {
    int64 clock, counting;     // of touched; a clock of 0: scores stay
    const int64* findings;     // (8,), of which the number of rows is read, or null
    const int64* starts;       // (rows + 1,), or null: sums[i] is of row i
    const int32* positions;    // (n,)
    const int64* of_segments;  // (5 * segments + 1,), see Occurrences
    int64 segments;
    int64 scale;               // bits of a float
    int64 gates;
};

// Rows and what is applied to them, in shared memory, where no thread has to keep it.
struct Rows {
    const int64* slots;  // (count,), unique
    const int64* keys;   // (count,)
    const float* sums;   // see place_of_sum
    int64 count;         // of those that are updated
    Call call;
};

// All threads come here.
__device__ __forceinline__ const Rows& rows_of(
    const int64* slots, const int64* keys, const float* sums, int64 n, const int64* of_call) {
    __shared__ Rows rows;
    const int32 fields = sizeof(Call) / sizeof(int64);
    if (threadIdx.x < fields) {
        reinterpret_cast<int64*>(&rows.call)[threadIdx.x] = of_call ? of_call[threadIdx.x] : 0;
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        const int64* findings = rows.call.findings;
        bool may_go = true;
        for (int64 gate = 0; gate < rows.call.gates; ++gate) {
            const int64* found = reinterpret_cast<const int64*>(of_call[fields + gate]);
            may_go = may_go && may_go_on(found) && found[LARGE_SUM] == NOTHING;
        }
        rows.slots = slots, rows.keys = keys, rows.sums = sums;
        rows.count = !may_go ? 0 : findings ? findings[UNIQUE_COUNT] : n;
    }
    __syncthreads();
    return rows;
}

// Of a row: scale * (coefficient * at[d]), or of at[d] / coefficient. Of a sum both are 1.
struct Gradient {
    const float* at;
    float coefficient, scale;
    bool is_divided;
};

__device__ __forceinline__ Gradient gradient_of(const Rows& of, int64 i, int32 dim) {
    const Call& call = of.call;
    const int64 start = call.starts ? __ldg(call.starts + i) : 0;
    if (call.starts == nullptr || __ldg(call.starts + i + 1) > start + 1) {
        const int64 place = place_of_sum(call.starts == nullptr, i, start);
        return {of.sums + place * dim, 1.0f, 1.0f, false};
    }
    const int64 position = __ldg(call.positions + start);
    const Occurrences at =
        occurrences_of(call.of_segments, static_cast<int32>(call.segments), position);
    const int64 index = position - at.shift;
    return {at.rows + (at.source ? __ldg(at.source + index) : index) * dim,
            at.form == PLAIN ? 1.0f : __ldg(at.coefficients + index),
            __uint_as_float(static_cast<uint32>(call.scale)), at.form == DIVIDED};
}

// Elements as they were read become those of the gradient.
template <int32 COUNT>
__device__ __forceinline__ void scale_elements(const Gradient& of, float* values) {
    UNROLLED(i, COUNT) {
        const float value = values[i];
        values[i] = of.scale * (of.is_divided ? value / of.coefficient : of.coefficient * value);
    }
}

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
    Gradient g[ROWS_TOGETHER];
    const float* scalars[ROWS_TOGETHER];
};

// As load_piece, of rows that are written to here; the rest of `piece` is left as it is.
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

// Of gradients, which are read once, and may begin anywhere.
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

// Stores what a row may hold: any NaN as the one of contract.md, rule 1.
__device__ __forceinline__ void store_piece(element* at, const int32 width, const float* piece) {
    if (width == 4) {
        store_four(at, canonical(make_float4(piece[0], piece[1], piece[2], piece[3])));
    } else {
        *at = static_cast<element>(canonical(piece[0]));
    }
}

// The flag and the score of a row that is updated.
__device__ __forceinline__ void note_update(
    const uint64* slabs, int32 slab_shift, int32 stride, int64 slot, const Call& call) {
    *dirty_of(slabs, slab_shift, stride, slot) = 1;
    if (call.clock != 0) {
        int64* score = score_of(slabs, slab_shift, stride, slot);
        *score = touched(*score, call.clock, static_cast<int32>(call.counting));
    }
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
                    read_piece(of.weights[r] + p * dim + d, width, parts[r][p]);
                }
                read_gradient(of.g[r].at + d, width, g[r]);
            }
        }
        UNROLLED(r, ROWS_TOGETHER) {
            if (of.weights[r] != nullptr) {
                float scalars[SCALARS];
                load_scalars<SCALARS>(of.scalars[r], scalars);
                if (width == 4) {
                    scale_elements<4>(of.g[r], g[r]);
                } else {
                    scale_elements<1>(of.g[r], g[r]);
                }
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
    const uint64* slabs, int32 slab_shift, int32 stride, int32 dim, const float* scalars,
    const Rows& rows) {
    const Group group = group_of(dim % 4 == 0 ? dim / 4 : dim);
    const int64 n = rows.count, step = group.count * ROWS_TOGETHER;
    for (int64 begin = group.index * ROWS_TOGETHER; begin < n; begin += step) {
        Updates updates;
        int64 slots[ROWS_TOGETHER];
        UNROLLED(r, ROWS_TOGETHER) {
            const int64 i = min(begin + r, n - 1);
            slots[r] = __ldg(rows.slots + i);
            updates.scalars[r] = scalars + (__ldg(rows.keys + i) >> KEY_BITS) * SCALAR_COLUMNS;
            updates.g[r] = gradient_of(rows, i, dim);
        }
        UNROLLED(r, ROWS_TOGETHER) {
            element* row = row_of(slabs, slab_shift, stride, slots[r]);
            updates.weights[r] = begin + r < n ? row : nullptr;
        }
        by_width(dim % 4 == 0, [&](const int32 width) {
            update_rows<FORMULA, STATES, SCALARS>(updates, group, dim, width);
        });
        const int64 end = min(begin + ROWS_TOGETHER, n);
        for (int64 i = begin + group.lane; i < end; i += group.lanes) {
            note_update(slabs, slab_shift, stride, __ldg(rows.slots + i), rows.call);
        }
    }
}

// Updates by row

typedef float (*RowFormula)(float squares, float& s, const float* scalars);
typedef float (*ScaledFormula)(float g, float w, float scalar);

// A lane's elements from column `begin` on, as they were read; 0 beyond the row.
template <typename E>
__device__ __forceinline__ void read_columns(
    const E* row, int32 begin, int32 dim, float* values) {
    UNROLLED(c, COLUMNS_HELD) {
        const int32 d = begin + c * WARP_THREADS + threadIdx.x % WARP_THREADS;
        values[c] = d < dim ? static_cast<float>(row[d]) : 0.0f;
    }
}

template <RowFormula OF_ROW, ScaledFormula OF_ELEMENT, int32 SCALARS>
__device__ __forceinline__ void apply_rows(
    const uint64* slabs, int32 slab_shift, int32 stride, int32 dim, const float* scalars,
    const Rows& rows) {
    const int32 lane = threadIdx.x % WARP_THREADS;
    const int64 n = rows.count, step = thread_count() / WARP_THREADS;
    for (int64 i = thread_index() / WARP_THREADS; i < n; i += step) {
        const int64 slot = __ldg(rows.slots + i);
        const float* of_table = scalars + (__ldg(rows.keys + i) >> KEY_BITS) * SCALAR_COLUMNS;
        const Gradient g = gradient_of(rows, i, dim);
        element* weights = row_of(slabs, slab_shift, stride, slot);
        float g_held[COLUMNS_HELD], w_held[COLUMNS_HELD];
        read_columns(weights, 0, dim, w_held);
        float s = lane == 0 ? static_cast<float>(weights[dim]) : 0.0f;
        float sum = 0.0f;  // not the first square: no square is -0.0
        for (int32 begin = 0; begin < dim; begin += HELD) {
            read_columns(g.at, begin, dim, g_held);
            scale_elements<COLUMNS_HELD>(g, g_held);
            UNROLLED(c, COLUMNS_HELD) {
                sum += g_held[c] * g_held[c];
            }
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
            note_update(slabs, slab_shift, stride, slot, rows.call);
        }
        scalar = __shfl_sync(FULL_WARP, scalar, 0);
        for (int32 begin = 0; begin < dim; begin += HELD) {
            if (dim > HELD) {
                read_columns(g.at, begin, dim, g_held);
                read_columns(weights, begin, dim, w_held);
                scale_elements<COLUMNS_HELD>(g, g_held);
            }
            UNROLLED(c, COLUMNS_HELD) {
                const int32 d = begin + c * WARP_THREADS + lane;
                if (d < dim) {
                    const float w = OF_ELEMENT(g_held[c], w_held[c], scalar);
                    weights[d] = static_cast<element>(canonical(w));
                }
            }
        }
    }
}

// The kernels, apply_<kind> for each optimizer: its formulas, how many floats an element has as
// state, and how many scalars there are, of `scalars` (tables, 8). `call` is a Call, or null. The blocks of a
// multiprocessor are as many as leave each thread the registers for its loads in flight.

extern "C" __global__ void __launch_bounds__(BLOCK_THREADS, 4) apply_sgd(
    const uint64* slabs, const int32 slab_shift, const int32 stride, const int64* slots,
    const int64* keys, const float* sums, const int32 dim, const float* scalars, const int64 n,
    const int64* call) {
    apply_elements<sgd, 0, 1>(
        slabs, slab_shift, stride, dim, scalars, rows_of(slots, keys, sums, n, call));
}

extern "C" __global__ void __launch_bounds__(BLOCK_THREADS, 3) apply_adagrad(
    const uint64* slabs, const int32 slab_shift, const int32 stride, const int64* slots,
    const int64* keys, const float* sums, const int32 dim, const float* scalars, const int64 n,
    const int64* call) {
    apply_elements<adagrad, 1, 2>(
        slabs, slab_shift, stride, dim, scalars, rows_of(slots, keys, sums, n, call));
}

extern "C" __global__ void __launch_bounds__(BLOCK_THREADS, 3) apply_adam(
    const uint64* slabs, const int32 slab_shift, const int32 stride, const int64* slots,
    const int64* keys, const float* sums, const int32 dim, const float* scalars, const int64 n,
    const int64* call) {
    apply_elements<adam, 2, 6>(
        slabs, slab_shift, stride, dim, scalars, rows_of(slots, keys, sums, n, call));
}

extern "C" __global__ void __launch_bounds__(BLOCK_THREADS, 2) apply_ftrl(
    const uint64* slabs, const int32 slab_shift, const int32 stride, const int64* slots,
    const int64* keys, const float* sums, const int32 dim, const float* scalars, const int64 n,
    const int64* call) {
    apply_elements<ftrl, 2, 4>(
        slabs, slab_shift, stride, dim, scalars, rows_of(slots, keys, sums, n, call));
}

extern "C" __global__ void __launch_bounds__(BLOCK_THREADS, 4) apply_rowwise_adagrad(
    const uint64* slabs, const int32 slab_shift, const int32 stride, const int64* slots,
    const int64* keys, const float* sums, const int32 dim, const float* scalars, const int64 n,
    const int64* call) {
    apply_rows<rowwise_adagrad, rowwise_adagrad_element, 3>(
        slabs, slab_shift, stride, dim, scalars, rows_of(slots, keys, sums, n, call));
}
