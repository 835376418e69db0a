"""Another budget: the arena with holders that only count, then pools, their arrays and memory."""

import re
from pathlib import Path

import numpy as np
import pytest

from embstore import Adam, CapacityError, Sgd
from embstore.cache.arena import Arena
from embstore.cache.sizes import Layout, Sizes
from embstore.device.cpu import CpuDevice
from embstore.device.memory import HUGE_PAGE_BYTES, lengthened, reserve
from embstore.kernels.cold import count_absent
from tests.faults.refusing import FullDisk
from tests.unit.small_stores import (
    generator,
    make_table,
    opened,
    pool_of,
    resident_keys,
    rows_of,
    show,
    small_limits,
)

SEED = 83
SMALL, LARGE = 60_000, 4 << 20
BUDGETS = sorted({int(1.37**i) for i in range(90)})


def status_bytes(name):
    """Return a figure of this process, which the kernel gives in KiB."""
    found = re.search(rf"^{name}:\s+(\d+) kB$", Path("/proc/self/status").read_text(), re.M)
    assert found, name
    return int(found[1]) << 10


# The arena


class FakeHolder:
    """A pool of slabs that are a tenth of the budget, and an index of 10 bytes."""

    def __init__(self, budget_bytes):
        self.slab_count = 0
        self.released = []
        self.refuses = False
        self.fit_budget(budget_bytes)

    def fit_budget(self, budget_bytes):
        self.slab_bytes = budget_bytes // 10

    @property
    def memory_bytes(self):
        return self.slab_count * self.slab_bytes + 10

    @property
    def least_bytes(self):
        return min(self.slab_count, 1) * self.slab_bytes + 10

    def least_bytes_of(self, budget_bytes):
        return budget_bytes // 10 + 10

    @property
    def grown_bytes(self):
        return self.memory_bytes + self.slab_bytes

    def release_slabs(self, count):
        if self.refuses and self.released:
            raise CapacityError("the disk is full")
        count = min(count, self.slab_count - 1)
        self.slab_count -= count
        self.released.append(count)


class ManySlabs(FakeHolder):
    """Keeps its slabs of 10 bytes, whatever the budget."""

    def fit_budget(self, budget_bytes):
        self.slab_bytes = 10


def held(arena, kind, *slab_counts):
    holders = []
    for count in slab_counts:
        holders.append(kind(arena.budget_bytes))
        arena.join(holders[-1])
        holders[-1].slab_count = count
    return holders


def test_a_larger_budget_is_spent_on_demand():
    arena = Arena(1_000)
    (pool,) = held(arena, ManySlabs, 99)
    assert not arena.grant(pool)
    arena.resize(2_000)
    assert pool.slab_count == 99 and arena.grant(pool)


def test_the_largest_pools_release_until_the_rest_fits():
    arena = Arena(10_000)
    small, middle, large = held(arena, ManySlabs, 50, 200, 600)
    arena.resize(4_000)
    assert 3_600 < arena.memory_bytes <= 4_000
    assert small.slab_count == 50 and not small.released
    assert abs(middle.slab_count - large.slab_count) <= 60


def test_few_releases_are_enough_however_small_the_slabs():
    arena = Arena(10_000_000)
    pools = held(arena, ManySlabs, 300_000, 250_000, 400_000)
    arena.resize(100_000)
    assert arena.memory_bytes <= 100_000
    assert sum(len(pool.released) for pool in pools) < 60


def test_no_pool_releases_its_first_slab():
    arena = Arena(1_000)
    pools = held(arena, ManySlabs, 1, 40, 1)
    arena.resize(90)
    assert [pool.slab_count for pool in pools] == [1, 4, 1]


def test_too_small_a_budget_changes_nothing_and_the_figure_named_is_the_least():
    arena = Arena(1_000)
    pools = held(arena, FakeHolder, 1, 3)
    with pytest.raises(CapacityError) as refused:
        arena.resize(5)
    figures = [int(number) for number in re.findall(r"\d+", str(refused.value))]
    assert figures == [24, 2, 5], "2 x (24 // 10 + 10)"
    assert (arena.budget_bytes, [p.slab_bytes for p in pools]) == (1_000, [100, 100])
    with pytest.raises(CapacityError):
        arena.resize(23)
    arena.resize(24)


