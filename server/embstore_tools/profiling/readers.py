"""Reads files of training samples as a stream of chunks of ids.

The beginning of the decompressed file identifies its format: Parquet has four fixed first bytes;
text with a header has a first line without numbers; any other file must be Criteo TSV
(`embstore_tools.demo.criteo`). All files are opened before the first file is read, and mistakes
that can be found without reading samples are found at this time. Counting takes long, and a
mistyped column of the last file must not be found only at the end.

A **column** of a chunk contains the ids of the chunk's samples, one id or a list of ids per sample:

    one id a sample     ids (n,)    offsets None
    a list a sample     ids (m,)    offsets (n + 1,), sample i has ids[offsets[i]:offsets[i + 1]]

In Parquet, and in text with a header, a column is named as in the file.
`embstore_client.files.values` has the rules for ids. They are integers; if ids are hashed to the
rows of their table, text and missing values are ids too. Otherwise a missing value is refused,
because only the trainer's own preprocessing can decide its meaning. Values of a text file are
hashed as text, even digits. In Criteo TSV the categories are C1 to C26, or 1 to 26; they are 32-bit
integers, and an empty field is 0, as in the demo.

One core reads 280,000 lines, or 7 million ids, of Criteo TSV a second, because all 40 fields are
checked. It reads more than 40 million ids a second of Parquet with 26 columns of integers. Counting
(`count.py`) processes 20 to 40 million ids a second, so for text, reading takes most of the time.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from embstore.arrays import Keys
from embstore.errors import InvalidArgumentError
from embstore.profiles.checks import check
from embstore.version import pip_install
from embstore_client.files.packed import Unpacked
from embstore_client.files.values import Hashing, ids_of, is_ids
from embstore_tools.demo import criteo

_CRITEO_LINES = 1024
"""Lines per chunk. The parsed arrays of so many lines fit in the processor's cache; chunks of 8,192
lines are read at three quarters of the speed."""
_ROWS = 8192
"""Rows per chunk of columns."""
_PARQUET_MAGIC = b"PAR1"
_HEADER_BYTES_MAX = 1 << 20


@dataclass(frozen=True)
class Column:
    """The ids of a chunk's samples in one column, in one of the two forms that the module's
    docstring describes."""

    ids: Keys
    offsets: NDArray[np.int64] | None = None

    def __len__(self) -> int:
        return len(self.ids) if self.offsets is None else len(self.offsets) - 1

    def lengths(self) -> NDArray[np.int64]:
        """Return the number of ids of each sample."""
        return np.ones(len(self), np.int64) if self.offsets is None else np.diff(self.offsets)

    def part(self, start: int, stop: int) -> "Column":
        """Return the samples [start, stop), as views."""
        if self.offsets is None:
            return Column(self.ids[start:stop])
        low, high = self.offsets[start], self.offsets[stop]
        return Column(self.ids[low:high], self.offsets[start : stop + 1] - low)

    def chosen(self, wanted: NDArray[np.bool_]) -> "Column":
        """Return the samples where `wanted` (n,) is true."""
        if self.offsets is None:
            return Column(self.ids[wanted])
        lengths = self.lengths()
        offsets = np.concatenate([[0], np.cumsum(lengths[wanted])])
        return Column(self.ids[np.repeat(wanted, lengths)], offsets)

    @classmethod
    def joined(cls, columns: Sequence["Column"]) -> "Column":
        """Return the samples of several columns, one column after the other. Either all columns
        have offsets, or none has."""
        ids = np.concatenate([column.ids for column in columns])
        if columns[0].offsets is None:
            return cls(ids)
        lengths = np.concatenate([column.lengths() for column in columns])
        return cls(ids, np.concatenate([[0], np.cumsum(lengths)]))


@dataclass(frozen=True)
class Chunk:
    """Some samples of one file."""

    columns: tuple[Column, ...]  # in the order in which the columns were requested
    place: str  # the position of the samples in the file, for messages
    file_bytes: int = 0  # roughly the number of bytes of the file that were read for the samples

    @property
    def samples(self) -> int:
        """The number of samples."""
        return len(self.columns[0])


class SampleFile(Protocol):
    """A file whose columns have been found."""

    @property
    def size_bytes(self) -> int:
        """Roughly the sum of `file_bytes` over the file's chunks."""

    def chunks(self) -> Iterator[Chunk]:
        """Yield the samples in their order."""


def open_files(
    paths: Sequence[Path],
    columns: Sequence[str] | None,
    hashed: Mapping[str, Hashing] | None = None,
) -> list[SampleFile]:
    """Return the files, in the given order, each with all `columns`.

    Parameters
    ----------
    columns : names of the columns. None: all 26 categories; all files must then be Criteo TSV
    hashed : by column, the function that makes keys from its ids; ids of other columns are keys

    Raises
    ------
    InvalidArgumentError : a file cannot be read, or lacks one of the columns.
    """
    return [_opened(path, columns, hashed or {}) for path in paths]


def _opened(path: Path, columns: Sequence[str] | None, hashed: Mapping[str, Hashing]) -> SampleFile:
    try:
        # A pipe is refused, because the bytes that are read to recognize its format would be lost.
        check(path.is_file() or not path.exists(), "a file", f"{path}, which is none")
        with Unpacked(path) as file:
            first = file.bytes.readline(_HEADER_BYTES_MAX)
    except OSError as exc:
        raise InvalidArgumentError(
            f"expected a readable file, found {path}: {exc.strerror or exc}"
        ) from exc
    separator = "\t" if b"\t" in first else ","
    if first.startswith(_PARQUET_MAGIC):
        return _ColumnFile(path, None, columns, hashed)
    if _is_header(first, separator):
        return _ColumnFile(path, separator, columns, hashed)
    return _CriteoFile(path, columns, hashed)


