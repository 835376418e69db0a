"""resize_cache: the budget of an open store, raised and lowered. Rows move; no bit of them changes.

The least that a budget may be is learned from the refusal of one byte.
"""

import re
import threading

import numpy as np
import pytest

from embstore.errors import CapacityError
from tests.conformance.cases import (
    KINDS,
    assert_same,
    batch,
    config,
    generator,
    hits,
    normal,
    ones,
    refused,
    total,
)
from tests.conformance.traces import TABLES
from tests.conformance.twin import digests

pytestmark = pytest.mark.needs("one_store")

SMALL, LARGE = 64 << 10, 4 << 20
POLICIES = pytest.mark.parametrize("policy", ["lru", "lfu"])


def resized(store, cache_bytes):
    """Resize, and see that the figures follow and no table has changed."""
    before, command = digests(store), store.command
    store.resize_cache(cache_bytes)
    found = store.stats()["cache"]
    assert found["budget_bytes"] == cache_bytes
    assert found["memory_bytes"] <= cache_bytes
    assert digests(store) == before
    assert store.command == command


def in_slots(store):
    """Return the rows in level one, of all pools."""
    return total(store, "resident_rows") - total(store, "host_rows")


def least(store):
    """Return the smallest budget that the store's layouts allow."""
    with pytest.raises(CapacityError) as caught:
        store.resize_cache(1)
    return max(int(number) for number in re.findall(r"\d+", str(caught.value)))


@POLICIES
@KINDS
def test_dirty_rows_outlive_the_slabs_that_go(open_twin, optimizer, policy):
    twin, rng = open_twin(cache_bytes=LARGE, policy=policy), generator(112)
    twin.create_table("a", **config(dim=32, rows=5_000, optimizer=optimizer))
    twin.on("a", "update", np.arange(3_000), normal(rng, 3_000, 32))
    before = in_slots(twin.store)
    resized(twin.store, SMALL)
    assert 0 < in_slots(twin.store) < before == 3_000
    twin.check()
    twin.on("a", "update", np.arange(2_000, 5_000), normal(rng, 3_000, 32))
    twin.check()


def test_after_growth_more_rows_are_resident_and_hit(open_table):
    twin, table = open_table(cache_bytes=SMALL, a=config(dim=32, rows=5_000))
    keys = np.arange(3_000)
    table.lookup(keys)
    assert in_slots(twin.store) < 500
    before = twin.store.table("a").stats()
    resized(twin.store, LARGE)
    assert twin.store.table("a").stats() == before
    table.lookup(keys)
    assert in_slots(twin.store) == 3_000
    assert hits(twin.store, lambda: table.lookup(keys)) == 3_000


@POLICIES
def test_a_cache_shrunk_and_grown_back_is_as_large_as_before(open_twin, policy):
    twin, rng = open_twin(cache_bytes=LARGE, policy=policy), generator(113)
    twin.create_table("a", **config(dim=32, rows=5_000))
    twin.create_table("b", **config(dim=5, rows=5_000))
    for cache_bytes in (LARGE, least(twin.store), LARGE, SMALL, LARGE):
        resized(twin.store, cache_bytes)
        for name, dim in (("a", 32), ("b", 5)):
            keys, gradients = batch(rng, 300, 5_000, dim)
            twin.on(name, "update", keys, gradients)
            twin.store.table(name).lookup(np.arange(5_000))
        assert (in_slots(twin.store) == 10_000) == (cache_bytes == LARGE)


@pytest.mark.parametrize(("opened", "then"), [(SMALL, LARGE), (LARGE, SMALL)])
def test_a_resized_cache_holds_as_much_as_one_opened_so(open_table, opened, then):
    slots = []
    for name, cache_bytes in (("resized", opened), ("opened", then)):
        twin, table = open_table(name, cache_bytes=cache_bytes, a=config(dim=32, rows=100_000))
        table.lookup(np.arange(50_000))
        resized(twin.store, then)
        table.lookup(np.arange(50_000))
        cache = twin.store.stats()["cache"]
        slots.append(cache["pools"][0]["slots"])
    # An index that is larger by a few slots may leave no room for a slab, which with level two is a
    # twelfth of so small a cache.
    assert abs(slots[0] - slots[1]) <= slots[1] // (12 if cache["host_budget_bytes"] else 32)


