"""Writing records to slots: rows[slots[i], d] = canonical(source[i, d]), d < stride; -1 is skipped.

Bits are copied, except that every NaN becomes 0x7fc00000. Only this kernel and `apply` write values
from outside to rows, so a row never contains a NaN with other bits (contract.md, rule 1). Slots are
unique, except for -1. The kernel can be split over i.
"""

from embstore.arithmetic import jit
from embstore.arithmetic.compiled import canonical, element_of, row_at, value_of
from embstore.arithmetic.jit import building_block, kernel, prefetch_to_write
from embstore.kernels.gather import AHEAD
from embstore.layout import ELEMENT_BYTES


@building_block
def prefetch_record(start: int, slot: int, stride: int) -> None:
    """Prefetch the cache lines of a record, for writing."""
    record = start + slot * stride * ELEMENT_BYTES
    for line in range(0, stride * ELEMENT_BYTES, 64):
        prefetch_to_write(record + line)


@kernel
def scatter_rows(
    source: jit.RowsIn,  # (n, stride)
    rows: jit.Rows,  # (slots, stride)
    slots: jit.Int64sIn,  # (n,), unique but for -1
    low: jit.Int,
    high: jit.Int,
) -> None:
    """Write the records of source[low:high]."""
    source_start, start, stride = source.ctypes.data, rows.ctypes.data, rows.shape[1]
    for i in range(low, high):
        if i + AHEAD < high:
            prefetch_record(start, slots[i + AHEAD], stride)
        if slots[i] < 0:
            continue
        value = row_at(source_start, i, stride, stride)
        record = row_at(start, slots[i], stride, stride)
        for d in range(stride):
            record[d] = element_of(canonical(value_of(value[d])))
