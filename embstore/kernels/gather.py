"""Copies of rows.

    gather        outs[s][p - bounds[s], d] = rows[slots[inverse[p]], d]     d < dim, p of segment s
    gather_rows   out[i, d]                 = rows[slots[i], d]              d < stride
    copy_slots    targets[places[i], d]     = rows[slots[i], d]              d < stride
    look_up       outs[s][p - bounds[s], d] = rows[slot of the key at p, d]  d < dim, p of segment s

Where the slot is -1, the output is unchanged; copy_slots gets no -1. Bits are copied, even the bits
of NaNs. All kernels except look_up can be split over p or i.

look_up does the work of unique, probe, touch and gather for a small call in one kernel, without
making keys unique. When a key occurs again, its cache lines are in the processor's cache, and its
slot already has the call's clock, so the slot is touched only once. If a key is outside its table
or has no slot, or if its row is pending, look_up does nothing. In CUDA three kernels correspond to
look_up: locate (probe.cu), touch_once (scores.cu) and gather.
"""

import numpy as np

from embstore.arithmetic import jit
from embstore.arithmetic.compiled import copy_row, load_row, row_at, values_at
from embstore.arithmetic.jit import (
    building_block,
    carray,
    kernel,
    pointer_at,
    prefetch,
    prefetch_to_write,
)
from embstore.arrays import KEY_BITS
from embstore.kernels.probe import BLOCK_KEYS, probe_block
from embstore.kernels.scores import touched
from embstore.kernels.unique import first_outside
from embstore.layout import ELEMENT_BYTES, VALUE_BYTES
from embstore.score import CLOCK_MASK, FORESEEN

AHEAD = 16
"""The distance in rows between a row in use and the row that is prefetched. Distances from 8 to 24
took equal times; with rows in memory a distance of 4 took 1.5 times as long."""


@building_block
def prefetch_row(start: int, index: int, stride: int, dim: int) -> None:
    """Prefetch the cache lines of the first `dim` elements of a row."""
    row = start + index * stride * ELEMENT_BYTES
    for line in range(0, dim * ELEMENT_BYTES, 64):
        prefetch(row + line)


@building_block
def prefetch_values(start: int, index: int, dim: int) -> None:
    """Prefetch the cache lines of the (dim,) values that `values_at` returns."""
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


@kernel
def look_up(
    bucket_keys: jit.Int64RowsIn,  # the index, as in probe
    bucket_slots: jit.Uint32RowsIn,
    stash_keys: jit.Int64sIn,
    stash_slots: jit.Uint32sIn,
    stash_count: jit.Int64sIn,
    scores: jit.Int64s,  # (slots,)
    rows: jit.RowsIn,  # (slots, stride)
    key_addresses: jit.Int64sIn,  # (segments,), of which two may be of one table
    bounds: jit.Int64sIn,  # (segments + 1,)
    table_ids: jit.Int64sIn,  # (segments,)
    row_counts: jit.Int64sIn,  # (segments,)
    out_addresses: jit.Int64sIn,  # (segments,), each (positions of the segment, dim) float32
    dim: jit.Int,
    clock: jit.Int,  # no score has it yet; 0: scores do not change
    counting: jit.Int,
    slots: jit.Int64s,  # (n,) scratch
) -> int:
    """Return how many slots were touched, or -1 if nothing was done."""
    seconds, places = np.empty(BLOCK_KEYS, np.int64), np.empty(BLOCK_KEYS, np.int64)
    start, stride, scores_start = rows.ctypes.data, rows.shape[1], scores.ctypes.data
    for segment in range(key_addresses.shape[0]):
        shift = bounds[segment]
        count = bounds[segment + 1] - shift
        keys = carray(pointer_at(key_addresses[segment]), count, np.int64)
        prefix = table_ids[segment] << KEY_BITS
        for begin in range(0, count, BLOCK_KEYS):
            end = min(begin + BLOCK_KEYS, count)
            if first_outside(keys, begin, end, row_counts[segment]) >= 0:
                return -1
            absent = probe_block(
                bucket_keys, bucket_slots, stash_keys, stash_slots, stash_count, keys, prefix,
                begin, end, slots, shift, places, seconds,
            )  # fmt: skip
            if absent:
                return -1
            for i in range(shift + begin, shift + end):
                prefetch_to_write(scores_start + slots[i] * 8)
            for i in range(shift + begin, shift + end):
                if scores[slots[i]] < 0:
                    return -1
    first = 0
    for segment in range(key_addresses.shape[0]):
        shift, end, out_start = bounds[segment], bounds[segment + 1], out_addresses[segment]
        for position in range(shift, end):
            if position + AHEAD < end:
                prefetch_row(start, slots[position + AHEAD], stride, dim)
            slot = slots[position]
            score = scores[slot]
            if clock and (score & FORESEEN or score & CLOCK_MASK != clock):
                scores[slot] = touched(score, clock, counting)
                first += 1
            load_row(values_at(out_start, position - shift, dim), row_at(start, slot, stride, dim))
    return first
