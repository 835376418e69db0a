"""Pooled rows: out[b] = the rule 2 sum over i in [offsets[b], offsets[b + 1]) of

    rows[slots[inverse[i]]]                  sum
    weights[i] * rows[slots[inverse[i]]]     weighted sum, each product rounded

and, for mean, the sum divided by fp32(offsets[b + 1] - offsets[b]). An empty bag gives zeros; a NaN
is written as 0x7fc00000 (contract.md, rules 1, 2, 8). No slot is -1. The kernel can be split over
bags: one thread sums the rows of a bag, in the order of their positions.
"""

import numpy as np

from embstore.arithmetic import jit
from embstore.arithmetic.compiled import (
    CHUNK_OCCURRENCES,
    PLAIN,
    WEIGHTED,
    add_to_sum,
    canonical,
    row_at,
    start_sum,
    values_at,
)
from embstore.arithmetic.jit import kernel
from embstore.kernels.gather import AHEAD, prefetch_row


@kernel
def gather_pooled(
    rows: jit.RowsIn,  # (slots, stride)
    slots: jit.Int64sIn,  # (u,)
    inverse: jit.Int32sIn,  # (n,)
    offsets: jit.Int64sIn,  # (bags + 1,)
    mean: jit.Bool,
    weights: jit.Float32sIn,  # (n,), or (0,) for none
    out: jit.Float32Rows,  # (bags, dim)
    low: jit.Int,
    high: jit.Int,
) -> None:
    """Write out[low:high]."""
    dim, stride = out.shape[1], rows.shape[1]
    start, out_start = rows.ctypes.data, out.ctypes.data
    chunk = np.empty(dim, np.float32)
    form = WEIGHTED if weights.shape[0] else PLAIN
    coefficient = np.float32(1.0)
    end = offsets[high]
    for bag in range(low, high):
        first, last = offsets[bag], offsets[bag + 1]
        pooled = values_at(out_start, bag, dim)
        if first == last:
            pooled[:] = np.float32(0.0)
            continue
        for chunk_first in range(first, last, CHUNK_OCCURRENCES):
            part = pooled if chunk_first == first else chunk
            for i in range(chunk_first, min(chunk_first + CHUNK_OCCURRENCES, last)):
                if i + AHEAD < end:
                    prefetch_row(start, slots[inverse[i + AHEAD]], stride, dim)
                if form == WEIGHTED:
                    coefficient = weights[i]
                value = row_at(start, slots[inverse[i]], stride, dim)
                if i == chunk_first:
                    start_sum(part, value, coefficient, form)
                else:
                    add_to_sum(part, value, coefficient, form)
            if chunk_first != first:
                add_to_sum(pooled, chunk, coefficient, PLAIN)
        divisor = np.float32(last - first)
        if mean:
            for d in range(dim):
                pooled[d] = pooled[d] / divisor
        for d in range(dim):
            pooled[d] = canonical(pooled[d])
