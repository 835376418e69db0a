// Row keys (embstore/row_keys.py): which table a row is of, and the bits by which tables of keys find it.

#include "types.cuh"

#define KEY_BITS 40
#define KEY_MASK ((1ll << KEY_BITS) - 1)
#define EMPTY_KEY (-1ll)

// The number of a row key's table, by which the parameters of a pool's tables are; `mask` has the
// key's bits (embstore/row_keys.py).
__device__ __forceinline__ long long table_of(long long row_key, long long mask) {
    return (row_key & ~mask) >> KEY_BITS;
}

// Whether a table has a key, both unsigned.
__device__ __forceinline__ bool is_inside(long long key, long long row_count) {
    return static_cast<unsigned long long>(key) < static_cast<unsigned long long>(row_count);
}

// 64 bits, each of which depends on every bit of the key (MurmurHash3's fmix64); one to one.
__device__ __forceinline__ uint64 mix(int64 key) {
    uint64 h = static_cast<uint64>(key);
    h = (h ^ (h >> 33)) * 0xff51afd7ed558ccdull;
    h = (h ^ (h >> 33)) * 0xc4ceb9fe1a85ec53ull;
    return h ^ (h >> 33);
}
