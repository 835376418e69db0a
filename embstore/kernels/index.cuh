// The index of a cache, for reading: slot_of a key (probe.cu). insert.cu writes it.
//
// A key is in one of two buckets of 8 keys, 64 bytes each, or in the stash, which is short and
// mostly empty: bucket_keys and bucket_slots (bucket_count, 8), stash_keys and stash_slots (256,),
// stash_count (1,).

#include "keys.cuh"
#include "types.cuh"

// Keys per bucket of an index, 64 bytes.
#define BUCKET_WIDTH 8

// The two buckets of a key, which may be the same: each half of its mixed bits, scaled.
__device__ __forceinline__ void buckets_of(
    int64 key, int64 bucket_count, int64& first, int64& second) {
    uint64 h = mix(key);
    first = static_cast<int64>(((h >> 32) * static_cast<uint64>(bucket_count)) >> 32);
    second = static_cast<int64>(((h & 0xffffffffull) * static_cast<uint64>(bucket_count)) >> 32);
}

// The keys of a bucket, loaded 16 bytes at a time.
struct Bucket {
    longlong2 pairs[BUCKET_WIDTH / 2];
};

// Bit w is set if way w (the w-th place) of the bucket has the key.
__device__ __forceinline__ uint32 equal_ways(const Bucket& bucket, int64 key) {
    uint32 equal = 0;
    UNROLLED(pair, BUCKET_WIDTH / 2) {
        equal |= (bucket.pairs[pair].x == key ? 1u : 0u) << (2 * pair);
        equal |= (bucket.pairs[pair].y == key ? 2u : 0u) << (2 * pair);
    }
    return equal;
}

__device__ __forceinline__ Bucket load_bucket(const int64* bucket_keys, int64 bucket) {
    const longlong2* pairs =
        reinterpret_cast<const longlong2*>(bucket_keys + bucket * BUCKET_WIDTH);
    Bucket loaded;
    UNROLLED(pair, BUCKET_WIDTH / 2) {
        loaded.pairs[pair] = __ldg(pairs + pair);
    }
    return loaded;
}

// The slot of a key, -1 if it has none.
__device__ __forceinline__ int64 slot_of(
    const int64* bucket_keys, const uint32* bucket_slots, const int64 bucket_count,
    const int64* stash_keys, const uint32* stash_slots, const int64* stash_count, const int64 key) {
    int64 first, second;
    buckets_of(key, bucket_count, first, second);
    const Bucket one = load_bucket(bucket_keys, first);
    const Bucket other = load_bucket(bucket_keys, second);
    const uint32 equal = equal_ways(one, key) | equal_ways(other, key) << BUCKET_WIDTH;
    if (equal) {
        const int32 way = __ffs(equal) - 1;
        const int64 bucket = way < BUCKET_WIDTH ? first : second;
        return __ldg(bucket_slots + bucket * BUCKET_WIDTH + (way & (BUCKET_WIDTH - 1)));
    }
    int64 slot = -1;
    const int64 stashed = __ldg(stash_count);
    for (int64 place = 0; place < stashed; ++place) {
        if (__ldg(stash_keys + place) == key) {
            slot = __ldg(stash_slots + place);
        }
    }
    return slot;
}
