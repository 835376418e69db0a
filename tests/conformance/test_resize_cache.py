"""resize_cache: the budget of an open store, raised and lowered. Rows move; no bit of them changes.

The least that a budget may be is learned from the refusal of one byte.
"""

import re
import threading

import numpy as np
import pytest

from embstore.errors import CapacityError, InvalidArgumentError, StoreClosedError
from tests.conformance.cases import (
    OPTIMIZERS,
    assert_same,
    batch,
    config,
    generator,
    normal,
    ones,
    refused,
)
from tests.conformance.traces import TABLES, values, zipf_keys

SMALL, LARGE = 64 << 10, 4 << 20
POLICIES = pytest.mark.parametrize("policy", ["lru", "lfu"])


def cache(store):
    """Return the cache's figures."""
    return store.stats()["cache"]


def resident(store):
    return sum(pool["resident_rows"] for pool in cache(store)["pools"])


def digests(store):
    return {name: store.table(name).digest() for name in store.tables()}


def resized(store, cache_bytes):
    """Resize, and see that the figures follow and no table has changed."""
    before, command = digests(store), store.command
    store.resize_cache(cache_bytes)
    found = cache(store)
    assert found["budget_bytes"] == cache_bytes
    assert found["memory_bytes"] <= cache_bytes
    assert digests(store) == before
    assert store.command == command


def least(store):
    """Return the smallest budget that the store's layouts allow."""
    with pytest.raises(CapacityError) as caught:
        store.resize_cache(1)
    return max(int(number) for number in re.findall(r"\d+", str(caught.value)))


@POLICIES
def test_resizes_between_commands_change_no_bit(open_twin, policy):
    twin, rng = open_twin(cache_bytes=LARGE, policy=policy), generator(111)
    for name, given in TABLES.items():
        twin.create_table(name, **given)
    smallest = least(twin.store)
    sizes = [smallest, smallest + 5_000, 2 * smallest, SMALL + smallest, LARGE, 8 * LARGE]
    for _ in range(60):
        name = rng.choice(list(TABLES))
        keys = zipf_keys(rng, TABLES[name]["rows"], 150)
        rows = twin.store.table(name).lookup(keys)
        assert_same(rows, twin.reference.table(name).lookup(keys))
        if rng.random() < 0.5:
            resized(twin.store, int(rng.choice(sizes)))
        twin.on(name, "update", keys, values(rng, 150, TABLES[name]["dim"]))
        if rng.random() < 0.5:
            resized(twin.store, int(rng.choice(sizes)))
        twin.check_table(name)
    twin.check()


@POLICIES
@pytest.mark.parametrize("optimizer", OPTIMIZERS.values(), ids=OPTIMIZERS)
def test_dirty_rows_outlive_the_slabs_that_go(open_twin, optimizer, policy):
    twin, rng = open_twin(cache_bytes=LARGE, policy=policy), generator(112)
    twin.create_table("a", **config(dim=32, rows=5_000, optimizer=optimizer))
    twin.on("a", "update", np.arange(3_000), normal(rng, 3_000, 32))
    before = resident(twin.store)
    resized(twin.store, SMALL)
    assert 0 < resident(twin.store) < before == 3_000
    twin.check()
    twin.on("a", "update", np.arange(2_000, 5_000), normal(rng, 3_000, 32))
    twin.check()


def test_after_growth_more_rows_are_resident_and_hit(open_twin):
    twin = open_twin(cache_bytes=SMALL)
    table = twin.create_table("a", **config(dim=32, rows=5_000))
    keys = np.arange(3_000)
    table.lookup(keys)
    assert resident(twin.store) < 500
    resized(twin.store, LARGE)
    table.lookup(keys)
    assert resident(twin.store) == 3_000
    before = cache(twin.store)["pools"][0]
    table.lookup(keys)
    after = cache(twin.store)["pools"][0]
    assert after["unique_hits"] - before["unique_hits"] == 3_000


def test_growth_keeps_what_is_resident(open_twin):
    twin = open_twin(cache_bytes=SMALL)
    twin.create_table("a", **config(dim=32))
    twin.on("a", "update", np.arange(200), ones(200, 32))
    before = twin.store.table("a").stats()
    resized(twin.store, LARGE)
    assert twin.store.table("a").stats() == before
    twin.on("a", "update", np.arange(200), ones(200, 32))
    assert twin.store.table("a").stats()["resident_rows"] == 200


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
        assert (resident(twin.store) == 10_000) == (cache_bytes == LARGE)


@pytest.mark.parametrize(("opened", "then"), [(SMALL, LARGE), (LARGE, SMALL)])
def test_a_resized_cache_holds_as_much_as_one_opened_so(open_twin, opened, then):
    slots = []
    for name, cache_bytes in (("resized", opened), ("opened", then)):
        twin = open_twin(name, cache_bytes=cache_bytes)
        table = twin.create_table("a", **config(dim=32, rows=100_000))
        table.lookup(np.arange(50_000))
        resized(twin.store, then)
        table.lookup(np.arange(50_000))
        slots.append(cache(twin.store)["pools"][0]["slots"])
    assert abs(slots[0] - slots[1]) <= slots[1] // 32


