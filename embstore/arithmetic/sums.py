"""Sums whose order is part of their value: over occurrences, dim and ranks (rules 2, 3 and 6).

fp32 addition is not associative, so a sum is defined only together with its order. The rule for
occurrences of a key (and for rows of a bag) has two levels:

    occurrences   0 1 2 ... 63 | 64 ... 127 | 128 129
    chunk sums    ((0+1)+2)+.. | ..         | 128+129       each in order, starting from its first
    sum           (chunk 0 + chunk 1) + chunk 2             the same again over the chunk sums

"Starting from its first" means that the first value is copied and not added to 0.0, which would
turn -0.0 into 0.0. One function computes both levels, `_sums_in_order`, for all keys at once: it
loops over the position within a chunk, then over the chunk number, and never over keys. A batch
without a hot key takes a handful of passes; one key with a million occurrences takes 64 + 15625
passes.

`np.add.at` is not used because it guarantees no order, and `np.bincount` with weights because it
adds in float64.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from embstore.arithmetic.denormals import kept
from embstore.arrays import Keys, Rows

CHUNK_OCCURRENCES = 64
_PARTIALS = 32
LARGE = 2.0**57
"""A row whose elements are all below this value is accepted for every dim: 4096 squares of it add
up to 2**126."""

Counts = NDArray[np.int64]
Positions = NDArray[np.int64]


def unique(keys: Keys) -> tuple[Keys, NDArray[np.int32]]:
    """Return the distinct keys in order of first occurrence, and the index of each key in the
    distinct keys.

    Parameters
    ----------
    keys : (n,) int64, n < 2**31

    Returns
    -------
    unique_keys : (u,) int64
    inverse : (n,) int32, keys[i] == unique_keys[inverse[i]]
    """
    ascending, first, places = np.unique(keys, return_index=True, return_inverse=True)
    order = np.argsort(first)
    ids = np.empty(len(order), np.int32)
    ids[order] = np.arange(len(order), dtype=np.int32)
    return ascending[order], ids[places]


def _sums_in_order(values: Rows, positions: Positions, starts: Positions, counts: Counts) -> Rows:
    """Return for each group the left-to-right sum of its values, of which there is at least one."""
    sums = values[positions[starts]]
    active = np.arange(len(starts))
    for place in range(1, int(counts.max(initial=0))):
        active = active[counts[active] > place]
        sums[active] += values[positions[starts[active] + place]]
    return sums


def _starts(counts: Counts) -> Positions:
    return np.cumsum(counts) - counts


@kept
@np.errstate(all="ignore")
def sum_groups(values: Rows, positions: Positions, counts: Counts) -> Rows:
    """Return the sum of each group by rule 2; the sum of an empty group is zeros.

    Parameters
    ----------
    values : (m, dim) float32
    positions : (n,) int64, indices into `values`, group after group; within a group in the order of
        occurrence
    counts : (groups,) int64, the number of positions per group; these numbers add up to n

    Raises
    ------
    DeviceError : this thread flushes denormals, and its mode cannot be changed.
    """
    chunk_counts = -(-counts // CHUNK_OCCURRENCES)
    chunk_starts = _starts(chunk_counts)
    group_of_chunk = np.repeat(np.arange(len(counts)), chunk_counts)
    chunk_numbers = np.arange(len(group_of_chunk)) - chunk_starts[group_of_chunk]
    skipped = chunk_numbers * CHUNK_OCCURRENCES
    chunk_sums = _sums_in_order(
        values,
        positions,
        _starts(counts)[group_of_chunk] + skipped,
        np.minimum(counts[group_of_chunk] - skipped, CHUNK_OCCURRENCES),
    )
    sums = np.zeros((len(counts), values.shape[1]), np.float32)
    present = np.flatnonzero(counts)
    sums[present] = _sums_in_order(
        chunk_sums, np.arange(len(chunk_sums)), chunk_starts[present], chunk_counts[present]
    )
    return sums


def sum_by_key(
    inverse: NDArray[np.int32], count: int, values: Rows, out: Rows | None = None
) -> Rows:
    """Return the (count, dim) sums of the values of each id by rule 2, adding in batch order.

    Parameters
    ----------
    inverse : (n,) int32, the id of each value, 0 <= id < count, as `unique` returns it
    count : number of ids; an id that does not occur gets zeros
    values : (n, dim) float32, also non-finite values
    out : (count, dim) float32 to fill and return; None: a new array

    Raises
    ------
    DeviceError : this thread flushes denormals, and its mode cannot be changed.

    Notes
    -----
    The bits of a NaN in the result are not defined (see `nans.py`).
    """
    positions = np.argsort(inverse, kind="stable")
    sums = sum_groups(values, positions, np.bincount(inverse, minlength=count))
    if out is None:
        return sums
    out[:] = sums
    return out


@np.errstate(all="ignore")
def sum_over_dim(values: Rows) -> NDArray[np.float32]:
    """Return the (n,) sums of rows (n, dim) in a warp's order: 32 partial sums, then folds.

    A partial sum without an element (if dim < 32) is 0.0, as in an idle lane of a warp.
    """
    dim = values.shape[1]
    partials = np.zeros((len(values), _PARTIALS), np.float32)
    partials[:, :dim] = values[:, :_PARTIALS]
    for first in range(_PARTIALS, dim, _PARTIALS):
        part = values[:, first : first + _PARTIALS]
        partials[:, : part.shape[1]] += part
    for half in (16, 8, 4, 2, 1):
        partials[:, :half] += partials[:, half : 2 * half]
    return partials[:, 0].copy()


def largest(values: Rows) -> float:
    """Return the largest magnitude in (n, dim), 0 if there are no elements, NaN if an element is
    NaN."""
    if not values.size:
        return 0.0
    return max(float(values.max()), -float(values.min()))


@np.errstate(all="ignore")
def unaccepted(keys: Keys, gradients: Rows) -> list[tuple[int, NDArray[np.float32]]]:
    """Return each key whose gradient must be refused, with the gradient, in the order of keys.

    A gradient is accepted if its squares have a finite sum over dim (rules 9 and 3).

    Parameters
    ----------
    keys : (u,) int64
    gradients : (u, dim) float32, scaled sums
    """
    if largest(gradients) < LARGE:  # nearly always true, and much faster
        return []
    rows = np.flatnonzero(~(np.abs(gradients) < LARGE).all(axis=1))
    squares = np.square(gradients[rows])
    wrong = rows[~np.isfinite(sum_over_dim(squares))]
    return [(int(keys[row]), gradients[row]) for row in wrong]


@kept
@np.errstate(all="ignore")
def add_ranks(count: int, shares: Sequence[tuple[NDArray[np.integer], Rows]]) -> Rows:
    """Return the (count, dim) sums over ranks, adding in rank order. For each id, ranks without
    this id are skipped.

    Parameters
    ----------
    count : number of ids; an id that no rank has gets zeros
    shares : for each rank, distinct ids (k,), and the sums (k, dim) of these ids by rule 2; at
        least one rank

    Raises
    ------
    DeviceError : this thread flushes denormals, and its mode cannot be changed.
    """
    assert shares, "a step has at least one rank"
    sums = np.zeros((count, shares[0][1].shape[1]), np.float32)
    present = np.zeros(count, np.bool_)
    for ids, share in shares:
        again = present[ids]
        sums[ids[again]] += share[again]
        sums[ids[~again]] = share[~again]
        present[ids] = True
    return sums
