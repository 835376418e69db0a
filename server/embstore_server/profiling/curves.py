"""What is shown of a profile: figures by table, and how many accesses the top rows take."""

from math import ceil
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embstore.frequency.profile import Profile, TableProfile
from embstore_server.profiling.plots import Curve, Plot

TOP_SHARE = 0.01
_LEAST_SHARE = 1e-5
_POINTS = 101
_JSON_SHARES = (0.0001, 0.001, 0.01, 0.015, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)


def known_rows(table: TableProfile) -> int:
    """Return a table's rows, or where nobody said how many it has, the rows that were seen."""
    return table.rows or len(table.keys)


def table_facts(table: TableProfile) -> dict[str, Any]:
    """Return the figures of a table, as JSON knows them."""
    return {
        "rows": table.rows or None,
        "accesses": table.accesses,
        "distinct": len(table.keys),
        "error": table.error,
        "zipf_exponent": table.zipf_exponent(),
        "top_1_percent": table.top_share(ceil(TOP_SHARE * known_rows(table))),
        "coverage": {
            "rows": list(_JSON_SHARES),
            "accesses": table.coverage(_JSON_SHARES).tolist(),
        },
    }


def coverage_plot(profile: Profile, *, by_table: bool) -> Plot:
    """Return the share of accesses over the share of rows: of all tables, or of each as well."""
    shares = np.geomspace(_LEAST_SHARE, 1, _POINTS)
    curves = [Curve("all tables", shares, overall_coverage(profile, shares))]
    if by_table:
        curves += [
            Curve(name, shares, table.coverage(shares)) for name, table in profile.tables.items()
        ]
    return Plot("accesses by the most accessed rows", "share of rows", "of accesses", curves)


def overall_coverage(profile: Profile, shares: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the share of accesses (s,) that each share of all tables' rows takes, the top ones."""
    tables = profile.tables.values()
    counts = np.sort(np.concatenate([np.empty(0, np.int64), *(t.counts for t in tables)]))[::-1]
    sums = np.concatenate([[0], np.cumsum(counts, dtype=np.float64)])
    wanted = np.rint(shares * sum(map(known_rows, tables)))
    taken = sums[np.clip(wanted, 0, len(counts)).astype(np.int64)]
    return np.asarray(taken / max(1, sum(table.accesses for table in tables)))
