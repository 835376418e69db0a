"""stats, of the store and of a table: what they count, and that they add up."""

import numpy as np
import pytest

from tests.conformance.backends import TINY
from tests.conformance.cases import config, generator, normal, ones, pool_stats

pytestmark = pytest.mark.needs("one_store")


def misses(pool):
    return {origin: pool[f"misses_{origin}"] for origin in ("log", "base", "initializer", "host")}


def assert_adds_up(pool):
    """Both definitions of a hit: by unique key and by access. Of lookups only."""
    assert pool["unique_keys"] - pool["unique_hits"] == sum(misses(pool).values())
    assert 0 <= pool["unique_hits"] <= pool["unique_keys"] <= pool["accesses"]
    assert 0 <= pool["access_hits"] <= pool["accesses"]
    evicted = pool["evictions_clean"] + pool["evictions_dirty"]
    came = sum(misses(pool).values()) - pool["misses_host"]
    assert pool["resident_rows"] == came - evicted


def test_hits_by_unique_key_and_by_access(open_table):
    twin, table = open_table()
    table.lookup([1, 2, 2, 2])
    table.lookup([2, 2, 3])
    table.lookup_pooled([1, 3, 4, 4], [0, 4])
    pool = pool_stats(twin.store)
    assert (pool["accesses"], pool["access_hits"]) == (11, 4)
    assert (pool["unique_keys"], pool["unique_hits"]) == (7, 3)
    assert_adds_up(pool)


def test_hits_of_each_table(open_twin):
    """Of two tables that share a pool, and one that has its own; large calls are done in parts."""
    twin = open_twin(a=config(), b=config(rows=100_000), c=config(dim=64))
    for keys in ({"a": [1, 2, 2], "c": [1]}, {"a": [2, 3], "b": [1, 2], "c": [1]}):
        twin.store.lookup(keys)
    twin.store.table("b").lookup_pooled([2, 2, 3], [0, 3])
    twin.store.table("b").lookup([4, 5], admit=False)
    twin.on("b", "assign", [6, 7], ones(2))
    found = {
        name: (table["lookup_keys"], table["missed_rows"], table["hit_rate"])
        for name, table in twin.store.stats()["tables"].items()
    }
    assert found == {"a": (5, 3, 0.4), "b": (5, 3, 0.4), "c": (2, 1, 0.5)}
    twin.store.table("b").lookup(np.arange(100_000))
    figures = twin.store.table("b").stats()
    assert (figures["lookup_keys"], figures["missed_rows"]) == (100_005, 99_998)


def test_updates_count_no_hits(open_twin):
    """Their rows were as a rule looked up just before, which would flatter the figures."""
    twin = open_twin(a=config())
    twin.on("a", "update", [1, 2], ones(2))
    twin.on("a", "assign", [1, 3], ones(2))
    pool = pool_stats(twin.store)
    assert (pool["accesses"], pool["unique_keys"]) == (0, 0)
    assert (pool["resident_rows"], pool["dirty_rows"]) == (3, 3)


def test_misses_are_told_by_where_the_row_was(open_twin):
    twin = open_twin(limits=TINY, checkpoints_keep=1, a=config(dim=64))
    twin.on("a", "assign", np.arange(200), ones(200, 64))
    twin.checkpoint("folded")
    twin.settle()
    assert twin.store.stats()["storage"]["folds"] > 0
    twin.reopen(limits=None)  # so that no merge moves what is logged from here on
    twin.on("a", "assign", np.arange(180, 230), ones(50, 64, 2.0))
    twin.checkpoint("logged")
    twin.reopen()
    twin.store.table("a").lookup(np.arange(250))
    assert misses(pool_stats(twin.store)) == {"base": 180, "log": 50, "initializer": 20, "host": 0}
    assert_adds_up(pool_stats(twin.store))


