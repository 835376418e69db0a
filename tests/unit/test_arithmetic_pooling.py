"""Rule 8: bags, pooled and spread by arithmetic and by the reference."""

from itertools import pairwise

import numpy as np
import pytest

from embstore import arithmetic
from tests import rules
from tests.unit.plain import bits, fp32

DIMS = (1, 7, 13, 33, 4096)


class Reference:
    """The reference's bags under the names of the arithmetic."""

    @staticmethod
    def bag_gradients(gradients, offsets, mode="sum", weights=None):
        return rules.spread_bags(gradients, offsets, mode, weights)

    @staticmethod
    def pool_rows(rows, offsets, mode="sum", weights=None):
        pooled = np.empty((len(offsets) - 1, rows.shape[1]), np.float32)
        for bag, (low, high) in enumerate(pairwise(offsets.tolist())):
            of_bag = None if weights is None else weights[low:high]
            pooled[bag] = rules.pool_bag(rows[low:high], mode, of_bag)
        return pooled


@pytest.fixture(params=[arithmetic, Reference], ids=["arithmetic", "reference"])
def bags(request):
    return request.param


def random_rows(n, dim, seed=0):
    return np.random.default_rng(seed).standard_normal((n, dim)).astype(np.float32)


@pytest.mark.parametrize("mode", ["sum", "mean"])
def test_empty_bags_are_zeros(bags, mode):
    rows = random_rows(3, 4)
    pooled = bags.pool_rows(rows, np.array([0, 0, 2, 2, 3, 3]), mode)
    assert pooled.shape == (5, 4)
    assert bits(pooled[[0, 2, 4]]) == [[0] * 4] * 3
    assert bits(pooled[3]) == bits(rows[2])


@pytest.mark.parametrize("weights", [None, np.empty(0, np.float32)])
@pytest.mark.parametrize("count", [0, 3])
def test_no_rows(bags, count, weights):
    offsets = np.zeros(count + 1, np.int64)
    pooled = bags.pool_rows(np.empty((0, 13), np.float32), offsets, "sum", weights)
    assert pooled.shape == (count, 13)
    assert not pooled.any()
    received = bags.bag_gradients(np.ones((count, 13), np.float32), offsets, "sum", weights)
    assert received.shape == (0, 13)
    assert received.dtype == np.float32


@pytest.mark.parametrize("n", [63, 64, 65, 128, 129, 130])
def test_a_long_bag_is_summed_in_chunks(bags, n):
    rows = random_rows(n, 3, n)
    expected = rules.sum_occurrences(list(rows))
    assert bits(bags.pool_rows(rows, np.array([0, n]))[0]) == bits(expected)
    mean = bags.pool_rows(rows, np.array([0, n]), "mean")[0]
    assert bits(mean) == bits(expected / np.float32(n))


@pytest.mark.parametrize("dim", DIMS)
def test_pooling_takes_every_dim(bags, dim):
    rows, weights = random_rows(5, dim, dim), random_rows(5, 1, 1)[:, 0]
    pooled = bags.pool_rows(rows, np.array([0, 1, 1, 5]), "sum", weights)
    w = [weights[i] * rows[i] for i in range(5)]
    assert bits(pooled) == bits(np.stack([w[0], np.zeros_like(w[0]), w[1] + w[2] + w[3] + w[4]]))


def test_mean_divides_and_does_not_multiply_by_a_reciprocal(bags):
    rows = random_rows(49 * 20, 1)
    offsets = np.arange(0, 49 * 20 + 1, 49)
    sums, means = bags.pool_rows(rows, offsets), bags.pool_rows(rows, offsets, "mean")
    assert bits(means) == bits(sums / np.float32(49))
    assert bits(means) != bits(sums * (np.float32(1) / np.float32(49)))


def test_weights_round_before_the_sum(bags):
    # 1 + 2**-12 squared does not fit fp32: an FMA would keep the 2**-24 that rounding drops.
    x = np.float32(1 + 2**-12)
    pooled = bags.pool_rows(fp32((-1.0,), (x,)), np.array([0, 2]), "sum", fp32(1, x))
    assert pooled[0, 0] == np.float32(x * x) - np.float32(1)


def test_signs_of_zeros_and_denormals_are_kept(bags):
    rows = fp32((-0.0, 1e-45), (-0.0, 1e-45))
    assert bits(bags.pool_rows(rows, np.array([0, 1, 2]))) == [[0x80000000, 1]] * 2
    assert bits(bags.pool_rows(rows, np.array([0, 2]))) == [[0x80000000, 2]]
    assert bits(bags.pool_rows(rows, np.array([0, 2]), "mean")) == [[0x80000000, 1]]
    assert bits(bags.pool_rows(rows, np.array([0, 1, 2]), "sum", fp32(-1, 0.25))) == [
        [0, 0x80000001],
        [0x80000000, 0],
    ]


@pytest.mark.parametrize("mode", ["sum", "mean"])
def test_a_nan_in_a_reply_is_canonical(bags, mode):
    rows = fp32((np.inf, 0, 1), (-np.inf, 0, 1))
    rows.view(np.uint32)[0, 1] = 0xFFC12345
    pooled = bags.pool_rows(rows, np.array([0, 2]), mode)
    assert bits(pooled[0, :2]) == [0x7FC00000] * 2
    single = bags.pool_rows(rows, np.array([0, 1, 2]), mode)
    assert bits(single[0]) == [0x7F800000, 0x7FC00000, 0x3F800000]


def test_an_infinite_row_with_weight_zero_is_canonical_nan(bags):
    pooled = bags.pool_rows(fp32((np.inf,)), np.array([0, 1]), "sum", fp32(0))
    assert bits(pooled) == [[0x7FC00000]]


@pytest.mark.parametrize(
    "mode, weights, factors",
    [
        ("sum", None, fp32(1, 1, 1, 1, 1)),
        ("sum", fp32(0.5, -0.0, 3, 1e-30, -1 / 3), fp32(0.5, -0.0, 3, 1e-30, -1 / 3)),
        ("mean", None, None),
    ],
)
def test_each_occurrence_gets_its_share_of_the_gradient_of_its_bag(bags, mode, weights, factors):
    gradients = random_rows(3, 4)
    received = bags.bag_gradients(gradients, np.array([0, 2, 2, 5]), mode, weights)
    of_bag = gradients[[0, 0, 2, 2, 2]]
    expected = (
        of_bag / fp32(2, 2, 3, 3, 3)[:, None] if mode == "mean" else factors[:, None] * of_bag
    )
    assert received.dtype == np.float32
    assert bits(received) == bits(expected)


def test_non_finite_bag_gradients_run_through_without_a_warning(bags):
    received = bags.bag_gradients(fp32((np.inf, 3e38)), np.array([0, 1]), "sum", fp32(2))
    assert received.tolist() == [[np.inf, np.inf]]
    assert bags.bag_gradients(fp32((np.inf,)), np.array([0, 0]), "mean").shape == (0, 1)
