"""probe: what was inserted is found, wherever it stands, and nothing else."""

import numpy as np

from embstore.arrays import EMPTY_KEY
from tests.kernels.samples import devices, down, row_keys, up

SEED = 11


def find(device, index, keys):
    slots = up(device, np.full(len(keys), 77))
    absent = device.keys.find(index, up(device, np.asarray(keys, np.int64)), slots)
    found = down(device, slots)
    assert absent == np.count_nonzero(found == -1)
    return found.tolist()


def indexed(device, keys, slots):
    """Return an index of keys that stand in slots."""
    index = device.memory.allocate_index(len(keys))
    assert device.keys.insert(index, keys, slots)()
    return index


def test_find_finds_every_key_and_no_other():
    rng = np.random.default_rng(SEED)
    keys = rng.permutation(20_000)
    present, absent = row_keys(5, keys[:10_000]), row_keys(5, keys[10_000:])
    slots = rng.permutation(10_000)
    for device in devices():
        index = indexed(device, present, slots)
        assert find(device, index, present) == slots.tolist()
        assert find(device, index, absent) == [-1] * 10_000
        mixed = np.concatenate([absent[:33], present[:33], present[:1]])
        assert find(device, index, mixed) == [-1] * 33 + slots[:33].tolist() + [slots[0]]


def test_the_unique_keys_of_a_batch_are_probed_before_their_number_is_known():
    rng = np.random.default_rng(SEED)
    present, slots = rng.permutation(500)[:300], rng.permutation(300)
    by_key = dict(zip(row_keys(1, present).tolist(), slots.tolist(), strict=True))
    calls = [(0, 500, rng.integers(0, 500, 40)), (1, 500, rng.integers(0, 500, 2_000))]
    for device in devices():
        index = indexed(device, row_keys(1, present), slots)
        batch = device.keys.unique(calls)
        found = up(device, np.full(batch.position_count, 77))
        device.keys.probe(index, batch, found)
        device.keys.synchronize(batch)
        expected = [by_key.get(key, -1) for key in down(device, batch.unique_keys).tolist()]
        assert batch.found.missing == expected.count(-1)
        count = len(expected)
        assert down(device, found)[:count].tolist() == expected
        assert (down(device, found)[count:] == 77).all()


def test_a_key_outside_its_table_is_told_first_and_nothing_else_is_harmed():
    """What stands in the index stays, and other tables' keys are found by the next call."""
    for device in devices():
        index = indexed(device, row_keys(0, [3, 4]), np.array([8, 9]))
        batch = device.keys.unique([(0, 5, np.array([3, 4])), (1, 5, np.array([1, 5, -1, 99]))])
        device.keys.probe(index, batch, device.memory.allocate(6, np.int64))
        device.keys.synchronize(batch)
        assert batch.found.outside == 3
        assert find(device, index, row_keys(0, [3, 4, 0])) == [8, 9, -1]
        batch = device.keys.unique([(0, 5, np.array([4, 4, 1]))])
        slots = device.memory.allocate(3, np.int64)
        device.keys.probe(index, batch, slots)
        device.keys.synchronize(batch)
        assert (batch.found.outside, batch.found.missing) == (-1, 1)
        assert down(device, slots)[:2].tolist() == [9, -1]


def test_absent_keys_and_their_places_are_ascending():
    rng = np.random.default_rng(SEED)
    present = rng.permutation(1_000)[:300]
    asked = rng.permutation(1_000)[:600]
    for device in devices():
        index = indexed(device, present, np.arange(300))
        keys, slots = up(device, asked), device.memory.allocate(600, np.int64)
        missing = device.keys.find(index, keys, slots)
        places, absent = device.keys.absent(keys, slots, missing)()
        expected = np.flatnonzero(~np.isin(asked, present))
        assert missing == len(expected)
        assert places.tolist() == expected.tolist() and places.dtype == np.int64
        assert absent.tolist() == asked[expected].tolist()


def test_set_slots_changes_the_named_places_alone():
    for device in devices():
        slots = up(device, np.arange(6))
        device.keys.set_slots(slots, np.array([4, 0, 3]), np.array([1 << 40, -1, 7]))
        assert down(device, slots).tolist() == [-1, 1, 2, 7, 1 << 40, 5]


def test_probe_returns_the_largest_slot():
    for device in devices():
        index = indexed(device, np.array([9]), np.array([(1 << 32) - 1]))
        assert find(device, index, [9, 8]) == [(1 << 32) - 1, -1]


def test_an_index_takes_the_bytes_it_says_and_is_at_most_two_thirds_full():
    for device in devices():
        for slot_count in (0, 1, 100, 12_345, 1_000_000):
            index = device.memory.allocate_index(slot_count)
            bucket_keys = down(device, index.bucket_keys)
            begin = getattr(index.bucket_keys, "address", bucket_keys.ctypes.data)
            assert begin % 64 == 0
            assert bucket_keys.size * 2 >= slot_count * 3
            assert (bucket_keys == EMPTY_KEY).all()
            arrays = vars(index).values()
            assert sum(array.nbytes for array in arrays) == device.memory.index_bytes(slot_count)
