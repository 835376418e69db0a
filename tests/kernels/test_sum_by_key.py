"""sum_by_key: rule 2, the scale, the bag forms, and the first sum with a large element."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from embstore.arithmetic import LARGE, bag_gradients, scale_sums, sums
from embstore.device.values import Gradients
from tests.kernels.samples import DIMS, awkward, batch_of, bits, devices, gpu_device, host_rows, up

SEED = 9


def sum_on(device, keys_of_tables, gradients, scale, dim):
    """Return the lowest id that is large, and the sums."""
    batch = batch_of(device, *keys_of_tables)
    sums = device.memory.allocate(batch.position_count, np.float32, width=dim)
    device.rows.sum_by_key(batch, gradients, np.float32(scale), sums)
    device.keys.synchronize(batch)
    return batch.found.large, host_rows(device, sums[: len(batch.unique_keys)], dim)


def expected_sums(keys_of_tables, received, scale):
    """Return the scaled sums of each table's keys, by the NumPy twin."""
    parts = []
    for keys, values in zip(keys_of_tables, received, strict=True):
        unique_keys, inverse = sums.unique(keys)
        parts.append(scale_sums(sums.sum_by_key(inverse, len(unique_keys), values), scale))
    return np.concatenate(parts)


def hot_keys(rng, count):
    """Return keys of which a few have hundreds of occurrences and many have one."""
    return np.minimum(rng.zipf(1.3, count), 2 * count).astype(np.int64)


@pytest.mark.parametrize("dim", DIMS)
@pytest.mark.parametrize("scale", [1.0, 1 / 3, 0.0])
def test_sums_are_those_of_the_numpy_twin(dim, scale):
    rng = np.random.default_rng(SEED)
    keys = [hot_keys(rng, n) for n in (700, 0, 1, 300)]
    values = [awkward(rng, len(k), dim) for k in keys]
    values[0].flags.writeable = False
    expected = expected_sums(keys, values, scale)
    for device in devices():
        found, out = sum_on(device, keys, [Gradients(v) for v in values], scale, dim)
        assert found == -1
        assert bits(out) == bits(expected)


@pytest.mark.parametrize("dim", DIMS)
def test_every_form_of_bag_in_one_call(dim):
    rng = np.random.default_rng(SEED)
    sizes = [3, 0, 200, 1, 70, 1, 2]
    offsets, count = np.cumsum([0, *sizes]), sum(sizes)
    source = np.repeat(np.arange(len(sizes), dtype=np.int32), sizes)
    weights = awkward(rng, count)
    divisors = np.repeat(sizes, sizes).astype(np.float32)
    keys = [hot_keys(rng, count) for _ in range(4)]
    values = [awkward(rng, n, dim) for n in (len(sizes), len(sizes), len(sizes), count)]
    received = [
        bag_gradients(values[0], offsets, "sum"),
        bag_gradients(values[1], offsets, "mean"),
        bag_gradients(values[2], offsets, "sum", weights),
        values[3],
    ]
    gradients = [
        Gradients(values[0], source),
        Gradients(values[1], source, divisors, divide=True),
        Gradients(values[2], source, weights),
        Gradients(values[3]),
    ]
    expected = expected_sums(keys, received, 0.25)
    first_large = next(iter(np.flatnonzero((np.abs(expected) >= LARGE).any(axis=1))), -1)
    for device in devices():
        found, out = sum_on(device, keys, gradients, 0.25, dim)
        assert found == first_large
        assert bits(out) == bits(expected)


@given(st.data())
def test_the_lowest_id_that_is_large_is_returned(data):
    keys = np.array(data.draw(st.lists(st.integers(0, 50), min_size=1, max_size=300)))
    values = np.ones((len(keys), 7), np.float32)
    bad = data.draw(st.lists(st.integers(0, len(keys) - 1), max_size=4))
    values[bad, data.draw(st.integers(0, 6))] = data.draw(
        st.sampled_from([np.inf, -np.inf, np.nan])
    )
    _, inverse = sums.unique(keys)
    expected = min(inverse[bad].tolist(), default=-1)
    scale = data.draw(st.sampled_from([0.0, 1.0, 1e-30]))
    for device in devices():
        assert sum_on(device, [keys], [Gradients(values)], scale, 7)[0] == expected


@pytest.mark.parametrize("values, scale", [
    ([3e38, 3e38], 1.0),
    ([3e38, 3e38], 0.0),  # inf * 0 is not a number
    ([3e38], 2.0),
    ([np.inf, -np.inf], 1.0),
    ([-LARGE], 1.0),
])  # fmt: skip
def test_what_overflows_or_is_large_is_found(values, scale):
    column = np.array(values, np.float32)[:, None]
    for device in devices():
        gradients = [Gradients(column)]
        assert sum_on(device, [np.zeros(len(values), np.int64)], gradients, scale, 1)[0] == 0


def test_what_is_below_large_is_not():
    column = np.nextafter(np.array([[LARGE], [-LARGE]], np.float32), np.float32(0))
    for device in devices():
        assert sum_on(device, [np.arange(2)], [Gradients(column)], 1.0, 1)[0] == -1


@pytest.mark.parametrize("dim", [1, 7, 64])
def test_keys_of_every_heat_in_one_call(dim):
    """Whose occurrences fill chunks, or run over by one, and lie among each other."""
    rng = np.random.default_rng(SEED)
    counts = [1, 63, 64, 65, 128, 129, 1, 4096, 4097, 2, 5000, 192]
    keys = [rng.permutation(np.repeat(np.arange(12), counts)), np.repeat([3, 4], [130, 1])]
    values = [awkward(rng, len(k), dim) for k in keys]
    expected = expected_sums(keys, values, 0.5)
    for device in devices():
        found, out = sum_on(device, keys, [Gradients(v) for v in values], 0.5, dim)
        assert found == -1
        assert bits(out) == bits(expected)


@pytest.mark.parametrize("place", [0, 63, 64, 4095, 4096, 4999])
def test_what_is_large_is_found_in_every_chunk_of_a_hot_key(place):
    keys = np.concatenate([[5, 6], np.full(5000, 7), [8]])
    values = np.zeros((len(keys), 5), np.float32)
    values[[2 + place, -1], [4, 0]] = -LARGE, np.inf
    for device in devices():
        assert sum_on(device, [keys], [Gradients(values)], 1.0, 5)[0] == 2


def test_rows_beyond_the_unique_keys_are_left_as_they_are():
    values = np.ones((4, 3), np.float32)
    for device in devices():
        batch = batch_of(device, np.array([1, 1, 1, 2]))
        sums = up(device, np.full((6, 3), 9, np.float32))
        device.rows.sum_by_key(batch, [Gradients(values)], np.float32(1), sums)
        assert host_rows(device, sums, 3)[:, 0].tolist() == [3, 1, 9, 9, 9, 9]


@pytest.mark.parametrize("dim", [4, 6])
@pytest.mark.parametrize("skipped", [0, 1, 4])
def test_gradients_of_the_device_begin_anywhere(dim, skipped):
    rng, device = np.random.default_rng(SEED), gpu_device()
    keys, values = hot_keys(rng, 300), awkward(rng, 300, dim)
    d_values = up(device, np.concatenate([np.zeros(skipped, np.float32), values.ravel()]))
    gradients = Gradients(d_values[skipped:].view(np.float32, width=dim))
    found, out = sum_on(device, [keys], [gradients], 1.0, dim)
    assert found == -1
    assert bits(out) == bits(expected_sums([keys], [values], 1.0))
