"""Bags of a step: which of its tables are pooled, how, and whom their gradients reach.

Of one step some tables may be pooled and others plain. A plain table is one whose every key is a
bag of its own: the sum of one row is that row, and an occurrence receives its bag's gradient whole
(contract.md, rules 2 and 8). So it may travel among bags, and needs no other call.
"""

from collections.abc import Mapping

import numpy as np
from numpy.typing import ArrayLike, NDArray

from embstore.arithmetic import Pooling, bag_gradients, pool_rows
from embstore.arrays import Rows, as_rows
from embstore.errors import InvalidArgumentError
from embstore.handles.sessions import StepBags
from embstore_training.read_ahead import check_names

Bags = dict[str, StepBags | None]
"""By table; None: a row for each key."""


def bags_of(
    inverses: Mapping[str, NDArray[np.int32]],
    offsets: Mapping[str, ArrayLike | None],
    mode: Pooling | Mapping[str, Pooling] = "sum",
    weights: Mapping[str, ArrayLike] | None = None,
) -> Bags:
    """Return a caller's bags of a step's keys, checked.

    Parameters
    ----------
    inverses : of all the step's tables, which row each key has, (n,)
    offsets, mode, weights : see `Step.lookup_pooled`

    Raises
    ------
    InvalidArgumentError : one of them is wrong.
    """
    check_names(offsets, inverses, "offsets")
    pooled = [table for table, bounds in offsets.items() if bounds is not None]
    weights = weights or {}
    modes = mode if isinstance(mode, Mapping) else dict.fromkeys(pooled, mode)
    check_names(modes, pooled, "modes")
    check_names(weights, pooled, "weights")
    return dict.fromkeys(offsets) | {
        table: StepBags.of(
            inverses[table],
            offsets[table],
            modes.get(table, "sum"),
            weights.get(table),
            table=table,
        )
        for table in pooled
    }


def each_key(count: int) -> StepBags:
    """Return a bag for each of so many keys."""
    return StepBags(np.arange(count, dtype=np.int32), np.arange(count + 1))


def pooled(rows: Rows, bags: StepBags) -> Rows:
    """Return the pooled rows of bags, (bags, dim), of a step's distinct keys, (u, dim)."""
    return pool_rows(rows[bags.inverse], bags.offsets, bags.mode, bags.weights)


def as_gradients(values: ArrayLike, count: int, table: str) -> Rows:
    """Return gradients as (count, dim) float32, whatever dim is: the store knows it."""
    shape = np.shape(values)
    if len(shape) != 2 or shape[0] != count:
        raise InvalidArgumentError(
            f"table {table!r}: expected gradients of shape ({count}, dim), found {tuple(shape)}"
        )
    return as_rows(values, (count, shape[1]), table, "gradients")


def of_each_key(values: ArrayLike, bags: StepBags | None, count: int, table: str) -> Rows:
    """Return a gradient for each of a table's keys, (count, dim), of those of its bags.

    Raises
    ------
    InvalidArgumentError : not as many as there are bags, or keys; another dtype.
    """
    if bags is None:
        return as_gradients(values, count, table)
    of_bags = as_gradients(values, len(bags.offsets) - 1, table)
    return bag_gradients(of_bags, bags.offsets, bags.mode, bags.weights)
