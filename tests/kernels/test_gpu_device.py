"""The GPU device beside the CPU's: orders of threads, and launches that fail.

The emulated GPU runs lanes and blocks in an order that its seed draws, and in fibers lets a thread
give way at every atomic and barrier, so that a race between the threads of a block shows. What
comes out must be what the CPU makes, whatever the order.
"""

import numpy as np
import pytest

from embstore.arrays import EMPTY_KEY
from embstore.device.values import Gradients
from embstore.errors import DeviceError
from embstore.score import PENDING, PIN_ONE
from tests.kernels.gpu_samples import CPU, everything, expected, made, one_table, sums_of
from tests.kernels.samples import awkward, contents_of, down, row_keys, slots_with, up
from tests.kernels.test_insert import check_integrity

shuffled = pytest.mark.parametrize(
    "seed, fibers", [(1, False), (2, False), *((seed, True) for seed in range(3, 8))]
)


def uniques(device, segments):
    batch = device.keys.unique(segments)
    device.keys.synchronize(batch)
    if batch.found.outside >= 0:
        return batch.found.outside
    return down(device, batch.unique_keys).tolist(), down(device, batch.inverse).tolist()


@shuffled
def test_unique_in_any_order_of_threads(seed, fibers):
    rng, device = np.random.default_rng(seed), made(seed, fibers=fibers)
    for count in (1, 40, 900, 3_000):
        segments = [(table, 60, np.minimum(rng.zipf(1.3, count), 59)) for table in range(3)]
        assert uniques(device, segments) == uniques(CPU, segments)
        for wrong in rng.integers(0, count, 3):
            segments[1][2][wrong] = rng.choice([-1, 60, 1 << 50])
        assert uniques(device, segments) == uniques(CPU, segments)


@shuffled
def test_index_in_any_order_of_threads(seed, fibers):
    """So small that full buckets are common: keys are moved, and go to the stash."""
    rng, device = np.random.default_rng(seed), made(seed, fibers=fibers)
    for slot_count, key_count in ((16, 61), (300, 500)):
        index, expected = device.memory.allocate_index(slot_count), {}
        for turn in range(8):
            keys = rng.permutation(key_count)[: key_count // 2].tolist()
            new = np.array([key for key in keys if key not in expected], np.int64)
            old = np.array([key for key in keys if key in expected], np.int64)
            device.keys.erase(index, old)
            assert device.keys.insert(index, new, new + 1_000 * turn)()
            expected = {key: slot for key, slot in expected.items() if key not in old}
            expected |= {key: key + 1_000 * turn for key in new.tolist()}
            check_integrity(device, index, expected)


@shuffled
def test_an_index_of_slots_in_any_order_of_threads(seed, fibers):
    rng, device = np.random.default_rng(seed), made(seed, fibers=fibers)
    keys = np.where(rng.random(600) < 0.1, EMPTY_KEY, rng.permutation(600))
    memory = slots_with(device, np.zeros((600, 4), np.float32), keys=keys, slab_slots=64)
    index = device.memory.allocate_index(400)
    assert device.keys.insert_slots(index, memory, 600)
    check_integrity(device, index, {key: i for i, key in enumerate(keys.tolist()) if key >= 0})


@shuffled
@pytest.mark.parametrize("kind", ["lru", "lfu", "equal", "wide", "pinned"])
def test_victims_in_any_order_of_threads(seed, fibers, kind):
    rng, device = np.random.default_rng(seed), made(seed, fibers=fibers)
    slot_count = 5_000
    scores = {
        "lru": rng.integers(0, 1 << 30, slot_count),
        "lfu": rng.zipf(1.4, slot_count).clip(max=2047) << 40 | rng.integers(0, 9, slot_count),
        "equal": np.full(slot_count, 3),
        "wide": rng.integers(0, PIN_ONE, slot_count),
        "pinned": rng.integers(0, 9, slot_count) + rng.choice([0, PIN_ONE, PENDING], slot_count),
    }[kind]
    keys = np.where(rng.random(slot_count) < 0.1, EMPTY_KEY, np.arange(slot_count))
    rows = np.zeros((slot_count, 4), np.float32)
    there, here = (
        slots_with(each, rows, keys=keys, scores=scores, slab_slots=1024) for each in (device, CPU)
    )
    for count in (1, 700, 4_400, slot_count):
        found = device.slots.select_victims(there, slot_count, 5, count, count // 7)()
        expected = CPU.slots.select_victims(here, slot_count, 5, count, count // 7)()
        assert found.slots.tolist() == expected.slots.tolist()
        assert found.scores.tolist() == expected.scores.tolist()
        order = np.argsort(expected.scores, kind="stable")[: count // 7]
        first = expected.slots[order]
        assert found.contents(first).keys.tolist() == keys[first].tolist()


@shuffled
@pytest.mark.parametrize("dim", [1, 5, 8, 64])
def test_sums_in_any_order_of_threads(seed, fibers, dim):
    rng, device = np.random.default_rng(seed), made(seed, fibers=fibers)
    keys = [np.minimum(rng.zipf(1.2, 900), 60), np.repeat([1, 2], 300), rng.integers(0, 9, 5)]
    bags = np.sort(rng.integers(0, 20, 600)).astype(np.int32)
    values = [awkward(rng, n, dim) for n in (900, 20, 5)]
    gradients = [
        Gradients(values[0]),
        Gradients(values[1], bags, rng.integers(1, 9, 600).astype(np.float32), divide=True),
        Gradients(values[2]),
    ]
    assert sums_of(device, keys, gradients, dim) == sums_of(CPU, keys, gradients, dim)
    for place in rng.integers(0, 900, 40):
        values[0][place, rng.integers(dim)] = rng.choice([np.inf, -np.inf, np.nan])
    _, large = sums_of(CPU, keys, gradients, dim)
    assert large >= 0
    assert sums_of(device, keys, gradients, dim)[1] == large


@shuffled
@pytest.mark.parametrize("dim", [1, 33, 64, 200])
def test_rowwise_adagrad_in_any_order_of_threads(seed, fibers, dim):
    rng, device = np.random.default_rng(seed), made(seed, fibers=fibers)
    rows = awkward(rng, 40, (dim + 4) // 4 * 4)
    rows[:, dim] = np.abs(rows[:, dim])
    g, slots, keys = awkward(rng, 21, dim), rng.permutation(40)[:21], row_keys(0, np.arange(21))
    of_table, results = one_table(dim), []
    for each in (device, CPU):
        memory = slots_with(each, rows)
        arguments = (up(each, array) for array in (slots, keys, g))
        each.rows.apply("rowwise_adagrad", memory, *arguments, of_table)
        results.append(contents_of(each, memory, 40))
    assert results[0] == results[1]


@shuffled
def test_every_verb_in_any_order_of_threads(seed, fibers):
    assert everything(made(seed, fibers=fibers)) == expected()


# Failures


def launches_of_everything():
    device = made()
    everything(device)
    return device.runtime.launches


def test_whichever_launch_fails_the_device_is_lost():
    for launch in range(1, launches_of_everything() + 1):
        device = made()
        device.runtime.fail_at(launch)
        with pytest.raises(DeviceError):
            everything(device)
        assert device.is_lost, f"launch {launch}"
        device.close()
