"""Values that others get wrong: zeros of either sign, denormals, infinities, NaNs."""

from itertools import product

import numpy as np
import pytest

from embstore.config import Adagrad, Adam, Constant, Normal, RowWiseAdagrad, Sgd, Uniform
from tests.conformance.cases import (
    OPTIMIZERS,
    assert_same,
    config,
    each,
    float32,
    generator,
    of_each_kind,
    ones,
)

NAN = 0x7FC00000
TINY, DENORMAL = float(np.finfo(np.float32).tiny), 1e-45
SPECIAL = [0.0, -0.0, DENORMAL, -DENORMAL, TINY / 2, -TINY, 1e-30, 1e18, 1e30, 3.4e38, -3.4e38]


def words(rows):
    return np.unique(rows.view(np.uint32)).tolist()


@pytest.mark.parametrize("zero", [0.0, -0.0])
def test_zero_gradient_writes_the_row(open_twin, zero):
    """Rule 4: no shortcut. The row is written as it is, state and t go on."""
    twin = open_twin(**of_each_kind(initializer=Constant(-0.0)))
    for kind in each(OPTIMIZERS):
        before = twin.store.table(kind).digest()
        twin.on(kind, "update", [1, 2, 2], ones(3, 4, zero))
        assert twin.reference.table(kind).written == {1, 2}
        assert twin.store.table(kind).digest() != before
    twin.check()
    twin.reopen()


OF_NOTHING = {"gradient_scale": 0.0}, {"learning_rate": 0.0}, {"learning_rate": 1e-50}
"""A scale, and rates, which are 0 in fp32."""


def test_scale_and_rate_of_zero_in_fp32_write_the_row(open_twin):
    twin = open_twin(**of_each_kind())
    for kind, (key, options) in each(product(OPTIMIZERS, enumerate(OF_NOTHING))):
        if kind == "ftrl" and "learning_rate" in options:
            continue  # it divides by the rate
        for value in (1.0, -1.0, -0.0):
            twin.on(kind, "update", [key], ones(1, 4, value), **options)
        assert key in twin.reference.table(kind).written


def test_negative_zero_is_kept_by_every_sum(open_table):
    """-0.0 + 0.0 is 0.0: a sum may not start from 0.0, and padding may not be added."""
    twin, table = open_table(a=config(dim=5, initializer=Constant(-0.0)))
    minus = float32(*[0x80000000] * 5).reshape(1, 5)
    assert_same(table.lookup([1]), minus)
    for keys in ([1], [1, 2, 3], list(range(200))):
        assert_same(table.lookup_pooled(keys, [0, len(keys)]), minus)
        assert_same(table.lookup_pooled(keys, [0, len(keys)], "mean"), minus)
    twin.on("a", "update", [1] * 200, ones(200, 5, 0.0))  # -0.0 - 0.0 is -0.0
    assert_same(table.lookup([1]), minus)
    twin.on("a", "update", [1] * 200, ones(200, 5, -0.0))  # -0.0 - -0.0 is 0.0
    assert_same(table.lookup([1]), np.zeros((1, 5), np.float32))


def test_gradients_of_every_size(open_twin):
    twin, rng = open_twin(**of_each_kind(dim=9)), generator(171)
    for kind, rate in each(product(OPTIMIZERS, (0.1, 1e-40, 1e30))):
        grads = rng.choice(np.array(SPECIAL, np.float32), (100, 9))
        twin.on(kind, "update", np.arange(100) % 90, grads, learning_rate=rate, on_nonfinite="skip")
        grads[np.abs(grads) > 1e19] = DENORMAL
        twin.on(kind, "update", np.arange(100) % 30, grads, learning_rate=rate)


def test_denormals_are_not_flushed(open_twin):
    twin = open_twin(**of_each_kind(initializer=Constant(0.0)))
    for kind in each(OPTIMIZERS):
        table = twin.store.table(kind)
        twin.on(kind, "assign", [1, 2], ones(2, 4, DENORMAL))
        assert words(table.lookup([1])) == [1]
        assert words(table.lookup_pooled([1, 1, 2], [0, 3])) == [3]
        assert words(table.lookup_pooled([1, 2, 1], [0, 3], "mean")) == [1]
        assert words(table.lookup_pooled([1], [0, 1], weights=float32(0x3FC00000))) == [2]
        for _ in range(3):
            twin.on(kind, "update", [1, 1, 2], ones(3, 4, DENORMAL), learning_rate=1.0)
            twin.on(kind, "update", [1], ones(1, 4, TINY), gradient_scale=1e-3)


