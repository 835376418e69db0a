"""counts of a lookup: accesses of a caller that de-duplicated its keys, in the statistic and
nowhere else."""

import numpy as np
import pytest

from tests.conformance.cases import assert_same, config, generator, ones

pytestmark = pytest.mark.needs("one_store")

COUNTERS = ("accesses", "access_hits", "unique_keys", "unique_hits")


def pools(twin):
    return twin.store.stats()["cache"]["pools"]


def counters(twin, place=0):
    """Return the four counters of a pool."""
    return tuple(pools(twin)[place][name] for name in COUNTERS)


def test_accesses_are_those_of_the_caller(open_table):
    twin, table = open_table()
    table.lookup([1, 2], counts=[1, 3])
    assert counters(twin) == (4, 0, 2, 0)
    table.lookup([2, 3, 1], counts=[10, 100, 1])
    assert counters(twin) == (115, 11, 5, 2)


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


def test_a_key_that_is_repeated_has_a_count_at_each_place(open_table):
    twin, table = open_table()
    table.lookup([1])
    table.lookup([1, 2, 1], counts=[5, 7, 11])
    assert counters(twin) == (24, 16, 3, 1)


def test_counts_are_of_their_call_though_keys_are_those_of_the_call_before(open_table):
    twin, table = open_table()
    keys = np.array([1, 2])
    table.lookup(keys, counts=[5, 7])
    table.lookup(keys, counts=[1, 100])
    assert counters(twin)[:2] == (113, 101)
    table.lookup(keys)
    assert counters(twin)[:2] == (115, 103)
    twin.on("a", "update", keys, ones(2))
    table.lookup(keys, counts=[3, 3])
    assert counters(twin)[:2] == (121, 109)


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
        kept.append({n: v for n, v in pool.items() if n not in by_access})
    assert kept[0] == kept[1]


@pytest.mark.parametrize("dtype", [np.uint32, np.int64, np.uint8, np.int32, np.uint64])
def test_counts_of_every_integer_dtype(open_table, dtype):
    twin, table = open_table()
    table.lookup([1, 2], counts=np.array([1, 9], dtype))
    assert counters(twin)[0] == 10


def test_counts_of_32_bits_add_up(open_table):
    twin, table = open_table()
    for _ in range(2):
        table.lookup(np.arange(500), counts=np.full(500, 2**32 - 1, np.uint32))
    assert counters(twin)[:2] == (1000 * (2**32 - 1), 500 * (2**32 - 1))


def test_counts_of_one_key_add_up_beyond_32_bits(open_table):
    twin, table = open_table()
    found = table.lookup([1, 2, 1], counts=[2**32 - 1, 1, 2**32 - 1])
    assert_same(found, twin.reference.table("a").lookup([1, 2, 1]))
    assert counters(twin) == (2**33 - 1, 0, 2, 0)


def test_an_empty_lookup_takes_empty_counts(open_table):
    twin, table = open_table()
    table.lookup([], counts=[])
    twin.store.lookup({"a": []}, counts={"a": []})
    assert counters(twin) == (0, 0, 0, 0)


def test_a_lookup_around_the_cache_counts_nothing(open_table):
    twin, table = open_table()
    table.lookup([1, 2], admit=False, counts=[2, 2])
    assert counters(twin) == (0, 0, 0, 0)


# Several tables


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
