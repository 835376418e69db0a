"""Bags: pooling the rows of a bag, and gradients of occurrences from a bag's (contract.md, rule 8).

A bag is a run of consecutive keys, cut by `offsets`; bag b has positions offsets[b] to offsets[b +
1]. Mean divides by the number of rows as fp32; multiplying by the reciprocal would round twice.
With weights, each row is multiplied by its weight and rounded before the sum. In the other
direction, every occurrence receives its own rounded gradient, and rule 2 sums over a key's
occurrences as in all updates. Summing a key's coefficients first would save work, but give other
bits.
"""

from typing import Literal

import numpy as np
from numpy.typing import NDArray

from embstore.arithmetic.choice import sum_by_key
from embstore.arithmetic.denormals import kept
from embstore.arithmetic.nans import canonicalize_nans
from embstore.arrays import Rows

Pooling = Literal["sum", "mean"]


def _divisors(counts: NDArray[np.int64]) -> NDArray[np.float32]:
    """Return the number of rows of each bag, (bags, 1); 1 for an empty bag, so that its zeros stay
    zeros."""
    return np.maximum(counts, 1).astype(np.float32)[:, None]


def _check(mode: Pooling, weights: NDArray[np.float32] | None) -> None:
    assert mode == "sum" or (mode == "mean" and weights is None), "weights go with sum only"


@kept
@np.errstate(all="ignore")
def pool_rows(
    rows: Rows,
    offsets: NDArray[np.int64],
    mode: Pooling = "sum",
    weights: NDArray[np.float32] | None = None,
) -> Rows:
    """Return the (bags, dim) pooled rows. An empty bag gives zeros; NaNs are canonical.

    Parameters
    ----------
    rows : (n, dim) float32, one row per key, bag after bag
    offsets : (bags + 1,) int64, from 0 to n, not descending
    weights : (n,) float32, finite; only with mode "sum"

    Raises
    ------
    DeviceError : this thread flushes denormals, and its mode cannot be changed.
    """
    _check(mode, weights)
    counts = np.diff(offsets)
    weighted = rows if weights is None else weights[:, None] * rows
    bags = np.repeat(np.arange(len(counts), dtype=np.int32), counts)
    pooled = sum_by_key(bags, len(counts), weighted)
    if mode == "mean":
        pooled /= _divisors(counts)
    canonicalize_nans(pooled)
    return pooled


@kept
@np.errstate(all="ignore")
def bag_gradients(
    gradients: Rows,
    offsets: NDArray[np.int64],
    mode: Pooling = "sum",
    weights: NDArray[np.float32] | None = None,
) -> Rows:
    """Return the (n, dim) gradients of occurrences, from the (bags, dim) gradients of bags.

    Raises
    ------
    DeviceError : this thread flushes denormals, and its mode cannot be changed.
    """
    _check(mode, weights)
    counts = np.diff(offsets)
    if mode == "mean":
        gradients = gradients / _divisors(counts)
    received = np.repeat(gradients, counts, axis=0)
    return received if weights is None else weights[:, None] * received
