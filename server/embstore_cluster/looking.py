"""The statistics that shards report: the number of rows of each shard, and its commands per second.

A rate is the difference of two readings, so measuring it takes `LOOK_S`. **Skew** is the largest
value of any shard divided by the mean over the shards: 1 if all shards have equal values. A cluster
is as fast as its busiest shard.
"""

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from time import monotonic, sleep
from typing import Any

from embstore.errors import EmbstoreError
from embstore_client.connecting import connect_one

LOOK_S = 1.0
_SKEWED = "rows_resident", "bytes", "keys_per_s"
NOTHING: dict[str, Any] = dict.fromkeys(
    ("command", "tables", "rows_resident", "bytes", "commands_per_s", "keys_per_s")
)
"""The entry of a shard that did not answer: all values are None."""


def look(addresses: Mapping[int, str], connecting: Mapping[str, Any]) -> dict[int, dict[str, Any]]:
    """Return the statistics of each shard, by the shard's number.

    Returns
    -------
    For each shard: `tables`, `rows_resident`, `bytes` on disk, and `command`, the number of the
    last command. Two values are measured over one second: `commands_per_s`, and `keys_per_s` of
    lookups. The values are None for a shard that did not answer; `error` is the reason.
    """
    with ThreadPoolExecutor(len(addresses) or 1) as threads:
        ask = partial(_asked, connecting=connecting)
        return dict(zip(addresses, threads.map(ask, addresses.values()), strict=True))


def _asked(address: str, connecting: Mapping[str, Any]) -> dict[str, Any]:
    try:
        with connect_one(address, wait=False, **connecting) as store:
            first, began = store.stats(), monotonic()
            sleep(LOOK_S)
            stats, seconds = store.stats(), monotonic() - began
    except EmbstoreError as exc:
        return {**NOTHING, "error": str(exc)}
    storage, tables = stats["storage"], stats["tables"]
    return {
        "command": stats["command"],
        "tables": len(tables),
        "rows_resident": sum(table["resident_rows"] for table in tables.values()),
        "bytes": storage["log_bytes"] + storage["base_bytes"],
        "commands_per_s": max(stats["command"] - first["command"], 0) / seconds,
        "keys_per_s": max(_keys(stats) - _keys(first), 0) / seconds,
    }


def _keys(stats: dict[str, Any]) -> int:
    return sum(int(table["lookup_keys"]) for table in stats["tables"].values())


def skew(shards: Sequence[Mapping[str, Any]]) -> dict[str, float | None]:
    """Return the skew of each statistic, by name. None: a shard did not answer, or all values are
    zero."""
    found: dict[str, float | None] = {}
    for name in _SKEWED:
        values = [shard[name] for shard in shards]
        is_known = None not in values and sum(values) > 0
        found[name] = max(values) * len(values) / sum(values) if is_known else None
    return found
