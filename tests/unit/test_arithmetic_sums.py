"""Rules 2, 3 and 6: sums in the contract's order, by the reference and by both implementations."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from embstore import arithmetic as both
from embstore.arithmetic import implementation
from embstore.arrays import DIM_MAX
from tests import rules
from tests.unit.plain import fp32, random_rows

DIMS = (1, 7, 13, 33, 4096)
DENORMAL = np.uint32(1).view(np.float32)
NAMES = ("numpy", "compiled")


class Reference:
    """The reference's sums under the names of the arithmetic."""

    @staticmethod
    @np.errstate(all="ignore")
    def sum_by_key(inverse, count, values):
        sums = np.zeros((count, values.shape[1]), np.float32)
        for key in np.unique(inverse):
            sums[key] = rules.sum_occurrences(list(values[inverse == key]))
        return sums

    @staticmethod
    @np.errstate(all="ignore")
    def sum_over_dim(values):
        return np.array([rules.sum_over_dim(row) for row in values])

    @staticmethod
    def add_ranks(count, shares):
        found = rules.scaled_sums(shares, np.float32(1))
        return np.array([found[key] for key in range(count)]).reshape(count, shares[0][1].shape[1])


def load(name):
    if name == "reference":
        return Reference
    if name == "compiled":
        pytest.importorskip("numba")
        pytest.importorskip("embstore.arithmetic.compiled")
    return implementation(name)


@pytest.fixture(params=NAMES)
def arithmetic(request):
    return load(request.param)


@pytest.fixture(params=[*NAMES, "reference"])
def summing(request):
    return load(request.param)


@pytest.fixture(params=[both, Reference], ids=["arithmetic", "reference"])
def over_dim(request):
    return request.param.sum_over_dim


@pytest.fixture(params=[both, Reference], ids=["arithmetic", "reference"])
def add_ranks(request):
    return request.param.add_ranks


def bits(values):
    """Bits as integers; every NaN is one NaN, since sums promise no more."""
    return np.where(np.isnan(values), np.uint32(0x7FC00000), values.view(np.uint32)).tolist()


def column(values):
    return np.asarray(values, np.float32)[:, None]


def random_values(rng, n, dim):
    return random_rows(rng, n, dim, (-6, 7))


def sum_one_key(summing, values):
    return summing.sum_by_key(np.zeros(len(values), np.int32), 1, values)


# unique


@pytest.mark.parametrize("name", NAMES)
@given(keys=st.lists(st.integers(-3, 9) | st.integers(-(2**63), 2**63 - 1)))
def test_unique_agrees_with_a_dict(name, keys):
    given = np.array(keys, np.int64)
    given.flags.writeable = False
    unique_keys, inverse = load(name).unique(given)
    assert (unique_keys.dtype, inverse.dtype) == (np.int64, np.int32)
    places = {key: place for place, key in enumerate(dict.fromkeys(keys))}
    assert unique_keys.tolist() == list(places)
    assert inverse.tolist() == [places[key] for key in keys]


# sum_by_key: rule 2


@pytest.mark.parametrize("n", [1, 2, 63, 64, 65, 127, 128, 129, 191, 192, 193, 64 * 64 + 1])
def test_sum_breaks_at_chunk_boundaries(arithmetic, n):
    values = random_values(np.random.default_rng(n), n, 3)
    assert bits(sum_one_key(arithmetic, values)) == bits(sum_one_key(Reference, values))


