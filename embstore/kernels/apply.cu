// One optimizer update of each row. The result is that of its twin: apply.py.
//
// Formulas and scalars are those of embstore/optimizers.py, written by hand: a formula of elements
// and, for an optimizer whose rows have state of their own, a formula of rows that runs before it.
// An optimizer is its formulas, and one kernel at the end of this file that names them. Weight
// decay is applied before the formulas.
//
// Grid: any size. updates.cuh defines which rows a group takes, by_element.cuh and by_row.cuh what
// its lanes do.
//
// Preconditions: keys, and therefore slots, are unique; sums is aligned to 16 bytes.
//
// Determinism: one lane updates an element, and rule 3 fixes the order of sums. A NaN that arises
// is written as 0x7fc00000.
//
// Bytes: 16 n of slots and keys, 4 n dim of gradients, and the rows, read and written. If not all
// sums are kept, also 20 n of starts and positions; if rows are touched, a sector per row, read and
// written.

#include "by_element.cuh"
#include "by_row.cuh"
#include "types.cuh"
#include "updates.cuh"

// Formulas of elements: they replace w, and state, one float for each of its arrays, by new values.

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

// A formula of rows, with rule 3 over g*g: it replaces the row's state s by its new value, and
// returns the scalar of the formula of elements that follows.

__device__ __forceinline__ float rowwise_adagrad(float squares, float& s, const float* scalars) {
    const float lr = scalars[0], epsilon = scalars[1], dim = scalars[2];
    s = s + squares / dim;
    return lr / (sqrtf(s) + epsilon);
}

__device__ __forceinline__ float rowwise_adagrad_element(float g, float w, float rate) {
    return w - rate * g;
}

// The kernels, apply_<kind> for each optimizer. Each names its formulas, the number of state floats
// of an element, and the number of its scalars among `scalars` (tables, 8). `call` is a Call, or
// null. Four blocks of a multiprocessor leave each thread the registers for its loads in flight.
// For formulas of rows there are three blocks where the compiler needs more registers, which is
// before Hopper.

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
