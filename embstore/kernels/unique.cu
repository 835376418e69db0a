// Unique keys of a call.
//
//     row_key[p]      = prefixes[s] | keys[p], bounds[s] <= p < bounds[s + 1]
//     unique_keys[id] = the id-th distinct row key in order of first occurrence
//     inverse[p]      = the id with unique_keys[id] = row_key[p]
//
// Three passes:
//
//     unique_enter    enters every key into a hash table of place_count entries, together with the
//                     lowest position that has it; places[p] = the key's entry
//     unique_number   the id of an entry = the number of entries whose lowest position precedes its
//                     own
//     unique_inverse  inverse[p] = the id of p's entry
//
// A hot key, some percent of a batch, must cost reads, and not atomics that queue at one address.
// So an entry is claimed only if it was read as empty, and its first position is lowered only if a
// higher one was read. The first read may return an old copy from the multiprocessor's own cache,
// which atomics bypass. An old copy is sufficient if it ends the work (a key, once written, stays;
// positions only fall); else the entry is read again, bypassing that cache.
//
// If the caller knows that keys are distinct and in range, there is one pass, and ids are
// positions:
//
//     encode  unique_keys[p] = row_key[p]
//
// Grid: in each round a thread takes PER_THREAD positions, a whole grid apart, whose loads are in
// flight together; n / (PER_THREAD * BLOCK_THREADS) blocks are one round. An entry is 16 bytes:
// key, first position and id, so that a pass reads one sector of it. There are half as many entries
// more than positions: for a million positions 25 MB, which fit in the L2 cache.
//
// Preconditions: each prefix occurs once, and no row key is EMPTY_KEY; n < place_count < 2^32, so
// that probing ends; all bits of the table are ones: EMPTY_KEY, and a first position above every
// other. A key outside [0, row_counts[s]) is noted in findings[OUTSIDE] and entered as key 0 of its
// table, so that the kernels after it stay in bounds; the results are unusable in this case.
// Deterministic: the entry of a key depends on the order of threads, but the results do not.
// CPU twin: unique.py. Bytes for n positions, u of them the first of a key: 124 n + 40 u, of which
// 96 n + 32 u are 32-byte sectors of the table, which stay in the L2 cache; and 16 per entry to
// fill the table.

#include "findings.cuh"
#include "keys.cuh"
#include "segments.cuh"
#include "tiles.cuh"
#include "types.cuh"

#define PER_THREAD 4

// Fields of an entry.
__device__ __forceinline__ int64* key_at(int64* table, int64 place) {
    return table + 2 * place;
}

__device__ __forceinline__ uint32* first_at(int64* table, int64 place) {
    return reinterpret_cast<uint32*>(table + 2 * place + 1);
}

__device__ __forceinline__ uint32* id_at(int64* table, int64 place) {
    return first_at(table, place) + 1;
}

// Find `key`'s entry, or make it, searching from `place` on, whose key was read as `seen`.
__device__ __forceinline__ int64 enter(
    int64* table, int64 place_count, int64 place, int64 seen, int64 key) {
    for (int64 step = 0; step < place_count; ++step) {
        if (seen == EMPTY_KEY) {
            seen = fresh(key_at(table, place));
        }
        if (seen == EMPTY_KEY) {
            uint64* entry = reinterpret_cast<uint64*>(key_at(table, place));
            seen = static_cast<int64>(
                atomicCAS(entry, static_cast<uint64>(EMPTY_KEY), static_cast<uint64>(key)));
        }
        if (seen == key || seen == EMPTY_KEY) {
            break;
        }
        place = place + 1 < place_count ? place + 1 : 0;
        seen = *key_at(table, place);
    }
    return place;
}

