"""The cache: which rows are resident and evicted, and how pools of several layouts share its
bytes."""

import numpy as np
import pytest

from embstore.config import Adagrad, Constant, Sgd
from tests.conformance.cases import (
    OPTIMIZERS,
    assert_same,
    config,
    generator,
    hits,
    normal,
    ones,
    pool_stats,
)
from tests.conformance.traces import smallest_cache

pytestmark = pytest.mark.needs("one_store")

SGD = {"dim": 40, "rows": 400, "optimizer": Sgd(0.1), "initializer": Constant(0.0)}
ADAGRAD = {"dim": 40, "rows": 400, "optimizer": Adagrad(0.1), "initializer": Constant(0.0)}
EVERY = np.arange(400)


def test_pool_that_comes_late_fits_where_it_fitted_at_first(open_twin, backend):
    """A pool that gave slabs back kept the index that it had grown for them."""
    smallest = smallest_cache(backend, {"a": SGD, "b": ADAGRAD})
    twin = open_twin(cache_bytes=smallest, a=SGD, b=ADAGRAD)
    twin.drop_table("b")
    twin.store.table("a").lookup(EVERY)
    twin.create_table("b", **ADAGRAD)


@pytest.mark.parametrize("more", range(0, 40_000, 7_500))
def test_cache_stays_within_its_bytes(open_twin, backend, more):
    """The index was made twice as large as was budgeted."""
    smallest = smallest_cache(backend, {"a": SGD, "b": ADAGRAD})
    twin = open_twin(cache_bytes=smallest + more)
    tables = [twin.create_table("a", **SGD), twin.create_table("b", **ADAGRAD)]
    for table in tables:
        table.lookup(EVERY)
    cache = twin.store.stats()["cache"]
    assert cache["memory_bytes"] <= cache["budget_bytes"]


def test_as_few_slots_as_the_cache_can_have(open_twin):
    """Source: "1 bucket" of the same case: HKV#66. One slab of four slots, one bucket of eight."""
    twin, rng = open_twin(cache_bytes=280_000), generator(214)
    twin.create_table("a", **config(dim=4096, optimizer=OPTIMIZERS["adam"], rows=40))
    assert pool_stats(twin.store)["slots"] == 4
    keys = rng.permutation(40)
    twin.on("a", "update", keys, normal(rng, 40, 4096))
    twin.on("a", "update", keys[:5], normal(rng, 5, 4096))


@pytest.mark.parametrize("policy", ["lru", "lfu"])
def test_evicted_and_surviving_rows_are_all_rows(open_twin, policy):
    """Source: "evicted set + surviving set = input set; values of evicted rows intact; counts
    right": HKV#110, #241; recsys-examples PR 284."""
    twin, rng = open_twin(cache_bytes=64 << 10, policy=policy), generator(215)
    table = twin.create_table("a", **config(dim=32, rows=3000))
    keys = rng.permutation(3000)
    for part in np.split(keys, 30):
        twin.on("a", "update", part, normal(rng, 100, 32))
    figures = pool_stats(twin.store)
    evicted = figures["evictions_dirty"] + figures["evictions_clean"]
    assert evicted + figures["resident_rows"] == 3000
    if not figures["host_slots"]:  # else the background writes rows of level two, which are clean
        assert figures["evictions_clean"] == 0
        assert figures["resident_rows"] == figures["dirty_rows"]
        assert twin.store.stats()["storage"]["log_rows"] == figures["evictions_dirty"]
    assert figures["resident_rows"] - figures["host_rows"] <= figures["slots"] < 3000
    assert_same(table.lookup(keys), twin.reference.table("a").lookup(keys))


