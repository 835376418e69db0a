"""Files of training samples, read as a stream of chunks of ids.

Two formats are known, and told apart by how a file begins: Parquet by its four first bytes, and
what else there is must be Criteo TSV (`embstore_tools.demo.criteo`). All that can be wrong with a
file before its samples are read is found when it is opened, for all files before the first is read:
counting takes long, and a mistyped column in the last file must not be found at its end.

A **column** of a chunk holds the ids of its samples, one each or a list each:

    one id a sample     ids (n,)    offsets None
    a list a sample     ids (m,)    offsets (n + 1,), sample i has ids[offsets[i]:offsets[i + 1]]

In Parquet a column is named as the file names it, and is of integers or of lists of integers. A
missing value is refused: what it stands for, the trainer's own preprocessing decides. In Criteo TSV
the categories are C1 to C26, or 1 to 26, and an empty one is 0, as in the demo.

How fast, on one core: of Criteo TSV 280,000 lines or 7 million ids a second, for all 40 fields are
checked; of Parquet with 26 columns of integers more than 40 million ids. Counting them
(`count.py`) does 20 to 40 million, so it is the reading of text that takes the time.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from embstore.arrays import Keys
from embstore.errors import InvalidArgumentError
from embstore.profiles.checks import INT64_MAX, check
from embstore.version import pip_install
from embstore_tools.demo import criteo

_CRITEO_LINES = 1024
"""Of a chunk: what parsing makes of them fits the processor's cache. 8,192 at a time are read at
three quarters of the speed."""
_PARQUET_ROWS = 8192
_PARQUET_MAGIC = b"PAR1"


@dataclass(frozen=True)
class Column:
    """The ids of a chunk's samples in one column; see above."""

    ids: Keys
    offsets: NDArray[np.int64] | None = None

    def __len__(self) -> int:
        return len(self.ids) if self.offsets is None else len(self.offsets) - 1

    def lengths(self) -> NDArray[np.int64]:
        """Return how many ids each sample has."""
        return np.ones(len(self), np.int64) if self.offsets is None else np.diff(self.offsets)

    def part(self, start: int, stop: int) -> "Column":
        """Return samples [start, stop), as views."""
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
        """Return the samples of several, one after the other; all have offsets, or none has."""
        ids = np.concatenate([column.ids for column in columns])
        if columns[0].offsets is None:
            return cls(ids)
        lengths = np.concatenate([column.lengths() for column in columns])
        return cls(ids, np.concatenate([[0], np.cumsum(lengths)]))


@dataclass(frozen=True)
class Chunk:
    """Some samples of one file."""

    columns: tuple[Column, ...]  # in the order they were asked for
    place: str  # where the samples stand, for messages
    file_bytes: int = 0  # of the file, about

    @property
    def samples(self) -> int:
        """How many there are."""
        return len(self.columns[0])


class SampleFile(Protocol):
    """A file whose columns have been found."""

    @property
    def size_bytes(self) -> int:
        """The sum of `file_bytes` over its chunks, about."""

    def chunks(self) -> Iterator[Chunk]:
        """Yield the samples in their order."""


def open_files(paths: Sequence[Path], columns: Sequence[str] | None) -> list[SampleFile]:
    """Return the files, in the order given, each with all `columns`.

    Parameters
    ----------
    columns : None: all 26 categories, where all files are Criteo TSV

    Raises
    ------
    InvalidArgumentError : a file cannot be read, or has no such column.
    """
    return [
        (_ParquetFile if _begins_as_parquet(path) else _CriteoFile)(path, columns) for path in paths
    ]


def _begins_as_parquet(path: Path) -> bool:
    try:
        # A pipe would have lost what is read of it here.
        check(path.is_file() or not path.exists(), "a file", f"{path}, which is none")
        with path.open("rb") as file:
            return file.read(len(_PARQUET_MAGIC)) == _PARQUET_MAGIC
    except OSError as exc:
        raise InvalidArgumentError(
            f"expected a readable file, found {path}: {exc.strerror}"
        ) from exc


# Criteo TSV


class _CriteoFile:
    def __init__(self, path: Path, columns: Sequence[str] | None) -> None:
        names = criteo_columns() if columns is None else columns
        self._path = path
        self._indices = np.array([_criteo_index(path, name) for name in names])  # from 0
        self.size_bytes = path.stat().st_size

    def chunks(self) -> Iterator[Chunk]:
        line = 1
        for samples, read in criteo.read_lines(self._path, limit=None, block=_CRITEO_LINES):
            by_column = np.ascontiguousarray(samples.categories[:, self._indices].T)
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


# Parquet


class _ParquetFile:
    def __init__(self, path: Path, columns: Sequence[str] | None) -> None:
        try:
            from pyarrow import parquet, types
        except ModuleNotFoundError as exc:
            raise InvalidArgumentError(
                f"{path}: reading Parquet needs more: {pip_install('data')}"
            ) from exc
        with _reading(path):
            schema = parquet.read_schema(path)
        known = f"its columns are {', '.join(schema.names)}"
        if columns is None:
            raise InvalidArgumentError(
                f"{path}: expected --table COLUMN=NAME for a Parquet file; {known}"
            )
        for name in columns:
            count = schema.names.count(name)
            found = f"{count} of that name" if count else "none"
            check(count == 1, f"a column {name!r}", f"{found}; {known}", f"{path}: ")
            kind, expected = schema.field(name).type, "to be of integers or lists of integers"
            is_ids = types.is_integer(kind.value_type if _is_list(kind) else kind)
            check(is_ids, f"column {name!r} {expected}", kind, f"{path}: ")
        self._path = path
        self._columns = list(columns)
        self.size_bytes = path.stat().st_size

    def chunks(self) -> Iterator[Chunk]:
        from pyarrow import parquet

        read = 0
        with _reading(self._path), parquet.ParquetFile(self._path) as file:
            rows = file.metadata.num_rows
            for batch in file.iter_batches(_PARQUET_ROWS, columns=self._columns):
                yield self._chunk(batch, read, rows)
                read += batch.num_rows
        check(read, "at least one row", "none", f"{self._path}: ")

    def _chunk(self, batch: Any, read: int, rows: int) -> Chunk:
        place = f"{self._path}, rows {read} to {read + batch.num_rows - 1}"
        columns = tuple(
            _parquet_column(batch.column(name), f"{place}, column {name!r}")
            for name in self._columns
        )
        done = [self.size_bytes * count // rows for count in (read, read + batch.num_rows)]
        return Chunk(columns, place, done[1] - done[0])


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    import pyarrow

    try:
        yield
    except (pyarrow.ArrowException, OSError) as exc:
        reason = str(exc).partition("\n")[0]
        raise InvalidArgumentError(
            f"{path}: expected a whole Parquet file, found: {reason}"
        ) from exc


def _is_list(kind: Any) -> bool:
    from pyarrow import types

    return bool(types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind))


def _parquet_column(array: Any, place: str) -> Column:
    """Return an Arrow array of integers, or of lists of them, as a column."""
    values = array.flatten() if _is_list(array.type) else array
    missing = array.null_count or values.null_count
    check(not missing, "an integer everywhere", f"{missing} missing", f"{place}: ")
    ids: NDArray[Any] = values.to_numpy(zero_copy_only=False)
    check(ids.max(initial=0) <= INT64_MAX, "ids below 2**63", ids.max(initial=0), f"{place}: ")
    keys = np.ascontiguousarray(ids, np.int64)
    if values is array:
        return Column(keys)
    from pyarrow import compute

    lengths = compute.list_value_length(array).to_numpy(zero_copy_only=False)
    return Column(keys, np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)]))
