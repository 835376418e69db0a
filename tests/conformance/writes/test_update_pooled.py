"""update_pooled: the backward pass of lookup_pooled."""

import numpy as np
import pytest

from embstore.errors import InvalidArgumentError
from tests.conformance.cases import (
    OPTIMIZERS,
    batch,
    each,
    generator,
    normal,
    of_each_kind,
    ones,
    refused,
)

BAGS = {"mixed": [0, 0, 3, 70, 70, 200], "a bag a key": list(range(201)), "one": [0, 200]}


@pytest.fixture
def twin(open_twin):
    """A table of each optimizer."""
    return open_twin(**of_each_kind(dim=5))


def test_every_form(twin):
    for kind in each(OPTIMIZERS):
        for offsets in each(BAGS.values()):
            rng, bags = generator(41), len(offsets) - 1
            keys, _ = batch(rng, 200)
            twin.on(kind, "update_pooled", keys, offsets, normal(rng, bags, 5), "sum")
            twin.on(kind, "update_pooled", keys, offsets, normal(rng, bags, 5), "mean")
            weighted = (keys, offsets, normal(rng, bags, 5), "sum", normal(rng, 200))
            twin.on(kind, "update_pooled", *weighted)


def test_bags_without_keys_write_nothing_and_count(twin):
    for kind in each(OPTIMIZERS):
        assert twin.on(kind, "update_pooled", [], [0, 0, 0], ones(2, 5), "mean").t == 1
        assert twin.on(kind, "update_pooled", [], [0], np.empty((0, 5), np.float32), "sum").t == 2
        assert twin.reference.table(kind).written == set()


def test_nonfinite_gradient_of_an_empty_bag_reaches_no_row(twin):
    """Rule 9 is about sums by key: the gradient of a bag without keys is in none."""
    for kind in each(OPTIMIZERS):
        grads = ones(2, 5)
        grads[1] = np.inf
        assert twin.on(kind, "update_pooled", [1], [0, 1, 1], grads, "sum").t == 1


def test_weights_of_zero_write_the_row(twin):
    for kind in each(OPTIMIZERS):
        grads = normal(generator(43), 1, 5)
        twin.on(
            kind, "update_pooled", [1, 2], [0, 2], grads, "sum", np.array([0.0, -0.0], np.float32)
        )
        assert twin.reference.table(kind).written == {1, 2}


def test_nonfinite_product_is_refused_or_skipped(twin):
    for kind in each(OPTIMIZERS):
        weights = np.array([3e38, 1.0], np.float32)
        call = ([7, 8], [0, 2], ones(1, 5, 3e38), "sum", weights)
        with refused(
            twin.store, InvalidArgumentError, f"table '{kind}'", "key 7", "finite gradients"
        ):
            twin.store.table(kind).update_pooled(*call)
        assert twin.on(kind, "update_pooled", *call, on_nonfinite="skip").skipped


def test_default_is_the_sum(twin):
    for kind in each(OPTIMIZERS):
        keys, offsets, grads = [1, 2, 1], [0, 3], ones(1, 5)
        twin.store.table(kind).update_pooled(keys, offsets, grads)
        twin.reference.table(kind).update_pooled(keys, offsets, grads, "sum")
