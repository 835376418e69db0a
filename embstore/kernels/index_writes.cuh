// Writes of keys into the index (insert.cu): concurrently with other threads, into a free place of
// two buckets; and alone, if both are full, by moving another key out, or into the stash.

#include "index.cuh"
#include "keys.cuh"
#include "types.cuh"

#define STASH_KEYS 256

struct Index {
    int64* bucket_keys;
    uint32* bucket_slots;
    int64 bucket_count;
    int64* stash_keys;
    uint32* stash_slots;
    int64* stash_count;
};

// As equal_ways, for a bucket to which other threads write.
__device__ __forceinline__ uint32 equal_ways(const int64* bucket_keys, int64 bucket, int64 key) {
    return equal_ways(
        *reinterpret_cast<const Bucket*>(bucket_keys + bucket * BUCKET_WIDTH), key);
}

// The place of one of 16 ways: the ways of the first bucket, then those of the second.
__device__ __forceinline__ int64 place_of_way(int64 first, int64 second, int32 way) {
    const int64 bucket = way < BUCKET_WIDTH ? first : second;
    return bucket * BUCKET_WIDTH + (way & (BUCKET_WIDTH - 1));
}

// Inserts a key, concurrently with other threads. False: both buckets are full.
__device__ __forceinline__ bool insert_beside(
    int64* bucket_keys, uint32* bucket_slots, int64 bucket_count, int64 key, int64 slot) {
    int64 first, second;
    buckets_of(key, bucket_count, first, second);
    uint32 free = equal_ways(bucket_keys, first, EMPTY_KEY);
    free |= equal_ways(bucket_keys, second, EMPTY_KEY) << BUCKET_WIDTH;
    while (free) {
        const uint32 in_first = free & ((1u << BUCKET_WIDTH) - 1);
        const uint32 in_second = free ^ in_first;
        const int32 way = __ffs(__popc(in_second) > __popc(in_first) ? in_second : in_first) - 1;
        const int64 place = place_of_way(first, second, way);
        uint64* entry = reinterpret_cast<uint64*>(bucket_keys + place);
        const uint64 empty = static_cast<uint64>(EMPTY_KEY);
        if (atomicCAS(entry, empty, static_cast<uint64>(key)) == empty) {
            bucket_slots[place] = static_cast<uint32>(slot);
            return true;
        }
        free ^= 1u << way;
    }
    return false;
}

__device__ __forceinline__ void append(
    int64* rest, int64* rest_count, int64 rest_capacity, int64 item) {
    const uint64 at = atomicAdd(reinterpret_cast<uint64*>(rest_count), 1ull);
    if (at < static_cast<uint64>(rest_capacity)) {
        rest[at] = item;
    }
}

// Moves a key of a full bucket to its other bucket; returns its place, now free, or -1.
__device__ __forceinline__ int64 move_one_out(const Index& index, int64 bucket) {
    for (int64 place = bucket * BUCKET_WIDTH; place < (bucket + 1) * BUCKET_WIDTH; ++place) {
        const int64 key = index.bucket_keys[place];
        int64 first, second;
        buckets_of(key, index.bucket_count, first, second);
        const int64 other = first == bucket ? second : first;
        const uint32 free = equal_ways(index.bucket_keys, other, EMPTY_KEY);
        if (free) {
            const int64 target = other * BUCKET_WIDTH + __ffs(free) - 1;
            index.bucket_keys[target] = key;
            index.bucket_slots[target] = index.bucket_slots[place];
            return place;
        }
    }
    return -1;
}

// Inserts, alone, a key whose buckets are both full. False: the stash is full too.
__device__ __forceinline__ bool insert_alone(const Index& index, int64 key, int64 slot) {
    int64 first, second;
    buckets_of(key, index.bucket_count, first, second);
    int64 place = move_one_out(index, first);
    if (place < 0) {
        place = move_one_out(index, second);
    }
    if (place >= 0) {
        index.bucket_keys[place] = key;
        index.bucket_slots[place] = static_cast<uint32>(slot);
        return true;
    }
    const int64 stashed = *index.stash_count;
    if (stashed == STASH_KEYS) {
        return false;
    }
    index.stash_keys[stashed] = key;
    index.stash_slots[stashed] = static_cast<uint32>(slot);
    *index.stash_count = stashed + 1;
    return true;
}