def test_a_shrink_that_is_cut_off_leaves_budget_and_sizes():
    arena = Arena(1_000)
    pools = held(arena, ManySlabs, 40, 50)
    for pool in pools:
        pool.refuses = True
    sizes = []
    pools[0].fit_budget = sizes.append
    with pytest.raises(CapacityError, match="the disk is full"):
        arena.resize(100)
    assert arena.budget_bytes == 1_000
    assert sizes == [100, 1_000]
    assert arena.memory_bytes < 920, "slabs that went before are gone"


# Sizes


@pytest.mark.parametrize(
    "layout", [Layout(1, 0, "sgd"), Layout(64, 1, "a"), Layout(4096, 8192, "b")]
)
def test_no_size_falls_when_the_budget_grows(layout):
    """On this rests that the least budget is found from below."""
    sizes = [Sizes.of(layout, budget, CpuDevice(1)) for budget in BUDGETS]
    figures = np.array([(s.slab_slots, s.slots_max, s.staging_rows, s.least_bytes) for s in sizes])
    assert (np.diff(figures[:, [0, 2, 3]], axis=0) >= 0).all()
    assert (figures[:, 1] % figures[:, 0] == 0).all()


@pytest.mark.parametrize("budget", [10_000, SMALL, LARGE, 1 << 30, 1 << 40])
def test_slots_max_is_never_what_ends_growth(budget):
    device = CpuDevice(1)
    for dim in (1, 4, 64, 4096):
        sizes = Sizes.of(Layout(dim, 0, "sgd"), budget, device)
        bytes_of_all = sizes.slots_max * sizes.slot_bytes + device.index_bytes(sizes.slots_max)
        assert bytes_of_all > 0.999 * budget


# Pools


def filled(store, count, name="t", **given):
    table = make_table(store, name, **given)
    table.assign(np.arange(count), rows_of(np.arange(count), table.dim))
    return table


def least(store):
    """Return the smallest budget that the store's layouts allow: a refusal names it."""
    with pytest.raises(CapacityError) as refused:
        store.resize_cache(1)
    return max(int(number) for number in re.findall(r"\d+", str(refused.value)))


def check_rows(table, count):
    keys = np.arange(count)
    assert np.array_equal(table.read_rows(keys)[0], rows_of(keys, table.dim))


def test_slabs_become_those_of_the_new_budget(tmp_path):
    with opened(tmp_path, cache_bytes=SMALL) as store:
        table = filled(store, 3_000)
        pool = pool_of(table)
        for budget in (LARGE, SMALL, 1 << 30, 100_000):
            store.resize_cache(budget)
            expected = Sizes.of(pool.layout, budget, pool.device)
            assert (pool.slab_slots, pool.slab_bytes) == (expected.slab_slots, expected.slab_bytes)
            assert pool._sizes == expected
            store.check_integrity()
        check_rows(table, 3_000)


def test_a_slab_that_is_there_in_part_is_made_whole_first(tmp_path):
    with opened(tmp_path, cache_bytes=SMALL) as store:
        table = filled(store, 3_000)
        pool, small = pool_of(table), pool_of(table).slot_count
        store.resize_cache(LARGE)
        assert pool.slot_count == small and small % pool.slab_slots
        table.lookup([50_000])
        assert pool.slot_count % pool.slab_slots == 0
        assert small < pool.slot_count <= small + pool.slab_slots
        assert pool.resident_count == small + 1
        store.check_integrity()


def test_only_rows_of_the_last_slots_leave(tmp_path):
    with opened(tmp_path, cache_bytes=LARGE) as store:
        table = filled(store, 5_000, dim=16)
        pool = pool_of(table)
        slot_keys = pool.slot_keys.copy()
        store.resize_cache(200_000)
        assert 0 < pool.slot_count < 5_000
        assert np.array_equal(pool.slot_keys, slot_keys[: pool.slot_count])
        check_rows(table, 5_000)


@pytest.mark.parametrize("dims", [(1,), (4,), (64,), (1, 4, 64), (2, 4)])
@pytest.mark.parametrize("budget", [3 << 20, 1 << 20, 300_000])
def test_a_shrink_evicts_no_more_than_it_must(tmp_path, budget, dims):
    """Of rows so small that the index weighs as much, too."""
    with opened(tmp_path, cache_bytes=LARGE) as store:
        for dim in dims:
            make_table(store, f"t{dim}", dim=dim).lookup(np.arange(100_000))
        assert store.stats()["cache"]["memory_bytes"] > 0.9 * LARGE
        store.resize_cache(budget)
        assert 0.75 * budget < store.stats()["cache"]["memory_bytes"] <= budget


