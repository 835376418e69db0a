"""Slots: what is in them, how they come and go, and what the host is told of them."""

import numpy as np
import pytest

from embstore.arrays import EMPTY_KEY
from embstore.device import gpu_slots
from embstore.score import COUNT_NONE, PENDING
from tests.kernels.samples import (
    SLAB_SLOTS,
    awkward,
    bits,
    contents_of,
    devices,
    down,
    each_device,
    gpu_device,
    records,
    rows_in,
    slots_with,
    up,
)

SEED = 21


class Contents:
    """Slots with something in each, and the same as arrays of the host."""

    def __init__(self, device, count=50, stride=8):
        rng = np.random.default_rng(SEED)
        self.device, self.count = device, count
        self.rows = awkward(rng, count, stride, finite=False)
        self.keys = np.where(rng.random(count) < 0.2, EMPTY_KEY, rng.permutation(count) << 42)
        self.scores = rng.integers(0, 1 << 63, count)
        self.dirty = (self.keys != EMPTY_KEY) & (rng.random(count) < 0.5)
        self.memory = slots_with(
            device, self.rows, keys=self.keys, scores=self.scores, dirty=self.dirty
        )

    def check(self, scores_of=slice(None)):
        """The slots are as the arrays say; of scores, those of `scores_of` alone."""
        rows, keys, scores, dirty = contents_of(self.device, self.memory, self.count)
        assert rows == bits(self.rows)
        assert keys == self.keys.tolist()
        assert np.array_equal(np.array(scores)[scores_of], self.scores[scores_of])
        assert dirty == self.dirty.tolist()


@pytest.mark.parametrize("score", [0, PENDING])
def test_place_keys_gives_slots_to_rows(score):
    for device in devices():
        here = Contents(device)
        slots = np.array([49, 0, 17, 16])
        keys = np.array([1 << 61, 5, 0, 7])
        device.slots.place_keys(here.memory, slots, keys, score)
        here.keys[slots], here.scores[slots], here.dirty[slots] = keys, score, False
        here.check()


def test_clear_slots_frees_them():
    for device in devices():
        here = Contents(device)
        slots = np.array([31, 32, 3])
        device.slots.clear_slots(here.memory, slots)
        here.keys[slots], here.dirty[slots] = EMPTY_KEY, False
        here.check(np.setdiff1d(np.arange(50), slots))


@pytest.mark.parametrize("on_device", [False, True])
@pytest.mark.parametrize("dirty", [False, True])
def test_mark_says_whether_slots_are_dirty(dirty, on_device):
    slots = np.array([40, 2, 15, 16, 48])
    for device in devices():
        here = Contents(device)
        device.slots.mark(here.memory, up(device, slots) if on_device else slots, dirty=dirty)
        here.dirty[slots] = dirty
        here.check()


def test_read_slots_tells_them_in_the_order_asked_for():
    slots = np.array([49, 0, 16, 15, 16])
    for device in devices():
        here = Contents(device)
        found = device.slots.read_slots(here.memory, slots)()
        assert found.keys.tolist() == here.keys[slots].tolist()
        assert found.scores.tolist() == here.scores[slots].tolist()
        assert found.dirty.tolist() == here.dirty[slots].tolist()
        assert (found.keys.dtype, found.dirty.dtype) == (np.int64, np.bool_)


@pytest.mark.parametrize("at_once", [1, 7, 1 << 20])
@pytest.mark.parametrize("low, high", [(0, 50), (0, 0), (13, 35), (16, 32), (49, 50)])
def test_read_range_tells_all_of_them(monkeypatch, low, high, at_once):
    monkeypatch.setattr(gpu_slots, "_SLOTS_READ_MAX", at_once)
    for device in devices():
        here = Contents(device)
        found = device.slots.read_range(here.memory, low, high)
        assert found.keys.tolist() == here.keys[low:high].tolist()
        assert found.scores.tolist() == here.scores[low:high].tolist()
        assert found.dirty.tolist() == here.dirty[low:high].tolist()
        assert (found.keys.dtype, found.dirty.dtype) == (np.int64, np.bool_)


