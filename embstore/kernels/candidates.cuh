// The scores of slots that may be evicted (select_victims.cu); a thread has several in flight. A
// pass reads the score of every slot, but the key of a slot only if its score is a candidate's. In
// all passes but the first these are few.

#include "keys.cuh"
#include "score.cuh"
#include "search.cuh"
#include "slabs.cuh"
#include "types.cuh"

#define PER_THREAD 4
#define NO_SCORE (-1ll)  // below every floor

__device__ __forceinline__ int64 threshold_of(const int64* search) {
    return search[STATE] == DONE ? search[HIGHEST] : NO_SCORE;
}

// Whether a slot is a candidate, as far as its score shows.
__device__ __forceinline__ bool may_go(int64 score, int64 clock, int64 floor, int64 ceiling) {
    return score >= floor && score < ceiling && (score & (FORESEEN | CLOCK_MASK)) != clock;
}

// Loads the scores of the slots begin, begin + step, ... below end; NO_SCORE where a slot is no
// candidate.
__device__ __forceinline__ void load_candidates(
    const uint64* slabs, int32 slab_shift, int32 stride, int64 begin, int64 step, int64 end,
    int64 clock, int64 floor, int64 ceiling, int64 (&scores)[PER_THREAD]) {
    UNROLLED(j, PER_THREAD) {
        const int64 slot = begin + j * step;
        scores[j] = slot < end ? __ldg(score_of(slabs, slab_shift, stride, slot)) : NO_SCORE;
    }
    int64 keys[PER_THREAD];
    UNROLLED(j, PER_THREAD) {
        const int64 slot = begin + j * step;
        keys[j] = may_go(scores[j], clock, floor, ceiling)
                      ? __ldg(key_of(slabs, slab_shift, stride, slot))
                      : EMPTY_KEY;
    }
    UNROLLED(j, PER_THREAD) {
        scores[j] = keys[j] == EMPTY_KEY ? NO_SCORE : scores[j];
    }
}