def test_the_memory_of_a_shrunk_cache_is_taken_from_every_layout_fairly(open_twin):
    twin = open_twin(cache_bytes=2 * LARGE)
    for dim in (16, 32, 64):
        twin.create_table(f"dim{dim}", **config(dim=dim, rows=20_000)).lookup(np.arange(8_000))
    resized(twin.store, LARGE // 4)
    memory = [pool["memory_bytes"] for pool in cache(twin.store)["pools"]]
    assert min(memory) > LARGE // 4 // 6, "a pool's floor is an equal part of half the budget"


# Refused


def test_less_than_the_layouts_need_is_refused_by_figure(open_twin):
    twin = open_twin(cache_bytes=LARGE)
    for name, given in TABLES.items():
        twin.create_table(name, **given)
        twin.on(name, "update", np.arange(50), ones(50, given["dim"]))
    enough = least(twin.store)
    before = twin.store.stats()["cache"]
    with refused(twin.store, CapacityError, "cache_bytes", str(enough), str(enough - 1)):
        twin.store.resize_cache(enough - 1)
    assert twin.store.stats()["cache"] == before
    resized(twin.store, enough)
    twin.check()


def test_the_least_budget_works_whole(open_twin):
    twin, rng = open_twin(cache_bytes=LARGE), generator(114)
    for name, given in TABLES.items():
        twin.create_table(name, **given)
    resized(twin.store, least(twin.store))
    for name, given in TABLES.items():
        keys = rng.integers(0, given["rows"], 2_000)
        twin.on(name, "update", keys, values(rng, 2_000, given["dim"]))
        assert_same(twin.store.table(name).lookup(keys), twin.reference.table(name).lookup(keys))


@pytest.mark.parametrize("cache_bytes", [0, -1, 1.5, 1e6, "1000000", None, True, [1 << 20]])
def test_what_is_no_budget_is_refused(open_twin, cache_bytes):
    twin = open_twin(cache_bytes=SMALL)
    twin.create_table("a", **config())
    with refused(twin.store, InvalidArgumentError, "cache_bytes", repr(cache_bytes)):
        twin.store.resize_cache(cache_bytes)
    assert cache(twin.store)["budget_bytes"] == SMALL


@pytest.mark.parametrize("cache_bytes", [1 << 52, 1 << 62, 10**40])
def test_more_than_a_machine_can_address_is_refused(open_twin, cache_bytes):
    twin = open_twin(cache_bytes=SMALL)
    twin.create_table("a", **config())
    twin.on("a", "update", [1, 2], ones(2))
    with refused(twin.store, CapacityError, "cache_bytes"):
        twin.store.resize_cache(cache_bytes)
    assert cache(twin.store)["budget_bytes"] == SMALL
    resized(twin.store, LARGE)


def test_a_closed_store_is_not_resized(open_twin):
    twin = open_twin()
    twin.reopen()
    store = twin.store
    twin.reopen()
    with pytest.raises(StoreClosedError):
        store.resize_cache(LARGE)


# Beside other calls


def test_a_store_without_tables_is_resized_for_those_to_come(open_twin):
    twin = open_twin(cache_bytes=1)
    with refused(twin.store, CapacityError):
        twin.store.create_table("a", **config(dim=32))
    resized(twin.store, LARGE)
    twin.create_table("a", **config(dim=32, rows=5_000)).lookup(np.arange(3_000))
    assert resident(twin.store) == 3_000


def test_a_layout_that_did_not_fit_fits_after_growth(open_twin):
    twin = open_twin(cache_bytes=16 << 10)
    twin.create_table("a", **config())
    with refused(twin.store, CapacityError, "'b'"):
        twin.store.create_table("b", **config(dim=512))
    resized(twin.store, LARGE)
    twin.create_table("b", **config(dim=512))
    twin.on("b", "update", [1], ones(1, 512))


def test_the_same_keys_are_looked_up_and_updated_around_a_resize(open_twin):
    """What the cache remembers of the last call, its keys and their slots, may not be stale."""
    twin, rng = open_twin(cache_bytes=LARGE), generator(115)
    table = twin.create_table("a", **config(dim=32, rows=5_000))
    keys = rng.permutation(5_000)[:2_000]
    for cache_bytes in (SMALL, LARGE, least(twin.store), 2 * LARGE, SMALL):
        assert_same(table.lookup(keys), twin.reference.table("a").lookup(keys))
        resized(twin.store, cache_bytes)
        twin.on("a", "update", keys, normal(rng, 2_000, 32))
    twin.check()


def test_a_resize_is_not_kept_by_the_directory(open_twin):
    twin = open_twin(cache_bytes=SMALL)
    twin.create_table("a", **config())
    resized(twin.store, LARGE)
    twin.reopen()
    assert cache(twin.store)["budget_bytes"] == SMALL


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
    assert cache(twin.store)["budget_bytes"] == SMALL
    twin.check()


@pytest.mark.needs("merges", "directory")
def test_rows_logged_by_a_resize_are_not_durable(open_twin):
    twin, rng = open_twin(cache_bytes=LARGE), generator(117)
    twin.create_table("a", **config(dim=32, rows=3_000))
    twin.on("a", "update", *batch(rng, 900, 3_000, 32))
    twin.checkpoint("kept")
    twin.on("a", "update", np.arange(3_000), normal(rng, 3_000, 32))
    resized(twin.store, SMALL)
    twin.crash()
    twin.check()


def test_a_reader_is_resized(open_twin, backend):
    twin, rng = open_twin(cache_bytes=LARGE), generator(118)
    twin.create_table("a", **config(dim=32, rows=3_000))
    twin.on("a", "update", *batch(rng, 900, 3_000, 32))
    twin.store.close()
    reader = backend.open_store(read_only=True, cache_bytes=LARGE)
    for cache_bytes in (SMALL, LARGE, least(reader)):
        found = reader.table("a").lookup(np.arange(3_000))
        assert_same(found, twin.reference.table("a").lookup(np.arange(3_000)))
        resized(reader, cache_bytes)
    reader.close()
    twin.reopen()


def test_lookups_of_another_thread_go_on(open_twin):
    twin, rng = open_twin(cache_bytes=SMALL), generator(119)
    table = twin.create_table("a", **config(dim=32, rows=3_000))
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
