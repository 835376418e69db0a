"""The format .parquet: columns `key`, `weights` and `state`, and a description of the table.

A batch is a row group. Values are not encoded: trained rows have no pattern that a dictionary or a
compression could use, and an encoding would take more time than the disk takes.
"""

from pathlib import Path

import numpy as np
import pyarrow as pa
from pyarrow import parquet

from embstore.arrays import Keys, Rows
from embstore_client.files.column_reader import (
    KEY,
    STATE,
    WEIGHTS,
    ColumnReader,
    key_column,
    row_columns,
)
from embstore_client.files.columns import ParquetColumns
from embstore_client.files.file_origin import METADATA, FileOrigin
from embstore_client.files.values import Hashing


class Writer:
    """Writes one file."""

    def __init__(self, path: Path, about: FileOrigin, rows: int, *, with_state: bool) -> None:
        config = about.config
        widths = {WEIGHTS: config.dim}
        if with_state and config.state_dim:  # Arrow does not support lists without elements
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
            assert rows is not None  # the schema contains this field
            values = pa.array(np.ascontiguousarray(rows).reshape(-1))
            columns.append(pa.FixedSizeListArray.from_arrays(values, type=field.type))
        self._file.write_table(pa.Table.from_arrays(columns, schema=self._schema), len(keys))

    def finish(self) -> None:
        """Write the index of the file."""
        self._file.close()

    def close(self) -> None:
        """Close the file."""
        self._file.close()


class Reader(ColumnReader):
    """Reads one file."""

    def __init__(
        self, path: Path, tensor: str | None, key: str | None, hashed: Hashing | None
    ) -> None:
        columns = ParquetColumns(path)
        name = key_column(columns, key, hashed)
        super().__init__(columns, row_columns(columns, tensor, name), name, hashed)
