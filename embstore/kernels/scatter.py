"""Records into slots: rows[slots[i], d] = canonical(source[i, d]), d < stride; -1 is passed over.

Bits are copied, but any NaN becomes 0x7fc00000: together with `apply` this is all that writes
values from outside, so no row ever holds another NaN (contract.md, rule 1). It is done on the bits,
since moving a float32 through arithmetic could change a NaN's payload. Slots are unique but
for -1. Split over i.
"""

import numpy as np

from embstore.arithmetic.jit import (
    Int,
    Int64sIn,
    Rows,
    RowsIn,
    Uint32s,
    building_block,
    carray,
    kernel,
    pointer_at,
    prefetch_to_write,
)
from embstore.kernels.gather import AHEAD

_NAN = np.uint32(0x7FC00000)
_MAGNITUDE = np.uint32(0x7FFFFFFF)
_INFINITY = np.uint32(0x7F800000)


@building_block
def prefetch_record(start: int, slot: int, stride: int) -> None:
    """Ask for the cache lines of a record, to write."""
    record = start + slot * stride * 4
    for line in range(0, stride * 4, 64):
        prefetch_to_write(record + line)


@building_block
def _bits_at(start: int, index: int, stride: int) -> Uint32s:
    bits: Uint32s = carray(pointer_at(start + index * stride * 4), stride, np.uint32)
    return bits


@kernel
def scatter_rows(
    source: RowsIn,  # (n, stride)
    rows: Rows,  # (slots, stride)
    slots: Int64sIn,  # (n,), unique but for -1
    low: Int,
    high: Int,
) -> None:
    """Write the records of source[low:high]."""
    source_start, start, stride = source.ctypes.data, rows.ctypes.data, rows.shape[1]
    for i in range(low, high):
        if i + AHEAD < high:
            prefetch_record(start, slots[i + AHEAD], stride)
        if slots[i] < 0:
            continue
        value, record = _bits_at(source_start, i, stride), _bits_at(start, slots[i], stride)
        for d in range(stride):
            bits = value[d]
            record[d] = _NAN if np.uint32(bits & _MAGNITUDE) > _INFINITY else bits
