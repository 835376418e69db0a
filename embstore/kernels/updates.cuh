// Rows that are updated: which rows, the gradient of each, and how a warp processes them.
//
// An update of rows that all have slots is queued, as a Call, before the host knows whether it is
// valid. It changes nothing if the findings of any batch of its command are invalid. It also
// touches the score of each row that it changes. The gradient of a key that occurs once is read
// again.
//
// A group takes at most as many rows as it has lanes. Each lane finds the address of one row and
// its gradient, and notes its update, all at the same time. Then the rows are updated one after the
// other.

#include "findings.cuh"
#include "keys.cuh"
#include "pieces.cuh"
#include "score.cuh"
#include "segments.cuh"
#include "slabs.cuh"
#include "types.cuh"

#define SCALAR_COLUMNS 8  // embstore/arithmetic/optimizers.py, and these two
#define DECAY 6
#define KEPT 7

// As GpuRows sends it, eight bytes per field; the addresses of `gates` findings follow it. All
// zeros: the update is valid, all sums are kept, and scores do not change.
struct Call {
    int64 clock, counting;     // see touched; a clock of 0: scores do not change
    const int64* findings;     // (8,), from which the number of rows is read, or null
    const int64* starts;       // (rows + 1,), or null: sums[i] is the sum of row i
    const int32* positions;    // (n,)
    const int64* of_segments;  // (5 * segments + 1,), see Occurrences
    int64 segments;
    int64 scale;               // bits of a float
    int64 gates;
};

// Rows and the changes to them, in shared memory, so that no thread needs registers for them.
struct Rows {
    const int64* slots;  // (count,), unique
    const int64* keys;   // (count,)
    const float* sums;   // see place_of_sum
    int64 count;         // of rows that are updated
    int64 key_mask;      // see table_of
    Call call;
};

// All threads must call it.
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

// The gradient of a row: scale * (coefficient * at[d]), or scale * (at[d] / coefficient). For a sum
// both factors are 1.
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

// Turns values as they were read into the elements of the gradient.
__device__ __forceinline__ void scale_elements(
    const Gradient& of, const int32 count, float* values) {
    UNROLLED(i, count) {
        const float value = values[i];
        values[i] = of.scale * (of.is_divided ? value / of.coefficient : of.coefficient * value);
    }
}

// Adds weight decay to gradients; if it is 0, nothing is added, not 0 * w.
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

// Sets the dirty flag and the score of a row that is updated.
__device__ __forceinline__ void note_update(
    const uint64* slabs, int32 slab_shift, int32 stride, int64 slot, const Call& call) {
    *dirty_of(slabs, slab_shift, stride, slot) = 1;
    if (call.clock != 0) {
        int64* score = score_of(slabs, slab_shift, stride, slot);
        *score = touched(*score, call.clock, static_cast<int32>(call.counting));
    }
}

// The addresses of a row, its gradient and the scalars of its table; null weights: there is no row.
struct Update {
    element* weights;
    const float* scalars;
    Gradient g;
};

// The Update of lane `lane` of the warp; all lanes must call it.
__device__ __forceinline__ Update of_lane(const Update& own, int32 lane) {
    return {of_lane(own.weights, lane), of_lane(own.scalars, lane),
            {of_lane(own.g.at, lane), __shfl_sync(FULL_WARP, own.g.coefficient, lane),
             __shfl_sync(FULL_WARP, own.g.scale, lane),
             __shfl_sync(FULL_WARP, static_cast<int32>(own.g.is_divided), lane) != 0}};
}

// Calls body(updates) for all rows, TOGETHER at a time, in all lanes of the group. An update with
// null weights has no row.
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
