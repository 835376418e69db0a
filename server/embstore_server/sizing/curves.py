# ruff: noqa: RUF009 - the calls declare fields
"""Hit rates by size of the cache, for each layout of rows of a running store.

A **curve** is the share of the counted accesses that a pool's cache would have hit, at sizes from a
ten-thousandth of the pool's rows to all rows, and at the cache's present size. There is a curve for
each policy, so that the present policy can be compared with the others. A curve is a prediction
(prediction.py), from recorded calls if the store has recorded some. A cache of two levels has, in
both levels together, as many hits as one cache with the size of both; with LRU this is exact.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from embstore.cache.policies import POLICIES
from embstore.profiles.profile import Profile
from embstore.stats import gauge, text
from embstore_server.sizing.prediction import hit_rates
from embstore_server.sizing.sizes import host_rows, layout_of_bytes, level_bytes, looked_at

_EVERY = 2
"""One in this number of the usual sizes is predicted, because the server has other work."""


@dataclass
class Curve:
    """The hit rates of one layout's pool by its size."""

    dim: int = gauge("Elements of a row's weights.")
    optimizer: str = text("Kind of optimizer.", default="")
    tables: list[str] = text("Tables whose rows share the pool.", default=())
    method: str = text("recorded: calls were simulated; counted: from counts alone.", default="")
    calls: int = gauge("Recorded calls that were simulated. A row's first use is a miss in them.")
    slots_now: int = gauge("Rows that the pool has room for now.")
    slots: list[int] = text("Sizes of the pool in rows, ascending; slots_now among them.")
    cache_bytes: list[int] = text(
        "The budget that each size needs, if the pool has it alone; with keys of level two's rows."
    )
    policies: dict[str, list[float]] = text("Share of accesses that hit at each size, by policy.")
    host_rows: list[int] = text("Rows that level two, on the host, has room for at each size.")
    both: dict[str, list[float]] = text(
        "Share of accesses that find their row in one of both levels, by policy."
    )


def curves(profile: Profile, stats: Mapping[str, Any]) -> list[Curve]:
    """Return the curve of each layout whose tables have counted accesses. Any thread.

    Parameters
    ----------
    profile : the counts of the store
    stats : the stats of the store (`embstore.engine.stats`)
    """
    found = []
    for pool in stats["cache"]["pools"]:
        tables = {
            name: table
            for name, table in stats["tables"].items()
            if (table["dim"], table["optimizer"]) == (pool["dim"], pool["optimizer"])
            and name in profile.tables
            and profile.tables[name].accesses
        }
        if tables:
            found.append(_curve(profile, pool, tables, stats["cache"]))
    return found


def _curve(
    profile: Profile, pool: Mapping[str, Any], tables: Mapping[str, Any], cache: Mapping[str, Any]
) -> Curve:
    rows = sum(table["rows"] for table in tables.values())
    now = max(1, int(pool["slots"]))
    slots = np.unique(np.append(looked_at(rows)[::_EVERY], [min(now, rows), rows]))
    row_bytes = next(iter(tables.values()))["row_bytes"]
    layout, names = layout_of_bytes(row_bytes), list(tables)
    host_bytes = pool["host_slots"] * row_bytes
    host_bytes += max(cache["host_budget_bytes"] - cache["host_memory_bytes"], 0)
    below = host_rows(row_bytes, host_bytes, rows - slots)
    sizes = np.union1d(slots, slots + below)
    predicted = {policy: hit_rates(profile, sizes, policy, tables=names) for policy in POLICIES}
    levels = {
        policy: [rates.at(of).by_access.tolist() for of in (slots, slots + below)]
        for policy, rates in predicted.items()
    }
    return Curve(
        dim=pool["dim"],
        optimizer=pool["optimizer"],
        tables=names,
        method=next(iter(predicted.values())).method,
        calls=profile.trace.calls if profile.trace is not None else 0,
        slots_now=min(now, rows),
        slots=slots.tolist(),
        cache_bytes=level_bytes(layout, slots, below).tolist(),
        policies={policy: one for policy, (one, _) in levels.items()},
        host_rows=below.tolist(),
        both={policy: both for policy, (_, both) in levels.items()},
    )
