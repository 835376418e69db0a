// A batch as a call has it: segments of positions, and the gradients of the occurrences of each
// segment.

#include "types.cuh"

// Chunks of a sum (contract.md, rule 2), and the form of an occurrence.
#define CHUNK_OCCURRENCES 64
#define PLAIN 0
#define WEIGHTED 1
#define DIVIDED 2

// The segment of a position: bounds[segment] <= position < bounds[segment + 1].
__device__ __forceinline__ int32 segment_of(const int64* bounds, int32 segments, int64 position) {
    int32 low = 0, high = segments;
    while (high - low > 1) {
        int32 middle = (low + high) >> 1;
        if (__ldg(bounds + middle) <= position) {
            low = middle;
        } else {
            high = middle;
        }
    }
    return low;
}

// The gradients of a segment's occurrences (Gradients of embstore/device/values.py). Those of all
// segments are one array of int64: bounds (segments + 1,), then, (segments,) each, the addresses of
// rows, of source and of coefficients (0: absent), and forms.
struct Occurrences {
    int32 shift;                // position of the segment's first occurrence
    const float* rows;          // (rows, dim)
    const int32* source;        // or null
    const float* coefficients;  // or null
    int32 form;                 // PLAIN, WEIGHTED or DIVIDED
};

__device__ __forceinline__ Occurrences occurrences_in(
    const int64* of_segments, int32 segments, int32 segment) {
    const int64* own = of_segments + segments + 1 + segment;
    return {
        static_cast<int32>(__ldg(of_segments + segment)),
        reinterpret_cast<const float*>(__ldg(own)),
        reinterpret_cast<const int32*>(__ldg(own + segments)),
        reinterpret_cast<const float*>(__ldg(own + 2 * segments)),
        static_cast<int32>(__ldg(own + 3 * segments))};
}

// The row of an id's sum. If not all sums are kept, keys that occur once have none; of the other
// keys, no two begin in the same pair of positions.
__device__ __forceinline__ int64 place_of_sum(int32 keeps_all, int64 id, int64 start) {
    return keeps_all ? id : start >> 1;
}
