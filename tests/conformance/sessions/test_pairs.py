"""Planner, window, cache, ranks, optimizer, policy and device against each other, pair by pair.

Every two levels of two factors meet in at least one run. In each run a random trace is trained
through a session, with delays at every stage boundary; every looked-up row, every t and the digests
in the end are the dense reference's.
"""

from functools import cache
from itertools import combinations, product
from typing import Any

import numpy as np
import pytest

from embstore.config import Uniform
from embstore.profiles.hotset import HotSet
from embstore.profiles.profile import Profile, TableProfile
from tests.conformance.cases import OPTIMIZERS, generator
from tests.conformance.sessions.delayed import Delayed, DelayedEmulated
from tests.conformance.sessions.training import (
    Plan,
    assert_always_hit,
    expect,
    random_trace,
    train,
)
from tests.conformance.traces import smallest_cache
from tests.conformance.twin import digests
from tests.reference import ReferenceStore

Run = dict[str, Any]
"""A level for every factor, or for some."""
FACTORS = {
    "planner": ("per_step", "group:4", "window"),
    "lookahead": (1, 2, 8, 64, 300),
    "cache": ("smallest", "5 %", "30 %", "whole", "below a step"),
    "ranks": (1, 2, 4),
    "optimizer": tuple(OPTIMIZERS),
    "policy": ("lru", "lfu", "rank"),
    "device": ("cpu", "emulated"),
    "trace": tuple(range(8)),
}
DEVICES = {"cpu": Delayed, "emulated": DelayedEmulated}
SHARES = {"smallest": 0.0, "5 %": 0.05, "30 %": 0.3, "whole": 1.0, "below a step": 0.0}
ROWS = 3000
SLOT_BYTES = 160
"""At least what a row of these tables takes of a cache, its share of the index with it."""


def pairs_of(run):
    """Return all pairs of (factor, level) that meet in a run."""
    return set(combinations(sorted(run.items(), key=lambda item: list(FACTORS).index(item[0])), 2))


def pairwise():
    """Return runs in which all pairs meet: each takes a pair that is left, and then, factor by
    factor, the level that covers most of what is left, of equals the one used least."""
    left = {
        ((f, x), (g, y))
        for f, g in combinations(FACTORS, 2)
        for x, y in product(FACTORS[f], FACTORS[g])
    }
    runs = []
    used = dict.fromkeys(((f, x) for f in FACTORS for x in FACTORS[f]), 0)
    while left:
        run = dict(min(left, key=str))
        for factor in FACTORS:
            if factor not in run:
                gains = {
                    x: (-len(pairs_of(run | {factor: x}) & left), used[factor, x])
                    for x in FACTORS[factor]
                }
                run[factor] = min(FACTORS[factor], key=gains.__getitem__)
        left -= pairs_of(run)
        runs.append({factor: run[factor] for factor in FACTORS})
        for item in run.items():
            used[item] += 1
    return runs


RUNS = pairwise()


def tables_of(optimizer):
    """Return two tables that share a pool, and one of another layout."""
    usual = {"rows": ROWS, "optimizer": OPTIMIZERS[optimizer], "initializer": Uniform(-0.5, 0.5)}
    return {name: usual | {"dim": dim} for name, dim in (("a", 12), ("b", 12), ("c", 5))}


@cache
def expected(optimizer, ranks, large, trace):
    """Return a trace, its answers and the digests after it."""
    tables, reference = tables_of(optimizer), ReferenceStore()
    for name, config in tables.items():
        reference.create_table(name, **config)
    rng = generator(700 + trace)
    if large:
        steps = random_trace(rng, tables, 5, ranks=ranks, draws_max=300 // ranks, is_wide=True)
    else:
        steps = random_trace(rng, tables, 32, ranks=ranks, draws_max=120 // ranks)
    return steps, expect(reference, steps), digests(reference)


def random_profile(rng):
    """Return a profile by which half of the rows have a rank."""
    tables = {}
    for name in "abc":
        keys = np.flatnonzero(rng.random(ROWS) < 0.5)
        counts = rng.integers(1, 100, len(keys))
        tables[name] = TableProfile(name, ROWS, keys, counts, int(counts.sum()))
    return Profile(tables)


def cache_bytes(backend, tables, run):
    """Return a budget that has room for a run's share of the rows."""
    rows = sum(config["rows"] for config in tables.values())
    return smallest_cache(backend, tables) + int(SHARES[run["cache"]] * rows * SLOT_BYTES)


@pytest.mark.parametrize("run", RUNS, ids=lambda run: "-".join(map(str, run.values())))
def test_trains_as_the_dense_reference(tmp_path, run):
    tables = tables_of(run["optimizer"])
    large = run["cache"] == "below a step"
    steps, answers, wanted = expected(run["optimizer"], run["ranks"], large, run["trace"])
    backend = DEVICES[run["device"]](tmp_path)
    backend.seed = RUNS.index(run)
    size = cache_bytes(backend, tables, run)
    store = backend.open_store(cache_bytes=size, policy=run["policy"], threads=2)
    for name, config in tables.items():
        store.create_table(name, **config)
    plan = Plan(
        tuple(tables),
        planner=run["planner"],
        lookahead=run["lookahead"],
        ranks=run["ranks"],
        seed=backend.seed,
    )
    if run["policy"] == "rank":
        store.import_profile(random_profile(generator(backend.seed)))
        store.pin_hot_set(HotSet({name: np.arange(0, 30, 3) for name in ("a", "c")}))
    facts = train(store, plan, steps, answers)
    assert digests(store) == wanted
    store.check_integrity()
    assert any(point.startswith("lookahead:") for point in backend.delays.points)
    if large:
        assert facts["steps_in_parts"] > 0
    elif run["cache"] in ("30 %", "whole"):
        assert_always_hit(facts)
    elif facts["steps_in_parts"] == 0:
        assert facts["lookup_hits"] == facts["lookup_keys"]
    backend.close()
