"""Conversion of a command's keys and arrays to shares of tables, without moving them to other
memory.

Arrays are on the host, or in the memory of the device that has the table's rows. Keys, gradients
and outputs in the device's memory are used there. Arrays for work on the host, such as rows that
are put, are copied to the host. All functions here run inside a call: they can make the device wait
for a stream that is still writing an array.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from embstore import commands as c
from embstore.arrays import Keys, Rows, as_keys, as_out, as_rows, refusal
from embstore.checks.call_bytes import refuse_more
from embstore.device.base import Device
from embstore.device.values import Array, Gradients
from embstore.errors import InvalidArgumentError
from embstore.layout import VALUE
from embstore.tables.state import Share, TableState
from embstore.tables.tables import Tables

Allocate = Callable[..., Sequence[Any]]
"""A function that returns arrays for rows of tables. It gets the tables' names and shapes, and, if
only some rows are read, their positions."""
Out = Sequence[Any] | Allocate | None
"""Arrays for the rows, or None for new arrays; or a function that makes arrays from names and
shapes."""
_DTYPES: dict[int, Any] = {1: np.int64, 2: VALUE}
"""The dtype by number of dimensions: keys have one, rows have two."""


def lookup_shares(tables: Tables, parts: Sequence[c.TableKeys]) -> list[Share]:
    """Return the shares of a lookup of rows by key.

    Raises TableNotFoundError, or InvalidArgumentError if an array is wrong or the call is too
    large.
    """
    shares, size = [], 0
    for part in parts:
        table, keys = tables.find(part.table, part.table_id), part.keys
        if not isinstance(keys, np.ndarray):
            keys = keys_of(table, keys)
        counts = None if part.counts is None else part.counts.astype(np.int64)
        size += len(keys) * table.keyed_bytes
        shares.append(Share(table, keys, counts=counts))
    if size > tables.limits.call_bytes_max:
        refuse_more(size, tables.limits.call_bytes_max)
    return shares


def gradient_shares(tables: Tables, parts: Sequence[c.TableGradients]) -> list[Share]:
    """Return the shares of an update. Gradients must be as wide as the tables' rows.

    Raises the errors of `lookup_shares`.
    """
    shares, size = [], 0
    for part in parts:
        table, keys, rows = tables.find(part.table, part.table_id), part.keys, part.gradients
        if not isinstance(keys, np.ndarray):
            keys = keys_of(table, keys)
        if not isinstance(rows, np.ndarray) or rows.shape != (len(keys), table.dim):
            rows = gradients_of(table, rows, len(keys))
        size += len(keys) * table.keyed_bytes
        shares.append(Share(table, keys, Gradients(rows)))
    if size > tables.limits.call_bytes_max:
        refuse_more(size, tables.limits.call_bytes_max)
    return shares


def outputs_of(
    shares: Sequence[Share], out: Out, counts: Sequence[int] | None = None
) -> tuple[list[Rows | Array], Sequence[Any]]:
    """Return the arrays for the rows of each share twice: in the form that kernels write, and as
    the caller gave them. If the caller gave no array, a new array on the host is used.

    counts : the number of rows of each share; None: one row per key

    If keys are in the device's memory, `out` must be given. An array made here would be freed with
    the caller's last reference, when the caller's streams may still use the array.
    """
    if counts is None:
        counts = [len(share.keys) for share in shares]
    if callable(out):
        pairs = [*zip(shares, counts, strict=True)]
        out = out([s.table.name for s in shares], [(n, s.table.dim) for s, n in pairs])
    arrays: list[Rows | Array] = []
    for place, (share, count) in enumerate(zip(shares, counts, strict=True)):
        own = out[place] if out else None
        if own is not None:
            arrays.append(output_of(share.table, own, count))
        elif isinstance(share.keys, np.ndarray):
            arrays.append(np.empty((count, share.table.dim), np.float32))
        else:
            raise InvalidArgumentError(
                f"table {share.table.name!r}: expected out to be given with keys in the device's "
                "memory"
            )
    return arrays, arrays if not out else [
        array if own is None else own for array, own in zip(arrays, out, strict=True)
    ]


def keys_of(table: TableState, keys: Any) -> Keys | Array:
    """Return keys as (n,) int64, on the host or on the device."""
    if isinstance(keys, np.ndarray):
        return keys
    adopted = _in_memory(table, keys, np.int64, 1, "keys")
    return as_keys(keys, table.name) if adopted is None else adopted


def gradients_of(table: TableState, rows: Any, count: int) -> Rows | Array:
    """Return (count, dim) float32 gradients; `embstore.checks` has already converted them."""
    shape = count, table.dim
    if isinstance(rows, np.ndarray) and rows.shape == shape:
        return rows
    adopted = _adopted(table, rows, shape, "gradients")
    return as_rows(rows, shape, table.name, "gradients") if adopted is None else adopted


def bag_gradients(rows: Rows | Array, bags: c.Bags) -> Gradients:
    """Return the gradients of the keys in bags. `rows` are the gradients of the bags, (bags,
    dim)."""
    counts = np.diff(bags.offsets)
    source = np.repeat(np.arange(len(counts), dtype=np.int32), counts)
    if bags.mode == "mean":
        return Gradients(rows, source, counts.astype(np.float32)[source], divide=True)
    return Gradients(rows, source, bags.weights)


def host_rows_of(table: TableState, rows: Any, shape: tuple[int, int], what: str) -> Rows:
    """Return float32 rows on the host; rows in the device's memory are copied."""
    adopted = _adopted(table, rows, shape, what)
    if adopted is not None:
        rows = table.pool.device.memory.download(adopted).reshape(shape)
    return as_rows(rows, shape, table.name, what)


def on_host(device: Device) -> Callable[[Any], Any]:
    """Return a function that copies a caller's keys or rows from the device to the host."""

    def copied(array: Any) -> Any:
        try:
            shape = array.__cuda_array_interface__["shape"]
            adopted = device.memory.adopt(array, _DTYPES.get(len(shape), VALUE), len(shape))
        except Exception:  # any error of the array's library
            adopted = None
        if adopted is None:
            return np.empty(0, np.int64)  # the command itself will raise the error
        return device.memory.download(adopted).reshape(shape).copy()

    return copied


def output_of(table: TableState, out: Any, count: int) -> Rows | Array:
    """Return the array for `count` rows: the caller's array, or a new array on the host."""
    shape = count, table.dim
    adopted = None if out is None else _adopted(table, out, shape, "out", write=True)
    return as_out(out, shape, table.name) if adopted is None else adopted


def _adopted(
    table: TableState, rows: Any, shape: tuple[int, int], what: str, *, write: bool = False
) -> Array | None:
    """Return a caller's rows if they are in the device's memory, None if they are on the host."""
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