def test_growth_moves_no_row_to_another_slot_and_evicts_none(tmp_path):
    with opened(tmp_path, cache_bytes=200_000, policy="lfu") as store:
        table = filled(store, 5_000, dim=16)
        pool = pool_of(table)
        before = [a[: pool.slot_count].copy() for a in vars(pool.memory).values()]
        store.resize_cache(LARGE)
        after = [a[: pool.slot_count] for a in vars(pool.memory).values()]
        assert all(np.array_equal(a, b) for a, b in zip(after, before, strict=True))
        store.check_integrity()


@pytest.mark.parametrize("policy", ["lru", "lfu"])
def test_the_policy_goes_on_after_a_resize(tmp_path, policy):
    """Scores moved with their slots: hot rows stay when cold ones pass through."""
    with opened(tmp_path, cache_bytes=SMALL, policy=policy) as store:
        table = make_table(store)
        hot = np.arange(100)
        for _ in range(20):
            table.lookup(hot)
        store.resize_cache(100_000)
        for low in range(1_000, 20_000, 100):
            table.lookup(np.arange(low, low + 100))
            if policy == "lru":
                table.lookup(hot)
        assert set(hot.tolist()) <= resident_keys(table)
        store.check_integrity()


def test_a_pool_of_one_slab_has_an_index_of_one_slab(tmp_path):
    """Else the least budget that is promised could be exceeded by the index of a larger one."""
    rng = generator(SEED)
    with opened(tmp_path, cache_bytes=LARGE) as store:
        tables = [make_table(store, f"t{dim}", dim=dim) for dim in (1, 4, 40)]
        smallest = least(store)
        for _ in range(100):
            table = tables[rng.integers(3)]
            table.assign(np.arange(400), rows_of(np.arange(400), table.dim))
            store.resize_cache(smallest if rng.random() < 0.3 else int(2 ** rng.uniform(16, 22)))
            store.check_integrity()
            for pool in map(pool_of, tables):
                assert pool.slab_count > 1 or pool.index.capacity == pool.slot_count
            found = store.stats()["cache"]
            assert found["memory_bytes"] <= found["budget_bytes"]


def test_layouts_of_every_width_find_their_least(tmp_path):
    with opened(tmp_path, cache_bytes=64 << 20) as store:
        for dim, optimizer in ((1, Sgd(0.1)), (64, Sgd(0.1)), (4096, Adam(0.1))):
            filled(store, 100, f"t{dim}", dim=dim, optimizer=optimizer)
        digests = [store.table(name).digest() for name in store.tables()]
        enough = least(store)
        with pytest.raises(CapacityError):
            store.resize_cache(enough - 1)
        store.resize_cache(enough)
        store.check_integrity()
        assert store.stats()["cache"]["memory_bytes"] <= enough
        assert [store.table(name).digest() for name in store.tables()] == digests


# Refusals of the system


@pytest.mark.parametrize("nth", [1, 3, 6])
def test_a_full_disk_stops_a_shrink_with_every_row_intact(tmp_path, nth):
    limits = small_limits(fold_bytes=1 << 30, fold_segments=1_000)  # merges would take room too
    disk = FullDisk(tmp_path)
    with opened(tmp_path, cache_bytes=LARGE, files=disk, limits=limits) as store:
        tables = [filled(store, 3_000, f"t{dim}", dim=dim) for dim in (8, 16)]
        digests = [table.digest() for table in tables]
        slabs = [pool_of(table).slab_slots for table in tables]
        disk.fill(nth)
        with pytest.raises(CapacityError):
            store.resize_cache(SMALL)
        assert disk.refusals
        store.check_integrity()
        assert store.stats()["cache"]["budget_bytes"] == LARGE
        assert [pool_of(table).slab_slots for table in tables] == slabs
        disk.relent()
        assert [table.digest() for table in tables] == digests
        tables[0].lookup(np.arange(3_000))
        assert pool_of(tables[0]).resident_count == 3_000
        store.resize_cache(SMALL)
        store.check_integrity()
        assert store.stats()["cache"]["memory_bytes"] <= SMALL
        for table in tables:
            check_rows(table, 3_000)


