"""Records of rows never written: contract.md rule 10, of table t = keys[i] >> 40 and row keys[i] &
(2**40 - 1):

    rows[slots[i], d] = initializer of t at (seed of t, row, d)     d < dim
                        initial_state[t]                            dim <= d < dim + state_dim
                        0                                           the padding

A pure function of its arguments, whatever the split (over i) and the order. Slots are unique.
"""

import numpy as np

from embstore.arithmetic.compiled import fill_normal, fill_uniform, row_at
from embstore.arithmetic.jit import (
    Float32sIn,
    Int,
    Int8sIn,
    Int64sIn,
    Rows,
    RowsIn,
    Uint64sIn,
    kernel,
)
from embstore.arrays import KEY_BITS, KEY_MASK

CONSTANT, UNIFORM, NORMAL = 0, 1, 2


@kernel
def initialize(
    rows: Rows,  # (slots, stride)
    slots: Int64sIn,  # (n,), unique
    keys: Int64sIn,  # (n,)
    kinds: Int8sIn,  # (tables,), CONSTANT, UNIFORM or NORMAL
    values: RowsIn,  # (tables, 2): (value, 0), (low, high - low) or (mean, std)
    seeds: Uint64sIn,  # (tables,)
    initial_state: Float32sIn,  # (tables,)
    dim: Int,
    state_dim: Int,
    low: Int,
    high: Int,
) -> None:
    """Write the records of keys[low:high]."""
    start, stride = rows.ctypes.data, rows.shape[1]
    for i in range(low, high):
        slot, table = slots[i], keys[i] >> KEY_BITS
        row_key, seed = np.uint64(keys[i] & KEY_MASK), seeds[table]
        row = row_at(start, slot, stride, dim)
        if kinds[table] == UNIFORM:
            fill_uniform(row, row_key, seed, values[table, 0], values[table, 1])
        elif kinds[table] == NORMAL:
            fill_normal(row, row_key, seed, values[table, 0], values[table, 1])
        else:
            row[:] = values[table, 0]
        record = row_at(start, slot, stride, stride)
        for d in range(dim, dim + state_dim):
            record[d] = initial_state[table]
        for d in range(dim + state_dim, stride):
            record[d] = np.float32(0.0)