extern "C" __global__ void __launch_bounds__(BLOCK_THREADS) unique_enter(
    const int64* __restrict__ keys,        // (n,), segment after segment
    const int64* __restrict__ bounds,      // (segments + 1,)
    const int64* __restrict__ prefixes,    // (segments,), table id << KEY_BITS
    const int64* __restrict__ row_counts,  // (segments,)
    const int32 segments,
    const int64 n,
    int64* table,  // (place_count, 2)
    const int64 place_count,
    uint32* __restrict__ places,  // (n,) out
    int64* findings) {
    const int64 step = thread_count();
    for (int64 begin = thread_index(); begin < n; begin += PER_THREAD * step) {
        int64 row_keys[PER_THREAD], entries[PER_THREAD], seen[PER_THREAD];
        UNROLLED(j, PER_THREAD) {
            const int64 i = begin + j * step;
            row_keys[j] = i < n ? __ldg(keys + i) : 0;
        }
        UNROLLED(j, PER_THREAD) {
            const int64 i = begin + j * step;
            if (i < n) {
                const int32 segment = segment_of(bounds, segments, i);
                int64 key = row_keys[j];
                if (!is_inside(key, __ldg(row_counts + segment))) {
                    if (fresh(findings + OUTSIDE) > i) {
                        atomicMin(findings + OUTSIDE, i);
                    }
                    key = 0;
                }
                row_keys[j] = __ldg(prefixes + segment) | key;
            }
            entries[j] = static_cast<int64>(((mix(row_keys[j]) >> 32) * place_count) >> 32);
        }
        UNROLLED(j, PER_THREAD) {
            seen[j] = *key_at(table, entries[j]);
        }
        UNROLLED(j, PER_THREAD) {
            const int64 i = begin + j * step;
            if (i < n) {
                const int64 place = enter(table, place_count, entries[j], seen[j], row_keys[j]);
                uint32* first = first_at(table, place);
                const uint32 position = static_cast<uint32>(i);
                if (*first > position && fresh(first) > position) {
                    atomicMin(first, position);
                }
                places[i] = static_cast<uint32>(place);
            }
        }
    }
}

extern "C" __global__ void __launch_bounds__(BLOCK_THREADS) unique_number(
    int64* __restrict__ table,          // (place_count, 2), ids written where there is a key
    const uint32* __restrict__ places,  // (n,)
    const int64 n,
    int64* __restrict__ unique_keys,  // (n,) out, unique count are written
    int64* __restrict__ findings,
    uint64* progress) {  // (1 + tiles,), zero
    number_flagged(
        n, progress, findings + UNIQUE_COUNT,
        [&](uint32 i) { return *first_at(table, __ldg(places + i)) == i; },
        [&](uint32 i, int32 id) {
            const uint32 entry = __ldg(places + i);
            *id_at(table, entry) = static_cast<uint32>(id);
            unique_keys[id] = *key_at(table, entry);
        });
}

extern "C" __global__ void __launch_bounds__(BLOCK_THREADS) unique_inverse(
    int64* __restrict__ table,          // (place_count, 2)
    const uint32* __restrict__ places,  // (n,)
    const int64 n,
    int32* __restrict__ inverse) {  // (n,) out
    const int64 step = thread_count();
    for (int64 begin = thread_index(); begin < n; begin += PER_THREAD * step) {
        int32 ids[PER_THREAD];
        UNROLLED(j, PER_THREAD) {
            const int64 i = begin + j * step;
            ids[j] = i < n ? static_cast<int32>(__ldg(id_at(table, __ldg(places + i)))) : 0;
        }
        UNROLLED(j, PER_THREAD) {
            const int64 i = begin + j * step;
            if (i < n) {
                inverse[i] = ids[j];
            }
        }
    }
}

extern "C" __global__ void __launch_bounds__(BLOCK_THREADS) encode(
    const int64* __restrict__ keys,      // (n,), segment after segment
    const int64* __restrict__ bounds,    // (segments + 1,)
    const int64* __restrict__ prefixes,  // (segments,), table id << KEY_BITS
    const int32 segments,
    const int64 n,
    int64* __restrict__ unique_keys) {  // (n,) out
    for (int64 i = thread_index(); i < n; i += thread_count()) {
        unique_keys[i] = __ldg(prefixes + segment_of(bounds, segments, i)) | __ldg(keys + i);
    }
}
