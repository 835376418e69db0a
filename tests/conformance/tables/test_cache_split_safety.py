"""Slots that move between pools change no bit, whatever pins rows meanwhile."""

import numpy as np
import pytest

from embstore import Adagrad, Constant, RowWiseAdagrad
from embstore.profiles.hotset import HotSet
from tests.faults.refusing import FullDisk
from tests.unit.small_stores import generator, make_table, opened, pool_of, show, small_limits

pytestmark = pytest.mark.needs("one_store")

CACHE_BYTES = 512 << 10
ROWS = 20_000
KEYS = 250


def with_tables(path, **options):
    store = opened(path, cache_bytes=CACHE_BYTES, **options)
    make_table(store, "small", dim=8, rows=ROWS, optimizer=Adagrad(0.1), initializer=Constant(0.5))
    make_table(
        store, "large", dim=64, rows=ROWS, optimizer=RowWiseAdagrad(0.1), initializer=Constant(0.5)
    )
    return store


def batches(steps):
    """Return keys of both tables: first the small rows are reused, then the large ones."""
    rng = generator(23)
    for step in range(steps):
        skewed, scanned = rng.zipf(1.3, KEYS) % ROWS, (step * KEYS + np.arange(KEYS)) % ROWS
        names = ("small", "large") if step < steps // 2 else ("large", "small")
        yield dict(zip(names, (skewed, scanned), strict=True))


def gradients(rows):
    return {name: of_table * 0.25 for name, of_table in rows.items()}


def train(store, steps):
    for keys in batches(steps):
        rows = store.lookup(keys)
        store.update({name: (keys[name], g) for name, g in gradients(rows).items()})


def train_ahead(store, steps, **options):
    with store.session(tables=["small", "large"], **options) as run:
        for step in run.steps(list(batches(steps)), keys=lambda keys: keys):
            step.update(gradients(step.lookup()))


def digests(store):
    return [store.table(name).digest() for name in ("small", "large")]


def split_of(store):
    return store.stats()["cache"]["split"]


@pytest.mark.parametrize("policy", ["lru", "lfu"])
def test_digests_are_those_of_a_store_that_does_not_split(tmp_path, policy):
    found = []
    for how in ("measured", "demand"):
        with with_tables(tmp_path / how, cache_split=how, policy=policy) as store:
            train(store, 400)
            store.check_integrity()
            found.append((split_of(store)["moved_bytes"], digests(store)))
    assert found[0][0] > 0 == found[1][0]
    assert found[0][1] == found[1][1]


@pytest.mark.parametrize("options", [{"lookahead": 8}, {"lookahead": 16, "planner": "group:4"}])
def test_a_session_is_exact_while_its_pools_get_smaller(tmp_path, options):
    with with_tables(tmp_path / "plain", cache_split="demand") as store:
        train(store, 400)
        expected = digests(store)
    with with_tables(tmp_path / "ahead") as store:
        train_ahead(store, 400, **options)
        store.check_integrity()
        assert split_of(store)["moved_bytes"] > 0
        assert digests(store) == expected
        for name in ("small", "large"):
            assert pool_of(store.table(name)).pins.count == 0


def test_a_hot_set_is_pinned_again(tmp_path):
    hot_set = HotSet({"small": np.arange(300), "large": np.arange(100)})
    with with_tables(tmp_path / "plain", cache_split="demand") as store:
        train(store, 400)
        expected = digests(store)
    with with_tables(tmp_path / "pinned") as store:
        assert store.pin_hot_set(hot_set).pinned_rows == 400
        train(store, 400)
        assert split_of(store)["moved_bytes"] > 0
        assert store.pin_hot_set(hot_set).pinned_rows == 400
        store.check_integrity()
        assert digests(store) == expected


def test_tables_that_come_and_go_and_a_new_size_begin_anew(tmp_path):
    with with_tables(tmp_path) as store:
        train(store, 200)
        assert any(pool["bytes_aimed"] for pool in split_of(store)["pools"])
        third = make_table(store, "third", dim=16, rows=ROWS)
        assert [pool["bytes_aimed"] for pool in split_of(store)["pools"]] == [0, 0, 0]
        third.lookup(np.arange(100))
        train(store, 200)
        store.drop_table("third")
        assert len(split_of(store)["pools"]) == 2
        train(store, 200)
        store.resize_cache(2 * CACHE_BYTES)
        assert [pool["bytes_aimed"] for pool in split_of(store)["pools"]] == [0, 0]
        train(store, 200)
        store.drop_table("large")
        assert [pool["bytes_aimed"] for pool in split_of(store)["pools"]] == [0]
        store.check_integrity()


def test_a_pool_keeps_room_for_its_largest_call(tmp_path):
    with with_tables(tmp_path) as store:
        train(store, 400)
        pools = store.stats()["cache"]["pools"]
        assert all(pool["slots"] >= KEYS for pool in pools)
        assert all(pool["calls_in_parts"] == 0 for pool in pools)


def test_a_full_disk_is_tried_once_until_it_is_decided_again(tmp_path):
    """Each command tried again, and took the pins of all announced steps back for it."""
    disk = FullDisk(tmp_path)
    with with_tables(tmp_path, files=disk, limits=small_limits()) as store:
        for low in range(0, 2_000, KEYS):
            store.table("large").assign(np.arange(low, low + KEYS), np.ones((KEYS, 64), np.float32))
        for number, keys in enumerate(batches(200)):
            if number == 30:  # small rows have their floor
                disk.fill(1)
            store.lookup({"small": keys["small"]})
        refused = split_of(store)["refused"]
        show(f"{refused} moves refused, {disk.refusals} asked of the disk")
        disk.relent()
        assert 1 <= refused <= 5
        assert disk.refusals <= 2 * refused
        for keys in batches(200):
            store.lookup({"small": keys["small"]})
        assert split_of(store)["moved_bytes"] > 0
        store.check_integrity()


def test_stats_show_no_aims_that_have_ended(tmp_path):
    """The size that the cache has, given again, ended them."""
    with with_tables(tmp_path) as store:
        train(store, 200)
        arena = pool_of(store.table("small")).arena
        aims = [pool["bytes_aimed"] for pool in split_of(store)["pools"]]
        assert list(arena.aims.values()) == aims
        store.resize_cache(CACHE_BYTES)
        assert not arena.aims
        assert [pool["bytes_aimed"] for pool in split_of(store)["pools"]] == [0, 0]
