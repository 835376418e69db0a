"""The format .parquet: columns `key`, `weights` and `state`, and what is said of the table.

A batch is a row group. Values are written as they are: what optimizers make of rows has no pattern
that a dictionary or a compression would find, and both cost more time than the disk.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import parquet

from embstore.arrays import Keys, Rows
from embstore.errors import InvalidArgumentError
from embstore_client.files.about import METADATA, About
from embstore_client.files.formats import Batch

KEY, WEIGHTS, STATE = "key", "weights", "state"


class Writer:
    """Writes one file."""

    def __init__(self, path: Path, about: About, rows: int, *, with_state: bool) -> None:
        config = about.config
        widths = {WEIGHTS: config.dim}
        if with_state and config.state_dim:  # a list of no element is more than Arrow can do
            widths[STATE] = config.state_dim
        fields = [pa.field(KEY, pa.int64(), nullable=False)]
        for name, width in widths.items():
            item = pa.field("element", pa.float32(), nullable=False)
            fields.append(pa.field(name, pa.list_(item, width), nullable=False))
        self._schema = pa.schema(fields, metadata={METADATA: about.to_json()})
        self._file = parquet.ParquetWriter(
            str(path),
            self._schema,
            compression="none",
            use_dictionary=False,
            write_statistics=[KEY],
        )

    def write(self, keys: Keys, weights: Rows, state: Rows | None) -> None:
        """Write the next rows, as a row group."""
        columns = [pa.array(keys)]
        for rows, field in zip((weights, state), list(self._schema)[1:], strict=False):
            assert rows is not None  # where the schema has it
            values = pa.array(np.ascontiguousarray(rows).reshape(-1))
            columns.append(pa.FixedSizeListArray.from_arrays(values, type=field.type))
        self._file.write_table(pa.Table.from_arrays(columns, schema=self._schema), len(keys))

    def finish(self) -> None:
        """Write the index of the file."""
        self._file.close()

    def close(self) -> None:
        """Let the file go."""
        self._file.close()


class Reader:
    """Reads one file. `tensor` names the column of weights, where it has another name."""

    def __init__(self, path: Path, tensor: str | None) -> None:
        self._file = parquet.ParquetFile(path, memory_map=True)
        schema = self._file.schema_arrow
        metadata = schema.metadata or {}
        own = METADATA.encode()
        self.about = About.from_json(metadata[own]) if own in metadata else None
        self._weights = tensor or WEIGHTS
        for name in (KEY, self._weights):
            if name not in schema.names:
                raise InvalidArgumentError(
                    f"expected columns {KEY!r} and {self._weights!r}, found "
                    f"{', '.join(map(repr, schema.names))}"
                )
        if schema.field(KEY).type != pa.int64():
            raise InvalidArgumentError(
                f"expected column {KEY!r} of int64, found {schema.field(KEY).type}"
            )
        self.rows = int(self._file.metadata.num_rows)
        self.dim = _width(schema.field(self._weights))
        self.state_dim: int | None = None
        if STATE in schema.names:
            self.state_dim = _width(schema.field(STATE))
        elif self.about is not None and not self.about.config.state_dim:
            self.state_dim = 0

    def batches(self, batch_rows: int, *, with_state: bool) -> Iterator[Batch]:
        """Yield the rows in order."""
        names = [KEY, self._weights, *([STATE] if with_state and self.state_dim else [])]
        for batch in self._file.iter_batches(batch_rows, columns=names):
            keys = batch.column(KEY)
            if keys.null_count:
                raise InvalidArgumentError(f"expected no null in column {KEY!r}")
            weights = _matrix(batch.column(self._weights), self._weights, self.dim)
            state = None
            if with_state and self.state_dim:
                state = _matrix(batch.column(STATE), STATE, self.state_dim)
            elif with_state:
                state = np.empty((len(keys), 0), np.float32)
            yield keys.to_numpy(), weights, state

    def close(self) -> None:
        """Let the file go."""
        self._file.close()


def _width(field: Any) -> int:
    """Return how many elements each list of a column has."""
    kind = field.type
    is_list = pa.types.is_fixed_size_list(kind) and kind.list_size > 0
    if not is_list or kind.value_type not in (pa.float32(), pa.float16()):
        raise InvalidArgumentError(
            f"expected column {field.name!r} to be lists of one length of float32, found {kind}: "
            f"cast it to pyarrow.list_(pyarrow.float32(), dim)"
        )
    return int(kind.list_size)


def _matrix(column: Any, name: str, width: int) -> Rows:
    """Return a column of lists as rows."""
    values = column.flatten()
    if column.null_count or values.null_count or len(values) != len(column) * width:
        raise InvalidArgumentError(f"expected no null in column {name!r}")
    rows: Rows = values.to_numpy(zero_copy_only=False).reshape(len(column), width)
    return rows
