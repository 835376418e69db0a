"""One optimizer update of each row: contract.md rule 4 on rows[slots[i]] with g = sums[i] and the
scalars of the key's table (`table_of`); dirty[slots[i]] = 1.

Preconditions: keys, and therefore slots, are unique. A NaN that arises is written as 0x7fc00000.
One thread updates a row, in a fixed order over dim (rule 3 for formulas over a whole row). The
kernel can be split over i. The update of one row is in `embstore.arithmetic.compiled_update`.
"""

import numpy as np

from embstore.arithmetic import jit
from embstore.arithmetic.compiled import PARTIALS, row_at, table_of, values_at
from embstore.arithmetic.compiled_update import decayed, update_record
from embstore.arithmetic.jit import kernel, prefetch_to_write
from embstore.kernels.gather import AHEAD
from embstore.kernels.scatter import prefetch_record
from embstore.layout import VALUE_BYTES


@kernel
def apply(
    kind: jit.Int,  # of KINDS
    rows: jit.Rows,  # (slots, stride)
    slots: jit.Int64sIn,  # (m,), unique
    keys: jit.Int64sIn,  # (m,)
    key_mask: jit.Int,
    sums: jit.Float32RowsIn,  # (m, dim)
    scalars: jit.Float32RowsIn,  # (tables, 8)
    dirty: jit.Uint8s,  # (slots,)
    low: jit.Int,
    high: jit.Int,
) -> None:
    """Update the rows of slots[low:high]."""
    start, stride = rows.ctypes.data, rows.shape[1]
    sums_start, dim = sums.ctypes.data, sums.shape[1]
    scalars_start, columns = scalars.ctypes.data, scalars.shape[1]
    dirty_start = dirty.ctypes.data
    partials, room = np.empty(PARTIALS, np.float32), np.empty(dim, np.float32)
    for i in range(low, high):
        if i + AHEAD < high:
            prefetch_record(start, slots[i + AHEAD], stride)
            prefetch_to_write(dirty_start + slots[i + AHEAD])
        of_table = values_at(scalars_start, table_of(keys[i], key_mask), columns)
        record = row_at(start, slots[i], stride, stride)
        at = decayed(sums_start + i * dim * VALUE_BYTES, record, of_table, room)
        update_record(kind, record, values_at(at, 0, dim), of_table, partials)
        dirty[slots[i]] = 1
