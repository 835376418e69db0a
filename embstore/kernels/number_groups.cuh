// Numbers for the groups of sorted items (group.cu): the ids, the beginning of each group, and for
// groups of slots the slot and its row key.

#include "findings.cuh"
#include "keys.cuh"
#include "radix_sort.cuh"
#include "slabs.cuh"
#include "tiles.cuh"
#include "types.cuh"

struct Groups {
    int32* ids;
    int64* starts;
    int64* unique_slots;  // or null: the values are ids
    int64* unique_keys;
    int64* findings;
};

// The arguments of the kernels.
struct Call {
    const uint64* slabs;
    int32 slab_shift, stride;
    const int32* values;
    uint32 n;
    int32 passes;
    uint32* progress;
    uint64* states;
    int32 *sorted_values, *positions;
    int32 *other_values, *other_positions;
    Groups groups;
};

template <int32 EACH>
__device__ __forceinline__ void number_tile(
    const Call& call, const Items& of, const Tile& tile) {
    const Groups& groups = call.groups;
    int32 values[EACH];
    uint32 firsts[EACH];
    UNROLLED(j, EACH) {
        const uint32 k = tile.begin + j * WARP_THREADS;
        values[j] = k < of.n ? __ldcg(of.values + k) : 0;
        const int32 before = k > 0 && k < of.n ? __ldcg(of.values + k - 1) : -1;
        firsts[j] = k < of.n && (values[j] < 0 || values[j] != before);
    }
    int32 id = flagged_before(call.states, DIGITS, tile.index, 2 * tile.phase, firsts) - 1;
    UNROLLED(half, 2) {
        const int32 low = half * (EACH / 2);
        int64 keys[EACH / 2];
        UNROLLED(j, EACH / 2) {
            const int32 slot = values[low + j];
            keys[j] = has_flag(firsts[low + j]) && groups.unique_slots && slot >= 0
                          ? __ldg(key_of(call.slabs, call.slab_shift, call.stride, slot)) : EMPTY_KEY;
        }
        UNROLLED(j, EACH / 2) {
            const uint32 k = tile.begin + (low + j) * WARP_THREADS, of_round = firsts[low + j];
            const int32 own = id + __popc(of_round & (lanes_before() << 1 | 1));
            id += __popc(of_round);
            if (k < of.n && groups.unique_slots) {
                groups.ids[k] = own;
            }
            if (has_flag(of_round)) {
                groups.starts[own] = k;
                if (groups.unique_slots) {
                    groups.unique_slots[own] = values[low + j], groups.unique_keys[own] = keys[j];
                }
            }
            if (k == of.n - 1) {
                groups.starts[own + 1] = of.n;
                groups.findings[UNIQUE_COUNT] = own + 1;
            }
        }
    }
}
