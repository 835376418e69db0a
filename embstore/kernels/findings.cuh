// Findings: results of a call's kernels for the host, which waits for them once.
//
// There is one row of int64 for each batch. Positions and ids are the lowest found, by atomicMin
// from the largest int64. A whole call may be queued before the host knows its findings, so the
// kernels that change rows or scores check them first.

#include "types.cuh"

#define NOTHING 0x7fffffffffffffffll
#define UNIQUE_COUNT 0
#define OUTSIDE 1     // position of a key outside its table
#define MISSING 2     // unique keys that have no slot
#define LARGE_SUM 3   // id whose scaled sum has a large element: the host then checks all sums
#define ACCESSES 4
#define HITS 5
#define REFUSED 6     // the index has no room for a key
#define FINDINGS 8

// Whether a call that was queued before the host knew its findings may be done: all keys have
// slots.
__device__ __forceinline__ bool may_go_on(const int64* findings) {
    return findings[MISSING] == 0 && findings[OUTSIDE] == NOTHING;
}

// As may_go_on, in a kernel that also copies the findings to `answer` for the host, unless it is
// null. `findings` may be null: all keys have slots.
__device__ __forceinline__ bool tells_and_may_go_on(const int64* findings, int64* answer) {
    if (findings == nullptr) {
        return true;
    }
    for (int64 i = thread_index(); answer && i < FINDINGS; i += thread_count()) {
        answer[i] = findings[i];
    }
    return may_go_on(findings);
}
