"""Offsets beyond 2**31 and 2**32, in bytes and in elements, on the GPU device."""

import numpy as np
import pytest

from embstore.device.values import Gradients
from embstore.score import COUNT_NONE
from tests.kernels.gpu_samples import CPU, SEED, made, one_table, sums_of
from tests.kernels.samples import (
    awkward,
    batch_of,
    bits,
    down,
    overwrite,
    records,
    slots_with,
    up,
    wide,
)

WIDE_STRIDE, WIDE_DIM, MANY = 4100, 4096, 1 << 20
FAR = [MANY - 1, *(limit // size + 1 for limit in (1 << 31, 1 << 32) for size in (4100, 16400))]


@pytest.fixture(scope="module")
def far():
    """Return a device with slots of which only the named take memory: one slab of 16 GiB."""
    device = made()
    memory = device.memory.allocate_slots(wide(WIDE_STRIDE))
    device.memory.reserve_slots(memory, 0, MANY, MANY)
    device.memory.add_slots(memory, 0, MANY)
    yield device, memory
    device.close()


@pytest.fixture
def far_rows(far):
    """Return rows that have been scattered to the far slots."""
    device, memory = far
    rows = records(np.random.default_rng(SEED), len(FAR), WIDE_STRIDE)
    device.rows.scatter_rows(rows, memory.rows, np.array(FAR))
    return rows


def test_rows_at_far_slots_are_scattered_and_read(far, far_rows):
    device, memory = far
    assert bits(device.rows.read_rows(memory.rows, np.array(FAR))) == bits(far_rows)
    found = [host[places] for _, host, places in device.rows.row_pieces(memory.rows, np.array(FAR))]
    assert bits(np.concatenate(found)) == bits(far_rows)


@pytest.mark.parametrize("dim", [WIDE_DIM, WIDE_DIM - 1])
def test_rows_at_far_slots_are_gathered_and_pooled(far, far_rows, dim):
    device, memory = far
    batch = batch_of(device, np.array([0, 1, 2, 3, 4, 2]))
    slots, out = up(device, np.array(FAR)), np.empty((6, dim), np.float32)
    device.rows.gather(memory.rows, slots, batch, dim, [out])
    assert bits(out) == bits(far_rows[[0, 1, 2, 3, 4, 2], :dim])
    pooled = np.empty((6, dim), np.float32)
    device.rows.gather_pooled(memory.rows, slots, batch, np.arange(7), False, None, pooled)
    assert bits(pooled) == bits(out)


def test_outputs_at_far_positions_are_gathered(far, far_rows):
    """Of a million positions all but a few are absent, and left alone."""
    device, memory = far
    ids = np.zeros(MANY, np.int64)
    ids[FAR] = np.arange(1, len(FAR) + 1)
    batch = batch_of(device, ids)
    by_id = np.full(len(FAR) + 1, -1)
    by_id[down(device, batch.inverse)[FAR]] = FAR
    d_out = device.memory.allocate(MANY, np.float32, width=WIDE_DIM)
    device.rows.gather(memory.rows, up(device, by_id), batch, WIDE_DIM, [d_out])
    for row, position in zip(far_rows, FAR, strict=True):
        found = down(device, d_out[position : position + 1])
        assert bits(found[0]) == bits(row[:WIDE_DIM])


def test_rows_at_far_places_are_gathered(far, far_rows):
    device, memory = far
    rows, slots = device.memory.allocate_rows(MANY, wide(WIDE_STRIDE)), np.full(MANY, -1)
    slots[FAR] = FAR
    device.rows.gather_rows(memory.rows, up(device, slots), rows, 0)
    assert bits(device.rows.read_rows(rows, np.array(FAR))) == bits(far_rows)


@pytest.mark.parametrize("kind", ["sgd", "rowwise_adagrad"])
def test_rows_at_far_slots_are_updated(far, far_rows, kind):
    device, memory = far
    g = records(np.random.default_rng(SEED + 1), len(FAR), WIDE_DIM)
    of_table, keys = one_table(WIDE_DIM), np.arange(len(FAR))
    near = slots_with(CPU, np.abs(far_rows))
    device.rows.scatter_rows(np.abs(far_rows), memory.rows, np.array(FAR))
    CPU.rows.apply(kind, near, keys, keys, g, of_table)
    arguments = (up(device, array) for array in (np.array(FAR), keys, g))
    device.rows.apply(kind, memory, *arguments, of_table)
    expected = CPU.rows.read_rows(near.rows, keys)
    assert bits(device.rows.read_rows(memory.rows, np.array(FAR))) == bits(expected)
    assert device.slots.read_slots(memory, np.array(FAR))().dirty.all()


def test_far_slots_are_placed_and_chosen(far):
    device, memory = far
    device.slots.place_keys(memory, np.array(FAR), np.arange(len(FAR)) << 40, 0)
    device.slots.touch(memory, np.array(FAR), 7, COUNT_NONE)
    found = device.slots.select_victims(memory, MANY, 8, 3)()
    victims, scores = found.slots, found.scores
    assert victims.tolist() == sorted(FAR)[:3] and scores.tolist() == [7] * 3
    assert device.slots.pin(memory, victims)() == 3
    assert device.slots.select_victims(memory, MANY, 8, 5)().slots.tolist() == sorted(FAR)[3:]
    found = device.slots.read_slots(memory, np.array(FAR))()
    assert found.keys.tolist() == [i << 40 for i in range(len(FAR))]
    device.slots.clear_slots(memory, np.array(FAR))


@pytest.mark.parametrize("dim", [WIDE_DIM, WIDE_DIM + 1])
def test_gradients_at_far_rows_are_summed(far, dim):
    """A bag's gradient stands where its number says."""
    device, _ = far
    d_rows = device.memory.allocate(MANY + 2, np.float32, width=dim)
    far_bags = [(1 << 31) // dim, (1 << 32) // dim, (1 << 31) // dim + 1, (1 << 30) // dim + 1]
    values = awkward(np.random.default_rng(SEED), len(far_bags), dim)
    for bag, value in zip(far_bags, values, strict=True):
        overwrite(device, d_rows[bag : bag + 1], value)
    order = np.array([0, 1, 2, 3] * 40)
    source = np.array(far_bags, np.int32)[order]
    keys = [np.array([5, 6, 5, 7, 5, 5, 5, 7] * 20)]
    found = sums_of(device, keys, [Gradients(d_rows, source)], dim)
    expected = sums_of(CPU, keys, [Gradients(values, order.astype(np.int32))], dim)
    assert found == expected
