"""lookup_pooled: sum, mean, weights; empty and long bags."""

import numpy as np
import pytest

from tests.conformance.cases import OPTIMIZERS, assert_same, batch, config, each, generator, normal

BAGS = {
    "one bag": [0, 500],
    "a bag a key": list(range(501)),
    "empty bags between": [0, 0, 3, 3, 3, 7, 500, 500],
    "long bags": [0, 64, 129, 258, 500],
}
"""Offsets of 500 keys; rule 2 begins a new chunk after 64 occurrences."""


@pytest.fixture
def twin(open_twin):
    twin, rng = open_twin(a=config(dim=7, optimizer=OPTIMIZERS["adagrad"])), generator(21)
    twin.on("a", "update", *batch(rng, 400, dim=7))
    return twin


def pooled(twin, keys, offsets, *args, **options):
    """Return what the store answers, once it has been compared with the reference."""
    found = twin.store.table("a").lookup_pooled(keys, offsets, *args, **options)
    assert_same(found, twin.reference.table("a").lookup_pooled(keys, offsets, *(args or ("sum",))))
    return found


def test_bags(twin):
    for admit in each([True, False]):
        for mode in each(["sum", "mean", "weighted"]):
            for offsets in each(BAGS.values()):
                rng = generator(22)
                keys, _ = batch(rng, 500)
                how = ("sum", normal(rng, 500)) if mode == "weighted" else (mode,)
                pooled(twin, keys, offsets, *how, admit=admit)


def test_weights_of_zero_and_denormals(twin):
    weights = np.array([0.0, -0.0, 1e-45, -3e-39, 3e38], np.float32)
    pooled(twin, [1, 2, 3, 4, 5], [0, 1, 2, 3, 5], "sum", weights)


def test_float16_weights_are_widened(twin):
    keys, weights = [1, 2, 3], np.array([0.5, 2.0, -1 / 3], np.float16)
    found = pooled(twin, keys, [0, 3], "sum", weights)
    assert_same(found, pooled(twin, keys, [0, 3], "sum", weights.astype(np.float32)))


def test_bags_without_keys_are_zeros(twin):
    for mode in each(["sum", "mean"]):
        assert_same(pooled(twin, [], [0, 0, 0], mode), np.zeros((2, 7), np.float32))
        assert_same(pooled(twin, [], [0], mode), np.zeros((0, 7), np.float32))


def test_default_is_the_sum(twin):
    keys = [1, 1, 2]
    found = twin.store.table("a").lookup_pooled(keys, [0, 3])
    assert_same(found, pooled(twin, keys, [0, 3], "sum"))


def test_out_is_filled_and_returned(twin):
    for bags, admit in (([0, 0, 2, 3], True), ([0, 3, 3, 3], False)):
        out = np.full((3, 7), 7.0, np.float32)
        assert pooled(twin, [1, 2, 1], bags, "mean", admit=admit, out=out) is out


def test_offsets_of_other_integers(twin):
    for dtype in each([np.int32, np.uint64, ">i8"]):
        pooled(twin, [1, 2, 3], np.array([0, 1, 3], dtype))


@pytest.mark.parametrize("mode", ["sum", "mean"])
@pytest.mark.parametrize("admit", [True, False])
def test_infinities_of_opposite_sign_give_the_one_nan(open_twin, mode, admit):
    """Rule 1: on x86 the sum is 0xffc00000, in CUDA 0x7fffffff; answered is 0x7fc00000."""
    twin = open_twin(a=config())
    rows = np.array([[np.inf] * 4, [-np.inf] * 4, [np.nan] * 4], np.float32)
    twin.on("a", "assign", [1, 2, 3], rows)
    found = pooled(twin, [1, 2, 3, 1, 1], [0, 2, 4, 5], mode, admit=admit)
    assert found.view(np.uint32).tolist() == [[0x7FC00000] * 4] * 2 + [[0x7F800000] * 4]
    if mode == "sum":
        pooled(twin, [1, 2], [0, 1, 2], "sum", np.array([0.0, -0.0], np.float32), admit=admit)


def test_sums_may_overflow(open_twin):
    """A reply is not held to rule 9: what is stored is finite, what is asked for need not be."""
    twin = open_twin(a=config())
    twin.on("a", "assign", [1], np.full((1, 4), 3e38, np.float32))
    assert np.isinf(pooled(twin, [1, 1], [0, 2])).all()
    assert np.isinf(pooled(twin, [1, 1], [0, 2], "mean")).all()