def test_the_memory_of_a_shrunk_cache_is_taken_from_every_layout_fairly(open_twin):
    twin = open_twin(cache_bytes=2 * LARGE)
    for dim in (16, 32, 64):
        twin.create_table(f"dim{dim}", **config(dim=dim, rows=20_000)).lookup(np.arange(8_000))
    resized(twin.store, LARGE // 4)
    memory = [pool["memory_bytes"] for pool in twin.store.stats()["cache"]["pools"]]
    assert min(memory) > LARGE // 4 // 6, "a pool's floor is an equal part of half the budget"


# Refused


def test_less_than_the_layouts_need_is_refused_by_figure(open_twin):
    twin = open_twin(cache_bytes=LARGE)
    for name, given in TABLES.items():
        twin.create_table(name, **given)
        twin.on(name, "update", np.arange(50), ones(50, given["dim"]))
    enough = least(twin.store)
    before = twin.store.stats()["cache"]
    has_level_two = before["host_budget_bytes"] > 0  # which has less of a little less
    below = enough // 2 if has_level_two else enough - 1
    figures = [str(below)] if has_level_two else [str(enough), str(below)]
    with refused(twin.store, CapacityError, "cache_bytes", *figures):
        twin.store.resize_cache(below)
    assert twin.store.stats()["cache"] == before
    resized(twin.store, enough)
    twin.check()


# Beside other calls


@pytest.mark.parametrize(("opened", "tables"), [(1, ""), (16 << 10, "a")])
def test_a_layout_that_did_not_fit_fits_after_growth(open_twin, opened, tables):
    """Beside another one, or as the first of the store."""
    twin = open_twin(cache_bytes=opened)
    for name in tables:
        twin.create_table(name, **config())
    with refused(twin.store, CapacityError, "'b'"):
        twin.store.create_table("b", **config(dim=512))
    resized(twin.store, LARGE)
    twin.create_table("b", **config(dim=512, rows=5_000)).lookup(np.arange(1_000))
    assert in_slots(twin.store) == 1_000
    twin.on("b", "update", [1], ones(1, 512))


def test_the_same_keys_are_looked_up_and_updated_around_a_resize(open_table):
    """What the cache remembers of the last call, its keys and their slots, may not be stale."""
    (twin, table), rng = open_table(cache_bytes=LARGE, a=config(dim=32, rows=5_000)), generator(115)
    keys = rng.permutation(5_000)[:2_000]
    for cache_bytes in (SMALL, LARGE, least(twin.store), 2 * LARGE, SMALL):
        assert_same(table.lookup(keys), twin.reference.table("a").lookup(keys))
        resized(twin.store, cache_bytes)
        twin.on("a", "update", keys, normal(rng, 2_000, 32))
    twin.check()


def test_a_resize_is_not_kept_by_the_directory(open_twin):
    twin = open_twin(cache_bytes=SMALL, a=config())
    resized(twin.store, LARGE)
    twin.reopen()
    assert twin.store.stats()["cache"]["budget_bytes"] == SMALL


def test_restore_and_drop_after_a_resize(open_twin):
    twin, rng = open_twin(cache_bytes=LARGE), generator(116)
    for name in ("a", "b"):
        twin.create_table(name, **config(dim=16 if name == "a" else 20, rows=3_000))
        twin.on(name, "update", *batch(rng, 900, 3_000, 16 if name == "a" else 20))
    twin.checkpoint("kept")
    twin.on("a", "update", *batch(rng, 900, 3_000, 16))
    resized(twin.store, SMALL)
    twin.drop_table("b")
    twin.restore("kept")
    assert twin.store.stats()["cache"]["budget_bytes"] == SMALL
    twin.check()


def test_a_reader_is_resized(open_twin, backend):
    twin, rng = open_twin(cache_bytes=LARGE, a=config(dim=32, rows=3_000)), generator(118)
    twin.on("a", "update", *batch(rng, 900, 3_000, 32))
    twin.store.close()
    reader = backend.open_store(read_only=True, cache_bytes=LARGE)
    for cache_bytes in (SMALL, LARGE, least(reader)):
        found = reader.table("a").lookup(np.arange(3_000))
        assert_same(found, twin.reference.table("a").lookup(np.arange(3_000)))
        resized(reader, cache_bytes)
    reader.close()
    twin.reopen()


def test_lookups_of_another_thread_go_on(open_table):
    (twin, table), rng = open_table(cache_bytes=SMALL, a=config(dim=32, rows=3_000)), generator(119)
    twin.on("a", "update", *batch(rng, 900, 3_000, 32))
    expected, found = twin.reference.table("a").lookup(np.arange(3_000)), []

    def look():
        found.extend(table.lookup(np.arange(3_000)) for _ in range(30))

    looker = threading.Thread(target=look)
    looker.start()
    for turn in range(30):
        twin.store.resize_cache((LARGE, SMALL)[turn % 2])
    looker.join()
    assert len(found) == 30
    for rows in found:
        assert_same(rows, expected)