# Slots that come and go


def check_free(device, memory, low, high):
    here = device.slots.read_range(memory, low, high)
    assert (here.keys == EMPTY_KEY).all() and not here.dirty.any()


@each_device
def test_slots_come_free_and_go_without_a_trace(device):
    here = Contents(device, count=48)
    device.memory.reserve_slots(here.memory, 48, 400, SLAB_SLOTS)
    device.memory.add_slots(here.memory, 48, 128)
    check_free(device, here.memory, 48, 128)
    slots = np.arange(48, 128)
    device.slots.place_keys(here.memory, slots, slots, 0)
    device.slots.touch(here.memory, slots, 9, COUNT_NONE)
    device.slots.mark(here.memory, slots, dirty=True)
    device.rows.scatter_rows(np.ones((80, 8), np.float32), here.memory.rows, slots)
    device.memory.drop_slots(here.memory, 64, 128)
    here.check()
    assert (rows_in(device, here.memory, 64)[48:] == 1).all()
    device.memory.add_slots(here.memory, 64, 256)
    check_free(device, here.memory, 64, 256)
    assert device.slots.read_range(here.memory, 48, 64).dirty.all()
    here.check()
    device.memory.drop_slots(here.memory, 0, 256)


@each_device
@pytest.mark.parametrize("slab_slots", [8, 4, 1])
def test_slabs_that_become_smaller_keep_what_is_in_them(device, slab_slots):
    here = Contents(device, count=64, stride=12)
    device.memory.reserve_slots(here.memory, 64, 400, slab_slots)
    here.check()
    device.memory.add_slots(here.memory, 64, 72)
    check_free(device, here.memory, 64, 72)
    here.check()
    device.memory.drop_slots(here.memory, 40, 72)
    here.count, here.rows = 40, here.rows[:40]
    here.keys, here.scores, here.dirty = here.keys[:40], here.scores[:40], here.dirty[:40]
    here.check()
    rows = records(np.random.default_rng(SEED), 40, 12)
    device.rows.scatter_rows(rows, here.memory.rows, np.arange(40))
    here.rows = rows
    here.check()


def test_a_slab_of_a_gpu_has_a_power_of_two_of_slots():
    device = gpu_device()
    found = [device.memory.slab_slots(n) for n in (1, 2, 3, 4, 63, 64, 65)]
    assert found == [1, 2, 2, 4, 32, 64, 64]
    assert all(0 < other.memory.slab_slots(n) <= n for other in devices() for n in range(1, 70))


# What the host gives and gets


@pytest.mark.parametrize("shape", [(0,), (1,), (5, 3), (300_000,), (90_000, 4), (0, 4)])
@pytest.mark.parametrize("dtype", [np.float32, np.int64, np.int32, np.uint32])
def test_arrays_go_up_and_come_down_as_they_are(shape, dtype):
    """Small ones at once, large ones in pieces."""
    values = np.random.default_rng(SEED).integers(0, 100, shape).astype(dtype)
    values.flags.writeable = False
    for device in devices():
        array = up(device, values)
        assert len(array) == len(values)
        found = down(device, array)
        assert found.dtype == dtype and np.array_equal(found, values)
        part = down(device, array[1:3])
        assert np.array_equal(part, values[1:3])


def test_a_large_array_comes_down_after_what_was_given_before():
    """Up, changed by a kernel, down: three streams, one order."""
    for device in devices():
        slots = np.arange(200_000)
        d_slots = up(device, slots)
        for turn in range(1, 4):
            device.keys.set_slots(d_slots, np.array([7, 199_999]), np.array([-turn, turn]))
            found = down(device, d_slots).copy()
            assert found[[7, 199_999]].tolist() == [-turn, turn]
            assert np.array_equal(found[8:-1], np.arange(8, 199_999))
            d_slots = up(device, found)
