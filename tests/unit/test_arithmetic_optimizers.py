"""Rule 4: one update; rule 6 with the scale; the canonical NaN of rule 1."""

import math

import numpy as np
import pytest

from embstore.arithmetic import (
    add_ranks,
    apply_update,
    initial_rows,
    initial_state,
    power,
    scale_sums,
    sum_by_key,
    unique,
    update_scalars,
)
from embstore.config import Adagrad, Adam, RowWiseAdagrad, Sgd, Uniform

DIMS = (1, 7, 13, 33, 4096)
G = (np.arange(1, 13).astype(np.float32) * np.float32(0.1)).reshape(3, 4)
OPTIMIZERS = [
    Sgd(0.05),
    Adagrad(0.05, initial_accumulator=0.1),
    RowWiseAdagrad(0.05, initial_accumulator=0.1),
    Adam(0.01),
]
each_optimizer = pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=lambda o: o.kind)


def hexes(row):
    return " ".join(f"{bits:08x}" for bits in row.view(np.uint32))


def bits(values):
    return np.ascontiguousarray(values).view(np.uint32).tolist()


def fp32(*values):
    return np.array(values, np.float32)


class PlainTable:
    """Rows 0 to 2 of the contract's vectors, and the smallest update call there is."""

    def __init__(self, optimizer):
        self.optimizer, self.t = optimizer, 0
        self.weights = initial_rows(Uniform(-0.1, 0.1), 7, np.arange(3), 4)
        self.state = initial_state(optimizer, 4, 3)

    def update(self, keys, gradients, scale=1.0):
        unique_keys, inverse = unique(np.array(keys))
        self.apply(unique_keys, sum_by_key(inverse, len(unique_keys), gradients), scale)

    def apply(self, keys, sums, scale=1.0):
        self.t += 1
        weights, state = self.weights[keys], self.state[keys]
        scalars = update_scalars(self.optimizer, self.t, self.optimizer.learning_rate, 4)
        apply_update(self.optimizer.kind, weights, state, scale_sums(sums, scale), scalars)
        self.weights[keys], self.state[keys] = weights, state


@pytest.mark.parametrize(
    ("optimizer", "row"),
    [
        (Sgd(0.05), "be1d79cf be2c594d bcc0420c bcf7ec03"),
        (Adagrad(0.05, 1e-8), "be1d734e be20493a 3a8a3920 3bf9578e"),
        (RowWiseAdagrad(0.05, 1e-8), "be0fc557 be1ad8e3 bb2ef974 bbbca65e"),
        (Adam(0.01, 0.9, 0.999, 1e-8), "bdedf6a4 bdeddc34 3d31d887 3d52a866"),
    ],
    ids=lambda value: getattr(value, "kind", ""),
)
def test_two_updates_give_the_contract_vectors(optimizer, row):
    table = PlainTable(optimizer)
    table.update([2, 0, 2], G)
    table.update([2], G[:1])
    assert hexes(table.weights[2]) == row


def test_scale_gives_the_contract_vector():
    table = PlainTable(Sgd(0.05))
    table.update([2, 0, 2], G, scale=1 / 3)
    assert hexes(table.weights[2]) == "bdec71ea bdf24c32 3d1c752c 3d306992"


def test_ranks_give_the_contract_vector():
    table = PlainTable(Sgd(0.05))
    shares = [
        (np.array([2, 0]), G[:2]),
        (np.array([1]), G[:1]),
        (np.array([2]), G[2:]),
    ]
    table.apply(np.arange(3), add_ranks(3, shares), scale=0.25)
    assert [hexes(row) for row in table.weights] == [
        "3dad672a 3d2e3464 bdaff3f5 bdbe31ce",
        "bca2ad19 3d67a81d bd8e1c7c 3db14c0c",
        "bde3e962 bde80ec1 3d3459dd 3d4bb814",
    ]


# Host scalars


def test_power_is_square_and_multiply():
    assert power(0.999, 0) == 1.0
    assert power(0.9, 3) == 0.9 * (0.9 * 0.9)
    assert power(0.9, 5) == 0.9 * ((0.9 * 0.9) * (0.9 * 0.9))
    assert power(0.0, 1) == 0.0
    assert power(0.999, 2**60) == 0.0


@pytest.mark.parametrize(
    ("optimizer", "expected"),
    [
        (Sgd(1.0), [0.1]),
        (Adagrad(1.0, 1e-7), [0.1, 1e-7]),
        (RowWiseAdagrad(1.0, 1e-7), [0.1, 1e-7, 33]),
    ],
    ids=lambda value: getattr(value, "kind", ""),
)
def test_scalars_are_the_given_rate_then_fixed_parameters(optimizer, expected):
    scalars = update_scalars(optimizer, 5, 0.1, 33)
    assert (scalars.shape, scalars.dtype) == ((8,), np.float32)
    assert bits(scalars) == bits(fp32(*expected, *[0] * (8 - len(expected))))


