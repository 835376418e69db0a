"""Stats of a cluster, computed from the stats of all shards.

A client gets only the documents that the shards return, not the declarations of the stats
(`embstore.stats`). Numbers are added, except the few stats that are named below; a test compares
these names with the declarations. Rates are computed from the sums, as a mean of rates would favour
an idle shard. Stats that cannot be added are taken from the first shard.
"""

from collections.abc import Mapping
from typing import Any

PARTS = ("cache", "storage", "stages")
"""The parts of a store's stats, apart from tables, that are sums over shards. Sessions are not
added: each shard has all of them."""

ALIKE = {"rows", "dim", "learning_rate", "t", "row_bytes", "skipped_updates", "commit"}
"""Numbers that are not added: they are equal on all shards, or describe one shard alone."""

_ORIGINS = ("host", "log", "base", "initializer")
LABELS = ("dim", "optimizer")
"""The stats that identify a pool."""


def merged(found: list[dict[str, Any]], table: str) -> dict[str, Any]:
    """Return the stats of a table or, for "", of a store, from the stats of all shards."""
    if table:
        return _of_part(found)
    parts = {name: _of_part([one[name] for one in found]) for name in PARTS}
    tables = [one["tables"] for one in found]
    by_name = {name: _of_part([of[name] for of in tables if name in of]) for name in tables[0]}
    return found[0] | parts | {"tables": by_name}


def _of_part(found: list[dict[str, Any]]) -> dict[str, Any]:
    whole = {name: _value(name, value, found) for name, value in found[0].items()}
    return whole | {name: rate(whole) for name, rate in RATES.items() if name in whole}


def _value(name: str, first: Any, found: list[dict[str, Any]]) -> Any:
    given = [one[name] for one in found if name in one]
    if isinstance(first, dict) and name != "split":
        return _of_part(given)
    if name == "pools":
        return [_of_part([_of_layout(pool, pools) for pools in given]) for pool in first]
    is_count = isinstance(first, int | float) and not isinstance(first, bool)
    return sum(given) if is_count and name not in ALIKE | RATES.keys() else first


def _of_layout(pool: Mapping[str, Any], pools: list[dict[str, Any]]) -> dict[str, Any]:
    """Return a shard's pool of the same layout; {}: the shard has no such pool yet."""
    wanted = [pool[name] for name in LABELS]
    return next((one for one in pools if [one[name] for name in LABELS] == wanted), {})


def _of_pools(hits: str, keys: str) -> Any:
    """Return a function that computes a rate from the sums of one pool, or of all pools."""

    def rate(whole: Mapping[str, Any]) -> float | None:
        parts = whole.get("pools", [whole])
        return _share(sum(one[hits] for one in parts), sum(one[keys] for one in parts))

    return rate


def _share(count: float, whole: float) -> float | None:
    return count / whole if whole else None


def _host_hit_rate(whole: Mapping[str, Any]) -> float | None:
    pools = [one for one in whole.get("pools", [whole]) if one["evictions_host"]]
    misses = [sum(one[f"misses_{name}"] for name in _ORIGINS) for one in pools]
    return _share(sum(one["misses_host"] for one in pools), sum(misses))


def _hit_rate(table: Mapping[str, Any]) -> float | None:
    return _share(max(table["lookup_keys"] - table["missed_rows"], 0), table["lookup_keys"])


RATES: Mapping[str, Any] = {
    "hit_rate": _hit_rate,
    "access_hit_rate": _of_pools("access_hits", "accesses"),
    "unique_hit_rate": _of_pools("unique_hits", "unique_keys"),
    "host_hit_rate": _host_hit_rate,
    "occupancy": lambda pool: _share(pool["resident_rows"] - pool["host_rows"], pool["slots"]),
}
