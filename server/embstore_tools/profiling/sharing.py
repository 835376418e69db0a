"""How many hashed ids share rows, where a hash spreads n ids evenly over N rows.

    rows that some id has      N * (1 - (1 - 1/N)**n)
    share of ids that have     1 - (1 - 1/N)**(n - 1), about 1 - e**(-n/N)
    their row with another

A profile has counted rows. How many ids these are is what the first line says, read backwards; the
nearer to all rows they come, the less it tells.
"""

from math import expm1, log1p
from typing import Any

from embstore.profiles.profile import TableProfile


def rows_of_ids(ids: float, rows: int) -> float:
    """Return how many rows some ids have, as is to be expected."""
    return -rows * expm1(ids * log1p(-1 / rows)) if rows > 1 else min(ids, 1)


def ids_of_rows(used: int, rows: int) -> float | None:
    """Return how many ids have `used` of some rows, as is to be expected; None: those of all rows
    may be any number."""
    return log1p(-used / rows) / log1p(-1 / rows) if used < rows and rows > 1 else None


def share_with_others(ids: float, rows: int) -> float:
    """Return the share of ids that have their row with another, as is to be expected."""
    return rows_of_ids(max(ids - 1, 0), rows) / rows


def hashed_facts(table: TableProfile) -> dict[str, Any]:
    """Return what is known of the ids of a table, as JSON knows it; None: too many to be told, or
    not all of its rows were kept."""
    ids = None if table.error else ids_of_rows(len(table.keys), table.rows)
    sharing = None if ids is None else share_with_others(ids, table.rows)
    return {"ids": None if ids is None else round(ids), "ids_sharing_a_row": sharing}