@pytest.mark.parametrize("policy", ["lru", "lfu"])
def test_rows_of_lowest_score_leave(open_table, policy):
    """Source: "lowest-score rows really evicted (rate test)": HKV's correct-rate tests."""
    twin, table = open_table(cache_bytes=128 << 10, policy=policy, a=config(dim=16, rows=10_000))
    table.lookup(np.arange(5000, 7000))  # takes every slot
    slots = pool_stats(twin.store)["slots"]
    hot, cold = np.arange(slots // 2), np.arange(1000, 1000 + slots // 2)
    for _ in range(5):
        table.lookup(hot)
    table.lookup(cold)
    table.lookup(hot)
    table.lookup(np.arange(9000, 9000 + slots // 3))  # these must replace cold rows, not hot ones
    assert hits(twin.store, lambda: table.lookup(hot)) == len(hot)


def keys_of_one_bucket(count, buckets):
    """Return keys of the first table that have bucket 0 as both their choices, of so many buckets.

    The index mixes a key (MurmurHash3's fmix64); its upper and lower halves choose.
    """
    keys = np.arange(8_000_000, dtype=np.uint64)
    h = keys
    for factor in (0xFF51AFD7ED558CCD, 0xC4CEB9FE1A85EC53):
        h = (h ^ (h >> np.uint64(33))) * np.uint64(factor)
    h ^= h >> np.uint64(33)
    edge = np.uint64((1 << 32) // buckets)
    both = ((h >> np.uint64(32)) < edge) & ((h & np.uint64(0xFFFFFFFF)) < edge)
    return keys[both][:count].astype(np.int64)


def test_ids_that_all_fall_into_one_bucket(open_twin):
    """Source: cDLRM, "two ids take one way: adversarial ids in one set; each id returns its own
    vector". A bucket holds 8 keys and the stash 256: this set fills both and forces a new index."""
    keys = keys_of_one_bucket(300, 150)
    assert len(keys) == 300
    twin, rng = open_twin(cache_bytes=100 << 10), generator(234)
    table = twin.create_table("a", **config(dim=4, rows=2**40, initializer=Constant(0.0)))
    rows = np.arange(1200, dtype=np.float32).reshape(300, 4)
    twin.on("a", "assign", keys, rows)
    assert pool_stats(twin.store)["resident_rows"] == 300
    assert_same(table.lookup(keys), rows)
    order = rng.permutation(300)
    assert_same(table.lookup(keys[order]), rows[order])
    twin.on("a", "update", keys[::3], normal(rng, 100, 4))
    table.lookup(2**39 + np.arange(5000))  # push them all out again
    twin.on("a", "update", keys, normal(rng, 300, 4))


@pytest.mark.parametrize("policy", ["lru", "lfu"])
def test_reading_alone_leaves_nothing_pinned(open_twin, policy):
    """Source: FBGEMM, "pins leak with no backward: client dies or only reads". Lookups that no
    update follows, and calls that are refused halfway, hold no slot."""
    twin, rng = open_twin(cache_bytes=32 << 10, policy=policy), generator(240)
    table = twin.create_table("a", **config(dim=30, rows=3000))
    for _ in range(50):
        table.lookup(rng.integers(0, 3000, 150))
        with pytest.raises(ValueError, match="finite"):
            table.update(rng.integers(0, 3000, 5), ones(5, 30, np.inf))
    keys = np.arange(pool_stats(twin.store)["slots"])
    table.lookup(keys)  # needs every slot at once
    assert hits(twin.store, lambda: table.lookup(keys)) == len(keys)


def test_rows_of_one_call_do_not_push_each_other_out(open_twin):
    """Source: cDLRM and ScratchPipe's hold on a window: a batch that fits is resident as a whole,
    however cold its rows are."""
    twin, rng = open_twin(cache_bytes=32 << 10, policy="lfu"), generator(241)
    table = twin.create_table("a", **config(dim=30, rows=3000))
    table.lookup(np.arange(2000))
    slots = pool_stats(twin.store)["slots"]
    for _ in range(10):
        table.lookup(np.arange(slots // 2))  # hot
    keys = 2000 + rng.permutation(900)[:slots]
    table.lookup(keys)
    assert hits(twin.store, lambda: table.lookup(keys)) == slots