def test_no_address_space_for_the_second_pool_leaves_the_first_as_it_was(tmp_path):
    with opened(tmp_path, cache_bytes=LARGE) as store:
        tables = [filled(store, 1_000, f"t{dim}", dim=dim) for dim in (8, 16)]
        device, before = store._engine.device, store.stats()["cache"]
        allocate = device.allocate_rows

        def refuse_wide_rows(slot_count_max, stride):
            if stride == 16:
                raise CapacityError("no address space")
            return allocate(slot_count_max, stride)

        device.allocate_rows = refuse_wide_rows
        with pytest.raises(CapacityError, match="no address space"):
            store.resize_cache(1 << 30)
        assert store.stats()["cache"] == before
        store.check_integrity()
        device.allocate_rows = allocate
        store.resize_cache(1 << 30)
        for table in tables:
            check_rows(table, 1_000)
        store.check_integrity()


# Memory


def test_a_shrink_gives_memory_back_to_the_system(tmp_path):
    cached = 96 << 20
    with opened(tmp_path, cache_bytes=cached) as store:
        table = make_table(store, dim=4, rows=10_000_000)  # so small that metadata weighs more
        for low in range(0, 3_000_000, 100_000):
            table.lookup(np.arange(low, low + 100_000))
        before, full = store.stats()["cache"]["memory_bytes"], status_bytes("RssAnon")
        assert before > cached // 2
        store.resize_cache(8 << 20)
        gone, left = full - status_bytes("RssAnon"), store.stats()["cache"]["memory_bytes"]
        show(f"held {before}, then {left}; gone {gone}")
        assert gone > 0.85 * (before - left)
        store.check_integrity()


def test_slabs_that_go_one_by_one_leave_no_page_between_them(tmp_path):
    with opened(tmp_path, cache_bytes=500_000) as store:
        table = filled(store, 20_000)
        pool = pool_of(table)
        used = pool.slot_count
        while pool.slab_count > 1:
            pool.release_slab()
        for array in vars(pool.memory).values():
            start, slot_bytes = array.ctypes.data, array.strides[0]
            first, end = start + pool.slot_count * slot_bytes, start + used * slot_bytes
            end = min(end, (start + array.nbytes) // 4096 * 4096)  # the last page is not whole
            pages = np.arange(-(-first // 4096) * 4096, end, 4096).astype(np.uint64)
            flag = np.zeros(1, np.uint8)
            assert len(pages) and count_absent(pages, 1, flag, flag.ctypes.data) == len(pages)
        check_rows(table, 20_000)


@pytest.mark.parametrize("policy", ["lru", "lfu"])
def test_a_cache_that_breathes_does_not_gain_weight(tmp_path, policy):
    with opened(tmp_path, cache_bytes=1 << 20, policy=policy) as store:
        table, keys = make_table(store, dim=16), np.arange(60_000)
        weights = []
        for _ in range(5):
            store.resize_cache(16 << 20)
            table.lookup(keys)
            store.resize_cache(1 << 20)
            weights.append(status_bytes("RssAnon"))
        assert weights[-1] - weights[0] < 4 << 20


def test_rows_are_lengthened_without_a_second_copy_of_them():
    device, slot_count, piece = CpuDevice(1), 1 << 20, 32 * HUGE_PAGE_BYTES
    memory = device.allocate_slots(64)
    device.reserve_slots(memory, 0, slot_count, slot_count)
    memory.rows[:, 0] = np.arange(slot_count)  # a page holds 16 of them: 256 MiB
    Path("/proc/self/clear_refs").write_text("5")  # the peak is counted from here
    before = status_bytes("VmRSS")
    device.reserve_slots(memory, slot_count, 1 << 28, slot_count)
    assert status_bytes("VmHWM") - before < piece + (16 << 20)
    rows = memory.rows
    assert rows.shape == (1 << 28, 64)
    assert np.array_equal(rows[:slot_count, 0], np.arange(slot_count))
    assert (rows[:slot_count, 1:] == 0).all() and (rows[slot_count : slot_count + 9] == 0).all()


def test_a_lengthened_array_begins_with_what_was_used():
    array = reserve(8 * 1_000).view(np.int64)
    array[:] = np.arange(1_000)
    longer = lengthened(array, 600, 5_000)
    assert longer.dtype == np.int64 and len(longer) == 5_000
    assert np.array_equal(longer[:600], np.arange(600)) and not longer[600:].any()
    assert len(lengthened(np.empty(0, np.uint8), 0, 10)) == 10
