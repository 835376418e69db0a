"""Callers' arrays: of the host, or in the memory of the device that a table's rows are on.

Those in the device's memory are used where they are: keys, gradients, outputs. What is done on the
host, as rows that are put, is copied there. All of this is inside a call: the device follows the
stream that may still be writing an array.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from embstore.arrays import Keys, Rows, as_keys, as_out, as_rows, refusal
from embstore.device.base import Array, Device
from embstore.errors import InvalidArgumentError
from embstore.layout import VALUE
from embstore.tables.state import TableState

_DTYPES: dict[int, Any] = {1: np.int64, 2: VALUE}
"""Of keys and of rows."""


def keys_of(table: TableState, keys: Any) -> Keys | Array:
    """Return (n,) int64 keys."""
    if isinstance(keys, np.ndarray):
        return keys
    adopted = _in_memory(table, keys, np.int64, 1, "keys")
    return as_keys(keys, table.name) if adopted is None else adopted


def gradients_of(table: TableState, rows: Any, count: int) -> Rows | Array:
    """Return (count, dim) float32 gradients, in normal form before (`embstore.checks`)."""
    shape = count, table.dim
    if isinstance(rows, np.ndarray) and rows.shape == shape:
        return rows
    adopted = _adopted(table, rows, shape, "gradients")
    return as_rows(rows, shape, table.name, "gradients") if adopted is None else adopted


def host_rows_of(table: TableState, rows: Any, shape: tuple[int, int], what: str) -> Rows:
    """Return float32 rows on the host; where they are in the device's memory, a copy."""
    adopted = _adopted(table, rows, shape, what)
    if adopted is not None:
        rows = table.pool.device.memory.download(adopted).reshape(shape)
    return as_rows(rows, shape, table.name, what)


def on_host(device: Device) -> Callable[[Any], Any]:
    """Return what copies a caller's keys or rows in the device's memory to the host."""

    def copied(array: Any) -> Any:
        try:
            shape = array.__cuda_array_interface__["shape"]
            adopted = device.memory.adopt(array, _DTYPES.get(len(shape), VALUE), len(shape))
        except Exception:  # whatever its library says
            adopted = None
        if adopted is None:
            return np.empty(0, np.int64)  # the command itself is refused for it, in its own words
        return device.memory.download(adopted).reshape(shape).copy()

    return copied


def output_of(table: TableState, out: Any, count: int) -> Rows | Array:
    """Return the array for `count` rows: the caller's, or a new one on the host."""
    shape = count, table.dim
    adopted = None if out is None else _adopted(table, out, shape, "out", write=True)
    return as_out(out, shape, table.name) if adopted is None else adopted


def _adopted(
    table: TableState, rows: Any, shape: tuple[int, int], what: str, *, write: bool = False
) -> Array | None:
    """Return a caller's rows that are in the device's memory; None for those of the host."""
    adopted = _in_memory(table, rows, np.float32, 2, what, write=write)
    if adopted is not None and (len(adopted), adopted.width) != shape:
        raise refusal(table.name, f"{what} of shape {shape}", (len(adopted), adopted.width))
    return adopted


def _in_memory(
    table: TableState, array: Any, dtype: type, dimensions: int, what: str, *, write: bool = False
) -> Array | None:
    try:
        return table.pool.device.memory.adopt(array, dtype, dimensions, write=write)
    except InvalidArgumentError as exc:
        raise InvalidArgumentError(f"table {table.name!r}: {what}: {exc}") from exc
