"""Keys that found no place in an index: the index becomes larger, nobody sees a row that is not
what it was, and slabs go where the budget has no room for it.

On a GPU the call after the one that inserted them finds out.
"""

from itertools import count

import numpy as np
import pytest

import embstore
from embstore import RowWiseAdagrad, Uniform
from embstore.device.cpu_keys import CpuKeys
from embstore.device.gpu import GpuDevice
from embstore.device.gpu_keys import GpuKeys
from embstore.errors import CapacityError
from tests.kernels.emulation.runtime import EmulatedRuntime
from tests.unit.small_stores import pool_of

ROWS, DIM = 2_000, 8
LEVELS = {"cpu": None, "one": 0, "two": 1 << 20}
"""Of the cache, with the bytes of level two."""


def refuse_some(monkeypatch):
    """Have some insertions, from here on, leave half of their keys out; return a list of how many
    keys each of them was given."""
    refused, calls = [], count()

    def patch(keys_of_device):
        insert = keys_of_device.insert

        def some(self, index, keys, slots):
            if next(calls) % 5 or len(keys) < 2:
                return insert(self, index, keys, slots)
            refused.append(len(keys))
            half = len(keys) // 2
            insert(self, index, keys[:half], slots[:half])
            return lambda: False

        monkeypatch.setattr(keys_of_device, "insert", some)

    patch(CpuKeys)
    patch(GpuKeys)
    return refused


def opened(path, levels, cache_bytes):
    host_cache_bytes = LEVELS[levels]
    if host_cache_bytes is None:
        return embstore.open(path, device="cpu", threads=1, cache_bytes=cache_bytes)
    device = GpuDevice(EmulatedRuntime(), 1)
    return embstore.open(
        path, device=device, cache_bytes=cache_bytes, host_cache_bytes=host_cache_bytes
    )


def made(store):
    return store.create_table(
        "a", dim=DIM, rows=ROWS, optimizer=RowWiseAdagrad(0.1), initializer=Uniform(-1, 1)
    )


def excess(store):
    """Return the bytes beyond the budget, once the index is known to be whole."""
    tables = store.executor.tables
    with tables.reading():
        for pool in tables.pools.values():
            pool.slots.index.synchronize()
        return tables.arena.memory_bytes - tables.arena.budget_bytes


def life(store, seed):
    """Return all that a life of lookups, updates and steps reads, and the digest at its end."""
    rng, found = np.random.default_rng(seed), []
    table = made(store)
    ones = np.ones((200, DIM), np.float32)
    for number in range(40):
        keys = np.minimum(rng.zipf(1.2, 200), ROWS) - 1
        match number % 4:
            case 0:
                found.append(table.lookup(keys))
            case 1:
                table.update(keys, ones)
            case 2:
                found.append(table.lookup_pooled(keys, np.arange(0, 201, 20)))
            case 3:
                found.append(table.lookup(keys, admit=False))
        found.append(table.lookup(keys))
        store.check_integrity()
    batches = [rng.integers(0, ROWS, 60) for _ in range(10)]
    with store.session(tables=["a"], lookahead=3) as run:
        for step in run.steps(batches, keys=lambda batch: {"a": batch}):
            found.append(step.lookup()["a"])
            step.update({"a": found[-1]})
    store.check_integrity()
    return [rows.tobytes() for rows in found], table.digest()


@pytest.mark.parametrize("seed", range(4))
def test_what_is_read_is_the_same(tmp_path, monkeypatch, seed):
    with opened(tmp_path / "expected", "cpu", 1 << 20) as store:
        expected = life(store, seed)
    refused = refuse_some(monkeypatch)
    for levels, shift in [("cpu", 16), ("one", 20), ("one", 16), ("two", 17)]:
        with opened(tmp_path / f"{levels}-{shift}", levels, 1 << shift) as store:
            assert life(store, seed) == expected
        assert len(refused) > 3
        refused.clear()


@pytest.mark.parametrize("levels", LEVELS)
def test_a_larger_index_takes_no_more_than_the_budget(tmp_path, monkeypatch, levels):
    """Slabs go for it before the next command, whatever that is."""
    rng, beyond = np.random.default_rng(7), []
    refuse_some(monkeypatch)
    with opened(tmp_path, levels, 1 << 16) as store:
        table = made(store)
        for _ in range(40):
            keys = rng.choice(ROWS, 100, replace=False)
            table.update(keys, np.ones((100, DIM), np.float32))
            beyond.append(excess(store))
            cache = store.stats()["cache"]
            assert cache["memory_bytes"] <= cache["budget_bytes"]
            store.check_integrity()
    assert max(beyond) > 0


def test_slabs_stay_while_the_log_has_no_room_for_their_rows(tmp_path, monkeypatch):
    """Lookups that need no room get on, and the slabs go when there is some."""
    rng = np.random.default_rng(7)
    refuse_some(monkeypatch)
    with opened(tmp_path, "cpu", 1 << 16) as store:
        table = made(store)
        while excess(store) <= 0:
            keys = rng.choice(ROWS, 100, replace=False)
            table.update(keys, np.ones((100, DIM), np.float32))
        slots = pool_of(table).slots.count
        with monkeypatch.context() as full:

            def no_room(records, record_bytes, **options):
                raise CapacityError("the disk is full")

            full.setattr(store.executor.storage.appender, "reserve", no_room)
            table.lookup(keys)
            store.check_integrity()
            assert pool_of(table).slots.count == slots
        assert excess(store) > 0
        table.lookup(keys[:1])
        assert pool_of(table).slots.count < slots
        assert excess(store) <= 0


@pytest.mark.parametrize("needed", [0, 2_000])
def test_a_pool_of_one_slab_has_the_index_that_its_keys_need(tmp_path, monkeypatch, needed):
    """And no larger one, where that is beyond the budget.

    needed : places of the index
    """
    places, insert = 0, CpuKeys.insert

    def insert_where_all_fit(self, index, keys, slots):
        is_whole = insert(self, index, keys, slots)
        return is_whole if len(index.bucket_keys) >= places else lambda: False

    monkeypatch.setattr(CpuKeys, "insert", insert_where_all_fit)
    with opened(tmp_path, "cpu", 15_500) as store:
        table = made(store)
        pool = pool_of(table)
        table.lookup(np.arange(100))
        places = 2_000
        table.lookup([100])
        assert excess(store) > 0
        assert pool.slots.slab_count == 1
        places = needed
        for _ in range(3):
            table.lookup(np.arange(101))
            store.check_integrity()
            assert (excess(store) > 0) == (needed > 0)
            assert not pool.arena.may_exceed
