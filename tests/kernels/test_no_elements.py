"""Every verb takes no elements at all, and changes nothing then."""

import numpy as np
import pytest

from embstore.device.values import Gradients
from embstore.optimizers import OPTIMIZERS
from embstore.score import COUNT_UP, PENDING
from tests.kernels.samples import (
    batch_of,
    bits,
    contents_of,
    down,
    each_device,
    host_rows,
    parameters,
    slots_with,
    up,
    wide,
)
from tests.kernels.test_insert import check_integrity
from tests.kernels.test_probe import find

NONE, ABSENT, NO_ROWS = np.empty(0, np.int64), np.full(40, -1), np.empty((0, 4), np.float32)


@pytest.fixture
def memory(device):
    """Slots, which are at the end what they were at the beginning."""
    made = slots_with(device, np.ones((3, 4), np.float32), keys=[5, 6], scores=[7, PENDING + 8])
    before = contents_of(device, made, 3)
    yield made
    assert contents_of(device, made, 3) == before


@each_device
def test_keys(device):
    index = device.memory.allocate_index(0)
    assert device.keys.insert(index, NONE, NONE)()
    device.keys.erase(index, NONE)
    check_integrity(device, index, {})
    assert find(device, index, NONE) == []
    keys, slots = up(device, NONE), up(device, NONE)
    assert [len(part) for part in device.keys.absent(keys, slots, 0)()] == [0, 0]
    keys_there, slots_there = up(device, np.array([5, 6])), up(device, np.array([0, 1]))
    assert [len(part) for part in device.keys.absent(keys_there, slots_there, 0)()] == [0, 0]
    device.keys.set_slots(slots, NONE, NONE)
    batch = device.keys.unique([(0, 5, NONE), (3, 0, NONE)])
    device.keys.probe(index, batch, slots)
    device.keys.synchronize(batch)
    assert (batch.found.outside, batch.found.missing, batch.bounds.tolist()) == (-1, 0, [0, 0, 0])
    assert len(batch.unique_keys) == len(down(device, batch.inverse)) == 0


@each_device
def test_slots(device, memory):
    none = up(device, NONE)
    device.slots.place_keys(memory, NONE, NONE, 0)
    device.slots.place_keys(memory, NONE, NONE, PENDING)
    device.slots.clear_slots(memory, NONE)
    device.slots.mark(memory, NONE, dirty=True)
    device.slots.mark(memory, none, dirty=False)
    device.slots.touch(memory, NONE, 5, COUNT_UP)
    assert len(device.slots.read_slots(memory, NONE)().keys) == 0
    for slots in (NONE, none, ABSENT, up(device, ABSENT)):
        assert device.slots.pin(memory, slots)() == device.slots.unpin(memory, slots)() == 0
        device.slots.foresee(memory, slots, np.full(len(slots), 5), 9)
        device.slots.set_counts(memory, slots, np.full(len(slots), 5))
    assert device.slots.count_pending(memory, none) == 0
    device.slots.arrive(memory, NONE)
    device.memory.add_slots(memory, 16, 16)
    device.memory.drop_slots(memory, 16, 16)


@each_device
def test_rows(device, memory):
    none, one = up(device, NONE), parameters(1)
    device.rows.gather(memory.rows, none, batch_of(device, NONE), 3, [np.empty((0, 3), "f4")])
    device.rows.gather_rows(memory.rows, none, device.memory.allocate_rows(0, wide(4)), 0)
    assert device.rows.read_rows(memory.rows, none).shape == (0, 4)
    pieces = device.rows.row_pieces(memory.rows, NONE)
    assert sum(len(host[places]) for _, host, places in pieces) == 0
    assert host_rows(device, device.memory.allocate(0, np.float32, width=5), 5).shape == (0, 5)
    device.rows.scatter_rows(NO_ROWS, memory.rows, NONE)
    device.rows.scatter_rows(device.memory.staging(0, wide(4)), memory.rows, NONE)
    device.rows.initialize(memory.rows, NONE, NONE, one, wide(4))
    for offsets, weights in (([0], None), ([0, 0, 0], np.empty(0, np.float32))):
        bags, pooled = np.array(offsets), np.full((len(offsets) - 1, 4), 9, np.float32)
        batch = batch_of(device, NONE)
        device.rows.gather_pooled(memory.rows, none, batch, bags, False, weights, pooled)
        assert not pooled.any()


@each_device
@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_updates(device, kind):
    memory, none = slots_with(device, np.ones((1, 12), np.float32)), up(device, NONE)
    gradients = device.memory.allocate(0, np.float32, width=4)
    device.rows.apply(kind, memory, none, none, gradients, parameters(1))
    rows, _, _, dirty = contents_of(device, memory, 1)
    assert (rows, dirty) == (bits(np.ones((1, 12), np.float32)), [False])


@each_device
def test_sums(device):
    for keys, count in (([NONE, NONE], 0), ([NONE, np.array([4])], 1)):
        batch = batch_of(device, *keys)
        sums = device.memory.allocate(count, np.float32, width=4)
        given = [Gradients(NO_ROWS), Gradients(np.ones((count, 4), np.float32))]
        device.rows.sum_by_key(batch, given, np.float32(1), sums)
        device.keys.synchronize(batch)
        assert batch.found.large == -1
        assert host_rows(device, sums, 4).tolist() == [[1] * 4] * count
