"""Initial rows of a table that were trained elsewhere.

The given rows are compared with the table's rows, and those that differ are written. A program that
runs again, or a second rank, therefore writes nothing. A table that has been trained keeps its
rows. So a trainer that is started again continues from the trained rows.
"""

import warnings
from collections.abc import Callable

import numpy as np

from embstore.arrays import Rows
from embstore.handles.table import Table
from embstore.layout import ELEMENT_BYTES

_BYTES = 1 << 24
"""The number of bytes of rows that are read or written per call."""


def begin_with(table: Table, count: int, rows_of: Callable[[slice], Rows]) -> None:
    """Set the rows of the keys below `count`. If the table was trained, warn and set nothing.

    Parameters
    ----------
    rows_of : returns the rows of a range of keys, (n, dim) float32
    """
    t = table.t
    if t:
        warnings.warn(
            f"table {table.name!r} keeps its rows, which {t} updates have trained: the weights "
            f"given are not used; store.table({table.name!r}).assign(ids, rows) overwrites rows",
            stacklevel=3,
        )
        return
    step = max(_BYTES // (table.dim * ELEMENT_BYTES), 1)
    for begin in range(0, count, step):
        part = slice(begin, min(begin + step, count))
        keys, rows = np.arange(part.start, part.stop), rows_of(part)
        if table.lookup(keys, admit=False).tobytes() != rows.tobytes():
            table.assign(keys, rows)
