"""One optimizer update of each row: contract.md rule 4 on rows[slots[i]] with g = sums[i], the
scalars those of table keys[i] >> 40; dirty[slots[i]] = 1.

Preconditions: keys, hence slots, unique. A NaN that arises is written as 0x7fc00000. Every row is
updated by one thread, in a fixed order over dim (rule 3 for rowwise_adagrad). Split over i.
"""

import numpy as np

from embstore.arithmetic.compiled import (
    PARTIALS,
    row_at,
    update_adagrad,
    update_adam,
    update_rowwise_adagrad,
    update_sgd,
)
from embstore.arithmetic.jit import (
    Int,
    Int64sIn,
    Rows,
    RowsIn,
    Uint8s,
    kernel,
    prefetch_to_write,
)
from embstore.arrays import KEY_BITS
from embstore.kernels.gather import AHEAD
from embstore.kernels.scatter import prefetch_record

SGD, ADAGRAD, ROWWISE_ADAGRAD, ADAM = 0, 1, 2, 3
KINDS = {
    "sgd": SGD,
    "adagrad": ADAGRAD,
    "rowwise_adagrad": ROWWISE_ADAGRAD,
    "adam": ADAM,
}


@kernel
def apply(
    kind: Int,  # of KINDS
    rows: Rows,  # (slots, stride)
    slots: Int64sIn,  # (m,), unique
    keys: Int64sIn,  # (m,)
    sums: RowsIn,  # (m, dim)
    scalars: RowsIn,  # (tables, 8)
    dirty: Uint8s,  # (slots,)
    low: Int,
    high: Int,
) -> None:
    """Update the rows of [low, high)."""
    start, stride = rows.ctypes.data, rows.shape[1]
    sums_start, dim = sums.ctypes.data, sums.shape[1]
    scalars_start, columns = scalars.ctypes.data, scalars.shape[1]
    state_start, dirty_start = start + 4 * dim, dirty.ctypes.data
    partials = np.empty(PARTIALS, np.float32)
    for i in range(low, high):
        if i + AHEAD < high:
            prefetch_record(start, slots[i + AHEAD], stride)
            prefetch_to_write(dirty_start + slots[i + AHEAD])
        weights = row_at(start, slots[i], stride, dim)
        state = row_at(state_start, slots[i], stride, dim)
        g = row_at(sums_start, i, dim, dim)
        of_table = row_at(scalars_start, keys[i] >> KEY_BITS, columns, columns)
        if kind == SGD:
            update_sgd(weights, g, of_table)
        elif kind == ADAGRAD:
            update_adagrad(weights, state, g, of_table)
        elif kind == ROWWISE_ADAGRAD:
            update_rowwise_adagrad(weights, state, g, of_table, partials)
        else:
            v = row_at(state_start + 4 * dim, slots[i], stride, dim)
            update_adam(weights, state, v, g, of_table)
        dirty[slots[i]] = 1
