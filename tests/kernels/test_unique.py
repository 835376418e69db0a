"""unique: order of first occurrence, and keys outside their table."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from embstore.device import gpu_work, staging
from tests.kernels.samples import cpu_devices, devices, down, gpu_device, row_keys, up

SEED = 20240607


def expected(segments):
    """Return (unique_keys, inverse, bounds) by a dictionary."""
    ids, inverse, bounds = {}, [], [0]
    for table_id, keys in segments:
        inverse += [ids.setdefault(key, len(ids)) for key in row_keys(table_id, keys).tolist()]
        bounds.append(len(inverse))
    return list(ids), inverse, bounds


def synchronized(device, segments):
    batch = device.keys.unique(segments)
    device.keys.synchronize(batch)
    return batch


def found(device, segments):
    """Return what a device makes of keys that are all in their tables."""
    batch = synchronized(device, segments)
    assert batch.found.outside == -1
    assert batch.position_count == batch.bounds[-1]
    arrays = (down(device, batch.unique_keys), down(device, batch.inverse), batch.bounds)
    return tuple(array.tolist() for array in arrays)


tables = st.lists(st.lists(st.integers(0, 30), max_size=80), max_size=5)


@given(tables, st.integers(0, 1 << 21))
def test_unique_is_in_order_of_first_occurrence(keys_of_tables, first_table):
    segments = [
        (first_table + i, np.array(keys, np.int64)) for i, keys in enumerate(keys_of_tables)
    ]
    for device in devices():
        assert found(device, [(table, 31, keys) for table, keys in segments]) == expected(segments)


def test_unique_stays_right_while_its_scratch_grows_and_is_used_again():
    rng = np.random.default_rng(SEED)
    for count in (1, 100, 3, 5000, 64, 65, 0, 20_000, 7):
        keys = rng.integers(0, max(count, 1), count)
        for device in devices():
            assert found(device, [(3, 1 << 40, keys)]) == expected([(3, keys)])


def test_unique_takes_the_extreme_keys_of_the_last_table():
    keys = np.array([(1 << 40) - 1, 0, (1 << 40) - 1])
    for device in devices():
        unique_keys, *_ = found(device, [((1 << 22) - 1, 1 << 40, keys)])
        assert unique_keys == [(1 << 62) - 1, ((1 << 22) - 1) << 40]


@pytest.mark.parametrize("counts", [[], [0], [1], [700], [0, 5, 0, 3_000], [9, 9]])
def test_distinct_is_unique_of_keys_that_are(counts):
    rng = np.random.default_rng(SEED)
    segments = [(7 * i, 1 << 40, rng.permutation(5_000)[:count]) for i, count in enumerate(counts)]
    for device in devices():
        batch = device.keys.distinct(segments)
        device.keys.synchronize(batch)
        arrays = (down(device, batch.unique_keys), down(device, batch.inverse), batch.bounds)
        assert tuple(array.tolist() for array in arrays) == found(device, segments)
        assert [array.dtype for array in arrays] == [np.int64, np.int32, np.int64]


def test_distinct_keys_hold_whatever_comes_after():
    for device in cpu_devices():
        keys = np.array([5, 1, 9])
        batch = device.keys.distinct([(0, 10, keys[:2]), (2, 10, keys[2:])])
        keys[:] = 0
        device.keys.distinct([(1, 90_000, np.arange(90_000))])
        device.keys.unique([(1, 10, np.array([3, 3]))])
        assert batch.unique_keys.tolist() == [5, 1, 2 << 40 | 9]
        assert batch.inverse.tolist() == [0, 1, 2] and not batch.inverse.flags.writeable
        assert batch.id_bounds.tolist() == [0, 2, 3]


def test_unique_takes_keys_of_the_device_beside_those_of_the_host():
    device = gpu_device()
    segments = [(i, np.array(keys)) for i, keys in enumerate([[4, 4, 2], [7, 1], [0, 0]])]
    given = [(i, 9, up(device, keys) if i == 1 else keys) for i, keys in segments]
    assert found(device, given) == expected(segments)


def test_keys_that_come_in_pieces(monkeypatch):
    for module in (gpu_work, staging):
        monkeypatch.setattr(module, "LARGE_BYTES", 1000)
    monkeypatch.setattr(staging, "PIECE_BYTES", 300)
    rng = np.random.default_rng(SEED)
    segments = [(i, rng.integers(0, 50, n)) for i, n in enumerate((3, 0, 400, 124, 125, 1))]
    for device in devices():
        assert found(device, [(i, 50, keys) for i, keys in segments]) == expected(segments)


@pytest.mark.parametrize("wrong", [-1, 10, -(1 << 63), (1 << 63) - 1, 1 << 40])
@pytest.mark.parametrize("position", [0, 63, 64, 199])
def test_unique_reports_the_first_key_outside_its_table(wrong, position):
    keys = np.zeros(200, np.int64)
    keys[position:] = wrong
    first = np.zeros(5, np.int64)
    for device in devices():
        assert synchronized(device, [(0, 10, first), (1, 10, keys)]).found.outside == 5 + position
        assert found(device, [(0, 10, first)])[0] == [0]


def test_a_table_of_no_rows_has_no_key():
    for device in devices():
        assert synchronized(device, [(0, 0, np.zeros(1, np.int64))]).found.outside == 0
