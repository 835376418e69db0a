"""Key -> slot: the index grows with its slots, and is built anew where its stash is full."""

import numpy as np

from embstore.arrays import EMPTY_KEY
from embstore.cache.index import SlotIndex
from embstore.device.cpu import CpuDevice
from tests.unit.small_stores import generator

SEED = 89


def check(index, slot_keys):
    """Every resident key leads to its slot, and no other key to any."""
    slots = np.flatnonzero(slot_keys != EMPTY_KEY)
    found = np.empty(len(slots), np.int64)
    assert index.probe(slot_keys[slots], found) == 0
    assert np.array_equal(found, slots)
    others = np.setdiff1d(np.arange(2_000), slot_keys)
    found = np.empty(len(others), np.int64)
    assert index.probe(others, found) == len(others)
    assert (found == -1).all()


def test_index_agrees_with_its_slots_under_random_use():
    rng, index = generator(SEED), SlotIndex(CpuDevice(1))
    slot_keys = np.full(400, EMPTY_KEY)
    for _ in range(150):
        slots = rng.choice(400, 60, replace=False)
        used, free = slots[slot_keys[slots] != EMPTY_KEY], slots[slot_keys[slots] == EMPTY_KEY]
        if len(used):
            index.erase(slot_keys[used].copy())
            slot_keys[used] = EMPTY_KEY
        index.grow(int(slots.max()) + 1, slot_keys)
        new = rng.choice(np.setdiff1d(np.arange(2_000), slot_keys), len(free), replace=False)
        slot_keys[free] = new
        index.insert(new, free, slot_keys)
        check(index, slot_keys)


def test_growing_keeps_what_is_in_it():
    index, slot_keys = SlotIndex(CpuDevice(1)), np.full(5_000, EMPTY_KEY)
    sizes = []
    for high in range(100, 5_001, 100):
        index.grow(high, slot_keys)
        slots = np.arange(high - 100, high)
        slot_keys[slots] = slots * 7
        index.insert(slots * 7, slots, slot_keys)
        sizes.append(index.memory_bytes)
        assert index.bytes_for(high) == index.memory_bytes
    assert sizes == sorted(sizes)
    found = np.empty(5_000, np.int64)
    assert index.probe(np.arange(5_000) * 7, found) == 0
    assert np.array_equal(found, np.arange(5_000))


def test_bytes_for_more_slots_is_what_growing_takes():
    index, slot_keys = SlotIndex(CpuDevice(1)), np.full(1_000, EMPTY_KEY)
    announced = index.bytes_for(1_000)
    index.grow(1_000, slot_keys)
    assert index.memory_bytes == announced
    assert index.bytes_for(10) == announced, "an index never shrinks"


class FullStash(CpuDevice):
    """A device whose index refuses its first insertions, as a full stash does."""

    def __init__(self, refusals):
        super().__init__(1)
        self.refusals = refusals

    def insert(self, index, keys, slots):
        if self.refusals:
            self.refusals -= 1
            super().insert(index, keys[: len(keys) // 2], slots[: len(keys) // 2])
            return False
        return super().insert(index, keys, slots)


def test_a_full_stash_makes_a_larger_index_of_the_slots():
    index, slot_keys = SlotIndex(FullStash(refusals=3)), np.full(50, EMPTY_KEY)
    index.grow(50, slot_keys)
    slots = np.arange(40)
    slot_keys[slots] = slots + 1_000
    index.insert(slots + 1_000, slots, slot_keys)
    assert index.capacity > 50
    check(index, slot_keys)
