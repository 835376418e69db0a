// One optimizer update of each row. The result is that of its twin: apply.py.
//
// Formulas and scalars are those of embstore/optimizers.py, by hand: a formula of elements, and
// where a row has state of its own, a formula of rows before it. An optimizer is its formulas, and
// one kernel at the end of this file that names them. Weight decay comes before all of them.
//
// An update of rows that are all there is queued before the host knows what is wrong with it, as a
// Call: it changes nothing if anything is wrong with any batch of its command, by their findings, and
// touches the score of a row as it changes it. Of a key that occurs once the gradient is read again.
//
// Grid: a group takes up to as many rows as it has lanes, each of which looks where one row and its
// gradient are, and notes its update, all at the same time; then the rows are updated one after the
// other. By row a warp is a group, with pieces of 4 bytes, because lane l adds the squares of elements
// l, l + 32, ... (rule 3), then the warp folds by shuffles; the first COLUMNS_HELD pieces of a lane stay
// in registers, and of rows that have no more ROWS_UPDATED are in flight. Any grid size.
//
// Preconditions: keys, hence slots, unique; sums begins at 16.
//
// Determinism: an element is updated by one lane, and the order of rule 3 is fixed. A NaN that
// arises is written as 0x7fc00000.
//
// Bytes: 16 n of slots and keys, 4 n dim of gradients, and the rows read and written; where sums are
// not all kept 20 n of starts and positions; where rows are touched a sector, read and written.

#define COLUMNS_HELD 4
#define ROWS_UPDATED 2  // together, by row
#define HELD (COLUMNS_HELD * WARP_THREADS)  // elements of a warp
#define PIECE_ELEMENTS 4  // at most

#define SCALAR_COLUMNS 8  // embstore/arithmetic/optimizers.py, and these two
#define DECAY 6
#define KEPT 7

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
    int64 key_mask;      // see table_of
    Call call;
};

// All threads come here.
__device__ __forceinline__ const Rows& rows_of(
    const int64* slots, const int64* keys, const int64 key_mask, const float* sums, int64 n,
    const int64* of_call) {
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
        rows.slots = slots, rows.keys = keys, rows.sums = sums, rows.key_mask = key_mask;
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
    const int32 segments = static_cast<int32>(call.segments);
    const Occurrences at = occurrences_in(
        call.of_segments, segments, segment_of(call.of_segments, segments, position));
    const int64 index = position - at.shift;
    return {at.rows + (at.source ? __ldg(at.source + index) : index) * dim,
            at.form == PLAIN ? 1.0f : __ldg(at.coefficients + index),
            __uint_as_float(static_cast<uint32>(call.scale)), at.form == DIVIDED};
}

// Elements as they were read become those of the gradient.
__device__ __forceinline__ void scale_elements(
    const Gradient& of, const int32 count, float* values) {
    UNROLLED(i, count) {
        const float value = values[i];
        values[i] = of.scale * (of.is_divided ? value / of.coefficient : of.coefficient * value);
    }
}

// Gradients with what weight decay adds to them, which is nothing where it is 0: not 0 * w.
__device__ __forceinline__ void decay_gradients(
    float weight_decay, const int32 count, const float* weights, float* g) {
    UNROLLED(i, count) {
        g[i] = weight_decay > 0.0f ? g[i] + weight_decay * weights[i] : g[i];
    }
}

