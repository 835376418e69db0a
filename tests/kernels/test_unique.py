"""unique and group: order of first occurrence, keys outside their table, positions by id."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from embstore.arithmetic import compiled, sums
from tests.kernels.samples import batch_of, devices, row_keys

SEED = 20240607


def expected(segments):
    """Return (unique_keys, inverse, bounds, id_bounds) by a dictionary."""
    ids, inverse, bounds, id_bounds = {}, [], [0], [0]
    for table_id, keys in segments:
        inverse += [ids.setdefault(key, len(ids)) for key in row_keys(table_id, keys).tolist()]
        bounds.append(len(inverse))
        id_bounds.append(len(ids))
    return list(ids), inverse, bounds, id_bounds


def found(batch):
    arrays = (batch.unique_keys, batch.inverse, batch.bounds, batch.id_bounds)
    return tuple(array.tolist() for array in arrays)


tables = st.lists(st.lists(st.integers(0, 30), max_size=80), max_size=5)


@settings(deadline=None)  # the first call may compile
@given(tables, st.integers(0, 1 << 21))
def test_unique_is_in_order_of_first_occurrence(keys_of_tables, first_table):
    segments = [
        (first_table + i, np.array(keys, np.int64)) for i, keys in enumerate(keys_of_tables)
    ]
    for device in devices():
        batch, bad = device.unique([(table, 31, keys) for table, keys in segments])
        assert bad == -1
        assert found(batch) == expected(segments)


def test_unique_stays_right_while_its_scratch_grows_and_is_used_again():
    rng = np.random.default_rng(SEED)
    for count in (1, 100, 3, 5000, 64, 65, 0, 20_000, 7):
        keys = rng.integers(0, max(count, 1), count)
        for device in devices():
            batch, bad = device.unique([(3, 1 << 40, keys)])
            assert bad == -1
            assert found(batch) == expected([(3, keys)])


def test_unique_takes_the_extreme_keys_of_the_last_table():
    keys = np.array([(1 << 40) - 1, 0, (1 << 40) - 1])
    batch, bad = devices()[0].unique([((1 << 22) - 1, 1 << 40, keys)])
    assert bad == -1
    assert batch.unique_keys.tolist() == [(1 << 62) - 1, ((1 << 22) - 1) << 40]


def test_unique_takes_a_read_only_array():
    keys = np.array([4, 4, 2])
    keys.flags.writeable = False
    assert devices()[0].unique([(0, 5, keys)])[0].inverse.tolist() == [0, 0, 1]


@pytest.mark.parametrize("wrong", [-1, 10, -(1 << 63), (1 << 63) - 1, 1 << 40])
@pytest.mark.parametrize("position", [0, 63, 64, 199])
def test_unique_reports_the_first_key_outside_its_table(wrong, position):
    keys = np.zeros(200, np.int64)
    keys[position:] = wrong
    first = np.zeros(5, np.int64)
    for device in devices():
        assert device.unique([(0, 10, first), (1, 10, keys)])[1] == 5 + position
        assert found(device.unique([(0, 10, first)])[0])[0] == [0]


def test_a_table_of_no_rows_has_no_key():
    assert devices()[0].unique([(0, 0, np.zeros(1, np.int64))])[1] == 0


@settings(deadline=None)  # the first call may compile
@given(st.lists(st.integers(0, 20), max_size=300))
def test_group_sorts_positions_by_id_stably(keys):
    for device in devices():
        batch = batch_of(device, np.array(keys, np.int64))
        groups = device.group(batch)
        assert groups.positions.tolist() == np.argsort(batch.inverse, kind="stable").tolist()
        counts = np.bincount(batch.inverse, minlength=len(batch.unique_keys))
        assert groups.starts.tolist() == [0, *np.cumsum(counts).tolist()]


@settings(deadline=None)  # the first call may compile
@given(st.lists(st.integers(-(1 << 63), (1 << 63) - 1) | st.integers(-3, 3), max_size=200))
def test_the_clients_unique_takes_any_int64(keys):
    array = np.array(keys, np.int64)
    for one, other in zip(compiled.unique(array), sums.unique(array), strict=True):
        assert one.dtype == other.dtype
        assert one.tolist() == other.tolist()
