"""Rule 4: one update, by arithmetic and by the reference; rule 1's NaN; rule 6's scale."""

from dataclasses import replace

import numpy as np
import pytest

from embstore.arithmetic import apply_update, initial_state, scale_sums, update_scalars
from embstore.config import Adagrad, Adam, Ftrl, RowWiseAdagrad, Sgd
from embstore.optimizers import power
from tests import rules
from tests.decayed import DECAYED, DECAYING, name_of
from tests.unit.plain import bits, fp32, random_rows

DIMS = (1, 7, 13, 33, 4096)
OPTIMIZERS = [
    Sgd(0.05),
    Adagrad(0.05, initial_accumulator=0.1),
    RowWiseAdagrad(0.05, initial_accumulator=0.1),
    Adam(0.01),
    Ftrl(0.05, l1=0.9, l2=0.1),
]
LARGE_EPSILON = [Adagrad(0.05, 0.3), RowWiseAdagrad(0.05, 0.3), Adam(0.01, epsilon=0.3)]
"""Beside which its own rounding shows."""


def each(optimizers):
    return pytest.mark.parametrize("optimizer", optimizers, ids=name_of)


each_optimizer = each(OPTIMIZERS)


def by_arithmetic(optimizer, rate, t, weights, state, g):
    weights, state = weights.copy(), state.copy()
    apply_update(optimizer.kind, weights, state, g, update_scalars(optimizer, t, rate, g.shape[1]))
    return weights, state


def by_reference(optimizer, rate, t, weights, state, g):
    rows = [
        rules.apply_update(optimizer, rate, t, rules.Row(w, s), y)
        for w, s, y in zip(weights, state, g, strict=True)
    ]
    weights, state = (np.array(part).reshape(len(rows), -1) for part in zip(*rows, strict=True))
    return weights, state


@pytest.fixture(params=[by_arithmetic, by_reference], ids=["arithmetic", "reference"])
def update(request):
    return request.param


# Host scalars


@pytest.mark.parametrize("square_and_multiply", [power, rules.power])
def test_power_is_square_and_multiply(square_and_multiply):
    assert square_and_multiply(0.999, 0) == 1.0
    assert square_and_multiply(0.9, 3) == 0.9 * (0.9 * 0.9)
    assert square_and_multiply(0.9, 5) == 0.9 * ((0.9 * 0.9) * (0.9 * 0.9))
    assert square_and_multiply(0.0, 1) == 0.0
    assert square_and_multiply(0.999, 2**60) == 0.0


def test_adam_without_memory_has_no_correction():
    assert bits(update_scalars(Adam(1.0, 0.0, 0.0), 9, 0.5, 4)[:2]) == bits(fp32(0.5, 1e-8))


def test_a_rate_beyond_fp32_is_infinite_without_a_warning():
    scalars = update_scalars(Adam(1.0, 1 - 2**-52, 0.0), 1, 3e38, 4)
    assert np.isinf(scalars[0])


# The formulas


