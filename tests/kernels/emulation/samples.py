"""Kernels to try the emulation with, right ones and wrong ones, and runtimes that have them."""

import numpy as np

from embstore.device.runtime import COMPUTE
from tests.kernels.emulation.runtime import EmulatedRuntime

TYPES = """
typedef long long int64;
typedef unsigned long long uint64;
typedef int int32;
typedef unsigned int uint32;
typedef unsigned char uint8;
#define BLOCK_THREADS 256
#define ALL 0xffffffffu
"""

PLAIN = """
#line 1 "plain.cu"
KERNEL number(int32* out, const int64 n) {
    int64 step = static_cast<int64>(gridDim.x) * blockDim.x;
    for (int64 i = static_cast<int64>(blockIdx.x) * blockDim.x + threadIdx.x; i < n; i += step)
        out[i] = static_cast<int32>(i);
}
KERNEL order(int32* out, int32* count) { out[atomicAdd(count, 1)] = threadIdx.x; }
KERNEL add_by_two_steps(uint32* count, uint32* arrived) {
    uint32 old = *count;
    atomicAdd(arrived, 1u);
    *count = old + 1;
}
KERNEL scalars(const int64 a, const uint64 b, const int32 c, const uint32 d, const float e,
               float* __restrict__ out) {
    if (threadIdx.x) return;
    out[0] = a; out[1] = b; out[2] = c; out[3] = d; out[4] = e;
}
KERNEL copy_16(const float4* __restrict__ source, float4* target) { target[0] = source[0]; }
KERNEL store_at(int32* out, const int64 place) { if (threadIdx.x == 0) out[place] = 1; }
KERNEL arithmetic(const float* x, float* out) {
    if (threadIdx.x) return;
    out[0] = x[0] * x[1] + x[2];
    out[1] = sqrtf(x[0]);
    out[2] = __uint_as_float(__float_as_uint(x[0]) + 1);
}
KERNEL whole_numbers(const uint64* x, uint64* out) {
    if (threadIdx.x) return;
    out[0] = __popc(static_cast<uint32>(x[0]));
    out[1] = __ffs(static_cast<int32>(x[0]));
    out[2] = __clz(static_cast<int32>(x[0]));
    out[3] = __umulhi(static_cast<uint32>(x[0]), static_cast<uint32>(x[1]));
    out[4] = __umul64hi(x[0], x[1]);
    out[5] = min(x[0], x[1]);
    out[6] = max(x[0], x[1]);
}
KERNEL atomics(uint64* cells, int64* least) {
    atomicMin(&least[0], static_cast<int64>(threadIdx.x) - 7);
    atomicMax(&least[1], static_cast<int64>(threadIdx.x));
    if (atomicCAS(&cells[0], 0ull, threadIdx.x + 1ull) == 0) cells[1] = threadIdx.x + 1;
    atomicAdd(&cells[2], 2ull);
}
KERNEL overflow(int32* out) { out[threadIdx.x] = 0x7fffffff + static_cast<int32>(threadIdx.x); }
"""

WAITING = """
#line 1 "waiting.cu"
__device__ __forceinline__ float of_warp(float value) {
    for (int32 delta = 16; delta > 0; delta >>= 1) value += __shfl_down_sync(ALL, value, delta);
    return __shfl_sync(ALL, value, 0);
}
KERNEL sum_rows(const float* rows, float* sums, const int64 n) {
    int64 warps = static_cast<int64>(gridDim.x) * 8;
    for (int64 row = blockIdx.x * 8ll + threadIdx.x / 32; row < n; row += warps) {
        float sum = of_warp(rows[row * 32 + threadIdx.x % 32]);
        if (threadIdx.x % 32 == 5) sums[row] = sum;
    }
}
KERNEL shuffles(const int64* values, int64* out) {
    int64 value = values[threadIdx.x];
    out[threadIdx.x] = __shfl_down_sync(ALL, value, 3);
    out[256 + threadIdx.x] = __shfl_sync(ALL, value, 31 - threadIdx.x % 32);
    out[512 + threadIdx.x] = __ballot_sync(ALL, value & 1);
    __syncwarp();
}
KERNEL sum_block(const int32* values, int32* out) {
    __shared__ int32 parts[BLOCK_THREADS];
    parts[threadIdx.x] = values[blockIdx.x * BLOCK_THREADS + threadIdx.x];
    __syncthreads();
    for (uint32 half = BLOCK_THREADS / 2; half > 0; half >>= 1) {
        if (threadIdx.x < half) parts[threadIdx.x] += parts[threadIdx.x + half];
        __syncthreads();
    }
    if (threadIdx.x == 0) out[blockIdx.x] = parts[0];
}
KERNEL forget_the_barrier(int32* out) {
    __shared__ int32 parts[BLOCK_THREADS];
    parts[threadIdx.x] = threadIdx.x;
    __syncwarp();
    out[threadIdx.x] = parts[255 - threadIdx.x];
}
KERNEL read_shared(uint8* out) {
    __shared__ uint8 memory[BLOCK_THREADS];
    __syncthreads();
    out[blockIdx.x * BLOCK_THREADS + threadIdx.x] = memory[threadIdx.x];
    memory[threadIdx.x] = 1;
}
KERNEL leave_early(int32* out) {
    if (threadIdx.x >= 40) return;
    __syncthreads();
    out[0] = 1;
}
KERNEL part_at_barriers(int32* out) {
    if (threadIdx.x < 64) {
        __syncthreads();
    } else {
        __syncthreads();
    }
    out[0] = 1;
}
KERNEL part_in_warp(int32* out) {
    if (threadIdx.x % 32 < 16) out[threadIdx.x] = __shfl_sync(ALL, 1, 0);
}
KERNEL outside_shared(int32* out) {
    __shared__ int32 parts[BLOCK_THREADS];
    parts[threadIdx.x + 1] = 0;
    __syncthreads();
    out[threadIdx.x] = parts[threadIdx.x];
}
"""


def cuda(text):
    return TYPES + text.replace(
        "KERNEL", 'extern "C" __global__ void __launch_bounds__(BLOCK_THREADS)'
    )


SOURCES = {"plain": cuda(PLAIN), "waiting": cuda(WAITING)}


def made(**options):
    return EmulatedRuntime(sources=SOURCES, **options)


def put(runtime, values):
    array = runtime.allocate(values.size, values.dtype)
    runtime.upload(values, array)
    return array


def take(runtime, array):
    out = np.empty(len(array) * array.width, array.dtype)
    runtime.download(array, out)
    runtime.wait(runtime.mark(COMPUTE))
    return out
