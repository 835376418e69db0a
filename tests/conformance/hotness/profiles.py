"""What the cases of profiles, warming and hot sets have in common."""

import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import Any

import numpy as np

from embstore.profiles.profile import Profile, TableProfile
from embstore.score import CLOCK_BITS, COUNT_MAX
from tests.conformance.cases import config, engine_of, normal, ones
from tests.conformance.sessions.training import PATIENCE_S
from tests.conformance.twin import Twin

SMALL_BYTES, LARGE_BYTES = 256 << 10, 5 << 18
"""Of caches: room for some thousand rows, of which a hot set takes a few pieces, and four times
that."""
ROWS = 20_000
NARROW, WIDE = config(dim=8, rows=ROWS), config(dim=16, rows=ROWS)


def profile(**tables: Any) -> Profile:
    """Return the profile of tables whose key k was accessed counts[k] times.

    Counts are an array, of as many rows as the table has, or a mapping.
    """
    made = {}
    for name, counts in tables.items():
        rows = 0 if isinstance(counts, Mapping) else len(counts)
        if not rows:
            keys, counts = (np.array([*part], np.int64) for part in (counts, counts.values()))
        else:
            keys = np.flatnonzero(counts)
            counts = np.asarray(counts, np.int64)[keys]
        made[name] = TableProfile(name, rows, keys, counts, int(counts.sum()))
    return Profile(made)


def falling(rows: int) -> Any:
    """Return counts by which lower keys are more frequent."""
    return np.arange(rows, 0, -1)


def train(twin: Twin, name: str, rng: Any, calls: int = 30) -> None:
    """Update random rows of a table of dim 4."""
    for _ in range(calls):
        keys = rng.integers(0, twin.rows[name], 100)
        twin.on(name, "update", keys, normal(rng, 100, 4))


def fill(twin: Twin, name: str) -> None:
    """Have a table's pool take the slabs that there are, and give some rows other bits."""
    twin.store.table(name).lookup(np.arange(ROWS))
    dim = twin.reference.table(name).config.dim
    twin.on(name, "update", np.arange(0, ROWS, 37), ones(-(-ROWS // 37), dim))


def is_pinned(store: Any, version: int, rows: int) -> bool:
    """Say whether so many rows are pinned, and are of the set of that version."""
    stats = store.stats()["frequency"]["hot_set"]
    return (stats["version"], stats["pinned_rows"]) == (version, rows)


def ended(call: Callable[[], Any]) -> Any:
    """Return what a call returns, or raise what it raises; one that does not end is an error."""
    return begun(call).result(PATIENCE_S)


def begun(call: Callable[[], Any]) -> "Future[Any]":
    """Begin a call in a thread of its own."""
    done: Future[Any] = Future()

    def run() -> None:
        try:
            done.set_result(call())
        except BaseException as exc:
            done.set_exception(exc)

    threading.Thread(target=run, daemon=True).start()
    return done


def resident(store: Any) -> tuple[Any, Any]:
    """Return the row keys in the pool of table "a", and the counts in their slots."""
    here = engine_of(store).tables.find("a").pool.slots.contents()
    keys, counts = here.keys[here.keys >= 0], here.scores[here.keys >= 0] >> CLOCK_BITS
    return keys, counts & COUNT_MAX


def first_count(store: Any, count: int, accesses: int) -> int:
    """Return the count that a profile gives to a row of table "a": under LFU by the slots of its
    pool, of which sparse keys have fewer at first, else its level."""
    pool = engine_of(store).tables.find("a").pool
    if not pool.policy.counts_touches:
        return count
    return int(pool.policy.first_counts(np.array([count]), accesses, pool.slots.count)[0])


def level_of_key_0(store: Any) -> int:
    """Return the level that the pool of table "a" goes by, -1 without any."""
    table = engine_of(store).tables.find("a")
    levels = table.pool.ranks.tables.get(table.table_id)
    return -1 if levels is None else int(levels.of(np.array([0]))[0])
