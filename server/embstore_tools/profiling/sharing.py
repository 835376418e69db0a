"""Estimates how many hashed ids share rows, if a hash spreads n ids evenly over N rows.

    rows that have an id       N * (1 - (1 - 1/N)**n)
    share of ids that share    1 - (1 - 1/N)**(n - 1), about 1 - e**(-n/N)
    their row with another id

A profile has counted rows, and the first formula, solved for n, gives the number of ids. The closer
the number of counted rows is to N, the less exact is the result.
"""

from math import expm1, log1p
from typing import Any

from embstore.profiles.profile import TableProfile


def rows_of_ids(ids: float, rows: int) -> float:
    """Return the expected number of rows that `ids` ids use."""
    return -rows * expm1(ids * log1p(-1 / rows)) if rows > 1 else min(ids, 1)


def ids_of_rows(used: int, rows: int) -> float | None:
    """Return the expected number of ids that use `used` of `rows` rows. None: all rows are used, so
    the number of ids is unknown."""
    return log1p(-used / rows) / log1p(-1 / rows) if used < rows and rows > 1 else None


def share_with_others(ids: float, rows: int) -> float:
    """Return the expected share of ids that share their row with another id."""
    return rows_of_ids(max(ids - 1, 0), rows) / rows


def hashed_facts(table: TableProfile) -> dict[str, Any]:
    """Return the stats of a table's ids as JSON values. None: there are too many ids to estimate
    their number, or the profile has not kept all of the table's rows."""
    ids = None if table.error else ids_of_rows(len(table.keys), table.rows)
    sharing = None if ids is None else share_with_others(ids, table.rows)
    return {"ids": None if ids is None else round(ids), "ids_sharing_a_row": sharing}