def test_infinities_are_stored_as_they_are_and_trained_on(open_twin):
    twin = open_twin(**of_each_kind())
    rows = np.array([[np.inf, -np.inf, 1.0, -0.0]], np.float32)
    for kind in each(OPTIMIZERS):
        twin.on(kind, "assign", [1], rows)
        assert_same(twin.store.table(kind).lookup([1]), rows)
        twin.on(kind, "update", [1], ones(1))
    twin.reopen()
    for kind in each(OPTIMIZERS):
        twin.on(kind, "update", [1], ones(1, 4, -1.0))


NANS = [0x7FC00000, 0xFFC00000, 0x7F800001, 0xFF800001, 0x7FFFFFFF, 0xFFFFFFFF, 0x7FC0DEAD]


def test_nans_become_the_one_nan(open_table):
    """In rows, in state, and in every reply; signalling ones and payloads too."""
    twin, table = open_table(a=config(optimizer=Adam(0.1)))
    for word in each(NANS):
        rows = ones(2)
        rows.view(np.uint32)[:, 1] = word
        twin.on("a", "assign", [1, 2], rows)
        state = ones(1, 8)
        state.view(np.uint32)[:, 6] = word
        twin.on("a", "put_rows", [3], rows[:1], state, 1)
        one = float32(0x3F800000, NAN, 0x3F800000, 0x3F800000).reshape(1, 4)
        assert_same(table.lookup([1]), one)
        assert_same(table.lookup([2], admit=False), one)
        assert table.read_rows([3])[1].view(np.uint32)[0, 6] == NAN
        for admit in (True, False):
            assert_same(table.lookup_pooled([3], [0, 1], admit=admit), one)
            assert_same(table.lookup_pooled([1], [0, 1], "mean", admit=admit), one)
        twin.on("a", "update", [1, 3], ones(2))
    twin.reopen()


AT_THE_EDGES = [
    Sgd(3e38),
    Adagrad(3e38),
    RowWiseAdagrad(3e38),
    Adam(3e38, beta1=0.999, beta2=0.0),
    Adam(0.1, beta1=0.0, beta2=0.0, epsilon=1e-30),
    Adagrad(1e-45, epsilon=1.2e-38),
    RowWiseAdagrad(0.1, epsilon=3e38, initial_accumulator=3e38),
]


def test_parameters_at_the_edges(open_twin):
    """Rows may become infinite or NaN; they become so in every configuration alike."""
    twin = open_twin(**{f"t{n}": config(optimizer=o) for n, o in enumerate(AT_THE_EDGES)})
    for name, value in each(product(twin.store.tables(), (1.0, -1.0, 1e18, -1e18, 0.0))):
        twin.on(name, "update", [1, 2], ones(2, 4, value))
    twin.reopen()


INITIALIZERS = [
    *(Normal(3e38, 3e38), Normal(0.0, 1e-45), Normal(-0.0, 0.0), Normal(-1.0, 0.0)),
    *(Uniform(-1.0, 2.0), Uniform(3.0, 3.0), Constant(-0.0)),
]


def test_initial_rows_at_the_edges(open_twin):
    twin = open_twin(**{f"t{n}": config(initializer=i) for n, i in enumerate(INITIALIZERS)})
    keys = np.arange(100)
    for name in each(twin.store.tables()):
        assert_same(twin.store.table(name).lookup(keys), twin.reference.table(name).lookup(keys))
        twin.on(name, "update", keys, ones(100))


def test_adam_with_any_t(open_twin):
    twin = open_twin(a=config(optimizer=Adam(0.1, beta2=0.99)))
    for t in (5, 1000, 2**31 - 1010, 2**40, 2**63):
        twin.on("a", "put_rows", [1], ones(1), ones(1, 8), t)
        assert twin.on("a", "update", [1], ones(1)).t > t
