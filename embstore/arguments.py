"""Arguments of calls, checked: what a table is asked for, as shares that reads and writes take.

Bad input is refused here, before anything has changed, by an error that says what was expected and
what was found.
"""

from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from embstore import writes
from embstore.arrays import Keys, Rows, as_counts, as_keys, as_out, as_rows, fp32_scalar
from embstore.device.base import Array, Gradients
from embstore.engine import Engine
from embstore.errors import InvalidArgumentError
from embstore.tablestate import Share, TableState


def put_of(
    table: TableState, keys: ArrayLike, weights: ArrayLike, state: ArrayLike, add_t: Any
) -> writes.Put:
    """Return what a hot replica sends back of one table, its arguments checked.

    Raises
    ------
    InvalidArgumentError
    """
    share = Share(table, as_keys(keys, table.name))
    count = len(share.keys)
    if (
        isinstance(add_t, bool)
        or not isinstance(add_t, int | np.integer)
        or not 0 <= add_t <= writes.T_MAX - table.t
    ):
        raise InvalidArgumentError(
            f"table {table.name!r}: expected add_t to be an integer >= 0, found {add_t!r}"
        )
    return writes.Put(
        share,
        as_rows(weights, (count, table.dim), table.name, "weights"),
        as_rows(state, (count, table.config.state_dim), table.name, "state"),
        int(add_t),
    )


def check_call_bytes(engine: Engine, shares: Iterable[Share], more: int = 0) -> None:
    """Refuse a call that is too large: 8 bytes a key, 4 an element of its row, `more` beside.

    Raises
    ------
    InvalidArgumentError
    """
    size = more + sum(len(s.keys) * (8 + 4 * s.table.dim) for s in shares)
    if size > engine.limits.call_bytes_max:
        raise InvalidArgumentError(
            f"expected a call of at most {engine.limits.call_bytes_max} bytes of keys and rows "
            f"(limits.call_bytes_max), found {size}; split the call"
        )


def lookup_share(table: TableState, keys: ArrayLike, counts: ArrayLike | None) -> Share:
    """Return one table's share of a lookup, its arguments checked.

    Raises
    ------
    InvalidArgumentError
    """
    checked = _checked_keys(table, keys)
    if counts is None:
        return Share(table, checked)
    return Share(table, checked, counts=as_counts(counts, len(checked), table.name))


def gradient_share(table: TableState, keys: ArrayLike, gradients: ArrayLike) -> Share:
    """Return one table's share of an update, its arguments checked.

    Raises
    ------
    InvalidArgumentError
    """
    checked = _checked_keys(table, keys)
    rows = _adopted(table, gradients, len(checked), "gradients")
    if rows is None:
        rows = as_rows(gradients, (len(checked), table.dim), table.name, "gradients")
    return Share(table, checked, Gradients(rows))


def output(share: Share, out: Any) -> Rows | Array:
    """Return the array for the rows of a lookup: the caller's, or a new one on the host.

    Raises
    ------
    InvalidArgumentError : also where keys are in the device's memory and `out` is not given: what
        is made here would go with the caller's last reference, whatever its streams still do.
    """
    table, count = share.table, len(share.keys)
    if out is None and not isinstance(share.keys, np.ndarray):
        raise InvalidArgumentError(
            f"table {table.name!r}: expected out to be given with keys in the device's memory"
        )
    adopted = _adopted(table, out, count, "out", write=True)
    return as_out(out, (count, table.dim), table.name) if adopted is None else adopted


def _checked_keys(table: TableState, keys: ArrayLike) -> Keys | Array:
    adopted = table.pool.device.adopt(keys, np.int64, 1)
    return as_keys(keys, table.name) if adopted is None else adopted


def _adopted(
    table: TableState, rows: Any, count: int, what: str, *, write: bool = False
) -> Array | None:
    """Return a caller's rows that are in the device's memory; None for those of the host."""
    adopted = table.pool.device.adopt(rows, np.float32, 2, write=write)
    if adopted is not None and (len(adopted), adopted.width) != (count, table.dim):
        raise InvalidArgumentError(
            f"table {table.name!r}: expected {what} of shape {count, table.dim}, found "
            f"{len(adopted), adopted.width}"
        )
    return adopted


def checked_options(
    learning_rate: float | None, gradient_scale: float, on_nonfinite: str
) -> dict[str, Any]:
    """Return an update's options, checked.

    Raises
    ------
    InvalidArgumentError
    """
    if on_nonfinite not in ("refuse", "skip"):
        raise InvalidArgumentError(
            f'expected on_nonfinite to be "refuse" or "skip", found {on_nonfinite!r}'
        )
    if learning_rate is not None:
        learning_rate = fp32_scalar(learning_rate, "learning_rate")
    return {
        "learning_rate": learning_rate,
        "gradient_scale": fp32_scalar(gradient_scale, "gradient_scale"),
        "on_nonfinite": on_nonfinite,
    }


def bag_gradients(
    rows: Rows,
    offsets: NDArray[np.int64],
    mode: str,
    weights: NDArray[np.float32] | None,
) -> Gradients:
    """Return the gradients of the rows of bags from those of the bags, (bags, dim) each."""
    counts = np.diff(offsets)
    source = np.repeat(np.arange(len(counts), dtype=np.int32), counts)
    if mode == "mean":
        return Gradients(rows, source, counts.astype(np.float32)[source], divide=True)
    return Gradients(rows, source, weights)


def bag_weights(
    table: str, mode: str, weights: ArrayLike | None, count: int
) -> NDArray[np.float32] | None:
    """Return the weights of a bag's rows, checked; None: none are given.

    Raises
    ------
    InvalidArgumentError
    """
    if mode not in ("sum", "mean"):
        raise InvalidArgumentError(
            f'table {table!r}: expected mode "sum" or "mean", found {mode!r}'
        )
    if weights is None:
        return None
    if mode != "sum":
        raise InvalidArgumentError(f'table {table!r}: weights go with mode "sum" only')
    checked = as_rows(weights, (count,), table, "weights")
    if not np.isfinite(checked).all():
        raise InvalidArgumentError(f"table {table!r}: expected finite weights")
    return checked
