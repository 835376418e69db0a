"""The number of hashed ids that share rows, where a hash spreads n ids evenly over N rows.

    rows that some id has      N * (1 - (1 - 1/N)**n)
    share of ids that have     1 - (1 - 1/N)**(n - 1), about 1 - e**(-n/N)
    their row with another

A profile has counted rows. The first line, solved for n, gives the number of ids; the nearer the
counted rows are to all rows, the less exact it is.
"""

from math import expm1, log1p
from typing import Any

from embstore.profiles.profile import TableProfile


def rows_of_ids(ids: float, rows: int) -> float:
    """Return the expected number of rows of `ids` ids."""
    return -rows * expm1(ids * log1p(-1 / rows)) if rows > 1 else min(ids, 1)


def ids_of_rows(used: int, rows: int) -> float | None:
    """Return the expected number of ids that have `used` of `rows` rows; None: all rows are used,
    by any number of ids."""
    return log1p(-used / rows) / log1p(-1 / rows) if used < rows and rows > 1 else None


def share_with_others(ids: float, rows: int) -> float:
    """Return the expected share of ids that share their row with another."""
    return rows_of_ids(max(ids - 1, 0), rows) / rows


def hashed_facts(table: TableProfile) -> dict[str, Any]:
    """Return the figures of a table's ids, as JSON; None: too many to be estimated, or not all of
    its rows were kept."""
    ids = None if table.error else ids_of_rows(len(table.keys), table.rows)
    sharing = None if ids is None else share_with_others(ids, table.rows)
    return {"ids": None if ids is None else round(ids), "ids_sharing_a_row": sharing}
