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
KERNEL copy_16(const float4* __restrict__ source, float4* target) { target[0] = source[0]; }
KERNEL store_at(int32* out, const int64 place) { if (threadIdx.x == 0) out[place] = 1; }
KERNEL overflow(int32* out) { out[threadIdx.x] = 0x7fffffff + static_cast<int32>(threadIdx.x); }
"""

WAITING = """
#line 1 "waiting.cu"
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
KERNEL wait_for_threads(int32* out, volatile int32* turn, const int32 last) {
    while (*turn != (threadIdx.x == 255 ? last : threadIdx.x)) __nanosleep(20);
    out[threadIdx.x] = threadIdx.x;
    __threadfence();
    *turn = *turn + 1;
}
KERNEL meet(uint32* arrived, const uint32 wanted, uint32* out) {
    __shared__ uint32 own[BLOCK_THREADS];
    own[threadIdx.x] = blockIdx.x * BLOCK_THREADS + threadIdx.x;
    __syncthreads();
    if (threadIdx.x == 0) {
        atomicAdd(arrived, 1u);
        while (*static_cast<volatile uint32*>(arrived) < wanted) __nanosleep(20);
    }
    __syncthreads();
    out[blockIdx.x * BLOCK_THREADS + threadIdx.x] = own[255 - threadIdx.x];
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
