"""Residency: slabs on demand, shares between layouts, calls larger than the cache, victims."""

import re

import numpy as np
import pytest

from embstore import Adam, CapacityError, Constant, RowWiseAdagrad, Sgd, Uniform
from embstore.arrays import row_stride
from embstore.kernels.cold import count_absent
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
            seen.append((pool.resident_count, pool.slot_count))
            store.check_integrity()
        assert seen[0][1] == pool.slab_slots
        for resident, slots in seen:
            assert slots - resident < pool.slab_slots or slots == seen[-1][1]
        assert pool.slot_count > 5 * pool.slab_slots
        assert pool.counters.evictions_clean == 0


def test_nothing_is_evicted_while_the_budget_lasts(tmp_path):
    with opened(tmp_path, cache_bytes=CACHE_BYTES) as store:
        table = make_table(store)
        fill(table, 0, 10_000)
        pool = pool_of(table)
        assert pool.resident_count == pool.slot_count
        assert pool.counters.evictions_dirty == 10_000 - pool.slot_count
        spare = store.stats()["cache"]["budget_bytes"] - pool.memory_bytes
        assert spare < pool.grown_bytes - pool.memory_bytes


@pytest.mark.parametrize("cache_bytes", [50_000, 60_000, 90_000, 200_000, 1_000_000])
@pytest.mark.parametrize("dims", [(4,), (1, 64), (32, 4, 16)])
def test_memory_stays_within_the_budget(tmp_path, cache_bytes, dims):
    """Slabs, index and staging; after every call, whichever pool grows."""
    with opened(tmp_path, cache_bytes=cache_bytes) as store:
        tables = [make_table(store, f"t{dim}", dim=dim) for dim in dims]
        for start in range(0, 6_000, 150):
            for table in tables:
                table.lookup(np.arange(start, start + 150))
                assert store.stats()["cache"]["memory_bytes"] <= cache_bytes, f"at {start}"
        store.check_integrity()


def test_pools_own_arrays_are_what_they_say(tmp_path):
    """memory_bytes is the sum of all arrays that grow with slots, the free list among them."""
    with opened(tmp_path, cache_bytes=CACHE_BYTES) as store:
        table = make_table(store, dim=16)
        table.lookup(np.arange(700))
        pool = pool_of(table)
        arrays = vars(pool.index.arrays).values()
        per_slot = sum(array[:1].nbytes for array in (*vars(pool.memory).values(), pool._free))
        held = per_slot * pool.slot_count + sum(array.nbytes for array in arrays)
        staging = pool.device._scratch["staging"]
        assert pool.memory_bytes == held + staging.nbytes


# Two layouts


def test_a_second_layout_gets_its_share_at_run_time(tmp_path):
    with opened(tmp_path, cache_bytes=CACHE_BYTES) as store:
        first = make_table(store, "first")
        fill(first, 0, 6_000)
        second = make_table(store, "second", dim=16)
        fill(second, 0, 3_000)
        store.check_integrity()
        late, floor = pool_of(second), CACHE_BYTES // 4
        assert floor - late.slab_bytes < late.memory_bytes
        assert pool_of(first).memory_bytes >= floor
        check_rows(first, 0, 6_000)
        check_rows(second, 0, 3_000)


@pytest.mark.parametrize("cache_bytes", [36_000, 39_000, 42_000])
def test_a_late_layout_fits_where_it_fits_beside_an_empty_one(tmp_path, cache_bytes):
    """Slabs that go must take their share of the index with them."""
    with opened(tmp_path / "empty", cache_bytes=cache_bytes) as store:
        make_table(store, "first")
        make_table(store, "late", dim=16)
    with opened(tmp_path / "full", cache_bytes=cache_bytes) as store:
        first = make_table(store, "first")
        fill(first, 0, 3_000)
        fill(make_table(store, "late", dim=16), 0, 500)
        check_rows(first, 0, 3_000)
        store.check_integrity()


