"""Rows from named columns, as in Parquet and text.

One column contains the keys: the column that the caller names, or else `key` or `id`. If a column
of lists contains the rows, it is the column that the caller names, or else `weights`, or the only
column of lists. Otherwise each remaining column of floats (in text, each remaining column) contains
one element of every row; the elements are in the order of the file's columns.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa

from embstore.arrays import Keys, Rows
from embstore.errors import InvalidArgumentError
from embstore_client.files.columns import Columns
from embstore_client.files.file_origin import METADATA, FileOrigin
from embstore_client.files.formats import Batch
from embstore_client.files.values import Hashing, is_ids, is_list, keys_of, no_keys, rows_of

KEY, WEIGHTS, STATE = "key", "weights", "state"
_KEYS = KEY, "id"


class ColumnReader:
    """Reads the rows of one file."""

    def __init__(
        self, columns: Columns, names: list[str], key: str | None, hashed: Hashing | None
    ) -> None:
        """Read the rows in the columns `names`. If `key` is None, the keys are the rows'
        numbers."""
        metadata, own = columns.schema.metadata or {}, METADATA.encode()
        self.about = FileOrigin.from_json(metadata[own]) if own in metadata else None
        self._columns, self._names, self._key, self._hashed = columns, names, key, hashed
        self.are_sparse = False
        self.rows = columns.count_rows()
        self.dim = self._width(names)
        self.state_dim: int | None = None
        if STATE in columns.schema.names and names == [WEIGHTS]:
            self.state_dim = self._width([STATE])
        elif self.about is not None and not self.about.config.state_dim:
            self.state_dim = 0

    def _width(self, names: list[str]) -> int:
        """Return the number of elements of a row."""
        kind = self._columns.schema.field(names[0]).type
        if not is_list(kind):
            return len(names)
        if pa.types.is_fixed_size_list(kind):
            return int(kind.list_size)
        first = next(self._columns.batches(names, 1), None)
        return 0 if first is None else len(first[0].column(0)[0].values or ())

    def batches(self, batch_rows: int, *, with_state: bool) -> Iterator[Batch]:
        """Yield the rows in order."""
        has_state = with_state and bool(self.state_dim)
        keys_in = [] if self._key is None else [self._key]
        wanted = [*keys_in, *self._names, *([STATE] if has_state else [])]
        text_is = dict.fromkeys(wanted, pa.float32()) | dict.fromkeys(keys_in, pa.string())
        low = 0
        texts = enumerate(self._columns.batches(self._names, batch_rows))  # read only on overflow
        for number, (batch, _) in enumerate(self._columns.batches(wanted, batch_rows, text_is)):
            keys: Keys = np.arange(low, low + batch.num_rows)
            if self._key is not None:
                keys = self._keys_of(self._key, batch, low)
            weights = _rows(batch, self._names, self.dim)
            if self._columns.is_text and not np.isfinite(weights).all():
                text = next(text for at, (text, _) in texts if at == number)
                self._refuse_beyond(text, weights, low)
            low += batch.num_rows
            state = None
            if has_state:
                state = _rows(batch, [STATE], self.state_dim or 0)
            elif with_state:
                state = np.empty((len(keys), 0), np.float32)
            yield keys, weights, state

    def _refuse_beyond(self, text: Any, weights: Rows, low: int) -> None:
        """Refuse a number that is finite in text, but infinite in float32. `low` is the number of
        the first row."""
        for row, element in np.argwhere(np.isinf(weights)).tolist():
            name = self._names[element]
            written = text.column(name)[row].as_py()
            if "n" not in written.lower():  # "inf" and "infinity" contain an n
                raise InvalidArgumentError(
                    f"line {self._columns.line_of(low + row)}: expected column {name!r} that "
                    f"float32 can have, found {written.strip()}"
                )

    def _keys_of(self, name: str, batch: Any, first_row: int) -> Keys:
        column = batch.column(name)
        if self._hashed is not None:
            return self._hashed(column)
        _refuse_nulls(name, column)
        found = self._columns.integers(batch, name, first_row, are_sparse=self.are_sparse)
        return keys_of(_array(found), f"column {name!r}", are_sparse=self.are_sparse)

    def close(self) -> None:
        """Do nothing, because each pass over the columns opens and closes the file."""


def key_column(columns: Columns, key: str | None, hashed: Hashing | None) -> str:
    """Return the name of the column that contains the keys. Raises InvalidArgumentError if the
    column is missing."""
    wanted = _KEYS if key is None else (key,)
    for name in wanted:
        if name in columns.schema.names:
            kind = columns.schema.field(name).type
            if not (columns.is_text or is_ids(kind, hashed=hashed is not None)) or is_list(kind):
                raise no_keys(f"column {name!r} of integers", kind)
            return name
    expected = " or ".join(map(repr, wanted))
    raise InvalidArgumentError(f"expected a column {expected} of keys, {_found(columns)}")


def row_columns(columns: Columns, tensor: str | None, key: str) -> list[str]:
    """Return the names of the columns that contain the rows. Raises InvalidArgumentError if they
    cannot be found."""
    kinds = {field.name: field.type for field in columns.schema if field.name != key}
    if tensor is not None and tensor not in kinds:
        raise InvalidArgumentError(f"expected a column {tensor!r} of rows, {_found(columns)}")
    name = WEIGHTS if tensor is None and WEIGHTS in kinds else tensor
    if name is not None:
        if not _has_rows(kinds[name]):
            raise InvalidArgumentError(
                f"expected column {name!r} to be lists of float32, float16 or float64, found "
                f"{kinds[name]}"
            )
        return [name]
    lists = [name for name, kind in kinds.items() if _has_rows(kind)]
    if len(lists) == 1:
        return lists
    elements = [n for n, kind in kinds.items() if columns.is_text or pa.types.is_floating(kind)]
    if lists or not elements:
        raise InvalidArgumentError(f"expected one column of lists of floats, {_found(columns)}")
    return elements


def _has_rows(kind: Any) -> bool:
    return is_list(kind) and bool(pa.types.is_floating(kind.value_type))


def _found(columns: Columns) -> str:
    some = columns.schema.names[:20]
    return f"found {', '.join(map(repr, some)) or 'none'}: name one of them"


def _rows(batch: Any, names: list[str], dim: int) -> Rows:
    """Return the rows from one column of lists, or from one column per element."""
    columns = [batch.column(name) for name in names]
    if is_list(columns[0].type):
        values = columns[0].flatten()
        _refuse_nulls(names[0], columns[0], values)
        lengths = columns[0].value_lengths().to_numpy(zero_copy_only=False)
        wrong = np.flatnonzero(lengths != dim)
        if len(wrong):
            raise InvalidArgumentError(
                f"expected lists of {dim} elements in column {names[0]!r}, as the first has, found "
                f"one of {lengths[wrong[0]]}"
            )
        return rows_of(_array(values), f"column {names[0]!r}").reshape(len(batch), dim)
    for name, column in zip(names, columns, strict=True):
        _refuse_nulls(name, column)
    elements = [rows_of(_array(c), f"column {n!r}") for n, c in zip(names, columns, strict=True)]
    return np.stack(elements, axis=1)


def _array(values: Any) -> np.ndarray[Any, np.dtype[Any]]:
    array: np.ndarray[Any, np.dtype[Any]] = values.to_numpy(zero_copy_only=False)
    return array


def _refuse_nulls(name: str, *arrays: Any) -> None:
    if any(array.null_count for array in arrays):
        raise InvalidArgumentError(f"expected no null in column {name!r}")
