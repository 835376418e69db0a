"""admit=False: evaluation reads around the cache and leaves no trace in it."""

import numpy as np
import pytest

from tests.conformance.cases import assert_same, config, generator, normal, steady

ROWS = 20_000
"""Of 64 elements: twenty times what the cache holds."""


@pytest.fixture
def twin(open_twin):
    """A full cache, part of it dirty, with some rows in the log."""
    twin, rng = open_twin(cache_bytes=256 << 10, a=config(dim=64, rows=ROWS)), generator(13)
    for _ in range(4):
        keys = rng.integers(0, ROWS, 400)
        twin.on("a", "update", keys, normal(rng, 400, 64))
    return twin


def cache(twin):
    stats = twin.store.stats()
    pools = [*map(steady, stats["cache"]["pools"])]
    tables = stats["tables"].items()
    if stats["cache"]["host_budget_bytes"]:  # the background may write meanwhile
        tables = [(name, {n: v for n, v in of.items() if "dirty" not in n}) for name, of in tables]
    return stats["cache"] | {"pools": pools}, dict(tables)


def test_leaves_no_trace_in_the_figures(twin):
    table, before = twin.store.table("a"), cache(twin)
    keys = np.arange(0, ROWS, 3)
    assert_same(table.lookup(keys, admit=False), twin.reference.table("a").lookup(keys))
    bags = keys, np.array([0, 5, 5, len(keys)]), "mean"
    pooled = twin.reference.table("a").lookup_pooled(*bags)
    assert_same(table.lookup_pooled(*bags, admit=False), pooled)
    twin.store.lookup({"a": keys}, admit=False)
    table.read_rows(keys)
    table.digest()
    assert cache(twin) == before


def figures_of_training(backend, name, policy, evaluate):
    """Train on a trace that does not fit, evaluating between the steps or not."""
    cache_bytes = (64 << 10) // backend.shards
    store, rng = backend.open_store(name, cache_bytes=cache_bytes, policy=policy), generator(16)
    table = store.create_table("a", **config(dim=64, rows=1000))
    for step in range(40):
        keys = rng.zipf(1.3, 60) % 1000
        table.lookup(keys)
        table.update(keys, normal(rng, 60, 64))
        if evaluate:
            table.lookup(np.arange(step, 1000, 40), admit=False)
            table.lookup_pooled(np.arange(200), [0, 200], admit=False)
    pools = store.stats()["cache"]["pools"]
    evicted = sum(pools[0][name] for name in ("evictions_dirty", "evictions_host"))
    return [*map(steady, pools)], table.digest(), evicted > 100


@pytest.mark.parametrize("policy", ["lru", "lfu"])
def test_training_hits_and_evicts_as_without_evaluation(backend, policy):
    plain = figures_of_training(backend, "plain", policy, False)
    assert figures_of_training(backend, "evaluated", policy, True) == plain
    assert plain[2], "rows have left"
