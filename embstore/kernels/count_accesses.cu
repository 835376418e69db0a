// Accesses of a call, and how many of them hit.
//
//     count_accesses   findings[ACCESSES] += accesses to positions with an id in [low, high),
//                      findings[HITS] += those of them whose id has a slot; a position stands for
//                      counts[p] accesses, or 1
//
// Grid: in each round a thread takes PER_THREAD positions, a whole grid apart, so that their loads
// are in flight together. Sums are added up in registers, then in the block, and then by an atomic
// of one thread. The grid is no larger than fills the device. Deterministic: sums of integers.
// CPU twin: count_accesses.py. Bytes for n positions: 4 n, and sectors of slots, in the L2 cache.

#include "block_sums.cuh"
#include "findings.cuh"
#include "types.cuh"

#define PER_THREAD 4

extern "C" __global__ void __launch_bounds__(BLOCK_THREADS) count_accesses(
    const int32* __restrict__ inverse,  // (n,)
    const int64 n,
    const int64* __restrict__ slots,  // (high - low,), -1 where absent
    const int64 low,
    const int64 high,
    const int64* __restrict__ counts,  // (n,) or null: 1 each
    int64* findings) {
    __shared__ int64 access_counts[WARPS], hit_counts[WARPS];
    const int64 step = thread_count();
    int64 accesses = 0, hits = 0;
    for (int64 begin = thread_index(); begin < n; begin += PER_THREAD * step) {
        int64 ids[PER_THREAD], found[PER_THREAD];
        UNROLLED(j, PER_THREAD) {
            const int64 p = begin + j * step;
            ids[j] = p < n ? __ldg(inverse + p) : high;
        }
        UNROLLED(j, PER_THREAD) {
            const bool counted = low <= ids[j] && ids[j] < high;
            found[j] = counted ? __ldg(slots + ids[j] - low) : -1;
        }
        UNROLLED(j, PER_THREAD) {
            if (low <= ids[j] && ids[j] < high) {
                const int64 weight = counts ? __ldg(counts + begin + j * step) : 1;
                accesses += weight;
                hits += found[j] >= 0 ? weight : 0;
            }
        }
    }
    accesses = block_sum(accesses, access_counts);
    hits = block_sum(hits, hit_counts);
    if (threadIdx.x == 0 && accesses > 0) {
        add_to(findings + ACCESSES, accesses);
        add_to(findings + HITS, hits);
    }
}
