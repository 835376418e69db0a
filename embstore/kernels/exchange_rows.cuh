// Rows that change levels together (exchange.cu): the pieces of ROWS_TOGETHER pairs, in both
// directions, are loaded before the first is stored, so that the bus carries both directions at
// once.

#include "pieces.cuh"
#include "types.cuh"

#define ROWS_TOGETHER 4

// Exchanges the pieces of ROWS_TOGETHER pairs, from `begin` on. there[r] is null if a pair has no
// row of level two.
__device__ __forceinline__ void exchange_rows(
    element* const (&here)[ROWS_TOGETHER], element* const (&there)[ROWS_TOGETHER], int64 begin,
    int64 first_up, int64 first_down, const Group& group, int32 stride) {
    for (int32 d = group.lane * 4; d < stride; d += group.lanes * 4) {
        float4 up[ROWS_TOGETHER], down[ROWS_TOGETHER];
        UNROLLED(r, ROWS_TOGETHER) {
            if (there[r] != nullptr && begin + r >= first_up) {
                up[r] = load_four_once(there[r] + d);
            }
        }
        UNROLLED(r, ROWS_TOGETHER) {
            if (there[r] != nullptr && begin + r >= first_down) {
                down[r] = load_four_once(here[r] + d);
            }
        }
        UNROLLED(r, ROWS_TOGETHER) {
            if (there[r] != nullptr && begin + r >= first_down) {
                store_four(there[r] + d, down[r]);
            }
        }
        UNROLLED(r, ROWS_TOGETHER) {
            if (there[r] != nullptr && begin + r >= first_up) {
                store_four(here[r] + d, up[r]);
            }
        }
    }
}
