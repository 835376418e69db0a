// Types and threads: the basis of every kernel.
//
// Kernels include only our own headers, and none of a toolkit: NVRTC and the host compiler of the
// emulation (tests/kernels) both compile them as they are. An included header is inserted as text,
// once (sources.py).

typedef long long int64;
typedef unsigned long long uint64;
typedef int int32;
typedef unsigned int uint32;
typedef unsigned char uint8;

#define BLOCK_THREADS 256
#define WARP_THREADS 32
#define WARPS (BLOCK_THREADS / WARP_THREADS)
#define FULL_WARP 0xffffffffu

// An element of a row as it is stored (embstore/layout.py). Arithmetic is in float, and so are
// lookups, gradients and sums: a kernel loads elements as floats and stores floats as elements, by
// pieces.cuh.
typedef float element;
#define ELEMENT_BYTES 4ull

// A loop whose rounds are all in flight: its arrays are registers. `count` must be a constant.
#define UNROLLED(i, count) _Pragma("unroll") for (int32 i = 0; i < (count); ++i)

__device__ __forceinline__ int64 thread_index() {
    return static_cast<int64>(blockIdx.x) * blockDim.x + threadIdx.x;
}

__device__ __forceinline__ int64 thread_count() {
    return static_cast<int64>(gridDim.x) * blockDim.x;
}

// Values as they are in memory now, bypassing the multiprocessor's own cache.
template <typename T>
__device__ __forceinline__ T fresh(const T* address) {
    return *static_cast<const volatile T*>(address);
}
