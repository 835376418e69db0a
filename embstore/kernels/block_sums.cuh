// Sums over the threads of a block.

#include "types.cuh"

// The sum over the block, in thread 0; `shared` has an element for each warp.
__device__ __forceinline__ int64 block_sum(int64 value, int64* shared) {
    for (int32 half = WARP_THREADS / 2; half > 0; half /= 2) {
        value += __shfl_down_sync(FULL_WARP, value, half);
    }
    if (threadIdx.x % WARP_THREADS == 0) {
        shared[threadIdx.x / WARP_THREADS] = value;
    }
    __syncthreads();
    for (int32 warp = 1; threadIdx.x == 0 && warp < WARPS; ++warp) {
        value += shared[warp];
    }
    return value;
}

// The sum over the threads of the block before this one; `all` becomes the sum over the block.
// `shared` has an element for each warp, and can be used again afterwards.
__device__ __forceinline__ int32 sum_before(int32 value, int32* shared, int32& all) {
    const int32 lane = threadIdx.x % WARP_THREADS, warp = threadIdx.x / WARP_THREADS;
    int32 up_to = value;  // over the warp's threads up to this one
    for (int32 delta = 1; delta < WARP_THREADS; delta *= 2) {
        const int32 other = __shfl_sync(FULL_WARP, up_to, max(lane - delta, 0));
        up_to += lane >= delta ? other : 0;
    }
    if (lane == WARP_THREADS - 1) {
        shared[warp] = up_to;
    }
    __syncthreads();
    int32 before = up_to - value;
    all = 0;
    UNROLLED(w, WARPS) {
        before += w < warp ? shared[w] : 0;
        all += shared[w];
    }
    __syncthreads();
    return before;
}

__device__ __forceinline__ void add_to(int64* address, int64 value) {
    atomicAdd(reinterpret_cast<uint64*>(address), static_cast<uint64>(value));
}

// Adds the values of the block's threads to *address. All threads must call it.
__device__ __forceinline__ void add_of_block(int64* address, int64 value, int64* shared) {
    value = block_sum(value, shared);
    if (threadIdx.x == 0 && value > 0) {
        add_to(address, value);
    }
}
