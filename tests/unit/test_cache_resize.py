"""Another budget: pools, their arrays and memory."""

import re
from pathlib import Path

import numpy as np
import pytest

from embstore import CapacityError
from embstore.cache.sizes import Sizes
from embstore.cache.writing import Place
from embstore.device.cpu import CpuDevice
from embstore.device.gpu import GpuDevice
from embstore.host.memory import HUGE_PAGE_BYTES, lengthened, reserve
from embstore.layout import Layout
from embstore.row_keys import DENSE, RowKeys
from embstore.storage.cold import count_absent
from tests.faults.refusing import FullDisk
from tests.kernels.emulation.runtime import EmulatedRuntime
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


# Sizes


@pytest.mark.parametrize("row_keys", [DENSE, RowKeys(3)], ids=["dense", "sparse"])
@pytest.mark.parametrize(
    "layout", [Layout(1, 0, "sgd"), Layout(64, 1, "a"), Layout(4096, 8192, "b")]
)
def test_no_size_falls_when_the_budget_grows(layout, row_keys):
    """On this rests that the least budget is found by bisection."""
    device = CpuDevice(1)
    sizes = [Sizes.of(layout, budget, device, 0, row_keys) for budget in BUDGETS]
    figures = np.array([(s.slab_slots, s.slots_max, s.staging_rows, s.least_bytes) for s in sizes])
    assert (np.diff(figures[:, [0, 2, 3]], axis=0) >= 0).all()
    assert (figures[:, 1] % figures[:, 0] == 0).all()


@pytest.mark.parametrize("budget", [10_000, SMALL, LARGE, 1 << 30, 1 << 40])
def test_slots_max_is_never_what_ends_growth(budget):
    device = CpuDevice(1)
    for dim in (1, 4, 64, 4096):
        sizes = Sizes.of(Layout(dim, 0, "sgd"), budget, device)
        bytes_of_all = sizes.slots_max * sizes.slot_bytes + device.memory.index_bytes(
            sizes.slots_max
        )
        assert bytes_of_all > 0.999 * budget


@pytest.mark.parametrize("row_keys", [DENSE, RowKeys(3)], ids=["dense", "sparse"])
def test_a_slab_of_a_gpu_wastes_no_more_than_a_quarter_of_itself(row_keys):
    """Of a megabyte and a bit CUDA allocates two."""
    device = GpuDevice(EmulatedRuntime(), 1)
    for layout in (Layout(1, 0, "sgd"), Layout(64, 1, "a"), Layout(300, 600, "b")):
        sizes = [Sizes.of(layout, budget, device, 0, row_keys) for budget in BUDGETS]
        slot_bytes = sizes[0].slot_bytes
        assert max(each.slot_bytes for each in sizes) <= 1.25 * slot_bytes
        assert (np.diff([each.slab_slots for each in sizes]) >= 0).all()
        assert (np.diff([each.least_bytes for each in sizes]) >= 0).all()


def test_slots_of_a_gpu_are_counted_in_int32():
    sizes = Sizes.of(Layout(4, 0, "sgd"), 1 << 40, GpuDevice(EmulatedRuntime(), 1))
    assert (1 << 31) - sizes.slab_slots <= sizes.slots_max < 1 << 31


def test_a_search_for_dirty_rows_ends_where_slots_have_gone_meanwhile(tmp_path):
    """Of a digest: on a GPU it asked for fewer slots than none."""
    device = GpuDevice(EmulatedRuntime(), 1)
    with opened(tmp_path, cache_bytes=SMALL, host_cache_bytes=0, device=device) as store:
        slots, writer = (getattr(pool_of(filled(store, 10)), name) for name in ("slots", "writer"))
        found, keys = writer.dirty_range(Place(0, slots.count + 100))
        assert found is None
        assert not len(keys)


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
            assert pool.slots.sizes == expected
            store.check_integrity()
        check_rows(table, 3_000)


def test_a_slab_that_is_there_in_part_is_made_whole_first(tmp_path):
    with opened(tmp_path, cache_bytes=SMALL) as store:
        table = filled(store, 3_000)
        pool, small = pool_of(table), pool_of(table).slots.count
        store.resize_cache(LARGE)
        assert pool.slots.count == small and small % pool.slots.sizes.slab_slots
        table.lookup([50_000])
        assert pool.slots.count % pool.slots.sizes.slab_slots == 0
        assert small < pool.slots.count <= small + pool.slots.sizes.slab_slots
        assert pool.slots.resident_count == small + 1
        store.check_integrity()


