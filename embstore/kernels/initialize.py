"""Records of rows that were never written (contract.md, rule 10). With t = the table of keys[i]
(`table_of`) and row = keys[i] & key_mask:

    rows[slots[i], d] = initializer of t at (seed of t, row, d)     d < dim
                        initial_state[t]                            dim <= d < dim + state_dim
                        0                                           the padding

The result depends only on the arguments, not on the split (over i) or on the order. Slots are
unique.
"""

import numpy as np

from embstore.arithmetic import jit
from embstore.arithmetic.compiled import (
    element_of,
    fill_normal,
    fill_uniform,
    row_at,
    table_of,
)
from embstore.arithmetic.jit import kernel

CONSTANT, UNIFORM, NORMAL = 0, 1, 2


@kernel
def initialize(
    rows: jit.Rows,  # (slots, stride)
    slots: jit.Int64sIn,  # (n,), unique
    keys: jit.Int64sIn,  # (n,)
    key_mask: jit.Int,
    kinds: jit.Int8sIn,  # (tables,), CONSTANT, UNIFORM or NORMAL
    values: jit.Float32RowsIn,  # (tables, 2): (value, 0), (low, high - low) or (mean, std)
    seeds: jit.Uint64sIn,  # (tables,)
    initial_state: jit.Float32sIn,  # (tables,)
    dim: jit.Int,
    state_dim: jit.Int,
    low: jit.Int,
    high: jit.Int,
) -> None:
    """Write the records of keys[low:high]."""
    start, stride = rows.ctypes.data, rows.shape[1]
    for i in range(low, high):
        slot, table = slots[i], table_of(keys[i], key_mask)
        row_key, seed = np.uint64(keys[i] & key_mask), seeds[table]
        row = row_at(start, slot, stride, dim)
        if kinds[table] == UNIFORM:
            fill_uniform(row, row_key, seed, values[table, 0], values[table, 1])
        elif kinds[table] == NORMAL:
            fill_normal(row, row_key, seed, values[table, 0], values[table, 1])
        else:
            row[:] = element_of(values[table, 0])
        record = row_at(start, slot, stride, stride)
        for d in range(dim, dim + state_dim):
            record[d] = element_of(initial_state[table])
        for d in range(dim + state_dim, stride):
            record[d] = element_of(np.float32(0.0))
