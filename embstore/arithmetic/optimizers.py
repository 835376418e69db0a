"""One update of distinct rows (contract.md, rule 4): host scalars, scale, formulas, first state.

    host, float64, once per command   t, lr, fixed parameters -> `update_scalars` -> (8,) float32
    per element, fp32                 sums -> `scale_sums` -> g -> `apply_update` -> weights, state

The formulas are written operation by operation, because each one rounds: (lr*g)/x is not
lr*(g/x). Adam folds both bias corrections into lr_t and eps_t, so that no element needs a
division more. It is lazy: a row that an update does not name keeps m and v. There is no shortcut
for a zero gradient or a zero rate (for a negative g, 0.0*g is -0.0, and -0.0 - -0.0 is 0.0), and
no libm: `math.pow` differs between machines, `power` does not.

The eight columns of `update_scalars` are what kernels read; unused ones are 0:

    sgd               lr
    adagrad           lr    eps
    rowwise_adagrad   lr    eps    dim
    adam              lr_t  eps_t  b1   1-b1   b2   1-b2
"""

import math
from collections.abc import Callable
from typing import assert_never

import numpy as np
from numpy.typing import NDArray

from embstore.arithmetic.denormals import check_denormals
from embstore.arithmetic.nans import canonicalize_nans
from embstore.arithmetic.sums import sum_over_dim
from embstore.arrays import Rows
from embstore.config import Adagrad, Adam, Optimizer, RowWiseAdagrad, Sgd

SCALARS = 8
"""Columns of `update_scalars`."""

Scalars = NDArray[np.float32]


def power(base: float, n: int) -> float:
    """Return base**n, n >= 0, by square-and-multiply in float64."""
    result = 1.0
    while n:
        if n & 1:
            result *= base
        base *= base
        n >>= 1
    return result


def _adam_scalars(optimizer: Adam, t: int, learning_rate: float) -> list[float]:
    b1, b2 = optimizer.beta1, optimizer.beta2
    correction = math.sqrt(1.0 - power(b2, t))
    lr_t = learning_rate * correction / (1.0 - power(b1, t))
    return [lr_t, optimizer.epsilon * correction, b1, 1.0 - b1, b2, 1.0 - b2]


def _scalars(optimizer: Optimizer, t: int, learning_rate: float, dim: int) -> list[float]:
    match optimizer:
        case Sgd():
            return [learning_rate]
        case RowWiseAdagrad():  # before Adagrad, which it derives from
            return [learning_rate, optimizer.epsilon, dim]
        case Adagrad():
            return [learning_rate, optimizer.epsilon]
        case Adam():
            return _adam_scalars(optimizer, t, learning_rate)
        case _:
            assert_never(optimizer)


@np.errstate(all="ignore")
def update_scalars(optimizer: Optimizer, t: int, learning_rate: float, dim: int) -> Scalars:
    """Return the (8,) float32 scalars of one update, computed in float64 and rounded once.

    Parameters
    ----------
    t : the table's update count including this update, >= 1
    learning_rate : of this update; the optimizer's own is only the table's first
    """
    scalars = np.zeros(SCALARS, np.float32)
    values = _scalars(optimizer, t, learning_rate, dim)
    scalars[: len(values)] = values
    return scalars


@np.errstate(all="ignore")
def scale_sums(sums: Rows, gradient_scale: float) -> Rows:
    """Return g = scale * sums, new, one multiplication per element also where the scale is 1."""
    return np.float32(gradient_scale) * sums


def _sgd(weights: Rows, state: Rows, g: Rows, scalars: Scalars) -> None:
    weights -= scalars[0] * g


def _adagrad(weights: Rows, state: Rows, g: Rows, scalars: Scalars) -> None:
    lr, epsilon = scalars[:2]
    state += g * g
    weights -= (lr * g) / (np.sqrt(state) + epsilon)


def _rowwise_adagrad(weights: Rows, state: Rows, g: Rows, scalars: Scalars) -> None:
    lr, epsilon, dim = scalars[:3]
    state[:, 0] += sum_over_dim(g * g) / dim
    weights -= (lr / (np.sqrt(state) + epsilon)) * g


def _adam(weights: Rows, state: Rows, g: Rows, scalars: Scalars) -> None:
    lr_t, eps_t, b1, one_minus_b1, b2, one_minus_b2 = scalars[:6]
    dim = weights.shape[1]
    m, v = state[:, :dim], state[:, dim:]
    m[...] = b1 * m + one_minus_b1 * g
    v[...] = b2 * v + (one_minus_b2 * g) * g
    weights -= (lr_t * m) / (np.sqrt(v) + eps_t)


_UPDATES: dict[str, Callable[[Rows, Rows, Rows, Scalars], None]] = {
    "sgd": _sgd,
    "adagrad": _adagrad,
    "rowwise_adagrad": _rowwise_adagrad,
    "adam": _adam,
}


@np.errstate(all="ignore")
def apply_update(kind: str, weights: Rows, state: Rows, gradients: Rows, scalars: Scalars) -> None:
    """Apply optimizer `kind` in place to rows of distinct keys; NaNs in them become canonical.

    Parameters
    ----------
    weights : (n, dim) float32, may be a view into row records
    state : (n, state_dim) float32, likewise
    gradients : (n, dim) float32, g of rule 4, that is, after the scale
    scalars : (8,) float32, `update_scalars` of this update

    Raises
    ------
    DeviceError : this thread flushes denormals; nothing has changed.
    """
    check_denormals()
    _UPDATES[kind](weights, state, gradients, scalars)
    canonicalize_nans(weights)
    canonicalize_nans(state)


def initial_state(optimizer: Optimizer, dim: int, n: int) -> Rows:
    """Return the (n, state_dim) float32 state of rows that no update has named yet."""
    start = optimizer.initial_accumulator if isinstance(optimizer, Adagrad) else 0.0
    return np.full((n, optimizer.state_dim(dim)), np.float32(start))