def test_only_rows_of_the_last_slots_leave(tmp_path):
    with opened(tmp_path, cache_bytes=LARGE) as store:
        table = filled(store, 5_000, dim=16)
        pool = pool_of(table)
        slot_keys = pool.slots.keys.copy()
        store.resize_cache(200_000)
        assert 0 < pool.slots.count < 5_000
        assert np.array_equal(pool.slots.keys, slot_keys[: pool.slots.count])
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
        before = [a[: pool.slots.count].copy() for a in vars(pool.slots.memory).values()]
        store.resize_cache(LARGE)
        after = [a[: pool.slots.count] for a in vars(pool.slots.memory).values()]
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
                assert pool.slots.slab_count > 1 or pool.slots.index.capacity == pool.slots.count
            found = store.stats()["cache"]
            assert found["memory_bytes"] <= found["budget_bytes"]


# Refusals of the system


@pytest.mark.parametrize("nth", [1, 3, 6])
def test_a_full_disk_stops_a_shrink_with_every_row_intact(tmp_path, nth):
    limits = small_limits(fold_bytes=1 << 30, fold_segments=1_000)  # merges would take room too
    disk = FullDisk(tmp_path)
    with opened(tmp_path, cache_bytes=LARGE, files=disk, limits=limits) as store:
        tables = [filled(store, 3_000, f"t{dim}", dim=dim) for dim in (8, 16)]
        digests = [table.digest() for table in tables]
        slabs = [pool_of(table).slots.sizes.slab_slots for table in tables]
        disk.fill(nth)
        with pytest.raises(CapacityError):
            store.resize_cache(SMALL)
        assert disk.refusals
        store.check_integrity()
        assert store.stats()["cache"]["budget_bytes"] == LARGE
        assert [pool_of(table).slots.sizes.slab_slots for table in tables] == slabs
        disk.relent()
        assert [table.digest() for table in tables] == digests
        tables[0].lookup(np.arange(3_000))
        assert pool_of(tables[0]).slots.resident_count == 3_000
        store.resize_cache(SMALL)
        store.check_integrity()
        assert store.stats()["cache"]["memory_bytes"] <= SMALL
        for table in tables:
            check_rows(table, 3_000)


def test_no_address_space_for_the_second_pool_leaves_the_first_as_it_was(tmp_path):
    with opened(tmp_path, cache_bytes=LARGE) as store:
        tables = [filled(store, 1_000, f"t{dim}", dim=dim) for dim in (8, 16)]
        device, before = store.executor.device, store.stats()["cache"]
        reserve_slots = device.memory.reserve_slots

        def refuse_wide_rows(memory, *counts):
            if memory.rows.shape[1] == 16:
                raise CapacityError("no address space")
            reserve_slots(memory, *counts)

        device.memory.reserve_slots = refuse_wide_rows
        with pytest.raises(CapacityError, match="no address space"):
            store.resize_cache(1 << 30)
        assert store.stats()["cache"] == before
        store.check_integrity()
        device.memory.reserve_slots = reserve_slots
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
        used = pool.slots.count
        while pool.slots.slab_count > 1:
            pool.evictor.release_slabs(1)
        for array in vars(pool.slots.memory).values():
            start, slot_bytes = array.ctypes.data, array.strides[0]
            first, end = start + pool.slots.count * slot_bytes, start + used * slot_bytes
            end = min(end, (start + array.nbytes) // 4096 * 4096)  # the last page is not whole
            pages = np.arange(-(-first // 4096) * 4096, end, 4096).astype(np.uint64)
            assert len(pages) and count_absent(pages, 1) == len(pages)
        check_rows(table, 20_000)


def test_rows_are_lengthened_without_a_second_copy_of_them():
    device, slot_count, piece = CpuDevice(1), 1 << 20, 32 * HUGE_PAGE_BYTES
    memory = device.memory.allocate_slots(Layout(64, 0, "sgd"))
    device.memory.reserve_slots(memory, 0, slot_count, slot_count)
    memory.rows[:, 0] = np.arange(slot_count)  # a page holds 16 of them: 256 MiB
    Path("/proc/self/clear_refs").write_text("5")  # the peak is counted from here
    before = status_bytes("VmRSS")
    device.memory.reserve_slots(memory, slot_count, 1 << 28, slot_count)
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