def _is_header(line: bytes, separator: str) -> bool:
    """Return whether a line contains names of columns. Names are no numbers; the first name can be
    empty, as pandas may write it."""
    try:
        names = line.decode().rstrip("\r\n").split(separator)
    except UnicodeDecodeError:
        return False
    return all(names[1:]) and any(names) and not any(map(_is_number, names))


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


# Criteo TSV


class _CriteoFile:
    def __init__(
        self, path: Path, columns: Sequence[str] | None, hashed: Mapping[str, Hashing]
    ) -> None:
        names = criteo_columns() if columns is None else columns
        self._hashed = [hashed.get(name) for name in names]
        self._path = path
        self._indices = np.array([_criteo_index(path, name) for name in names])  # from 0
        self.size_bytes = path.stat().st_size

    def chunks(self) -> Iterator[Chunk]:
        line = 1
        for samples, read in criteo.read_lines(self._path, limit=None, block=_CRITEO_LINES):
            every = np.ascontiguousarray(samples.categories[:, self._indices].T)
            by_column = [
                ids if hashed is None else hashed(ids)
                for ids, hashed in zip(every, self._hashed, strict=True)
            ]
            place = f"{self._path}, lines {line} to {line + len(samples) - 1}"
            yield Chunk(tuple(map(Column, by_column)), place, read)
            line += len(samples)


def criteo_columns() -> list[str]:
    """Return the names of all categories: C1 to C26."""
    return [f"C{number}" for number in range(1, criteo.CATEGORIES + 1)]


def _criteo_index(path: Path, name: str) -> int:
    digits = name[1:] if name[:1] in ("C", "c") else name
    number = int(digits) if digits.isascii() and digits.isdecimal() else 0
    last = criteo.CATEGORIES
    expected = f"a column from C1 to C{last}, as the file is no Parquet and must be Criteo TSV"
    check(1 <= number <= last, expected, repr(name), f"{path}: ")
    return number - 1


# Named columns


class _ColumnFile:
    def __init__(
        self,
        path: Path,
        separator: str | None,
        columns: Sequence[str] | None,
        hashed: Mapping[str, Hashing],
    ) -> None:
        """Open a text file with the field separator `separator`; None: open a Parquet file."""
        self._kind = "Parquet file" if separator is None else "text file with a header"
        try:
            import pyarrow

            from embstore_client.files.columns import ParquetColumns, TextColumns
        except ModuleNotFoundError as exc:
            raise InvalidArgumentError(
                f"{path}: reading a {self._kind} needs more: {pip_install('data')}"
            ) from exc
        self._text = pyarrow.string()
        self._path = path
        self.size_bytes = path.stat().st_size
        with self._reading():
            self._columns = (
                ParquetColumns(path) if separator is None else TextColumns(path, separator)
            )
        schema = self._columns.schema
        known = f"its columns are {', '.join(schema.names)}"
        if columns is None:
            raise InvalidArgumentError(
                f"{path}: expected --table COLUMN=NAME for a {self._kind}; {known}"
            )
        self._names, self._hashed = list(columns), hashed
        for name in columns:
            count = schema.names.count(name)
            found = f"{count} of that name" if count else "none"
            check(count == 1, f"a column {name!r}", f"{found}; {known}", f"{path}: ")
            kind, expected = schema.field(name).type, "to be of integers or lists of integers"
            fits = self._columns.is_text or is_ids(kind, hashed=name in hashed)
            more = "" if name in hashed else "; --hash-rows takes text and whole doubles as well"
            check(fits, f"column {name!r} {expected}", f"{kind}{more}", f"{path}: ")

    def chunks(self) -> Iterator[Chunk]:
        numbers = [name for name in self._names if name not in self._hashed]
        text_is, read = dict.fromkeys(numbers, self._text), 0
        with self._reading():
            for batch, size in self._columns.batches(self._names, _ROWS, text_is):
                columns = tuple(self._ids(batch, name, read) for name in self._names)
                yield Chunk(columns, self._place(batch, read), size)
                read += batch.num_rows
        check(read, "at least one row", "none", f"{self._path}: ")

    def _place(self, batch: Any, first: int) -> str:
        return f"{self._path}, rows {first} to {first + batch.num_rows - 1}"

    def _ids(self, batch: Any, name: str, first: int) -> Column:
        place = f"{self._place(batch, first)}, column {name!r}"
        if (hashed := self._hashed.get(name)) is not None:
            return Column(*ids_of(batch.column(name), hashed, place))
        try:
            found = self._columns.integers(batch, name, first)
        except InvalidArgumentError as exc:
            raise InvalidArgumentError(f"{self._path}: {exc}") from None
        return Column(*ids_of(found, None, place))

    @contextmanager
    def _reading(self) -> Iterator[None]:
        import pyarrow

        try:
            yield
        except (pyarrow.ArrowException, OSError) as exc:
            reason = str(exc).partition("\n")[0]
            raise InvalidArgumentError(
                f"{self._path}: expected a whole {self._kind}, found: {reason}"
            ) from exc