@pytest.mark.parametrize("t", [1, 2, 7, 1000, 10**7])
def test_adam_scalars_are_float64_rounded_once(t):
    scalars = update_scalars(Adam(1.0, 0.9, 0.999, 1e-6), t, 0.01, 4)
    root = math.sqrt(1.0 - power(0.999, t))
    lr_t = 0.01 * root / (1.0 - power(0.9, t))
    expected = [lr_t, 1e-6 * root, 0.9, 1.0 - 0.9, 0.999, 1.0 - 0.999, 0, 0]
    assert bits(scalars) == bits(fp32(*expected))
    # 1 - b2 from fp32 operands would be another number.
    assert scalars[5] != np.float32(1) - np.float32(0.999)


def test_adam_without_memory_has_no_correction():
    assert bits(update_scalars(Adam(1.0, 0.0, 0.0), 9, 0.5, 4)[:2]) == bits(fp32(0.5, 1e-8))


def test_a_rate_beyond_fp32_is_infinite_without_a_warning():
    scalars = update_scalars(Adam(1.0, 1 - 2**-52, 0.0), 1, 3e38, 4)
    assert np.isinf(scalars[0])


# The formulas, against Python floats rounded to fp32 after every operation. Both operands fit 24
# bits, so the float64 result rounded again is the correctly rounded fp32 one.


def rounded(value):
    return float(np.float32(value))


def plain_sum_over_dim(row):
    partials = [0.0] * 32
    for d, value in enumerate(row):
        partials[d % 32] = rounded(partials[d % 32] + value)
    for half in (16, 8, 4, 2, 1):
        partials = [rounded(partials[i] + partials[i + half]) for i in range(half)]
    return partials[0]


def plain_sgd(w, state, g, lr):
    return [rounded(x - rounded(lr * y)) for x, y in zip(w, g, strict=True)], []


def plain_adagrad(w, state, g, lr, eps):
    s = [rounded(x + rounded(y * y)) for x, y in zip(state, g, strict=True)]
    steps = [
        rounded(rounded(lr * y) / rounded(rounded(math.sqrt(x)) + eps))
        for x, y in zip(s, g, strict=True)
    ]
    return [rounded(x - step) for x, step in zip(w, steps, strict=True)], s


def plain_rowwise_adagrad(w, state, g, lr, eps, dim):
    mean = rounded(plain_sum_over_dim([rounded(y * y) for y in g]) / dim)
    s = rounded(state[0] + mean)
    rate = rounded(lr / rounded(rounded(math.sqrt(s)) + eps))
    return [rounded(x - rounded(rate * y)) for x, y in zip(w, g, strict=True)], [s]


def plain_adam(w, state, g, lr, eps, b1, c1, b2, c2):
    dim = len(w)
    m = [rounded(rounded(b1 * x) + rounded(c1 * y)) for x, y in zip(state[:dim], g, strict=True)]
    v = [
        rounded(rounded(b2 * x) + rounded(rounded(c2 * y) * y))
        for x, y in zip(state[dim:], g, strict=True)
    ]
    steps = [
        rounded(rounded(lr * x) / rounded(rounded(math.sqrt(y)) + eps))
        for x, y in zip(m, v, strict=True)
    ]
    return [rounded(x - step) for x, step in zip(w, steps, strict=True)], m + v


PLAIN = {
    "sgd": (plain_sgd, 1),
    "adagrad": (plain_adagrad, 2),
    "rowwise_adagrad": (plain_rowwise_adagrad, 3),
    "adam": (plain_adam, 6),
}


def random_rows(rng, n, dim):
    return (rng.standard_normal((n, dim)) * 10.0 ** rng.integers(-3, 3, (n, dim))).astype("f4")


