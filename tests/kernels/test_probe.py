"""probe: what was inserted is found, wherever it stands, and nothing else."""

import numpy as np

from embstore.arrays import EMPTY_KEY
from tests.kernels.samples import devices, row_keys

SEED = 11


def probe(device, index, keys):
    slots = np.full(len(keys), 77)
    absent = device.probe(index, np.asarray(keys, np.int64), slots)
    assert absent == np.count_nonzero(slots == -1)
    return slots.tolist()


def test_probe_finds_every_key_and_no_other():
    rng = np.random.default_rng(SEED)
    keys = rng.permutation(20_000)
    present, absent = row_keys(5, keys[:10_000]), row_keys(5, keys[10_000:])
    slots = rng.permutation(10_000)
    for device in devices():
        index = device.allocate_index(10_000)
        assert device.insert(index, present, slots)
        assert probe(device, index, present) == slots.tolist()
        assert probe(device, index, absent) == [-1] * 10_000
        mixed = np.concatenate([absent[:33], present[:33], present[:1]])
        assert probe(device, index, mixed) == [-1] * 33 + slots[:33].tolist() + [slots[0]]


def test_probe_of_no_keys():
    device = devices()[0]
    assert probe(device, device.allocate_index(0), []) == []


def test_probe_returns_the_largest_slot():
    device = devices()[0]
    index = device.allocate_index(1)
    assert device.insert(index, np.array([9]), np.array([(1 << 32) - 1]))
    assert probe(device, index, [9, 8]) == [(1 << 32) - 1, -1]


def test_an_index_takes_the_bytes_it_says_and_is_at_most_two_thirds_full():
    device = devices()[0]
    for slot_count in (0, 1, 100, 12_345, 1_000_000):
        index = device.allocate_index(slot_count)
        assert index.bucket_keys.ctypes.data % 64 == 0
        assert index.bucket_keys.size * 2 >= slot_count * 3
        assert (index.bucket_keys == EMPTY_KEY).all()
        arrays = vars(index).values()
        assert sum(array.nbytes for array in arrays) == device.index_bytes(slot_count)
