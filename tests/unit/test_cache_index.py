"""Key -> slot: the index grows with its slots, and is built anew where its stash is full."""

from contextlib import AbstractContextManager, nullcontext

import numpy as np
import pytest

from embstore.arrays import EMPTY_KEY
from embstore.cache.index import SlotIndex
from embstore.device.cpu import CpuDevice
from embstore.device.cpu_keys import CpuKeys
from embstore.errors import CapacityError
from embstore.layout import Layout
from tests.unit.small_stores import generator

SEED = 89


_NOTHING = nullcontext()


class Slots:
    """Slots of a device whose keys the test sets, and their index."""

    def __init__(self, count, device=None, irreversible=_NOTHING):
        self.device = device or CpuDevice(1)
        self.memory = self.device.memory.allocate_slots(Layout(4, 0, "sgd"))
        self.device.memory.reserve_slots(self.memory, 0, count, count)
        self.device.memory.add_slots(self.memory, 0, count)
        self.index = SlotIndex(self.device, irreversible)

    @property
    def keys(self):
        return self.memory.keys

    def grow(self, capacity):
        self.index.grow(capacity, self.memory, len(self.keys))

    def put(self, keys, slots):
        self.index.place(keys, slots, self.memory, len(self.keys), 0)

    def clear(self, slots):
        self.index.erase(self.keys[slots].copy())
        self.device.slots.clear_slots(self.memory, slots)

    def find(self, keys):
        found = np.empty(len(keys), np.int64)
        absent = self.device.keys.find(self.index.synchronize(), keys, found)
        assert absent == np.count_nonzero(found == -1)
        return found

    def check(self):
        """Every resident key leads to its slot, and no other key to any."""
        slots = np.flatnonzero(self.keys != EMPTY_KEY)
        assert np.array_equal(self.find(self.keys[slots]), slots)
        assert (self.find(np.setdiff1d(np.arange(2_000), self.keys)) == -1).all()


def test_index_agrees_with_its_slots_under_random_use():
    rng, slots_of = generator(SEED), Slots(400)
    for _ in range(150):
        slots = rng.choice(400, 60, replace=False)
        is_used = slots_of.keys[slots] != EMPTY_KEY
        if is_used.any():
            slots_of.clear(slots[is_used])
        slots_of.grow(int(slots.max()) + 1)
        free = slots[~is_used]
        slots_of.put(
            rng.choice(np.setdiff1d(np.arange(2_000), slots_of.keys), len(free), False), free
        )
        slots_of.check()


def test_growing_keeps_what_is_in_it():
    slots_of, sizes = Slots(5_000), []
    for high in range(100, 5_001, 100):
        slots_of.grow(high)
        slots = np.arange(high - 100, high)
        slots_of.put(slots * 7, slots)
        sizes.append(slots_of.index.memory_bytes)
        assert slots_of.index.bytes_for(high) == slots_of.index.memory_bytes
    assert sizes == sorted(sizes)
    assert np.array_equal(slots_of.find(np.arange(5_000) * 7), np.arange(5_000))


class FullStash(CpuKeys):
    """The keys of a device whose index refuses insertions, as a full stash does."""

    refusals = 0

    def insert(self, index, keys, slots):
        if self.refusals:
            self.refusals -= 1
            super().insert(index, keys[: len(keys) // 2], slots[: len(keys) // 2])
            return lambda: False
        return super().insert(index, keys, slots)


def test_a_full_stash_makes_a_larger_index_of_the_slots():
    device = CpuDevice(1)
    device.keys = FullStash(device.work)
    slots_of = Slots(50, device)
    slots_of.grow(50)
    device.keys.refusals = 3
    slots = np.arange(40)
    slots_of.put(slots + 1_000, slots)
    slots_of.check()
    assert slots_of.index.capacity > 50


def test_a_larger_index_that_cannot_be_had_is_too_late_to_be_refused():
    device, entered = CpuDevice(1), []

    class Irreversible(AbstractContextManager):
        def __exit__(self, _, exc, __):
            entered.append(exc)

    device.keys = FullStash(device.work)
    slots_of = Slots(50, device, Irreversible())
    slots_of.grow(50)
    device.keys.refusals = 1

    def refuse(slot_count):
        raise CapacityError("no memory")

    device.memory.allocate_index = refuse
    with pytest.raises(CapacityError, match="no memory"):
        slots_of.put(np.arange(40) + 1_000, np.arange(40))
    assert len(entered) == 1
