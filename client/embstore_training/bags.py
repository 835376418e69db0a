"""The units of a step's rows and gradients: each key, each distinct key, or each bag of keys.

In one step some tables can be pooled and others plain. The step's distinct rows can be at the store
or at the trainer. In both cases, one function makes the rows of keys or bags from the distinct
rows, and another function sums the gradients by distinct key (contract.md, rules 2, 8).
"""

from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from embstore.arithmetic import Pooling, bag_gradients, pool_rows
from embstore.arrays import Keys, Rows, as_keys, as_rows, is_on_device, refusal, shape_of
from embstore.errors import InvalidArgumentError
from embstore.handles.sessions import BagGradients, SomeGradients, StepBags, step_gradients
from embstore.step_sums import summed_part
from embstore_training.read_ahead import OnceKeys, check_names

Of = StepBags | Literal["keys", "unique"]
"""The unit of rows: "keys", each key as it was passed, repeated or not; "unique", each distinct
key; a `StepBags`, each of the bags in it."""
Forms = dict[str, Of]
"""The unit of rows or gradients, by table."""


def bags_of(
    inverses: Mapping[str, NDArray[np.int32]],
    offsets: Mapping[str, ArrayLike | None],
    mode: Pooling | Mapping[str, Pooling] = "sum",
    weights: Mapping[str, ArrayLike] | None = None,
) -> Forms:
    """Return the checked unit of each table: its bags or, for a table without offsets, "keys".

    Parameters
    ----------
    inverses : by table, for all tables of the step, the index of each key's row, (n,)
    offsets, mode, weights : see `Step.lookup_pooled`

    Raises
    ------
    InvalidArgumentError : an argument is wrong.
    """
    check_names(offsets, inverses, "offsets")
    pooled = [table for table, bounds in offsets.items() if bounds is not None]
    weights = weights or {}
    modes = mode if isinstance(mode, Mapping) else dict.fromkeys(pooled, mode)
    check_names(modes, pooled, "modes")
    check_names(weights, pooled, "weights")
    plain: Forms = dict.fromkeys(offsets, "keys")
    return plain | {
        table: StepBags.of(
            inverses[table],
            offsets[table],
            modes.get(table, "sum"),
            weights.get(table),
            table=table,
        )
        for table in pooled
    }


def made_of(rows: Rows, once: OnceKeys, of: Of) -> Rows:
    """Return the rows of keys or bags, made from a step's distinct rows, (u, dim)."""
    if of == "unique":
        return rows
    if of == "keys":
        return once.spread(rows)
    assert of.offsets is not None, "bags have bounds"
    return pool_rows(rows[of.inverse], of.offsets, of.mode, of.weights)


def as_gradients(values: Any, once: OnceKeys, of: Of, table: str) -> Any:
    """Return a caller's gradients of keys or bags as (count, dim) float32. Any dim is accepted
    here; the store checks it. Gradients in a device's memory are returned unchanged.

    Raises
    ------
    InvalidArgumentError : the number of gradients differs from the number of keys or bags, or they
        have another dtype.
    """
    if isinstance(values, SomeGradients):
        return values
    count = len(once.inverse)
    if of != "keys":
        count = len(once.keys) if of == "unique" else bag_count(of)
    shape = shape_of(values)
    if len(shape) != 2 or shape[0] != count:
        raise InvalidArgumentError(
            f"table {table!r}: expected gradients of shape ({count}, dim), found {tuple(shape)}"
        )
    if is_on_device(values):
        return values
    return as_rows(values, (count, shape[1]), table, "gradients")


def bag_count(bags: StepBags) -> int:
    """Return the number of bags or, if `bags` has no offsets, the number of single occurrences."""
    return len(bags.inverse) if bags.offsets is None else len(bags.offsets) - 1


def of_each_key(rows: Rows, of: Of) -> Rows:
    """Return a gradient for each of a table's keys, (n, dim), from gradients of keys or bags."""
    if not isinstance(of, StepBags) or of.offsets is None:
        return rows
    return bag_gradients(rows, of.offsets, of.mode, of.weights)


def positions_of(given: SomeGradients, once: OnceKeys, table: str) -> Keys:
    """Return the checked positions of the distinct keys that have gradients, (n,), ascending."""
    positions, count = as_keys(given.positions, table), len(once.keys)
    if len(positions) and not (
        positions[0] >= 0 and positions[-1] < count and (np.diff(positions) > 0).all()
    ):
        raise InvalidArgumentError(
            f"table {table!r}: expected ascending positions below {count}, the number of distinct "
            f"keys, found {positions}"
        )
    return positions


def keyed(table: str, once: OnceKeys, of: Of, values: Any) -> tuple[Keys, Any]:
    """Return the keys of a caller's gradients, in any order, and a gradient for each of these
    keys."""
    rows = as_gradients(values, once, of, table)
    if isinstance(of, StepBags):
        return once.keys[of.inverse], of_each_key(rows, of)
    if isinstance(rows, SomeGradients):
        return once.keys[positions_of(rows, once, table)], rows.rows
    return once.keys, rows


def check_inverse(table: str, of: StepBags, count: int) -> None:
    """Raise InvalidArgumentError if an index is not below `count`, the number of distinct keys."""
    inverse = of.inverse
    if len(inverse) and not 0 <= inverse.min() <= inverse.max() < count:
        expected = f"inverse in [0, {count}), the distinct keys"
        raise refusal(table, expected, f"{inverse.min()} to {inverse.max()}")


def summed(table: str, once: OnceKeys, of: StepBags, rows: Rows) -> Rows | SomeGradients:
    """Return gradients of single occurrences, or of bags of occurrences, as one sum per key that
    occurs.

    Raises
    ------
    InvalidArgumentError : an index is not below the number of the step's keys.
    """
    count = len(once.keys)
    check_inverse(table, of, count)
    part = summed_part(step_gradients(table, BagGradients(of, rows)), count)
    positions = part.positions
    return part.gradients if positions is None else SomeGradients(positions, part.gradients)