@pytest.mark.parametrize("dim", DIMS)
def test_sum_takes_every_dim(arithmetic, dim):
    rng = np.random.default_rng(dim)
    values = random_values(rng, 150, dim)
    inverse = np.concatenate([np.arange(3), rng.integers(0, 3, 147) // 2]).astype(np.int32)
    found = arithmetic.sum_by_key(inverse, 3, values)
    assert found.shape == (3, dim)
    assert found.dtype == np.float32
    columns = [0, dim // 2, dim - 1]
    expected = Reference.sum_by_key(inverse, 3, values[:, columns])
    assert bits(found[:, columns]) == bits(expected)


@pytest.mark.parametrize("n", [2, 64, 65, 128, 129])
def test_a_sum_of_negative_zeros_is_a_negative_zero(summing, n):
    assert bits(sum_one_key(summing, column([-0.0] * n))) == [[0x80000000]]


@pytest.mark.parametrize("n", [2, 65, 129])
def test_one_positive_zero_makes_the_sum_positive(summing, n):
    for place in (0, n - 1):
        values = np.full((n, 1), -0.0, np.float32)
        values[place] = 0.0
        assert bits(sum_one_key(summing, values)) == [[0]]


@st.composite
def batches(draw):
    count = draw(st.integers(1, 6))
    n = draw(st.sampled_from([0, 1, 5, 63, 64, 65, 128, 129, 200]))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    special = fp32(0.0, -0.0, 1e-45, -1e-40, 3e38, -3e38, 1.0, -1.0, 16777216.0)
    special = np.append(special, fp32(np.inf, -np.inf, np.nan)[: draw(st.sampled_from([0, 3]))])
    values = random_values(rng, n, draw(st.sampled_from([1, 3])))
    swap = rng.random(values.shape) < draw(st.sampled_from([0.0, 0.3, 1.0]))
    values[swap] = rng.choice(special, int(swap.sum()))
    # Powers make one id hot, so that chunks fill.
    ids = (rng.random(n) ** draw(st.sampled_from([1, 4])) * count).astype(np.int32)
    ids.flags.writeable = values.flags.writeable = False
    return ids, count, values


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=60)
@given(batch=batches())
def test_sum_agrees_with_the_reference(name, batch):
    found, wanted = load(name).sum_by_key(*batch), Reference.sum_by_key(*batch)
    assert (found.shape, found.dtype) == (wanted.shape, np.float32)
    assert bits(found) == bits(wanted)
    found += 1  # an array of its own


# sum_over_dim: rule 3


@pytest.mark.parametrize("dim", [*DIMS, 16, 17, 31, 32, 63, 64, 65])
def test_sum_over_dim_takes_every_dim(dim):
    values = random_values(np.random.default_rng(dim), 5, dim)
    values.flags.writeable = False
    assert bits(both.sum_over_dim(values)) == bits(Reference.sum_over_dim(values))
    assert both.sum_over_dim(values[:0]).shape == (0,)


def test_sum_over_dim_keeps_the_sign_of_zeros_only_where_every_lane_has_one(over_dim):
    assert bits(over_dim(np.full((1, 32), -0.0, np.float32))) == [0x80000000]
    assert bits(over_dim(np.full((1, 64), -0.0, np.float32))) == [0x80000000]
    assert bits(over_dim(np.full((1, 31), -0.0, np.float32))) == [0]


def test_sum_over_dim_keeps_denormals_and_takes_non_finite_values(over_dim):
    assert bits(over_dim(np.full((1, 33), DENORMAL))) == [33]
    assert math.isnan(over_dim(fp32(np.inf, -np.inf)[None])[0])


# Which sums are accepted: rule 9


def test_rows_below_large_are_accepted_whatever_their_dim():
    """Kernels look no closer at them."""
    widest = np.full((1, DIM_MAX), np.nextafter(np.float32(both.LARGE), np.float32(0)))
    assert both.unaccepted(np.array([7]), widest) == []
    assert np.isfinite(both.sum_over_dim(widest * widest)).all()


def test_unaccepted_keys_come_in_order_with_their_sums():
    sums = np.ones((5, 40), np.float32)
    sums[[0, 1, 3], [39, 7, 0]] = np.inf, 1e19, -3e19
    sums[4] = 5e18
    found = both.unaccepted(np.arange(50, 55), sums)
    assert [key for key, _ in found] == [50, 53, 54]
    assert bits(found[1][1]) == bits(sums[3])


# add_ranks: rule 6


def ids_of(*ids):
    return np.array(ids, np.int32)


def test_ranks_are_added_in_rank_order(add_ranks):
    a, b, c = fp32(1e8), fp32(3.0), fp32(-1e8)
    shares = [(ids_of(0), values[None]) for values in (a, b, c)]
    for values in (a, b, c):
        values.flags.writeable = False
    assert bits(add_ranks(1, shares)[0]) == bits((a + b) + c)
    assert bits(add_ranks(1, shares[::-1])[0]) == bits((c + b) + a)
    assert bits(add_ranks(1, [shares[0], shares[2], shares[1]])[0]) == bits((a + c) + b)


def test_a_rank_without_the_key_is_skipped(add_ranks):
    shares = [
        (ids_of(2), fp32((-0.0, 1))),
        (ids_of(0, 1), fp32((-0.0, 2), (3, 4))),
        (ids_of(), np.empty((0, 2), np.float32)),
        (ids_of(1, 2), fp32((5, 6), (-0.0, 7))),
    ]
    expected = fp32((-0.0, 2), (8, 10), (-0.0, 8))
    assert bits(add_ranks(3, shares)) == bits(expected)


def test_ranks_take_no_keys_and_non_finite_sums(add_ranks):
    assert add_ranks(0, [(ids_of(), np.empty((0, 7), np.float32))] * 2).shape == (0, 7)
    shares = [(ids_of(0), fp32(np.inf)[None]), (ids_of(0), fp32(-np.inf)[None])]
    assert np.isnan(add_ranks(1, shares)).all()
