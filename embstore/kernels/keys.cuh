// Row keys (embstore/row_keys.py): the table of a row key, and the hash by which the index and
// other hash tables find it.

#include "types.cuh"

#define KEY_BITS 40
#define KEY_MASK ((1ll << KEY_BITS) - 1)
#define EMPTY_KEY (-1ll)

// The number of a row key's table, the index of the table's parameters; `mask` has the bits of the
// key (embstore/row_keys.py).
__device__ __forceinline__ long long table_of(long long row_key, long long mask) {
    return (row_key & ~mask) >> KEY_BITS;
}

// Whether a key is inside its table; both are unsigned.
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
