"""group: the positions of each id, in their order, against a stable sort."""

from itertools import pairwise

import numpy as np
import pytest

from embstore.device import gpu_positions
from embstore.device.cpu import CpuDevice
from embstore.device.gpu import GpuDevice
from embstore.device.gpu_positions import by_id, by_slot
from embstore.device.gpu_work import GpuBatch
from embstore.kernels.group import group
from tests.kernels.emulation.runtime import EmulatedRuntime
from tests.kernels.samples import batch_of, devices, down, records, slots_with, up

SEED = 7
TILE = 2048
COUNTS = (
    *(1, 31, 32, 33, 255, 256, 257, TILE - 1, TILE, TILE + 1, 3 * TILE + 300),
    *(65_535, 65_536, 65_537),
)


def groups(device, batch):
    """Return starts and positions, as `sum_by_key` uses them."""
    unique_count = len(batch.unique_keys)
    if not isinstance(device, CpuDevice):
        found = by_id(device.work, batch, batch.findings)
        starts, positions, _ = map(device.memory.download, found)
        return starts[: unique_count + 1].tolist(), positions.tolist()
    starts = np.empty(unique_count + 1, np.int64)
    positions = np.empty(len(batch.inverse), np.int32)
    group(batch.inverse, starts, positions)
    return starts.tolist(), positions.tolist()


def check(keys):
    for device in devices():
        batch = batch_of(device, keys)
        starts, positions = groups(device, batch)
        inverse = down(device, batch.inverse)
        assert positions == np.argsort(inverse, kind="stable").tolist()
        counts = np.bincount(inverse, minlength=len(batch.unique_keys))
        assert starts == [0, *np.cumsum(counts).tolist()]


@pytest.mark.parametrize("count", [255, 256, 257, 2047, 2048, 2049, 70_000])
@pytest.mark.parametrize("kind", ["alike", "all different", "some hot"])
def test_group_of_many(kind, count):
    """Ids of one, two and three digits; whole tiles of a sort and parts of them."""
    rng = np.random.default_rng(SEED)
    check({
        "alike": np.zeros(count, np.int64),
        "all different": rng.permutation(count),
        "some hot": np.minimum(rng.zipf(1.3, count), count),
    }[kind])  # fmt: skip


# The kernels by themselves


def ids_of(kind, count):
    """Return ids below `count`, every one from 0 to the largest, as a batch has them."""
    rng = np.random.default_rng([SEED, count])
    drawn = {
        "alike": lambda: np.zeros(count, np.int64),
        "all different": lambda: rng.permutation(count),
        "descending": lambda: np.arange(count)[::-1],
        "skewed": lambda: np.minimum(rng.zipf(1.2, count), count),
        "half hot": lambda: np.where(rng.random(count) < 0.5, 7, rng.integers(0, count, count)),
    }[kind]()
    return np.unique(drawn, return_inverse=True)[1].astype(np.int32)


def check_ids(ids, blocks=None, **options):
    device = GpuDevice(EmulatedRuntime(**options), 1)
    if blocks:
        runtime = device.work.runtime
        device.work.launch = lambda kernel, _, *given: runtime.launch(kernel, blocks, *given)
    count, findings = int(ids.max()) + 1, np.zeros(8, np.int64)
    findings[0] = count
    inverse = up(device, ids)
    batch = GpuBatch(device.memory.allocate(count, np.int64), inverse, np.array([0, len(ids)]))
    starts, positions, sorted_ids = by_id(device.work, batch, up(device, findings))
    expected = np.argsort(ids, kind="stable")
    assert np.array_equal(down(device, positions), expected)
    assert np.array_equal(down(device, sorted_ids), ids[expected])
    begins = np.searchsorted(ids[expected], np.arange(count + 1))
    assert np.array_equal(down(device, starts)[: count + 1], begins)
    assert np.array_equal(down(device, inverse), ids)
    device.close()


@pytest.mark.parametrize("kind", ["alike", "all different", "descending", "skewed", "half hot"])
@pytest.mark.parametrize("count", COUNTS)
def test_kernels_sort_ids_of_any_count(kind, count):
    check_ids(ids_of(kind, count))


@pytest.mark.parametrize("kind", ["all different", "skewed"])
@pytest.mark.parametrize("count", [1, 2 * TILE, 2 * TILE + 1, 7 * TILE + 300])
def test_a_large_call_is_sorted_in_larger_tiles(kind, count, monkeypatch):
    monkeypatch.setattr(gpu_positions, "_LARGE", 1)
    check_ids(ids_of(kind, count), seed=count)


@pytest.mark.parametrize("seed", range(1, 6))
def test_kernels_sort_in_any_order_of_threads(seed):
    check_ids(ids_of("half hot", TILE + 700), seed=seed * 1000, fibers=True)


@pytest.mark.parametrize("count", [1, 300, 3 * TILE + 5])
def test_slots_are_ids_and_a_position_without_one_is_a_group_of_its_own(count):
    """Among its segment's gradients: others may have none there."""
    rng = np.random.default_rng([SEED, count])
    device, slot_count = GpuDevice(EmulatedRuntime(), 1), 700
    keys = rng.permutation(10_000)[:slot_count]
    memory = slots_with(device, records(rng, slot_count, 4), keys=keys)
    slots = np.minimum(rng.zipf(1.3, count), slot_count) - 1
    slots[rng.random(count) < 0.2] = -1
    findings = up(device, np.zeros(8, np.int64))
    groups, unique_keys, unique_slots = by_slot(
        device.work, memory, up(device, slots.astype(np.int32)), slot_count, findings
    )
    starts, positions, ids = (down(device, array) for array in groups)
    unique_count = int(down(device, findings)[0])
    assert unique_count == len(np.unique(slots[slots >= 0])) + np.count_nonzero(slots < 0)
    assert np.array_equal(np.sort(positions), np.arange(count))
    assert np.array_equal(
        ids, np.repeat(np.arange(unique_count), np.diff(starts[: unique_count + 1]))
    )
    assert starts[unique_count] == count
    of_ids = down(device, unique_slots)[:unique_count]
    assert np.array_equal(of_ids[ids], slots[positions])
    assert np.array_equal(
        down(device, unique_keys)[:unique_count], np.where(of_ids < 0, -1, keys[of_ids])
    )
    for low, high in pairwise(starts[: unique_count + 1]):
        assert (np.diff(positions[low:high]) > 0).all()
    device.close()


@pytest.mark.parametrize("blocks", [1, 2, 3, 7])
def test_any_number_of_blocks_shares_the_tickets(blocks):
    check_ids(ids_of("skewed", 4 * TILE + 33), blocks=blocks, seed=blocks)


@pytest.mark.parametrize("limit", [700, 1 << 16, 1 << 24, 1 << 31])
def test_positions_are_sorted_by_as_many_digits_as_there_are_slots(limit):
    """Those without a slot have all bits set, and so come last."""
    rng = np.random.default_rng(SEED)
    device, slot_count = GpuDevice(EmulatedRuntime(), 1), 700
    memory = slots_with(device, records(rng, slot_count, 4))
    slots = rng.integers(-1, slot_count, TILE + 100).astype(np.int32)
    findings = up(device, np.zeros(8, np.int64))
    groups, _, _ = by_slot(device.work, memory, up(device, slots), limit, findings)
    expected = np.argsort(np.where(slots < 0, slot_count, slots), kind="stable")
    assert np.array_equal(down(device, groups.positions), expected)
    device.close()
