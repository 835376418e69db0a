"""One update of distinct rows (contract.md, rule 4): host scalars, scale, formulas, first state.

    host, float64, once per command   t, lr, fixed parameters -> `update_scalars` -> (8,) float32
    per element, fp32                 sums -> `scale_sums` -> g -> `apply_update` -> weights, state

The formulas are those of `embstore.optimizers`. Here they are applied to whole arrays of rows, and
each NumPy operation rounds each element once.
"""

from collections.abc import Callable, Sequence
from struct import pack
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embstore.arithmetic.denormals import kept
from embstore.arithmetic.nans import canonicalize_nans
from embstore.arithmetic.sums import sum_over_dim
from embstore.arrays import Keys, Rows
from embstore.optimizers import OPTIMIZERS, Optimizer, decayed_gradient, kept_weight

SCALARS = 8
"""Columns of `update_scalars`: an optimizer's `scalars`, then zeros, and in the last two columns
its weight decay: 0 and 1 if it has none."""
OWN_SCALARS = SCALARS - 2
DECAY, KEPT = OWN_SCALARS, OWN_SCALARS + 1

_BLOCK_ELEMENTS = 1 << 16
"""The most weights that the formulas take at a time. Each operation of a formula allocates a new
array; the allocator would request larger arrays from the system, and return them, page by page,
every time."""

Scalars = NDArray[np.float32]


def scalars_of(optimizer: Optimizer, t: int, learning_rate: float, dim: int) -> Scalars:
    """Return the (8,) float32 scalars of one update, computed in float64 and rounded once. The
    calling thread must keep denormals, as `update_scalars` ensures.

    Parameters
    ----------
    t : the table's update count including this update, >= 1
    learning_rate : learning rate of this update; the optimizer's own learning rate is only the
        table's first one
    """
    values = optimizer.scalar_values(t, learning_rate, dim)
    zeros, decay = OWN_SCALARS - len(values), optimizer.decay_values(learning_rate)
    try:  # NumPy's overhead would be noticeable with few keys
        packed = bytearray(pack(f"{len(values)}f{4 * zeros}x2f", *values, *decay))
    except OverflowError:  # the value is infinite in fp32
        with np.errstate(over="ignore"):
            return np.array([*values, *[0.0] * zeros, *decay], np.float32)
    return np.frombuffer(packed, np.float32)


update_scalars = kept(scalars_of)


@kept
@np.errstate(all="ignore")
def scale_sums(sums: Rows, gradient_scale: float) -> Rows:
    """Return g = scale * sums as a new array, with one multiplication per element even if scale is
    1."""
    return np.float32(gradient_scale) * sums


def apply_formulas(
    kind: str,
    rows: tuple[Any, Any],
    g: Any,
    scalars: Scalars,
    sum_over_dim: Callable[[Any], Any],
    numbers: Callable[[Scalars], Sequence[Any]] = list,
) -> tuple[Any, list[Any]]:
    """Return the weights and the state of rows after one update: new arrays, or tensors.

    Parameters
    ----------
    rows : weights (n, dim) and state (n, state_dim), which do not change
    g : (n, dim)
    scalars : (8,) float32, `update_scalars` of this update
    sum_over_dim : function of (n, dim) that returns (n, 1), the sums by rule 3
    numbers : function of `scalars` that returns each scalar in a type that can be combined with
        rows

    Returns
    -------
    weights : (n, dim)
    state : the parts of the state from left to right: (n, dim) per element state, (n, 1) per row
        state
    """
    optimizer, (weights, state) = OPTIMIZERS[kind], rows
    dim = weights.shape[1]
    *own, weight_decay, kept = numbers(scalars)
    if scalars[DECAY] > 0:
        g = decayed_gradient(g, weights, weight_decay)
    if scalars[KEPT] != 1:
        weights = kept_weight(weights, kept)
    end = dim * len(optimizer.element_state)
    of_elements = [state[:, low : low + dim] for low in range(0, end, dim)]
    of_rows = [state[:, low : low + 1] for low in range(end, state.shape[1])]
    used = own[: len(optimizer.scalars)]
    if optimizer.row_formula is not None:
        scalar, *of_rows = optimizer.row_formula(sum_over_dim(g * g), *of_rows, *used)
        used = [scalar]
    weights, *of_elements = optimizer.element_formula(g, weights, *of_elements, *used)
    return weights, of_elements + of_rows


def _sum_over_dim(values: Rows) -> Rows:
    return sum_over_dim(values)[:, None]


@kept
@np.errstate(all="ignore")
def apply_update(kind: str, weights: Rows, state: Rows, gradients: Rows, scalars: Scalars) -> None:
    """Apply optimizer `kind` in place to rows of distinct keys; NaNs in these rows become
    canonical.

    Parameters
    ----------
    weights : (n, dim) float32, possibly a view into row records
    state : (n, state_dim) float32, possibly a view into row records
    gradients : (n, dim) float32, g of rule 4, which is the sums times the scale
    scalars : (8,) float32, `update_scalars` of this update

    Raises
    ------
    DeviceError : this thread flushes denormals, and its mode cannot be changed; no row has changed.
    """
    step = max(1, _BLOCK_ELEMENTS // weights.shape[1])
    for low in range(0, len(weights), step):
        block = slice(low, low + step)
        rows = weights[block], state[block]
        new, parts = apply_formulas(kind, rows, gradients[block], scalars, _sum_over_dim)
        rows[0][...] = new
        column = 0
        for part in parts:
            rows[1][:, column : column + part.shape[1]] = part
            column += part.shape[1]
    canonicalize_nans(weights)
    canonicalize_nans(state)


def update_rows(
    kind: str, weights: Rows, state: Rows, slots: Keys, gradients: Rows, scalars: Scalars
) -> None:
    """Apply optimizer `kind` in place to the rows of distinct slots, as `apply_update` does.

    Parameters
    ----------
    weights, state : (slots, dim) and (slots, state_dim) float32, C-contiguous
    slots : (n,) int64
    gradients : (n, dim) float32, C-contiguous
    """
    # No slot is out of range, so nothing is clipped. But without "clip", NumPy's check of the range
    # would take longer than the copy.
    taken, of_state = (rows.take(slots, axis=0, mode="clip") for rows in (weights, state))
    apply_update(kind, taken, of_state, gradients, scalars)
    weights[slots], state[slots] = taken, of_state


def initial_state(optimizer: Optimizer, dim: int, n: int) -> Rows:
    """Return the (n, state_dim) float32 state of rows that no update has changed yet."""
    return np.full((n, optimizer.state_dim(dim)), np.float32(optimizer.initial_state))
