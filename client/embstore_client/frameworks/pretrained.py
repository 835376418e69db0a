"""Initial rows of a table that were trained elsewhere.

They are compared with the table's rows, and written where they differ: a program that runs again,
and the ranks of one, write nothing. A table that has been trained keeps its rows, so that a trainer
that is started again goes on where it was.
"""

import warnings
from collections.abc import Callable

import numpy as np

from embstore.arrays import Rows
from embstore.handles.table import Table
from embstore.layout import ELEMENT_BYTES

_BYTES = 1 << 24
"""The bytes of the rows of a call."""


def begin_with(table: Table, count: int, rows_of: Callable[[slice], Rows]) -> None:
    """Set the rows of the keys below `count`, unless the table was trained, which warns.

    Parameters
    ----------
    rows_of : returns some of them, (n, dim) float32
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
