"""Rule 8: bags."""

import numpy as np
import pytest

from embstore.arithmetic import bag_gradients, initial_rows, pool_rows
from embstore.config import Uniform

DIMS = (1, 7, 13, 33, 4096)
VECTORS = {
    "sum": "bdda6b99 be161b42 3d3bff04 3d67d95a",
    "mean": "bd119d11 bd482458 3c7aa95b 3c9a90e7",
    "weights": "3e2957fc 3dab5e4e be13881c be1dd01c",
}


def hexes(row):
    return " ".join(f"{bits:08x}" for bits in row.view(np.uint32))


def bits(values):
    return values.view(np.uint32).tolist()


def fp32(*values):
    return np.array(values, np.float32)


def random_rows(n, dim, seed=0):
    return np.random.default_rng(seed).standard_normal((n, dim)).astype(np.float32)


@pytest.fixture
def rows():
    return initial_rows(Uniform(-0.1, 0.1), 7, np.array([2, 0, 2]), 4)


@pytest.mark.parametrize("mode", ["sum", "mean"])
def test_pooled_gives_the_contract_vectors(rows, mode):
    pooled = pool_rows(rows, np.array([0, 3]), mode)
    assert pooled.dtype == np.float32
    assert hexes(pooled[0]) == VECTORS[mode]


def test_weighted_pooling_gives_the_contract_vector(rows):
    weights = fp32(0.5, 2, -1 / 3)
    assert hexes(pool_rows(rows, np.array([0, 3]), "sum", weights)[0]) == VECTORS["weights"]


@pytest.mark.parametrize("mode", ["sum", "mean"])
def test_empty_bags_are_zeros(rows, mode):
    pooled = pool_rows(rows, np.array([0, 0, 2, 2, 3, 3]), mode)
    assert pooled.shape == (5, 4)
    assert bits(pooled[[0, 2, 4]]) == [[0] * 4] * 3
    assert hexes(pooled[3]) == hexes(rows[2])


@pytest.mark.parametrize("weights", [None, np.empty(0, np.float32)])
@pytest.mark.parametrize("bags", [0, 3])
def test_no_rows(bags, weights):
    offsets = np.zeros(bags + 1, np.int64)
    pooled = pool_rows(np.empty((0, 13), np.float32), offsets, "sum", weights)
    assert pooled.shape == (bags, 13)
    assert not pooled.any()
    received = bag_gradients(np.ones((bags, 13), np.float32), offsets, "sum", weights)
    assert received.shape == (0, 13)
    assert received.dtype == np.float32


@pytest.mark.parametrize("n", [63, 64, 65, 128, 129, 130])
def test_a_long_bag_is_summed_in_chunks(n):
    rows = random_rows(n, 3, n)
    chunks = []
    for first in range(0, n, 64):
        chunk = rows[first].copy()
        for row in rows[first + 1 : first + 64]:
            chunk = chunk + row
        chunks.append(chunk)
    expected = chunks[0]
    for chunk in chunks[1:]:
        expected = expected + chunk
    assert bits(pool_rows(rows, np.array([0, n]))[0]) == bits(expected)
    mean = pool_rows(rows, np.array([0, n]), "mean")[0]
    assert bits(mean) == bits(expected / np.float32(n))


@pytest.mark.parametrize("dim", DIMS)
def test_pooling_takes_every_dim(dim):
    rows, weights = random_rows(5, dim, dim), random_rows(5, 1, 1)[:, 0]
    pooled = pool_rows(rows, np.array([0, 1, 1, 5]), "sum", weights)
    w = [weights[i] * rows[i] for i in range(5)]
    assert bits(pooled) == bits(np.stack([w[0], np.zeros_like(w[0]), w[1] + w[2] + w[3] + w[4]]))


def test_mean_divides_and_does_not_multiply_by_a_reciprocal():
    rows = random_rows(49 * 20, 1)
    offsets = np.arange(0, 49 * 20 + 1, 49)
    sums, means = pool_rows(rows, offsets), pool_rows(rows, offsets, "mean")
    assert bits(means) == bits(sums / np.float32(49))
    assert bits(means) != bits(sums * (np.float32(1) / np.float32(49)))


