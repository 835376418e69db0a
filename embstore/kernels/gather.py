"""Copies of rows.

    gather        outs[s][p - bounds[s], d] = rows[slots[inverse[p]], d]     d < dim, p of segment s
    gather_rows   out[i, d]                 = rows[slots[i], d]              d < stride
    copy_slots    targets[places[i], d]     = rows[slots[i], d]              d < stride

Where the slot is -1, the output is left alone; copy_slots has none. Bits are copied, NaNs included.
Split over p, or over i.
"""

from embstore.arithmetic import jit
from embstore.arithmetic.compiled import copy_row, load_row, row_at, values_at
from embstore.arithmetic.jit import building_block, kernel, prefetch
from embstore.layout import ELEMENT_BYTES, VALUE_BYTES

AHEAD = 16
"""Rows between the one in work and the one asked for. 8 to 24 measured alike; 4 took half as long
again on rows from memory."""


@building_block
def prefetch_row(start: int, index: int, stride: int, dim: int) -> None:
    """Ask for the cache lines of the first `dim` elements of a row."""
    row = start + index * stride * ELEMENT_BYTES
    for line in range(0, dim * ELEMENT_BYTES, 64):
        prefetch(row + line)


@building_block
def prefetch_values(start: int, index: int, dim: int) -> None:
    """Ask for the cache lines of the (dim,) values that `values_at` returns."""
    values = start + index * dim * VALUE_BYTES
    for line in range(0, dim * VALUE_BYTES, 64):
        prefetch(values + line)


@kernel
def gather(
    rows: jit.RowsIn,  # (slots, stride)
    slots: jit.Int64sIn,  # (u,)
    inverse: jit.Int32sIn,  # (n,)
    bounds: jit.Int64sIn,  # (segments + 1,)
    out_addresses: jit.Int64sIn,  # (segments,), each (positions of the segment, dim) float32
    dim: jit.Int,
    low: jit.Int,
    high: jit.Int,
) -> None:
    """Copy the rows of positions [low, high)."""
    start, stride = rows.ctypes.data, rows.shape[1]
    for segment in range(out_addresses.shape[0]):
        shift, out_start = bounds[segment], out_addresses[segment]
        for position in range(max(low, shift), min(high, bounds[segment + 1])):
            if position + AHEAD < high:
                prefetch_row(start, slots[inverse[position + AHEAD]], stride, dim)
            slot = slots[inverse[position]]
            if slot >= 0:
                out = values_at(out_start, position - shift, dim)
                load_row(out, row_at(start, slot, stride, dim))


@kernel
def gather_rows(
    rows: jit.RowsIn,  # (slots, stride)
    slots: jit.Int64sIn,  # (n,)
    out: jit.Rows,  # (n, stride)
    low: jit.Int,
    high: jit.Int,
) -> None:
    """Copy the records of slots[low:high]."""
    start, out_start, stride = rows.ctypes.data, out.ctypes.data, rows.shape[1]
    for i in range(low, high):
        if i + AHEAD < high:
            prefetch_row(start, slots[i + AHEAD], stride, stride)
        if slots[i] >= 0:
            record = row_at(start, slots[i], stride, stride)
            copy_row(row_at(out_start, i, stride, stride), record)


@kernel
def copy_slots(
    rows: jit.RowsIn,  # (slots, stride)
    slots: jit.Int64sIn,  # (n,)
    targets: jit.Rows,  # (other slots, stride)
    places: jit.Int64sIn,  # (n,), unique
    low: jit.Int,
    high: jit.Int,
) -> None:
    """Copy the records of slots[low:high] to slots of another pool."""
    start, target_start, stride = rows.ctypes.data, targets.ctypes.data, rows.shape[1]
    for i in range(low, high):
        if i + AHEAD < high:
            prefetch_row(start, slots[i + AHEAD], stride, stride)
        record = row_at(start, slots[i], stride, stride)
        copy_row(row_at(target_start, places[i], stride, stride), record)
