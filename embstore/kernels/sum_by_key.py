"""The scaled sum of each id's gradients: sums[id] = scale * (the rule 2 sum over its occurrences).

Occurrence p of segment s, with i = p - bounds[s] and `Gradients` of that segment, adds

    rows[i]                               source absent
    rows[source[i]]                       form PLAIN
    coefficients[i] * rows[source[i]]     form WEIGHTED, the product rounded
    rows[source[i]] / coefficients[i]     form DIVIDED, the quotient rounded

in the order of positions[starts[id]:starts[id + 1]]. Sums are multiplied by the scale even if the
scale is 1. The result is -1, or the lowest id whose scaled sum has an element of `sums.LARGE` or
more; in that case `sums.unaccepted` checks all sums (rule 9). One test after the scaling is enough:
an infinite or NaN sum that is multiplied by a finite factor stays infinite or NaN (inf * 0 is NaN).

The kernel can be split over ids. One thread computes the whole sum of an id, even if half of the
batch's occurrences are of this id.
"""

from typing import Any

import numpy as np

from embstore.arithmetic import jit
from embstore.arithmetic.compiled import (
    CHUNK_OCCURRENCES,
    DIVIDED,
    PLAIN,
    WEIGHTED,
    add_to_sum,
    scale_row,
    start_sum,
    values_at,
)
from embstore.arithmetic.jit import carray, kernel, pointer_at
from embstore.kernels.gather import AHEAD, prefetch_values


def form_of(coefficients: Any, divide: bool) -> int:
    """Return the form of a segment's occurrences: PLAIN, WEIGHTED or DIVIDED."""
    if coefficients is None:
        return PLAIN
    return DIVIDED if divide else WEIGHTED


def columns_of(gradients: Any) -> tuple[Any, Any, Any, int]:
    """Return the fields of a segment's `Gradients`: rows, source, coefficients, form."""
    form = form_of(gradients.coefficients, gradients.divide)
    return gradients.rows, gradients.source, gradients.coefficients, form


@kernel
def sum_by_key(
    starts: jit.Int64sIn,  # (u + 1,)
    positions: jit.Int32sIn,  # (n,)
    bounds: jit.Int64sIn,  # (segments + 1,)
    id_bounds: jit.Int64sIn,  # (segments + 1,)
    row_addresses: jit.Int64sIn,  # (segments,), each (rows of the segment, dim) float32
    source_addresses: jit.Int64sIn,  # (segments,), each (its positions,) int32; 0: absent
    coefficient_addresses: jit.Int64sIn,  # (segments,), each (its positions,) float32; 0 with PLAIN
    forms: jit.Int8sIn,  # (segments,), PLAIN, WEIGHTED or DIVIDED
    scale: jit.Float32,
    sums: jit.Float32Rows,  # (u, dim)
    low: jit.Int,
    high: jit.Int,
) -> int:
    """Write sums[low:high]; return the lowest of these ids whose sum has a large element, or -1."""
    dim = sums.shape[1]
    sums_start = sums.ctypes.data
    chunk = np.empty(dim, np.float32)
    large = -1
    for segment in range(row_addresses.shape[0]):
        shift = bounds[segment]
        size = bounds[segment + 1] - shift
        begin, end = max(low, id_bounds[segment]), min(high, id_bounds[segment + 1])
        start = row_addresses[segment]
        source = carray(pointer_at(source_addresses[segment]), size, np.int32)
        coefficients = carray(pointer_at(coefficient_addresses[segment]), size, np.float32)
        has_source, form = source_addresses[segment] != 0, int(forms[segment])
        coefficient = np.float32(1.0)
        end_of_segment = starts[end] if begin < end else 0
        for id in range(begin, end):
            first, last = starts[id], starts[id + 1]
            total = values_at(sums_start, id, dim)
            for chunk_first in range(first, last, CHUNK_OCCURRENCES):
                part = total if chunk_first == first else chunk
                for k in range(chunk_first, min(chunk_first + CHUNK_OCCURRENCES, last)):
                    if k + AHEAD < end_of_segment:
                        ahead = np.int64(positions[k + AHEAD]) - shift
                        prefetch_values(start, source[ahead] if has_source else ahead, dim)
                    i = np.int64(positions[k]) - shift
                    value = values_at(start, source[i] if has_source else i, dim)
                    if form != PLAIN:
                        coefficient = coefficients[i]
                    if k == chunk_first:
                        start_sum(part, value, coefficient, form)
                    else:
                        add_to_sum(part, value, coefficient, form)
                if chunk_first != first:
                    add_to_sum(total, chunk, coefficient, PLAIN)
            if not scale_row(total, scale) and large < 0:
                large = id
    return large