def test_weights_round_before_the_sum():
    # 1 + 2**-12 squared does not fit fp32: an FMA would keep the 2**-24 that rounding drops.
    x = np.float32(1 + 2**-12)
    pooled = pool_rows(fp32((-1.0,), (x,)), np.array([0, 2]), "sum", fp32(1, x))
    assert pooled[0, 0] == np.float32(x * x) - np.float32(1)


def test_signs_of_zeros_and_denormals_are_kept():
    rows = fp32((-0.0, 1e-45), (-0.0, 1e-45))
    assert bits(pool_rows(rows, np.array([0, 1, 2]))) == [[0x80000000, 1]] * 2
    assert bits(pool_rows(rows, np.array([0, 2]))) == [[0x80000000, 2]]
    assert bits(pool_rows(rows, np.array([0, 2]), "mean")) == [[0x80000000, 1]]
    assert bits(pool_rows(rows, np.array([0, 1, 2]), "sum", fp32(-1, 0.25))) == [
        [0, 0x80000001],
        [0x80000000, 0],
    ]


@pytest.mark.parametrize("mode", ["sum", "mean"])
def test_a_nan_in_a_reply_is_canonical(mode):
    rows = fp32((np.inf, 0, 1), (-np.inf, 0, 1))
    rows.view(np.uint32)[0, 1] = 0xFFC12345
    pooled = pool_rows(rows, np.array([0, 2]), mode)
    assert bits(pooled[0, :2]) == [0x7FC00000] * 2
    single = pool_rows(rows, np.array([0, 1, 2]), mode)
    assert bits(single[0]) == [0x7F800000, 0x7FC00000, 0x3F800000]


def test_an_infinite_row_with_weight_zero_is_canonical_nan():
    pooled = pool_rows(fp32((np.inf,)), np.array([0, 1]), "sum", fp32(0))
    assert bits(pooled) == [[0x7FC00000]]


def test_pooling_leaves_its_rows_alone():
    rows = np.ones((2, 2), np.float32)
    rows.flags.writeable = False
    pool_rows(rows, np.array([0, 1, 2]), "mean")
    assert rows.tolist() == [[1, 1], [1, 1]]


OFFSETS = np.array([0, 2, 2, 5])
BAGS = [0, 0, 2, 2, 2]


def test_a_summed_bag_gives_each_occurrence_its_gradient():
    gradients = random_rows(3, 4)
    assert bits(bag_gradients(gradients, OFFSETS)) == bits(gradients[BAGS])


def test_a_mean_bag_divides_its_gradient():
    gradients = random_rows(3, 4)
    counts = fp32(2, 2, 3, 3, 3)[:, None]
    received = bag_gradients(gradients, OFFSETS, "mean")
    assert received.dtype == np.float32
    assert bits(received) == bits(gradients[BAGS] / counts)


def test_a_weighted_bag_multiplies_its_gradient():
    gradients, weights = random_rows(3, 4), fp32(0.5, -0.0, 3, 1e-30, -1 / 3)
    received = bag_gradients(gradients, OFFSETS, "sum", weights)
    assert received.dtype == np.float32
    assert bits(received) == bits(weights[:, None] * gradients[BAGS])


def test_non_finite_bag_gradients_run_through_without_a_warning():
    received = bag_gradients(fp32((np.inf, 3e38)), np.array([0, 1]), "sum", fp32(2))
    assert received.tolist() == [[np.inf, np.inf]]
    assert bag_gradients(fp32((np.inf,)), np.array([0, 0]), "mean").shape == (0, 1)


def test_weights_with_mean_are_a_bug_of_the_caller():
    for call in (pool_rows, bag_gradients):
        with pytest.raises(AssertionError):
            call(np.ones((1, 1), np.float32), np.array([0, 1]), "mean", fp32(1))