__device__ __forceinline__ void keep_weights(float kept, const int32 count, float* weights) {
    UNROLLED(i, count) {
        weights[i] = kept * weights[i];
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

// The flag and the score of a row that is updated.
__device__ __forceinline__ void note_update(
    const uint64* slabs, int32 slab_shift, int32 stride, int64 slot, const Call& call) {
    *dirty_of(slabs, slab_shift, stride, slot) = 1;
    if (call.clock != 0) {
        int64* score = score_of(slabs, slab_shift, stride, slot);
        *score = touched(*score, call.clock, static_cast<int32>(call.counting));
    }
}

// Where a row, its gradient and the scalars of its table are; null weights: none.
struct Update {
    element* weights;
    const float* scalars;
    Gradient g;
};

template <typename T>
__device__ __forceinline__ T* of_lane(T* pointer, int32 lane) {
    return reinterpret_cast<T*>(
        __shfl_sync(FULL_WARP, reinterpret_cast<uint64>(pointer), lane));
}

// What another lane of the warp found; all lanes come here.
__device__ __forceinline__ Update of_lane(const Update& own, int32 lane) {
    return {of_lane(own.weights, lane), of_lane(own.scalars, lane),
            {of_lane(own.g.at, lane), __shfl_sync(FULL_WARP, own.g.coefficient, lane),
             __shfl_sync(FULL_WARP, own.g.scale, lane),
             __shfl_sync(FULL_WARP, static_cast<int32>(own.g.is_divided), lane) != 0}};
}

// body(updates) for all rows, TOGETHER at a time, of each in all lanes of the group; null weights:
// there is none.
template <int32 TOGETHER, typename Body>
__device__ __forceinline__ void for_rows(
    const uint64* slabs, int32 slab_shift, int32 stride, int32 dim, const float* scalars,
    const Rows& rows, const Group& group, const Body& body) {
    const int64 n = rows.count, each = (n + group.count - 1) / group.count;
    const int32 share = static_cast<int32>(max(min(each, static_cast<int64>(group.lanes)), 1ll));
    const int64 step = group.count * share;
    for (int64 begin = 0; begin < n; begin += step) {
        const int64 i = begin + group.index * share + group.lane;
        Update own = {nullptr, nullptr, {nullptr, 1.0f, 1.0f, false}};
        if (group.lane < share && i < n) {
            const int64 slot = __ldg(rows.slots + i);
            const int64 table = table_of(__ldg(rows.keys + i), rows.key_mask);
            own.weights = row_of(slabs, slab_shift, stride, slot);
            own.scalars = scalars + table * SCALAR_COLUMNS;
            own.g = gradient_of(rows, i, dim);
            note_update(slabs, slab_shift, stride, slot, rows.call);
        }
        for (int32 low = 0; low < share; low += TOGETHER) {
            Update updates[TOGETHER];
            UNROLLED(r, TOGETHER) {
                const int32 of_row = min(low + r, group.lanes - 1);
                updates[r] = of_lane(own, threadIdx.x % WARP_THREADS - group.lane + of_row);
                if (low + r >= share) {
                    updates[r].weights = nullptr;
                }
            }
            body(updates);
        }
    }
}

// Updates by element

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

typedef void (*ElementFormula)(float g, float& w, float* state, const float* scalars);

// A group's columns of a row; `width`, 4 or 1, is a literal wherever this is inlined.
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
            float state[1 + STATES];  // not of no elements
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

// One row, of more elements than a lane holds.
template <RowFormula OF_ROW, ScaledFormula OF_ELEMENT>
__device__ __forceinline__ void update_long_row(const Update& of, int32 dim) {
    const int32 lane = threadIdx.x % WARP_THREADS;
    element* weights = of.weights;
    float g_held[COLUMNS_HELD], w_held[COLUMNS_HELD];
    const float weight_decay = __ldg(of.scalars + DECAY), kept = __ldg(of.scalars + KEPT);
    float s = lane == 0 ? static_cast<float>(weights[dim]) : 0.0f;
    float sum = 0.0f;  // not the first square: no square is -0.0
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
    float scalar = 0.0f;  // lane 0's is the row's: the others fold what lies beyond the warp
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

// ROWS_UPDATED rows of at most HELD elements, whose loads are in flight together. The state of the
// r-th is lane r's. All lanes of the warp come here.
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
    float sum = 0.0f;  // of lane r, the r-th's
    UNROLLED(r, ROWS_UPDATED) {
        scale_elements(of[r].g, COLUMNS_HELD, g_held[r]);
        if (of[r].weights != nullptr) {
            decay_gradients(__ldg(of[r].scalars + DECAY), COLUMNS_HELD, w_held[r], g_held[r]);
            keep_weights(__ldg(of[r].scalars + KEPT), COLUMNS_HELD, w_held[r]);
        }
        float squares = 0.0f;  // not the first square: no square is -0.0
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

// The kernels, apply_<kind> for each optimizer: its formulas, and of elements how many floats are
// state, and how many scalars there are, of `scalars` (tables, 8). `call` is a Call, or null. Four
// blocks of a multiprocessor leave each thread the registers for its loads in flight; of rows, three
// where the compiler needs more of them, which is before Hopper.

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
#define ROW_BLOCKS 3
#else
#define ROW_BLOCKS 4
#endif

extern "C" __global__ void __launch_bounds__(BLOCK_THREADS, 4) apply_sgd(
    const uint64* slabs, const int32 slab_shift, const int32 stride, const int64* slots,
    const int64* keys, const int64 key_mask, const float* sums, const int32 dim,
    const float* scalars, const int64 n, const int64* call) {
    apply_elements<sgd, 0, 1>(
        slabs, slab_shift, stride, dim, scalars, rows_of(slots, keys, key_mask, sums, n, call));
}

extern "C" __global__ void __launch_bounds__(BLOCK_THREADS, 4) apply_adagrad(
    const uint64* slabs, const int32 slab_shift, const int32 stride, const int64* slots,
    const int64* keys, const int64 key_mask, const float* sums, const int32 dim,
    const float* scalars, const int64 n, const int64* call) {
    apply_elements<adagrad, 1, 2>(
        slabs, slab_shift, stride, dim, scalars, rows_of(slots, keys, key_mask, sums, n, call));
}

extern "C" __global__ void __launch_bounds__(BLOCK_THREADS, 4) apply_adam(
    const uint64* slabs, const int32 slab_shift, const int32 stride, const int64* slots,
    const int64* keys, const int64 key_mask, const float* sums, const int32 dim,
    const float* scalars, const int64 n, const int64* call) {
    apply_elements<adam, 2, 6>(
        slabs, slab_shift, stride, dim, scalars, rows_of(slots, keys, key_mask, sums, n, call));
}

extern "C" __global__ void __launch_bounds__(BLOCK_THREADS, 4) apply_ftrl(
    const uint64* slabs, const int32 slab_shift, const int32 stride, const int64* slots,
    const int64* keys, const int64 key_mask, const float* sums, const int32 dim,
    const float* scalars, const int64 n, const int64* call) {
    apply_elements<ftrl, 2, 4>(
        slabs, slab_shift, stride, dim, scalars, rows_of(slots, keys, key_mask, sums, n, call));
}

extern "C" __global__ void __launch_bounds__(BLOCK_THREADS, ROW_BLOCKS) apply_rowwise_adagrad(
    const uint64* slabs, const int32 slab_shift, const int32 stride, const int64* slots,
    const int64* keys, const int64 key_mask, const float* sums, const int32 dim,
    const float* scalars, const int64 n, const int64* call) {
    apply_rows<rowwise_adagrad, rowwise_adagrad_element>(
        slabs, slab_shift, stride, dim, scalars, rows_of(slots, keys, key_mask, sums, n, call));
}
