// Running sums, in place: values[i] becomes values[0] + ... + values[i].
//
// The values are cut into ranges of whole steps, a block each, at most 1024; few have one range:
//
//     sum_ranges  totals[r] = the sum of range r; not needed for one range
//     accumulate  a block adds up the totals before its range's, then walks over the range
//
// Rejected: one pass whose blocks look back at those before. It reads values once, which are in the
// L2 cache the second time, and its blocks wait for each other.
//
// Grid: a block a range. Preconditions: values begin at 16; sums fit int32. Deterministic: sums of
// integers. Twin: numpy.cumsum. Bytes: 12 n.

#define PER_THREAD 4
#define STEP (PER_THREAD * BLOCK_THREADS)

extern "C" __global__ void __launch_bounds__(BLOCK_THREADS) sum_ranges(
    const int32* __restrict__ values,  // (n,)
    const int64 n,
    const int64 range,              // values of a range, a multiple of STEP
    int32* __restrict__ totals) {  // (ranges,) out
    __shared__ int64 shared[WARPS];
    const int64 begin = blockIdx.x * range + threadIdx.x, end = min(blockIdx.x * range + range, n);
    int64 sum = 0;
    for (int64 i = begin; i < end; i += STEP) {
        UNROLLED(j, PER_THREAD) {
            const int64 at = i + j * BLOCK_THREADS;
            sum += at < end ? __ldg(values + at) : 0;
        }
    }
    sum = block_sum(sum, shared);
    if (threadIdx.x == 0) {
        totals[blockIdx.x] = static_cast<int32>(sum);
    }
}

extern "C" __global__ void __launch_bounds__(BLOCK_THREADS) accumulate(
    int32* values,  // (n,) in and out
    const int64 n,
    const int64 range,
    const int32* __restrict__ totals) {  // (ranges,); not read for one range
    __shared__ int64 shared[WARPS];
    __shared__ int32 first, warp_sums[WARPS];
    int64 before = 0;
    for (int64 r = threadIdx.x; r < blockIdx.x; r += BLOCK_THREADS) {
        before += __ldg(totals + r);
    }
    before = block_sum(before, shared);
    if (threadIdx.x == 0) {
        first = static_cast<int32>(before);
    }
    __syncthreads();
    int32 carried = first;
    const int64 begin = blockIdx.x * range, end = min(begin + range, n);
    for (int64 step = begin; step < end; step += STEP) {
        const int64 i = step + threadIdx.x * PER_THREAD;
        const bool is_whole = i + PER_THREAD <= end;
        int32 own[PER_THREAD];
        if (is_whole) {
            const int4 loaded = *reinterpret_cast<const int4*>(values + i);
            own[0] = loaded.x, own[1] = loaded.y, own[2] = loaded.z, own[3] = loaded.w;
        } else {
            UNROLLED(j, PER_THREAD) {
                own[j] = i + j < end ? values[i + j] : 0;
            }
        }
        UNROLLED(j, PER_THREAD - 1) {
            own[j + 1] += own[j];
        }
        int32 all;
        const int32 offset = carried + sum_before(own[PER_THREAD - 1], warp_sums, all);
        carried += all;
        if (is_whole) {
            *reinterpret_cast<int4*>(values + i) =
                make_int4(own[0] + offset, own[1] + offset, own[2] + offset, own[3] + offset);
        } else {
            UNROLLED(j, PER_THREAD) {
                if (i + j < end) {
                    values[i + j] = own[j] + offset;
                }
            }
        }
    }
}
