"""The logged form of an update: one scaled sum for each key, for every form of gradients.

Gradients of occurrences or bags have several times as many bytes as their sums, and may be in the
device's memory. Therefore the sums that the device computed are logged (`writes.update`). A replay
applies these sums with a scale of 1, and gives the same bits.
"""

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np

from embstore import commands as c
from embstore.arrays import Keys, Rows
from embstore.commands import UpdateOptions
from embstore.row_keys import RowKeys
from embstore.tables.frame import Frame
from embstore.tables.state import Share, TableState
from embstore.tables.writes import Summed


def logging(frame: Frame, shares: Sequence[Share], options: UpdateOptions) -> Summed | None:
    """Return a function that logs the sums of the running call, which has passed LATER as its
    command. Return None if there is no command log."""
    if frame.log is None:
        return None

    def log(pools: list[tuple[RowKeys, Keys, Rows]]) -> None:
        parts = _by_table(pools)
        tables = tuple(_summed(share.table, parts) for share in shares)
        frame.logs(c.Update(tables, replace(options, gradient_scale=1.0)))

    return log


def _by_table(pools: list[tuple[RowKeys, Keys, Rows]]) -> dict[int, tuple[Keys, Rows]]:
    """Split the unique row keys and the sums of each pool by table; return {table id: (keys,
    sums)}."""
    found = {}
    for named, keys, sums in pools:
        ids = named.table_ids(keys)
        if (ids[1:] < ids[:-1]).any():
            order = np.argsort(ids, kind="stable")
            keys, sums, ids = keys[order], sums[order], ids[order]
        cuts = [0, *(np.flatnonzero(np.diff(ids)) + 1).tolist(), len(keys)]
        for low, high in pairwise(cuts):
            if low < high:
                found[int(ids[low])] = named.keys(keys[low:high]), sums[low:high]
    return found


def _summed(table: TableState, parts: dict[int, tuple[Keys, Rows]]) -> c.TableGradients:
    nothing = np.empty(0, np.int64), np.empty((0, table.dim), np.float32)
    return c.TableGradients(table.name, table.table_id, *parts.get(table.table_id, nothing))
