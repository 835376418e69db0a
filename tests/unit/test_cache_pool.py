"""Residency: slabs on demand, shares between layouts, the least cache, victims."""

import re

import numpy as np
import pytest

from embstore import Adam, CapacityError, RowWiseAdagrad, Sgd, Uniform
from tests.unit.small_stores import (
    generator,
    make_table,
    opened,
    pool_figures,
    pool_of,
    resident_keys,
    rows_of,
    storage_of,
)

SEED = 59
CACHE_BYTES = 200_000


def fill(table, low, high, step=200):
    """Write rows [low, high), each telling its key, in calls that fit any cache."""
    for start in range(low, high, step):
        keys = np.arange(start, min(start + step, high))
        table.assign(keys, rows_of(keys, table.dim))


def check_rows(table, low, high):
    keys = np.arange(low, high)
    assert np.array_equal(table.read_rows(keys)[0], rows_of(keys, table.dim))


# Slabs


def test_slabs_come_on_demand(tmp_path):
    with opened(tmp_path, cache_bytes=CACHE_BYTES) as store:
        table = make_table(store)
        pool, seen = pool_of(table), []
        for start in range(0, 2_000, 100):
            table.lookup(np.arange(start, start + 100))
            seen.append((pool.slots.resident_count, pool.slots.count))
            store.check_integrity()
        assert seen[0][1] == pool.slots.sizes.slab_slots
        for resident, slots in seen:
            assert slots - resident < pool.slots.sizes.slab_slots or slots == seen[-1][1]
        assert pool.slots.count > 5 * pool.slots.sizes.slab_slots
        assert pool.counters.evictions_clean == 0


def test_nothing_is_evicted_while_the_budget_lasts(tmp_path):
    with opened(tmp_path, cache_bytes=CACHE_BYTES) as store:
        table = make_table(store)
        fill(table, 0, 10_000)
        pool = pool_of(table)
        assert pool.slots.resident_count == pool.slots.count
        assert pool.counters.evictions_dirty == 10_000 - pool.slots.count
        spare = store.stats()["cache"]["budget_bytes"] - pool.slots.memory_bytes
        assert spare < pool.slots.grown_bytes - pool.slots.memory_bytes


def test_pools_own_arrays_are_what_they_say(tmp_path):
    """memory_bytes is the sum of all arrays that grow with slots, the free list among them; the
    staging is the cache's."""
    with opened(tmp_path, cache_bytes=CACHE_BYTES) as store:
        table = make_table(store, dim=16)
        table.lookup(np.arange(700))
        pool = pool_of(table)
        slots = pool.slots
        by_slot = (*vars(slots.memory).values(), slots._free)
        used = slots.count * sum(array[:1].nbytes for array in by_slot)
        used += sum(array.nbytes for array in vars(slots.index.synchronize()).values())
        staging = pool.device.memory.staging(0, pool.layout).base
        assert slots.memory_bytes == used
        assert store.stats()["cache"]["memory_bytes"] == used + staging.nbytes


# Two layouts


def test_a_second_layout_gets_its_share_at_run_time(tmp_path):
    with opened(tmp_path, cache_bytes=CACHE_BYTES) as store:
        first = make_table(store, "first")
        fill(first, 0, 6_000)
        second = make_table(store, "second", dim=16)
        fill(second, 0, 3_000)
        store.check_integrity()
        late, floor = pool_of(second), CACHE_BYTES // 4
        assert floor - late.slots.sizes.slab_bytes < late.slots.memory_bytes
        assert pool_of(first).slots.memory_bytes >= floor
        check_rows(first, 0, 6_000)
        check_rows(second, 0, 3_000)


def test_a_slab_is_released_with_its_dirty_rows_logged(tmp_path):
    with opened(tmp_path, cache_bytes=CACHE_BYTES) as store:
        table = make_table(store)
        fill(table, 0, 2_000)
        pool, before = pool_of(table), table.digest()
        logged, resident = storage_of(store).log.index.size, resident_keys(table)
        pool.evictor.release_slabs(1)
        store.check_integrity()
        left = resident - resident_keys(table)
        assert len(left) > 10 and resident_keys(table) <= resident
        assert storage_of(store).log.index.size == logged + len(left)
        assert table.digest() == before
        check_rows(table, 0, 2_000)


def test_both_layouts_work_on_after_slabs_changed_hands(tmp_path):
    """Demand goes to and fro; no row is lost and every slab is counted once."""
    rng = generator(SEED)
    with opened(tmp_path, cache_bytes=60_000) as store:
        tables = [make_table(store, "narrow"), make_table(store, "wide", dim=24)]
        version = {table.name: np.zeros(1_500) for table in tables}
        for _ in range(40):
            table = tables[rng.integers(2)]
            keys = rng.choice(1_500, 120, replace=False)
            version[table.name][keys] += 1
            table.assign(keys, rows_of(keys, table.dim, version[table.name][keys]))
            store.check_integrity()
        for table in tables:
            written = np.flatnonzero(version[table.name])
            expected = rows_of(written, table.dim, version[table.name][written])
            assert np.array_equal(table.read_rows(written)[0], expected)