@pytest.mark.parametrize("policy", ["lru", "lfu"])
def test_figures_add_up_over_a_trace_with_evictions_and_parts(open_twin, policy):
    twin, rng = open_twin(cache_bytes=64 << 10, policy=policy), generator(101)
    table = twin.create_table("a", **config(dim=64, rows=2000))
    twin.on("a", "assign", np.arange(0, 2000, 2), ones(1000, 64))
    before = pool_stats(twin.store)
    for count in (1, 50, 300, 2000):
        table.lookup(rng.zipf(1.2, count) % 2000)
        table.lookup_pooled(np.arange(count), [0, count])
    after = pool_stats(twin.store)
    pool = {k: after[k] - before[k] for k in before if isinstance(after[k], int)}
    assert pool["unique_keys"] - pool["unique_hits"] == sum(misses(pool).values())
    assert pool["accesses"] == 2 * (1 + 50 + 300 + 2000)
    assert pool["calls_in_parts"] >= 1
    assert pool["parts"] > pool["calls_in_parts"]
    assert after["resident_rows"] - after["host_rows"] <= after["slots"]


def test_records_of_the_log_are_those_of_the_file_that_is_written_too(open_twin):
    """Review: Beside their bytes and rows, neither its records nor the file itself were counted."""
    twin = open_twin(cache_bytes=32 << 10, a=config(dim=64, rows=2000))
    twin.on("a", "assign", np.arange(2000), ones(2000, 64))
    storage = twin.store.stats()["storage"]
    assert storage["log_records"] >= storage["log_rows"] > 0
    assert storage["log_segments"] == 1


@pytest.mark.needs("plain_keys")
def test_of_a_table(open_twin):
    twin = open_twin()
    for name in "ab":
        twin.create_table(name, **config(dim=6))
        twin.on(name, "update", [1, 2, 3], ones(3, 6))
    table = twin.store.table("a")
    table.lookup([3, 4])
    found = table.stats()
    assert found["resident_rows"] == 4
    assert found["dirty_rows"] == 3
    expected = {"rows": 1000, "dim": 6, "optimizer": "sgd", "learning_rate": 0.1, "t": 1}
    assert expected.items() <= found.items()
    assert twin.store.stats()["tables"] == {"a": found, "b": twin.store.table("b").stats()}


def test_of_the_store(open_twin):
    twin = open_twin(policy="lfu", cache_bytes=1 << 20, a=config(), b=config(dim=8))
    twin.update({"a": ([1], ones(1)), "b": ([1], ones(1, 8))})
    twin.checkpoint("c")
    found = twin.store.stats()
    assert found["command"] == 3
    assert (found["policy"], found["read_only"]) == ("lfu", False)
    assert found["storage"]["checkpoints"] == ["c"]
    assert found["cache"]["budget_bytes"] == 1 << 20
    assert found["cache"]["memory_bytes"] <= 1 << 20
    of_pools = sum(p["memory_bytes"] for p in found["cache"]["pools"])
    assert of_pools + found["cache"]["staging_bytes"] == found["cache"]["memory_bytes"]
    assert [(p["dim"], p["resident_rows"]) for p in found["cache"]["pools"]] == [(4, 1), (8, 1)]
    assert {"unique", "sum_by_key", "apply"} <= found["stages"].keys()


def test_of_sessions(open_twin):
    twin = open_twin(a=config())
    found = twin.store.stats()["sessions"]
    assert found["open"] == []
    assert found["planning"]["pinned_rows"] == 0
    sessions = twin.store.sessions
    sessions.open("run", ["a"])
    member = sessions.join("run", 0).member
    sessions.announce(member, {1: {"a": [5, 1, 9]}})
    sessions.lookup_step(member, 1)
    found = twin.store.stats()["sessions"]
    (facts,) = found["open"]
    expected = {"name": "run", "tables": ["a"], "announced_step": 1, "last_step": 0}
    assert expected.items() <= facts.items()
    assert facts.keys() | found["planning"].keys() == sessions.stats()[0].keys()
    assert found["planning"]["pinned_rows"] == 3
    assert found["planning"]["planned_keys"] == 3


def test_a_dropped_table_leaves_no_memory_behind(open_twin):
    twin = open_twin()
    before = twin.store.stats()["cache"]
    for _ in range(3):
        twin.create_table("a", **config(dim=64))
        twin.on("a", "update", np.arange(500), normal(generator(102), 500, 64))
        twin.drop_table("a")
        assert twin.store.stats()["cache"] == before


def test_changing_what_was_returned_changes_nothing(open_twin):
    twin = open_twin(a=config())
    twin.store.stats()["tables"]["a"]["t"] = 7
    twin.store.stats()["storage"]["checkpoints"].append("x")
    assert twin.store.stats()["tables"]["a"]["t"] == 0
    assert twin.store.stats()["storage"]["checkpoints"] == []
