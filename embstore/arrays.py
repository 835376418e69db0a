"""Arrays at the border: dtypes, row keys, and the checks every argument passes.

A **key** is the caller's int64 id of a row in one table, 0 <= key < rows. A **row key** names a row
of the whole store in one int64: ``table_id << 40 | key``. Table ids are never reused, so a row key
never means two things, not even across drop and create; cache, log and base file all use it, and
EMPTY_KEY (-1) is none.

The checks convert what costs nothing to convert (lists, other integer dtypes that fit) and refuse
what would hide a mistake: floats as keys, float64 gradients that would be rounded silently.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from embstore.errors import InvalidArgumentError

KEY_BITS = 40
"""Bits of a row key below the table id: a table has at most 2**40 rows."""
KEY_MASK = (1 << KEY_BITS) - 1
TABLE_IDS_MAX = 1 << 22
"""Table ids are below this (they index small per-table arrays), over the whole life of a store."""
ROWS_MAX = 1 << KEY_BITS
DIM_MAX = 4096
EMPTY_KEY = np.int64(-1)
COUNT_MAX = 2**32 - 1
"""Accesses that one key of a lookup may stand for: 32 bits on the wire, and so the sum over a call
comes nowhere near 2**63."""

Keys = NDArray[np.int64]
Rows = NDArray[np.float32]


def row_stride(elements: int) -> int:
    """Return the fp32 that a row of so many takes; rows move in 16-byte pieces."""
    return -(-elements // 4) * 4


def _as_array(values: Any, table: str, what: str) -> NDArray[Any]:
    try:
        return np.asarray(values)
    except (TypeError, ValueError, OverflowError) as exc:
        raise InvalidArgumentError(
            f"table {table!r}: expected {what} to be an array, found {type(values).__name__}: {exc}"
        ) from exc


def as_keys(keys: Any, table: str) -> Keys:
    """Return `keys` as a contiguous (n,) int64 array, without a copy where it is one already.

    Raises
    ------
    InvalidArgumentError : not one-dimensional, or not of an integer dtype that fits int64.
    """
    array = _as_array(keys, table, "keys")
    if array.size == 0 and array.ndim == 1:
        return np.empty(0, np.int64)
    if array.ndim != 1:
        raise InvalidArgumentError(
            f"table {table!r}: expected keys of shape (n,), found {array.shape}"
        )
    if array.dtype.kind not in "iu" or array.dtype == np.uint64:
        raise InvalidArgumentError(
            f"table {table!r}: expected keys of dtype int64, found {array.dtype}"
        )
    return np.ascontiguousarray(array, dtype=np.int64)


def as_rows(rows: Any, shape: tuple[int, ...], table: str, what: str) -> Rows:
    """Return `rows` as a C-contiguous float32 array of exactly `shape`; `what` names it in errors.

    Raises
    ------
    InvalidArgumentError : another shape, or a dtype other than float32 or float16.
    """
    array = _as_array(rows, table, what)
    if array.size == 0 and 0 in shape and array.dtype == np.float64:
        array = array.astype(np.float32)  # an empty list has no dtype of its own
    if array.dtype not in (np.float32, np.float16):
        raise InvalidArgumentError(
            f"table {table!r}: expected {what} of dtype float32, found {array.dtype}"
        )
    if array.shape != shape:
        raise InvalidArgumentError(
            f"table {table!r}: expected {what} of shape {shape}, found {array.shape}"
        )
    return np.ascontiguousarray(array, dtype=np.float32)


def as_out(out: Any, shape: tuple[int, ...], table: str) -> Rows:
    """Check the caller's own output array, or make one where `out` is None.

    Raises
    ------
    InvalidArgumentError : `out` is not a writable C-contiguous float32 array of `shape`.
    """
    if out is None:
        return np.empty(shape, np.float32)
    if (
        not isinstance(out, np.ndarray)
        or out.dtype != np.float32
        or out.shape != shape
        or not (out.flags.c_contiguous and out.flags.writeable)
    ):
        raise InvalidArgumentError(
            f"table {table!r}: expected out to be a writable C-contiguous float32 array of "
            f"shape {shape}, "
            f"found {getattr(out, 'dtype', type(out).__name__)} {getattr(out, 'shape', '')}"
        )
    return out


def as_counts(counts: Any, key_count: int, table: str) -> NDArray[np.int64]:
    """Return how many accesses each key of a lookup stands for, (key_count,) int64.

    Raises
    ------
    InvalidArgumentError : another shape, no integers, or one not in [1, COUNT_MAX].
    """
    expected = (
        f"table {table!r}: expected counts of shape ({key_count},), integers from 1 to {COUNT_MAX}"
    )
    try:
        array = np.asarray(counts)
    except (TypeError, ValueError, OverflowError) as exc:
        raise InvalidArgumentError(f"{expected}: {exc}") from exc
    if array.shape != (key_count,) or (key_count and array.dtype.kind not in "iu"):
        raise InvalidArgumentError(f"{expected}, found {array.dtype} {array.shape}")
    wrong = array[(array < 1) | (array > COUNT_MAX)]
    if len(wrong):
        raise InvalidArgumentError(f"{expected}, found {wrong[0]}")
    return array.astype(np.int64)


def as_offsets(offsets: Any, key_count: int, table: str) -> NDArray[np.int64]:
    """Return bag bounds as (bags + 1,) int64: first 0, last `key_count`, never decreasing.

    Raises
    ------
    InvalidArgumentError : any of that does not hold.
    """
    array = _as_array(offsets, table, "offsets")
    if array.ndim != 1 or array.shape[0] < 1 or array.dtype.kind not in "iu":
        raise InvalidArgumentError(
            f"table {table!r}: expected offsets of shape (bags + 1,), int64, found "
            f"{array.dtype} {array.shape}"
        )
    array = np.ascontiguousarray(array, dtype=np.int64)
    if array[0] != 0 or array[-1] != key_count or (array[1:] < array[:-1]).any():
        raise InvalidArgumentError(
            f"table {table!r}: expected offsets to rise from 0 to the number of keys "
            f"({key_count}), "
            f"found {array[0]} to {array[-1]}"
        )
    return array


def as_pair(pair: Any, table: str) -> tuple[Any, Any]:
    """Return the two parts of (keys, gradients), or of (weights, state).

    Raises
    ------
    InvalidArgumentError : not a tuple or list of two.
    """
    if not isinstance(pair, tuple | list) or len(pair) != 2:
        raise InvalidArgumentError(
            f"table {table!r}: expected a pair of arrays, found {type(pair).__name__}"
        )
    return pair[0], pair[1]


def as_ranks(ranks: Any, table: str | None = None) -> list[Any]:
    """Return the shares of an update's ranks as a list; of one table, or of several.

    Raises
    ------
    InvalidArgumentError : not a list or tuple.
    """
    if not isinstance(ranks, list | tuple):
        where = "" if table is None else f"table {table!r}: "
        raise InvalidArgumentError(
            f"{where}expected ranks to be a list, one entry a rank, found {type(ranks).__name__}"
        )
    return list(ranks)


def fp32_scalar(value: Any, name: str, *, minimum: float | None = 0.0) -> float:
    """Return `value` as a float that is finite in fp32 and at least `minimum`.

    Raises
    ------
    InvalidArgumentError : not a number, not finite once rounded to fp32, or below `minimum`.
    """
    try:
        if isinstance(value, str | bytes):
            raise TypeError("text")
        number = float(value)
    except (TypeError, ValueError, OverflowError) as exc:
        raise InvalidArgumentError(f"expected {name} to be a number, found {value!r}") from exc
    with np.errstate(over="ignore"):
        finite = bool(np.isfinite(np.float32(number)))
    if not finite or (minimum is not None and number < minimum):
        bound = "" if minimum is None else f" and >= {minimum:g}"
        raise InvalidArgumentError(f"expected {name} to be finite in fp32{bound}, found {value!r}")
    return number
