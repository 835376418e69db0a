"""Files of named columns: Parquet, and text with a header. Both are pyarrow's to read.

A file is read batch by batch, as often as it is asked for; `embstore_client.files.values` makes ids
and rows of the columns.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from io import TextIOWrapper
from itertools import islice
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa
from pyarrow import csv, parquet

from embstore_client.files.decimals import NotDecimalError, decimals
from embstore_client.files.packed import Unpacked
from embstore_client.files.values import no_keys

_BLOCK_BYTES = 1 << 20
"""The bytes of text that become a batch, if they have no more rows than were asked for."""
_SHOWN = 40
"""Characters of a text that is no integer, in its error."""

Batch = tuple[Any, int]
"""An Arrow RecordBatch, and how many bytes of the file it is, about."""


class Columns(Protocol):
    """A file of named columns. Errors are pyarrow's, an OSError, or an EmbstoreError."""

    schema: Any
    """Arrow's."""
    is_text: bool
    """All columns are strings, but read as any type that is asked for."""

    def count_rows(self) -> int:
        """Return how many rows it has. Text is read for that, as a whole."""

    def line_of(self, row: int) -> int | None:
        """Return the line of text, counted from 1, that has a row; None: the file is no text."""

    def batches(
        self, names: Sequence[str], batch_rows: int, text_is: Mapping[str, Any] | None = None
    ) -> Iterator[Batch]:
        """Yield some columns in order; in text, columns of `text_is` are read as these types."""

    def integers(self, batch: Any, name: str, first_row: int, *, are_sparse: bool = False) -> Any:
        """Return a column of integers of a batch, which begins with a row of the file.

        `are_sparse`: unsigned ones of 64 bits are taken too; in text as int64 of the same bits.
        Raises InvalidArgumentError, with the line: text that is no such integer.
        """


class ParquetColumns:
    """Parquet."""

    is_text = False

    def __init__(self, path: Path) -> None:
        self._path = path
        with parquet.ParquetFile(path) as file:
            self.schema = file.schema_arrow
            self._rows = int(file.metadata.num_rows)

    def count_rows(self) -> int:
        """Return how many rows it has."""
        return self._rows

    def line_of(self, row: int) -> None:
        """There are no lines."""

    def batches(
        self, names: Sequence[str], batch_rows: int, text_is: Mapping[str, Any] | None = None
    ) -> Iterator[Batch]:
        """Yield some columns in order."""
        size, read = self._path.stat().st_size, 0
        with parquet.ParquetFile(self._path, memory_map=True) as file:
            for batch in file.iter_batches(batch_rows, columns=list(names)):
                before, read = read, read + batch.num_rows
                yield batch, size * read // self._rows - size * before // self._rows

    def integers(self, batch: Any, name: str, first_row: int, *, are_sparse: bool = False) -> Any:
        """Return a column of a batch."""
        return batch.column(name)


class TextColumns:
    """Text of one line a row, packed or not.

    An empty field is a missing value. Without a header, columns are called f0, f1, and nothing is
    quoted.
    """

    is_text = True

    def __init__(
        self, path: Path, delimiter: str, *, has_header: bool = True, skipped_lines: int = 0
    ) -> None:
        self._path = path
        self._lines_before = skipped_lines + has_header
        self._reading = csv.ReadOptions(
            block_size=_BLOCK_BYTES,
            autogenerate_column_names=not has_header,
            skip_rows=skipped_lines,
        )
        self._parsing = csv.ParseOptions(
            delimiter=delimiter, quote_char='"' if has_header else False
        )
        with Unpacked(path) as file:
            names = csv.open_csv(file.bytes, self._reading, self._parsing).schema.names
        self.schema = pa.schema([(name, pa.string()) for name in names])

    def count_rows(self) -> int:
        """Return how many rows it has, all read for that."""
        first = self.schema.names[:1]
        return sum(batch.num_rows for batch, _ in self.batches(first, _BLOCK_BYTES))

    def line_of(self, row: int) -> int:
        """Return the line that has a row; all lines before it are read for that."""
        named, skipped = not self._reading.autogenerate_column_names, self._reading.skip_rows
        with Unpacked(self._path) as file:
            numbered = islice(enumerate(file.bytes, 1), skipped, None)
            rows = (line for line, text in numbered if text.strip(b"\r\n"))  # as pyarrow has them
            return next(islice(rows, row + named, None), skipped + named + row + 1)

    def batches(
        self, names: Sequence[str], batch_rows: int, text_is: Mapping[str, Any] | None = None
    ) -> Iterator[Batch]:
        """Yield some columns in order."""
        converting = csv.ConvertOptions(
            include_columns=list(names),
            column_types=dict.fromkeys(names, pa.string()) | dict(text_is or {}),
            null_values=[""],
            strings_can_be_null=True,
        )
        read = 0
        with (
            Unpacked(self._path) as file,
            closing(csv.open_csv(file.bytes, self._reading, self._parsing, converting)) as blocks,
        ):
            for block in blocks:
                before, read = read, file.read_bytes
                for low in range(0, block.num_rows, batch_rows):
                    yield block.slice(low, batch_rows), read - before
                    before = read

    def integers(self, batch: Any, name: str, first_row: int, *, are_sparse: bool = False) -> Any:
        """Return a column of text of a batch as integers."""
        try:
            return decimals(batch.column(name), are_sparse=are_sparse)
        except NotDecimalError as exc:
            line = self._line_of(first_row + exc.position)
            raise no_keys(
                f"column {name!r} to be of integers in decimal digits",
                f"{exc.found[:_SHOWN]!r} in line {line}",
            ) from None

    def _line_of(self, row: int) -> int:
        """Return the line of a row. Both count from the file's beginning, lines from 1; empty lines
        are no rows."""
        with Unpacked(self._path) as file:
            lines = enumerate(TextIOWrapper(file.bytes, "latin-1"), 1)
            filled = (number for number, line in lines if line != "\n")
            return next(islice(filled, self._lines_before + row, None))
