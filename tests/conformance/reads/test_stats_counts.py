"""counts of a lookup: accesses of a caller that de-duplicated its keys, in the statistic and
nowhere else."""

import numpy as np
import pytest

from tests.conformance.cases import assert_same, config, each, generator, ones, steady

pytestmark = pytest.mark.needs("one_store")

COUNTERS = ("accesses", "access_hits", "unique_keys", "unique_hits")


def pools(twin):
    return twin.store.stats()["cache"]["pools"]


def counters(twin, place=0):
    """Return the four counters of a pool."""
    return tuple(pools(twin)[place][name] for name in COUNTERS)


KEYS = np.array([1, 2])
"""Looked up by several calls, one after the other."""
MOST = 2**32 - 1
CALLS = [
    ([1, 2], [1, 3], {}, (4, 0, 2, 0)),
    ([2, 3, 1], [10, 100, 1], {}, (111, 11, 3, 2)),
    ([1, 9, 1], [5, 7, 11], {}, (23, 16, 2, 1)),  # a repeated key has a count at each place
    (KEYS, [5, 7], {}, (12, 12, 2, 2)),
    (KEYS, [1, 100], {}, (101, 101, 2, 2)),
    (KEYS, None, {}, (2, 2, 2, 2)),
    (np.arange(100, 600), np.full(500, MOST, np.uint32), {}, (500 * MOST, 0, 500, 0)),
    (np.arange(100, 600), np.full(500, MOST, np.uint32), {}, (500 * MOST, 500 * MOST, 500, 500)),
    ([11, 12, 11], [MOST, 1, MOST], {}, (2**33 - 1, 0, 2, 0)),  # of one key beyond 32 bits
    ([], [], {}, (0, 0, 0, 0)),
    ([1, 21], [2, 2], {"admit": False}, (0, 0, 0, 0)),
    *(
        ([1, 2], np.array([1, 9], dtype), {}, (10, 10, 2, 2))
        for dtype in (np.uint32, np.int64, np.uint8, np.int32, np.uint64)
    ),
]
"""Keys, their counts, options, and what is counted of the call."""


def test_accesses_are_those_of_the_caller(open_table):
    twin, table = open_table()
    for keys, counts, options, wanted in each(CALLS):
        before = counters(twin)
        found = table.lookup(keys, counts=counts, **options)
        assert_same(found, twin.reference.table("a").lookup(keys))
        assert tuple(np.subtract(counters(twin), before)) == wanted
    before = counters(twin)
    twin.store.lookup({"a": []}, counts={"a": []})
    assert counters(twin) == before


@pytest.mark.parametrize("cache_bytes", [1 << 20, 64 << 10], ids=["whole", "in parts"])
@pytest.mark.parametrize("policy", ["lru", "lfu"])
def test_unique_keys_with_counts_are_counted_as_the_keys_they_stand_for(
    open_twin, policy, cache_bytes
):
    """The cache is the same in both stores, so are hits; the order of keys is that of first use."""
    rng = generator(121)
    plain, unique = (
        open_twin(name, policy=policy, cache_bytes=cache_bytes) for name in ("plain", "unique")
    )
    for twin in (plain, unique):
        twin.create_table("a", **config(dim=64, rows=3_000))
    for size in (1, 50, 4_000, 300, 4_000, 4_000):
        keys = rng.zipf(1.1, size) % 3_000
        _, first, counts = np.unique(keys, return_index=True, return_counts=True)
        order = np.argsort(first)
        plain.store.table("a").lookup(keys)
        unique.store.table("a").lookup(keys[first[order]], counts=counts[order])
        assert pools(unique) == pools(plain)
    parts = pools(plain)[0]["calls_in_parts"]
    assert (parts > 0) == (cache_bytes < 1 << 20)


def test_counts_are_of_their_call_also_behind_an_update_of_its_keys(open_table):
    twin, table = open_table()
    table.lookup(KEYS, counts=[5, 7])
    twin.on("a", "update", KEYS, ones(2))
    table.lookup(KEYS, counts=[3, 3])
    assert counters(twin)[:2] == (18, 6)


def test_nothing_else_depends_on_counts(open_twin):
    kept = []
    for name, counted in (("without", False), ("with", True)):
        twin = open_twin(name, policy="lfu", cache_bytes=64 << 10)
        table = twin.create_table("a", **config(dim=64, rows=2_000))
        rng = generator(122)
        for _ in range(20):
            keys, counts = rng.integers(0, 2_000, 100), rng.integers(1, 1_000, 100)
            found = table.lookup(keys, counts=counts if counted else None)
            assert_same(found, twin.reference.table("a").lookup(keys))
            twin.on("a", "update", keys, ones(100, 64))
        pool = pools(twin)[0]
        by_access = {*COUNTERS[:2], "access_hit_rate"}
        kept.append({n: v for n, v in steady(pool).items() if n not in by_access})
    assert kept[0] == kept[1]


# Several tables


@pytest.mark.needs("plain_keys")
def test_of_several_tables_some_may_have_counts(open_twin):
    """Two of them share a pool, in which the shares stand one after the other."""
    twin = open_twin()
    for name, dim in (("a", 4), ("b", 4), ("c", 8)):
        twin.create_table(name, **config(dim=dim))
    keys = {"a": [1, 2], "b": [1, 1, 2], "c": [7]}
    twin.store.lookup(keys, counts={"b": [10, 20, 30]})
    assert [counters(twin, i)[0] for i in (0, 1)] == [62, 1]
    twin.store.lookup(keys, counts={"a": [100, 1000], "c": [5]})
    assert [counters(twin, i)[:2] for i in (0, 1)] == [(1165, 1103), (6, 5)]
    twin.store.lookup({"a": [2, 3]}, counts={})
    assert counters(twin)[:2] == (1167, 1104)