@each([*OPTIMIZERS, *LARGE_EPSILON, *DECAYED])
@pytest.mark.parametrize("dim", DIMS)
def test_updates_are_those_of_the_reference(optimizer, dim):
    rng = np.random.default_rng(dim)
    n = 1 if dim == 4096 else 4
    weights, state = random_rows(rng, n, dim), initial_state(optimizer, dim, n)
    for t in (1, 2, 3, 1000, 10**7):
        g, rate = random_rows(rng, n, dim), float(rng.random() + 0.001)
        g.reshape(-1)[:: max(3, dim // 2)] = rng.choice(fp32(0.0, -0.0, 1e-45, -1e-30))
        g.flags.writeable = False
        expected = by_reference(optimizer, rate, t, weights, state, g)
        weights, state = by_arithmetic(optimizer, rate, t, weights, state, g)
        assert [bits(weights), bits(state)] == [bits(part) for part in expected]


@each([*OPTIMIZERS, *DECAYED])
def test_update_works_on_views_of_row_records(optimizer):
    dim, state_dim = 5, optimizer.state_dim(5)
    rng = np.random.default_rng(1)
    records, g = random_rows(rng, 3, dim + state_dim + 2), random_rows(rng, 3, dim)
    records[:, dim:] = 0.5
    weights, state = by_arithmetic(
        optimizer, 0.1, 1, records[:, :dim], records[:, dim : dim + state_dim], g
    )
    scalars = update_scalars(optimizer, 1, 0.1, dim)
    apply_update(optimizer.kind, records[:, :dim], records[:, dim : dim + state_dim], g, scalars)
    assert bits(records) == bits(np.hstack([weights, state, np.full((3, 2), 0.5, "f4")]))


@each([*OPTIMIZERS, *DECAYED])
def test_many_rows_are_updated_as_one_is(optimizer):
    """So many that the formulas take them in several blocks."""
    n, dim = 40, 4096
    rng = np.random.default_rng(2)
    weights, g = random_rows(rng, n, dim), random_rows(rng, n, dim)
    state, scalars = initial_state(optimizer, dim, n), update_scalars(optimizer, 1, 0.1, dim)
    wanted = weights.copy(), state.copy()
    for i in range(n):
        row = slice(i, i + 1)
        apply_update(optimizer.kind, wanted[0][row], wanted[1][row], g[row], scalars)
    apply_update(optimizer.kind, weights, state, g, scalars)
    assert (bits(weights), bits(state)) == (bits(wanted[0]), bits(wanted[1]))


@each_optimizer
def test_a_zero_gradient_takes_no_shortcut(update, optimizer):
    weights, state = np.full((2, 1), -0.0, np.float32), initial_state(optimizer, 1, 2)
    weights, _ = update(optimizer, 0.1, 1, weights, state, fp32((0.0,), (-0.0,)))
    if optimizer.kind == "ftrl":
        assert bits(weights) == [[0], [0]]  # z is 0.0 or -0.0, and |z| <= l1
    elif optimizer.kind == "adam":
        # m = b1*0 + (1-b1)*-0 is 0.0 + -0.0 = 0.0: the sign is lost in m, not in w.
        assert bits(weights) == [[0x80000000], [0x80000000]]
    else:
        assert bits(weights) == [[0x80000000], [0]]


@each(OPTIMIZERS[:3])
def test_a_zero_rate_takes_no_shortcut(update, optimizer):
    weights, state = np.full((2, 1), -0.0, np.float32), initial_state(optimizer, 1, 2)
    weights, _ = update(optimizer, 0.0, 1, weights, state, fp32((2.0,), (-2.0,)))
    assert bits(weights) == [[0x80000000], [0]]


def test_denormals_are_kept_in_weights_and_state(update):
    zero, none = np.zeros((1, 1), np.float32), np.zeros((1, 0), np.float32)
    weights, _ = update(Sgd(1), 1.0, 1, zero, none, fp32((-1e-45,)))
    assert bits(weights) == [[1]]
    _, state = update(Adagrad(1.0), 1.0, 1, zero, zero, fp32((1e-22,)))
    assert bits(state) == [[int(np.float32(1e-22 * 1e-22).view(np.uint32))]] != [[0]]


@each([*OPTIMIZERS, *DECAYED])
def test_nans_become_canonical(update, optimizer):
    dim = 3
    weights, state = np.ones((2, dim), np.float32), initial_state(optimizer, dim, 2)
    weights.view(np.uint32)[0, 0] = 0xFFC12345
    state.view(np.uint32)[0] = 0xFFF00001
    weights[1] = np.inf
    weights, state = update(optimizer, 3e38, 1, weights, state, np.full((2, dim), 1e10, np.float32))
    assert np.isnan(weights[0, 0])
    for rows in (weights, state):
        assert set(rows[np.isnan(rows)].view(np.uint32).tolist()) <= {0x7FC00000}
    if name_of(optimizer) == "sgd":
        assert bits(weights[1]) == [0x7FC00000] * dim  # inf - inf


def test_a_negative_accumulator_gives_a_canonical_nan(update):
    weights, state = np.ones((1, 1), np.float32), np.full((1, 1), -4, np.float32)
    weights, state = update(Adagrad(1.0), 1.0, 1, weights, state, fp32((1.0,)))
    assert bits(weights) == [[0x7FC00000]]
    assert state[0, 0] == -3


def test_ftrl_keeps_a_weight_beyond_l1_and_a_nan(update):
    weights, state = np.ones((1, 4), np.float32), np.zeros((1, 8), np.float32)
    g = fp32((0.9, -0.9, 1.0, 0.0))
    weights[0, 3] = np.nan
    weights, state = update(Ftrl(1.0, l1=0.9), 3e38, 1, weights, state, g)  # sigma*w is lost in z
    assert bits(weights[0, [0, 1, 3]]) == [0, 0, 0x7FC00000]
    assert weights[0, 2] < 0
    assert bits(state[0, :3]) == bits(g[0, :3])


# Weight decay


@each(DECAYED)
def test_weight_decay_comes_before_the_formula(update, optimizer):
    """Of gradients, as they are after the scale, or of weights."""
    rng = np.random.default_rng(5)
    weights, g = random_rows(rng, 4, 33), random_rows(rng, 4, 33)
    state = initial_state(optimizer, 33, 4)
    found = update(optimizer, 0.1, 3, weights, state, g)
    plain = replace(optimizer, weight_decay=0.0)
    if optimizer.decoupled_weight_decay:
        before = np.float32(1 - 0.1 * 0.3) * weights, g
    else:
        before = weights, g + np.float32(0.3) * weights
    wanted = update(plain, 0.1, 3, before[0], state, before[1])
    assert [bits(part) for part in found] == [bits(part) for part in wanted]


@pytest.mark.parametrize("is_decoupled", [False, True])
@each(DECAYING)
def test_no_weight_decay_changes_no_bit(update, optimizer, is_decoupled):
    """0.0 * w would: of a g of -0.0, and of infinite weights."""
    weights = fp32(-0.0, 0.0, 1e-45, -1.0, np.inf, -np.inf, 3e38)[None]
    g = fp32(-0.0, -0.0, -0.0, -0.0, 1.0, -0.0, 0.0)[None]
    state = initial_state(optimizer, 7, 1)
    wanted = update(optimizer, 0.1, 1, weights, state, g)
    for value in (0.0, -0.0, 1e-60):  # 0 in fp32
        none = replace(optimizer, weight_decay=value, decoupled_weight_decay=is_decoupled)
        found = update(none, 0.1, 1, weights, state, g)
        assert [bits(part) for part in found] == [bits(part) for part in wanted]


def test_scalars_of_weight_decay_are_the_last_two():
    assert bits(update_scalars(Sgd(1), 1, 0.5, 4)) == bits(fp32(0.5, 0, 0, 0, 0, 0, 0, 1))
    coupled = update_scalars(Sgd(1, weight_decay=0.1), 1, 0.5, 4)
    assert bits(coupled) == bits(fp32(0.5, 0, 0, 0, 0, 0, 0.1, 1))
    decoupled = update_scalars(Sgd(1, weight_decay=0.1, decoupled_weight_decay=True), 1, 0.5, 4)
    assert bits(decoupled) == bits(fp32(0.5, 0, 0, 0, 0, 0, 0, 0.95))
    of_fp32 = Sgd(1, weight_decay=np.float32(0.1), decoupled_weight_decay=True)
    exact = 1 - 1e-9 * float(np.float32(0.1))
    assert of_fp32.decay_values(1e-9) == (0.0, exact)  # in float64


# Scale and first state


def test_scale_is_rounded_to_fp32_once_and_multiplied_once():
    sums = fp32((1.0, -0.0, 1e-45, 3.0))
    assert bits(scale_sums(sums, 1.0)) == bits(sums)
    assert bits(scale_sums(sums, 0.1)) == bits(
        fp32((np.float32(0.1), -0.0, 0.0, np.float32(0.1) * np.float32(3)))
    )
    assert bits(scale_sums(sums, 0.0)) == [[0, 0x80000000, 0, 0]]
    assert scale_sums(sums, 0.1).dtype == np.float32


def test_scale_overflows_without_a_warning_and_returns_a_new_array():
    sums = fp32((3e38, np.nan))
    sums.flags.writeable = False
    assert np.isinf(scale_sums(sums, 10.0)[0, 0])
