// Findings: what the kernels of a call find out, for the one time that the host waits.
//
// int64 each, one row of them for each batch. Positions and ids are the lowest, by atomicMin from the
// largest int64. A call may be queued whole before the host knows them: the kernels that change
// anything ask here first.

#include "types.cuh"

#define NOTHING 0x7fffffffffffffffll
#define UNIQUE_COUNT 0
#define OUTSIDE 1     // position of a key outside its table
#define MISSING 2     // unique keys that have no slot
#define LARGE_SUM 3   // id whose scaled sum has a large element: the host looks at all sums
#define ACCESSES 4
#define HITS 5
#define REFUSED 6     // the index has no room for a key
#define FINDINGS 8

// Whether a call that was queued before the host knew may be done: all of its keys are there.
__device__ __forceinline__ bool may_go_on(const int64* findings) {
    return findings[MISSING] == 0 && findings[OUTSIDE] == NOTHING;
}

// may_go_on, of a kernel that also copies what the host is told, unless answer is null; findings may
// be null: all is there.
__device__ __forceinline__ bool tells_and_may_go_on(const int64* findings, int64* answer) {
    if (findings == nullptr) {
        return true;
    }
    for (int64 i = thread_index(); answer && i < FINDINGS; i += thread_count()) {
        answer[i] = findings[i];
    }
    return may_go_on(findings);
}
