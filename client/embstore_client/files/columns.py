"""Files of named columns: Parquet, and text with a header. pyarrow reads both formats.

A file is read batch by batch, once per pass. `embstore_client.files.values` converts the columns to
ids and rows.
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
from embstore_client.files.packed import Unpacked, UnpackedByThreads
from embstore_client.files.values import no_keys

_BLOCK_BYTES = 1 << 20
"""Bytes of text per batch; fewer if they would contain more rows than requested."""
_SHOWN = 40
"""The number of characters of an invalid integer that an error message shows at most."""

Batch = tuple[Any, int]
"""An Arrow RecordBatch, and roughly the number of bytes in the file from which it was read."""


class Columns(Protocol):
    """A file of named columns. Its methods raise errors of pyarrow, OSError, or EmbstoreError."""

    schema: Any
    """The Arrow schema."""
    is_text: bool
    """Whether the file is text: then all columns are strings, but can be read as any requested
    type."""

    def count_rows(self) -> int:
        """Return the number of rows. This reads a text file as a whole."""

    def line_of(self, row: int) -> int | None:
        """Return the line of text, counted from 1, that contains a row. None: the file is no
        text."""

    def batches(
        self, names: Sequence[str], batch_rows: int, text_is: Mapping[str, Any] | None = None
    ) -> Iterator[Batch]:
        """Yield some columns in order. In text, the columns in `text_is` are read as the given
        types."""

    def integers(self, batch: Any, name: str, first_row: int, *, are_sparse: bool = False) -> Any:
        """Return a column of integers of a batch whose first row is row `first_row` of the file.

        `are_sparse`: also accept unsigned 64-bit integers; in text, they become int64 with the same
        bits. Raises InvalidArgumentError, with the line, if a text is no accepted integer.
        """


class ParquetColumns:
    """The columns of a Parquet file."""

    is_text = False

    def __init__(self, path: Path) -> None:
        self._path = path
        with parquet.ParquetFile(path) as file:
            self.schema = file.schema_arrow
            self._rows = int(file.metadata.num_rows)

    def count_rows(self) -> int:
        """Return the number of rows."""
        return self._rows

    def line_of(self, row: int) -> None:
        """Return None: the file has no lines."""

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
    """Columns of text with one row per line, compressed or not.

    An empty field is a missing value. Without a header, columns are named f0, f1 and so on, and
    quotes have no meaning.
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
        stream = UnpackedByThreads(path).stream
        with closing(csv.open_csv(stream, self._reading, self._parsing)) as blocks:
            names = blocks.schema.names
        self.schema = pa.schema([(name, pa.string()) for name in names])

    def count_rows(self) -> int:
        """Return the number of rows. This reads the whole file."""
        first = self.schema.names[:1]
        return sum(batch.num_rows for batch, _ in self.batches(first, _BLOCK_BYTES))

    def line_of(self, row: int) -> int:
        """Return the line that contains a row. This reads all lines before it."""
        named, skipped = not self._reading.autogenerate_column_names, self._reading.skip_rows
        with Unpacked(self._path) as file:
            numbered = islice(enumerate(file.bytes, 1), skipped, None)
            rows = (line for line, text in numbered if text.strip(b"\r\n"))  # pyarrow's rows
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
        read, file = 0, UnpackedByThreads(self._path)
        opened = csv.open_csv(file.stream, self._reading, self._parsing, converting)
        with closing(opened) as blocks:
            for block in blocks:
                before, read = read, file.read_bytes
                for low in range(0, block.num_rows, batch_rows):
                    yield block.slice(low, batch_rows), read - before
                    before = read

    def integers(self, batch: Any, name: str, first_row: int, *, are_sparse: bool = False) -> Any:
        """Return a text column of a batch as integers."""
        try:
            return decimals(batch.column(name), are_sparse=are_sparse)
        except NotDecimalError as exc:
            line = self._line_of(first_row + exc.position)
            raise no_keys(
                f"column {name!r} to be of integers in decimal digits",
                f"{exc.found[:_SHOWN]!r} in line {line}",
            ) from None

    def _line_of(self, row: int) -> int:
        """Return the line of a row. Rows and lines are counted from the file's beginning, lines
        from 1. Empty lines are no rows."""
        with Unpacked(self._path) as file:
            lines = enumerate(TextIOWrapper(file.bytes, "latin-1"), 1)
            filled = (number for number, line in lines if line != "\n")
            return next(islice(filled, self._lines_before + row, None))
