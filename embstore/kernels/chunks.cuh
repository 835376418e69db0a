// The occurrences of an id, cut into chunks of CHUNK_OCCURRENCES (sum_by_key.cu): the chunk of a
// position, the row that is added there, and the extra chunk that begins in a window of positions.

#include "segments.cuh"
#include "types.cuh"

struct Chunk {
    int32 id, first;  // first: 0 if no chunk begins in the window
};

// The extra chunk that begins in a window of positions, if any.
__device__ __forceinline__ Chunk chunk_in(
    const int32* sorted_ids, const int64* starts, int64 n, int64 window) {
    const int64 low = window * CHUNK_OCCURRENCES, high = min(low + CHUNK_OCCURRENCES, n);
    const int64 last_id = __ldg(sorted_ids + high - 1), begin = __ldg(starts + last_id);
    const int64 first = begin + (high - 1 - begin) / CHUNK_OCCURRENCES * CHUNK_OCCURRENCES;
    if (first >= low && first > begin) {
        return {static_cast<int32>(last_id), static_cast<int32>(first)};
    }
    const int64 id = __ldg(sorted_ids + low), start = __ldg(starts + id);
    const int64 chunks = (low - start + CHUNK_OCCURRENCES - 1) / CHUNK_OCCURRENCES;
    const int64 next = start + chunks * CHUNK_OCCURRENCES;
    const bool is_here = next > start && next < min(high, __ldg(starts + id + 1));
    return {static_cast<int32>(id), is_here ? static_cast<int32>(next) : 0};
}

// The occurrence at a position, as found by the lane of this position.
struct Occurrence {
    const float* row;    // null: there is none
    float coefficient;
    int32 form;
    uint32 stop;         // of the chunk
    int32 target;        // row of `more` or `sums` for its sum; -1: it is not stored
    bool is_first, is_last, is_extra, is_all;  // of the chunk; c > 0; it is all of its id
};

__device__ __forceinline__ int32 id_at(const int32* sorted_ids, uint32 k) {
    return sorted_ids ? __ldg(sorted_ids + k) : static_cast<int32>(k);
}

// The chunk that contains position k of the order.
__device__ __forceinline__ Occurrence chunk_at(
    const int64* starts, const int32* sorted_ids, int32 keeps_all, uint32 k) {
    const int32 id = id_at(sorted_ids, k);
    const uint32 start = static_cast<uint32>(__ldg(starts + id));
    const uint32 end = static_cast<uint32>(__ldg(starts + id + 1));
    const uint32 before = (k - start) / CHUNK_OCCURRENCES * CHUNK_OCCURRENCES;
    const uint32 first = start + before, stop = min(end, first + CHUNK_OCCURRENCES);
    const bool is_extra = before > 0, is_stored = keeps_all || end - start > 1;
    const int64 target = is_extra ? first / CHUNK_OCCURRENCES : place_of_sum(keeps_all, id, start);
    return {nullptr, 1.0f, PLAIN, stop, is_stored ? static_cast<int32>(target) : -1, k == first,
            k + 1 == stop, is_extra, end - start <= CHUNK_OCCURRENCES};
}

// Finds the row that is added at position k.
__device__ __forceinline__ void find_row(
    const int32* positions, const int64* of_segments, int32 segments, int32 dim, uint32 k,
    Occurrence& own) {
    const int32 position = __ldg(positions + k);
    const int32 segment = segments > 1 ? segment_of(of_segments, segments, position) : 0;
    const Occurrences of = occurrences_in(of_segments, segments, segment);
    const int32 index = position - of.shift;
    const int64 row = of.source ? __ldg(of.source + index) : index;
    own.form = of.form;
    own.coefficient = of.form == PLAIN ? 1.0f : __ldg(of.coefficients + index);
    own.row = of.rows + row * dim;
}
