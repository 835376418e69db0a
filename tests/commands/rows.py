"""Rows of results, compared."""

from typing import Any

import numpy as np

from embstore.results import ScannedRows
from embstore.values import same


def same_rows(found: Any, *expected: Any) -> None:
    """Compare rows bit by bit."""
    assert len(found) == len(expected)
    assert all(map(same, found, expected))


def in_order(rows: ScannedRows) -> ScannedRows:
    """Return all rows of a scan of sparse keys by ascending key, unsigned, as int64s do not say."""
    keys = rows.keys.view(np.uint64)
    order = np.argsort(keys)
    state = None if rows.state is None else rows.state[order]
    found = rows.rows[order] if len(rows.rows) else rows.rows  # of deleted keys there are none
    return ScannedRows(keys[order], found, state)