@each_optimizer
@pytest.mark.parametrize("dim", DIMS)
def test_update_rounds_every_operation(optimizer, dim):
    rng = np.random.default_rng(dim)
    n = 1 if dim == 4096 else 4
    weights, state = random_rows(rng, n, dim), initial_state(optimizer, dim, n)
    plain, used = PLAIN[optimizer.kind]
    for t in (1, 2, 3):
        g = random_rows(rng, n, dim)
        g.reshape(-1)[:: max(3, dim // 2)] = rng.choice(fp32(0.0, -0.0, 1e-45, -1e-30))
        scalars = update_scalars(optimizer, t, optimizer.learning_rate, dim)
        expected = [
            plain(w, s, y, *scalars[:used].tolist())
            for w, s, y in zip(weights.tolist(), state.tolist(), g.tolist(), strict=True)
        ]
        apply_update(optimizer.kind, weights, state, g, scalars)
        assert bits(weights) == bits(fp32(*[w for w, _ in expected]))
        assert bits(state) == bits(fp32(*[s for _, s in expected]).reshape(state.shape))


@each_optimizer
def test_update_works_on_views_of_row_records(optimizer):
    dim, state_dim = 5, optimizer.state_dim(5)
    rng = np.random.default_rng(1)
    records, g = random_rows(rng, 3, dim + state_dim + 2), random_rows(rng, 3, dim)
    records[:, dim:] = 0.5
    weights, state = records[:, :dim].copy(), records[:, dim : dim + state_dim].copy()
    scalars = update_scalars(optimizer, 1, 0.1, dim)
    apply_update(optimizer.kind, weights, state, g, scalars)
    apply_update(optimizer.kind, records[:, :dim], records[:, dim : dim + state_dim], g, scalars)
    assert bits(records) == bits(np.hstack([weights, state, np.full((3, 2), 0.5, "f4")]))


@each_optimizer
def test_update_of_no_rows(optimizer):
    weights, state = np.empty((0, 7), np.float32), initial_state(optimizer, 7, 0)
    apply_update(optimizer.kind, weights, state, weights, update_scalars(optimizer, 1, 0.1, 7))
    assert state.shape == (0, optimizer.state_dim(7))


@each_optimizer
def test_update_leaves_gradients_and_scalars_alone(optimizer):
    g, scalars = np.ones((2, 3), np.float32), update_scalars(optimizer, 1, 0.1, 3)
    g.flags.writeable = scalars.flags.writeable = False
    apply_update(optimizer.kind, np.ones((2, 3), "f4"), initial_state(optimizer, 3, 2), g, scalars)
    assert g.tolist() == [[1] * 3] * 2


@each_optimizer
def test_a_zero_gradient_takes_no_shortcut(optimizer):
    weights, state = np.full((2, 1), -0.0, np.float32), initial_state(optimizer, 1, 2)
    g = fp32((0.0,), (-0.0,))
    apply_update(optimizer.kind, weights, state, g, update_scalars(optimizer, 1, 0.1, 1))
    if optimizer.kind == "adam":
        # m = b1*0 + (1-b1)*-0 is 0.0 + -0.0 = 0.0: the sign is lost in m, not in w.
        assert bits(weights) == [[0x80000000], [0x80000000]]
    else:
        assert bits(weights) == [[0x80000000], [0]]


@pytest.mark.parametrize("optimizer", OPTIMIZERS[:3], ids=lambda o: o.kind)
def test_a_zero_rate_takes_no_shortcut(optimizer):
    weights, state = np.full((2, 1), -0.0, np.float32), initial_state(optimizer, 1, 2)
    g = fp32((2.0,), (-2.0,))
    apply_update(optimizer.kind, weights, state, g, update_scalars(optimizer, 1, 0.0, 1))
    assert bits(weights) == [[0x80000000], [0]]


def test_denormals_are_kept_in_weights_and_state():
    weights, state = np.zeros((1, 1), np.float32), np.zeros((1, 0), np.float32)
    apply_update("sgd", weights, state, fp32((-1e-45,)), update_scalars(Sgd(1), 1, 1.0, 1))
    assert bits(weights) == [[1]]
    weights, state = np.zeros((1, 1), np.float32), np.zeros((1, 1), np.float32)
    scalars = update_scalars(Adagrad(1.0), 1, 1.0, 1)
    apply_update("adagrad", weights, state, fp32((1e-22,)), scalars)
    assert bits(state) == [[int(np.float32(1e-22 * 1e-22).view(np.uint32))]] != [[0]]


@each_optimizer
def test_nans_become_canonical(optimizer):
    dim = 3
    weights, state = np.ones((2, dim), np.float32), initial_state(optimizer, dim, 2)
    weights.view(np.uint32)[0, 0] = 0xFFC12345
    state.view(np.uint32)[0] = 0xFFF00001
    weights[1] = np.inf
    g = np.full((2, dim), 1e10, np.float32)
    apply_update(optimizer.kind, weights, state, g, update_scalars(optimizer, 1, 3e38, dim))
    assert np.isnan(weights[0, 0])
    for rows in (weights, state):
        assert set(rows[np.isnan(rows)].view(np.uint32).tolist()) <= {0x7FC00000}
    if optimizer.kind == "sgd":
        assert bits(weights[1]) == [0x7FC00000] * dim  # inf - inf


def test_a_negative_accumulator_gives_a_canonical_nan():
    weights, state = np.ones((1, 1), np.float32), np.full((1, 1), -4, np.float32)
    scalars = update_scalars(Adagrad(1.0), 1, 1.0, 1)
    apply_update("adagrad", weights, state, fp32((1.0,)), scalars)
    assert bits(weights) == [[0x7FC00000]]
    assert state[0, 0] == -3


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


@each_optimizer
def test_initial_state_starts_at_the_accumulator_or_zero(optimizer):
    state = initial_state(optimizer, 7, 3)
    assert state.dtype == np.float32
    assert state.shape == (
        3,
        {"sgd": 0, "adagrad": 7, "rowwise_adagrad": 1, "adam": 14}[optimizer.kind],
    )
    assert (state == np.float32(getattr(optimizer, "initial_accumulator", 0.0))).all()