def test_tables_of_one_layout_share_slots_and_one_is_purged_alone(tmp_path):
    with opened(tmp_path, cache_bytes=CACHE_BYTES) as store:
        first, second = make_table(store, "a"), make_table(store, "b")
        assert pool_of(first) is pool_of(second)
        fill(first, 0, 300)
        fill(second, 0, 300)
        store.drop_table("a")
        store.check_integrity()
        assert pool_figures(store)["resident_rows"] == 300
        check_rows(second, 0, 300)


# Capacity


def test_a_checkpoint_is_refused_that_has_more_tables_of_sparse_keys_than_fit(tmp_path):
    """They are of one layout, which was counted once."""
    with opened(tmp_path, cache_bytes=1 << 20) as store:
        names = [f"t{number}" for number in range(40)]
        for name in names:
            store.create_table(
                name, dim=4, key_space="sparse", optimizer=Sgd(0.1), initializer=Uniform(-1, 1)
            )
        store.checkpoint("many")
        for name in names[1:]:
            store.drop_table(name)
    with opened(tmp_path, cache_bytes=100_000) as store:
        with pytest.raises(CapacityError, match="'many': cache_bytes is 100000, the tables up to"):
            store.restore("many")
        assert list(store.tables()) == names[:1]
        store.resize_cache(1 << 20)
        store.restore("many")
        assert sorted(store.tables()) == sorted(names)


LAYOUTS = {
    "dim 1 sgd": (1, Sgd(0.1)),
    "dim 64 row-wise": (64, RowWiseAdagrad(0.1)),
    "dim 4096 adam": (4096, Adam(0.1)),
}


def fits(path, cache_bytes, dim, optimizer):
    with opened(path, cache_bytes=cache_bytes) as store:
        try:
            make_table(store, dim=dim, optimizer=optimizer)
        except CapacityError:
            return False
        store.drop_table("t")
        return True


@pytest.mark.parametrize("dim, optimizer", LAYOUTS.values(), ids=LAYOUTS)
def test_the_smallest_cache_allowed_works_whole(tmp_path, dim, optimizer):
    """Found by bisection. A table that could be created takes calls of any size."""
    low, high = 0, 4 << 20
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (
            (low, middle) if fits(tmp_path / "b", middle, dim, optimizer) else (middle, high)
        )
    rng = generator(SEED)
    keys = rng.integers(0, 5_000, 1_000)
    gradients = rng.standard_normal((1_000, dim)).astype(np.float32)
    digests = []
    for name, cache_bytes in (("small", high), ("large", 256 << 20)):
        with opened(tmp_path / name, cache_bytes=cache_bytes) as store:
            table = make_table(store, dim=dim, optimizer=optimizer, initializer=Uniform(-1, 1))
            for part in np.split(np.arange(1_000), [600, 601]):
                table.update(keys[part], gradients[part])
            digests += [table.digest(), table.lookup(keys).tobytes()]
            store.check_integrity()
            assert store.stats()["cache"]["memory_bytes"] <= cache_bytes
    assert digests[:2] == digests[2:]


@pytest.mark.parametrize("dim, optimizer", LAYOUTS.values(), ids=LAYOUTS)
def test_a_smaller_cache_is_refused_by_name_and_figure(tmp_path, dim, optimizer):
    with opened(tmp_path, cache_bytes=5_000) as store:
        with pytest.raises(CapacityError, match=r"table 't': cache_bytes is 5000, .*larger"):
            make_table(store, dim=dim, optimizer=optimizer)
        assert store.tables() == []
        assert store.stats()["cache"]["memory_bytes"] == 0
        store.check_integrity()


@pytest.mark.parametrize("dim, optimizer", LAYOUTS.values(), ids=LAYOUTS)
def test_the_figure_that_a_refusal_names_is_enough(tmp_path, dim, optimizer):
    with opened(tmp_path, cache_bytes=5_000) as store:
        with pytest.raises(CapacityError) as refused:
            make_table(store, dim=dim, optimizer=optimizer)
    needed = max(int(number) for number in re.findall(r"\d+", str(refused.value)))
    assert fits(tmp_path, needed, dim, optimizer)


# Victims


def test_clean_and_dirty_victims_are_counted_and_only_dirty_ones_logged(tmp_path):
    with opened(tmp_path, cache_bytes=60_000) as store:
        table = make_table(store)
        table.lookup(np.arange(20_000, 23_000))  # more than the cache: it is full now
        slots = pool_of(table).slots.count
        base = pool_figures(store)
        table.lookup(np.arange(0, slots))
        after_clean = pool_figures(store)
        assert after_clean["evictions_clean"] - base["evictions_clean"] == slots
        assert storage_of(store).log.index.size == 0
        dirtied = np.arange(0, slots, 3)
        table.assign(dirtied, rows_of(dirtied))
        table.lookup(np.arange(30_000, 30_000 + slots))
        after = pool_figures(store)
        assert after["evictions_dirty"] == len(dirtied)
        assert after["evictions_clean"] - after_clean["evictions_clean"] == slots - len(dirtied)
        assert storage_of(store).log.index.size == len(dirtied)
        store.check_integrity()


def test_flushed_rows_leave_as_clean_ones(tmp_path):
    with opened(tmp_path, cache_bytes=60_000) as store:
        table = make_table(store)
        fill(table, 0, 300)
        assert (table.flush(), table.flush()) == (300, 0)
        table.lookup(np.arange(10_000, 10_000 + 3 * pool_of(table).slots.count))
        assert pool_figures(store)["evictions_dirty"] == 0
        check_rows(table, 0, 300)
