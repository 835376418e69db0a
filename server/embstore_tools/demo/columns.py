"""The 26 categorical columns of Criteo Kaggle, each a table, and from hashes to keys.

A column's category is a 32-bit hash of the original value. Its key is that hash modulo the rows of
the column's table (the hashing trick), so tables can be smaller than the columns have categories:
CARDINALITIES are those of the published training set, 33.8 million rows in all, and a demo takes a
part of them. Small columns are left as they are, for a table of one row would carry nothing.

With sparse keys one table has all columns, each hashed as text with a seed of its own: this needs
no number of rows, and one call of each kernel. Its keys are the first column's, then the second's,
and so on.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from embstore.arrays import Keys
from embstore.hashing import hash_ids

CARDINALITIES = (
    *(1460, 583, 10131227, 2202608, 305, 24, 12517, 633, 3, 93145, 5683, 8351593, 3194),
    *(27, 14992, 5461306, 10, 5652, 2173, 4, 7046547, 18, 15, 286181, 105, 142572),
)
"""Categories of each column in Criteo Kaggle's training set."""
SPARSE_TABLE = "criteo/sparse"
ROWS_KEPT = 1000
"""Rows that a column keeps, if it has them, however far the others are scaled down."""


def scaled_rows(scale: float) -> tuple[int, ...]:
    """Return the rows of each column's table: its cardinality times `scale`, rounded down.

    A column of at most ROWS_KEPT categories keeps them all.
    """
    return tuple(max(min(c, ROWS_KEPT), int(c * scale)) for c in CARDINALITIES)


def table_name(column: int) -> str:
    """Return the name of the table of a column, counted from 0: "criteo/c01" is the first."""
    return f"criteo/c{column + 1:02d}"


def keys_by_table(categories: NDArray[Any], rows: tuple[int, ...]) -> dict[str, Keys]:
    """Return the keys by table name of `categories` (n, 26): (n,) of every column, int64 modulo
    `rows`; of text (26 * n,) of the table of sparse keys."""
    names = [table_name(column) for column in range(categories.shape[1])]
    if categories.dtype.kind == "S":
        hashes = [hash_ids(categories[:, column], feature=n) for column, n in enumerate(names)]
        return {SPARSE_TABLE: np.concatenate(hashes)}
    keys = categories % np.array(rows, np.int64)
    return {n: np.ascontiguousarray(keys[:, column]) for column, n in enumerate(names)}