def test_a_slab_is_released_with_its_dirty_rows_logged(tmp_path):
    with opened(tmp_path, cache_bytes=CACHE_BYTES) as store:
        table = make_table(store)
        fill(table, 0, 2_000)
        pool, before = pool_of(table), table.digest()
        logged, resident = storage_of(store).log.index.size, resident_keys(table)
        pool.release_slab()
        store.check_integrity()
        left = resident - resident_keys(table)
        assert len(left) > 10 and resident_keys(table) <= resident
        assert storage_of(store).log.index.size == logged + len(left)
        assert table.digest() == before
        check_rows(table, 0, 2_000)


def test_a_released_slab_gives_its_memory_back_to_the_system(tmp_path):
    with opened(tmp_path, cache_bytes=16 << 20) as store:
        table = make_table(store, dim=64)
        table.assign(np.arange(20_000), rows_of(np.arange(20_000), 64))
        pool = pool_of(table)
        low, high = pool.slot_count - pool.slab_slots, pool.slot_count
        rows = pool.memory.rows
        first, end = (rows.ctypes.data + slot * rows.strides[0] for slot in (low, high))
        pages = np.arange(-(-first // 4096) * 4096, end - 4096, 4096).astype(np.uint64)
        flag = np.zeros(1, np.uint8)
        assert len(pages) > 30 and count_absent(pages, 1, flag, flag.ctypes.data) == 0
        pool.release_slab()
        assert count_absent(pages, 1, flag, flag.ctypes.data) == len(pages)


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


def test_a_dropped_layout_gives_its_memory_back(tmp_path):
    with opened(tmp_path, cache_bytes=CACHE_BYTES) as store:
        first = make_table(store, "first")
        alone = store.stats()["cache"]["memory_bytes"]
        fill(make_table(store, "second", dim=16), 0, 2_000)
        store.drop_table("second")
        assert store.stats()["cache"]["memory_bytes"] == alone
        assert len(store.stats()["cache"]["pools"]) == 1
        fill(first, 0, 200)
        store.check_integrity()


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


def test_a_second_layout_that_cannot_fit_changes_nothing(tmp_path):
    with opened(tmp_path, cache_bytes=60_000) as store:
        table = make_table(store)
        fill(table, 0, 2_000)
        before, cached = table.digest(), store.stats()["cache"]["memory_bytes"]
        with pytest.raises(CapacityError, match="cache_bytes"):
            make_table(store, "large", dim=4096, optimizer=Adam(0.1))
        assert store.tables() == ["t"] and table.digest() == before
        assert store.stats()["cache"]["memory_bytes"] <= cached
        fill(table, 2_000, 2_500)
        check_rows(table, 0, 2_500)
        store.check_integrity()


# Calls larger than the cache


def verbs(store, rng):
    """Run every verb of a table with 3,000 different keys a call; return all that came back."""
    table = make_table(store, dim=8, optimizer=RowWiseAdagrad(0.1), initializer=Uniform(-1, 1))
    keys = rng.permutation(np.concatenate([rng.permutation(6_000)[:3_000], np.arange(500)]))
    gradients = rng.standard_normal((len(keys), 8)).astype(np.float32)
    offsets = np.arange(0, len(keys) + 1, 7)
    bags = rng.standard_normal((len(offsets) - 1, 8)).astype(np.float32)
    results = [table.lookup(keys)]
    table.update(keys, gradients)
    results += [table.lookup(keys), table.lookup_pooled(keys[: offsets[-1]], offsets, "mean")]
    table.update_pooled(keys[: offsets[-1]], offsets, bags, "sum")
    table.assign(keys[:1_000], gradients[:1_000])
    results += [*table.read_rows(keys), table.lookup(keys, admit=False)]
    return [table.digest(), *(result.tobytes() for result in results)]


@pytest.mark.parametrize("policy", ["lru", "lfu"])
def test_a_call_larger_than_the_cache_gives_the_same_bits(tmp_path, policy):
    with opened(tmp_path / "large", cache_bytes=64 << 20) as store:
        expected = verbs(store, generator(SEED))
        assert pool_figures(store)["calls_in_parts"] == 0
    with opened(tmp_path / "small", cache_bytes=40_000, policy=policy) as store:
        assert verbs(store, generator(SEED)) == expected
        figures = pool_figures(store)
        assert figures["slots"] < 1_000
        assert figures["calls_in_parts"] >= 4
        assert figures["parts"] > 2 * figures["calls_in_parts"]
        store.check_integrity()


# Victims


def test_clean_and_dirty_victims_are_counted_and_only_dirty_ones_logged(tmp_path):
    with opened(tmp_path, cache_bytes=60_000) as store:
        table = make_table(store)
        table.lookup(np.arange(20_000, 23_000))  # more than the cache: it is full now
        slots = pool_of(table).slot_count
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
        table.lookup(np.arange(10_000, 10_000 + 3 * pool_of(table).slot_count))
        assert pool_figures(store)["evictions_dirty"] == 0
        check_rows(table, 0, 300)


def test_evicted_and_surviving_rows_are_the_rows_that_came_in(tmp_path):
    """HierarchicalKV #110, #241: eviction lost rows, returned wrong values and counts."""
    rng = generator(SEED)
    with opened(tmp_path, cache_bytes=60_000) as store:
        table = make_table(store)
        came = set()
        for _ in range(30):
            keys = rng.choice(20_000, 150, replace=False)
            before = pool_figures(store)["evictions_dirty"], resident_keys(table)
            table.assign(keys, rows_of(keys))
            surviving = resident_keys(table)
            evicted = before[1] - surviving
            came |= set(keys.tolist())
            assert surviving <= came
            assert surviving | evicted == before[1] | set(keys.tolist())
            assert pool_figures(store)["evictions_dirty"] - before[0] == len(evicted)
            store.check_integrity()
        stored = np.array(sorted(came))
        in_log = set(stored[storage_of(store).has(stored)].tolist())
        assert in_log | resident_keys(table) == came
        assert in_log & resident_keys(table) <= came
        weights, _ = table.read_rows(stored)
        assert np.array_equal(weights, rows_of(stored))


def test_hits_and_misses_are_counted_by_key_by_access_and_by_origin(tmp_path):
    with opened(tmp_path, cache_bytes=60_000) as store:
        table = make_table(store)
        table.lookup([1, 2, 2, 3])
        table.lookup([2, 4, 4, 4, 1, 1])
        figures = pool_figures(store)
        assert (figures["unique_keys"], figures["unique_hits"]) == (6, 2)
        assert (figures["accesses"], figures["access_hits"]) == (10, 3)
        assert figures["misses_initializer"] == 4
        table.assign([9], rows_of([9]))
        table.lookup(np.arange(1_000, 6_000))
        table.lookup([9])
        assert pool_figures(store)["misses_log"] == 1


# Rooms of other sizes


def test_restore_needs_no_room_for_layouts_that_it_removes(tmp_path):
    """The cache has room for one layout at a time, before and after."""
    wide = {"dim": 4096, "optimizer": Adam(0.1)}
    four_slots = 4 * 4 * row_stride(3 * 4096)
    with opened(tmp_path, cache_bytes=four_slots * 3 // 2) as store:
        table = make_table(store, "before", **wide)
        table.assign([5], np.full((1, 4096), 3, np.float32))
        before = table.digest()
        store.checkpoint("before")
        store.drop_table("before")
        make_table(store, "after", dim=4095, optimizer=Adam(0.1))
        store.restore("before")
        assert store.tables() == ["before"]
        assert store.table("before").digest() == before
        store.check_integrity()


def test_an_empty_cache_and_an_empty_call_are_fine(tmp_path):
    with opened(tmp_path, cache_bytes=60_000) as store:
        store.check_integrity()
        table = make_table(store, initializer=Constant(2.0))
        assert table.lookup([]).shape == (0, 4)
        table.update([], np.empty((0, 4), np.float32))
        assert resident_keys(table) == set()
        store.check_integrity()
