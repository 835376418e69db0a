// The score of a slot: a count, a clock or a rank, pins, and whether the row is pending
// (embstore/score.py explains them). scores.cu changes scores, select_victims.cu compares them.

#include "keys.cuh"
#include "types.cuh"

#define CLOCK_BITS KEY_BITS
#define CLOCK_MASK KEY_MASK
#define RANK_SHIFT 11
#define UNCHANGED (-2ll)
#define COUNT_MAX ((1ll << 11) - 1)
#define COUNT_NONE 0
#define COUNT_UP 1
#define FORESEEN (1ll << 51)
#define ABOVE_COUNT (-FORESEEN)  // bits 51..63
#define PIN_SHIFT 52
#define PIN_ONE (1ll << PIN_SHIFT)
#define PINS_MAX ((1ll << 11) - 1)
#define ABOVE_RANK (-PIN_ONE)  // bits 52..63
#define PENDING static_cast<int64>(1ull << 63)

__device__ __forceinline__ int64 count_of(int64 score) {
    return (score & FORESEEN ? score : score >> CLOCK_BITS) & COUNT_MAX;
}

__device__ __forceinline__ int64 touched(int64 score, int64 clock, int32 counting) {
    const int64 more = counting == COUNT_UP;
    const int64 count = counting == COUNT_NONE ? 0 : min(count_of(score) + more, COUNT_MAX);
    return (score & ABOVE_RANK) | count << CLOCK_BITS | clock;
}

__device__ __forceinline__ int64 with_count(int64 score, int64 count) {
    return score & FORESEEN ? (score & ~COUNT_MAX) | count
                            : (score & (ABOVE_COUNT | CLOCK_MASK)) | count << CLOCK_BITS;
}

__device__ __forceinline__ int64 pins_of(int64 score) {
    return (score >> PIN_SHIFT) & PINS_MAX;
}
