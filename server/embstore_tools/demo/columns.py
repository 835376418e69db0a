"""The 26 categorical columns of Criteo Kaggle, each of them a table, and the keys of categories.

A category in a column is a 32-bit hash of the original value. Its key is that hash modulo the
number of rows of the column's table (the hashing trick), so a table can have fewer rows than its
column has categories. CARDINALITIES are the numbers of categories in the published training set,
33.8 million in all. A demo's tables have a part of these rows. Tables of small columns keep all
their rows, because a table of one row would contain no information.

With sparse keys one table contains all columns, each hashed as text with a seed of its own. Such a
table needs no number of rows, and each kernel is called once. A batch has the keys of the first
column, then those of the second, and so on.
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
"""The number of categories of each column in Criteo Kaggle's training set."""
SPARSE_TABLE = "criteo/sparse"
ROWS_KEPT = 1000
"""A column with at most this many categories has a table with a row for each category. The table of
any other column has at least this many rows, whatever the scale."""


def scaled_rows(scale: float) -> tuple[int, ...]:
    """Return the rows of each column's table: its cardinality times `scale`, rounded down.

    A column of at most ROWS_KEPT categories keeps a row for each category.
    """
    return tuple(max(min(c, ROWS_KEPT), int(c * scale)) for c in CARDINALITIES)


def table_name(column: int) -> str:
    """Return the name of the table of a column, counted from 0: the first is "criteo/c01"."""
    return f"criteo/c{column + 1:02d}"


def keys_by_table(categories: NDArray[Any], rows: tuple[int, ...]) -> dict[str, Keys]:
    """Return the keys of `categories` (n, 26) by table name. If the categories are hashes, each
    column's table has keys (n,) int64, which are the hashes modulo `rows`. If the categories are
    text, the one table of sparse keys has keys (26 * n,)."""
    names = [table_name(column) for column in range(categories.shape[1])]
    if categories.dtype.kind == "S":
        hashes = [hash_ids(categories[:, column], feature=n) for column, n in enumerate(names)]
        return {SPARSE_TABLE: np.concatenate(hashes)}
    keys = categories % np.array(rows, np.int64)
    return {n: np.ascontiguousarray(keys[:, column]) for column, n in enumerate(names)}
