"""The number of accesses of a call, and how many of them hit.

count_accesses, over the positions p whose id is in [low, high): the number of accesses, and the
number of accesses with slots[inverse[p] - low] >= 0. A position stands for counts[p] accesses.
"""

import numpy as np

from embstore.arithmetic.jit import Int, Int32sIn, Int64s, Int64sIn, kernel


@kernel
def count_accesses(
    inverse: Int32sIn,  # (n,)
    slots: Int64sIn,  # (high - low,)
    low: Int,
    high: Int,
    counts: Int64sIn,  # (n,), or (0,) for 1 each
    result: Int64s,  # (2,): accesses, and how many hit
) -> None:
    """Write `result`."""
    accesses, hits = 0, 0
    for position in range(inverse.shape[0]):
        id = np.int64(inverse[position])
        if low <= id < high:
            count = counts[position] if counts.shape[0] else 1
            accesses += count
            hits += count * (slots[id - low] >= 0)
    result[0], result[1] = accesses, hits
