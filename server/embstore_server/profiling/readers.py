"""Files of training samples, read as a stream of chunks of ids.

Two formats are known, and told apart by how a file begins: Parquet by its four first bytes, and
what else there is must be Criteo TSV (`embstore_server.demo.criteo`). All that can be wrong with a
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
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from embstore.arrays import Keys
from embstore.errors import InvalidArgumentError
from embstore_server.demo import criteo

if TYPE_CHECKING:
    from types import ModuleType

_CRITEO_LINES = 1024
"""Of a chunk: what parsing makes of them fits the processor's cache. 8,192 at a time are read at
three quarters of the speed."""
_PARQUET_ROWS = 8192
_PARQUET_MAGIC = b"PAR1"
_LINE_BYTES_MAX = 4096
"""A line is under 500 bytes; a file without newlines must not be read whole to find that out."""
_INT64_MAX = np.iinfo(np.int64).max


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
        """Yield the samples in their order.

        Raises
        ------
        InvalidArgumentError : something in the file is not of its format.
        """


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
        _parquet_file(path, columns) if _begins_as_parquet(path) else _criteo_file(path, columns)
        for path in paths
    ]


def _begins_as_parquet(path: Path) -> bool:
    try:
        if path.exists() and not path.is_file():  # a pipe would have lost what is read of it here
            raise InvalidArgumentError(f"expected a file, found {path}, which is none")
        with path.open("rb") as file:
            return file.read(len(_PARQUET_MAGIC)) == _PARQUET_MAGIC
    except OSError as exc:
        raise InvalidArgumentError(
            f"expected a readable file, found {path}: {exc.strerror}"
        ) from exc


# Criteo TSV


@dataclass(frozen=True)
class _CriteoFile:
    path: Path
    indices: NDArray[np.int64]  # of the categories, from 0
    size_bytes: int

    def chunks(self) -> Iterator[Chunk]:
        with self.path.open("rb") as file:
            lines_left = iter(partial(file.readline, _LINE_BYTES_MAX), b"")
            line = 1
            while lines := list(islice(lines_left, _CRITEO_LINES)):
                yield self._chunk(lines, line)
                line += len(lines)
        if line == 1:
            raise InvalidArgumentError(
                f"{self.path}: expected at least one line, found an empty file"
            )

    def _chunk(self, lines: list[bytes], first_line: int) -> Chunk:
        try:
            categories = criteo.parse(lines, first_line=first_line).categories
        except InvalidArgumentError as exc:
            raise InvalidArgumentError(f"{self.path}, {exc}") from exc
        by_column = np.ascontiguousarray(categories[:, self.indices].T)
        place = f"{self.path}, lines {first_line} to {first_line + len(lines) - 1}"
        return Chunk(tuple(map(Column, by_column)), place, sum(map(len, lines)))


def _criteo_file(path: Path, columns: Sequence[str] | None) -> _CriteoFile:
    names = criteo_columns() if columns is None else columns
    indices = np.array([_criteo_index(path, name) for name in names], np.int64)
    return _CriteoFile(path, indices, path.stat().st_size)


def criteo_columns() -> list[str]:
    """Return the names of all categories: C1 to C26."""
    return [f"C{number}" for number in range(1, criteo.CATEGORIES + 1)]


def _criteo_index(path: Path, name: str) -> int:
    digits = name[1:] if name[:1] in ("C", "c") else name
    number = int(digits) if digits.isascii() and digits.isdecimal() else 0
    if not 1 <= number <= criteo.CATEGORIES:
        raise InvalidArgumentError(
            f"{path}: expected a column from C1 to C{criteo.CATEGORIES}, as the file is no Parquet "
            f"and must be Criteo TSV, found {name!r}"
        )
    return number - 1


# Parquet


@dataclass(frozen=True)
class _ParquetFile:
    path: Path
    columns: tuple[str, ...]
    size_bytes: int

    def chunks(self) -> Iterator[Chunk]:
        import pyarrow
        from pyarrow import parquet

        read = 0
        try:
            with parquet.ParquetFile(self.path) as file:
                rows = file.metadata.num_rows
                for batch in file.iter_batches(_PARQUET_ROWS, columns=list(self.columns)):
                    yield self._chunk(batch, read, rows)
                    read += batch.num_rows
        except (pyarrow.ArrowException, OSError) as exc:
            raise _unreadable(self.path, exc) from exc
        if not read:
            raise InvalidArgumentError(f"{self.path}: expected at least one row, found none")

    def _chunk(self, batch: Any, read: int, rows: int) -> Chunk:
        place = f"{self.path}, rows {read} to {read + batch.num_rows - 1}"
        columns = tuple(
            _parquet_column(batch.column(name), f"{place}, column {name!r}")
            for name in self.columns
        )
        done = [self.size_bytes * count // rows for count in (read, read + batch.num_rows)]
        return Chunk(columns, place, done[1] - done[0])


def _parquet_file(path: Path, columns: Sequence[str] | None) -> _ParquetFile:
    pyarrow = _pyarrow(path)
    from pyarrow import parquet

    try:
        schema = parquet.read_schema(path)
    except (pyarrow.ArrowException, OSError) as exc:
        raise _unreadable(path, exc) from exc
    if columns is None:
        raise InvalidArgumentError(
            f"{path}: expected --table COLUMN=NAME for a Parquet file; its columns are "
            f"{', '.join(schema.names)}"
        )
    for name in columns:
        _check_parquet_column(path, schema, name)
    return _ParquetFile(path, tuple(columns), path.stat().st_size)


def _pyarrow(path: Path) -> "ModuleType":
    try:
        import pyarrow
    except ModuleNotFoundError as exc:
        raise InvalidArgumentError(
            f'{path}: reading Parquet needs more: pip install "embstore[data]"'
        ) from exc
    module: ModuleType = pyarrow
    return module


def _unreadable(path: Path, exc: Exception) -> InvalidArgumentError:
    reason = str(exc).partition("\n")[0]
    return InvalidArgumentError(f"{path}: expected a whole Parquet file, found: {reason}")


def _check_parquet_column(path: Path, schema: Any, name: str) -> None:
    from pyarrow import types

    count = schema.names.count(name)
    if count != 1:
        found = "none" if not count else f"{count} of that name"
        raise InvalidArgumentError(
            f"{path}: expected a column {name!r}, found {found}; its columns are "
            f"{', '.join(schema.names)}"
        )
    kind = schema.field(name).type
    if not types.is_integer(kind.value_type if _is_list(kind) else kind):
        raise InvalidArgumentError(
            f"{path}: expected column {name!r} to be of integers or lists of integers, found {kind}"
        )


def _is_list(kind: Any) -> bool:
    from pyarrow import types

    return bool(types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind))


def _parquet_column(array: Any, place: str) -> Column:
    """Return an Arrow array of integers, or of lists of them, as a column."""
    _refuse_missing(array, place)
    if not _is_list(array.type):
        return Column(_as_ids(array, place))
    from pyarrow import compute

    values = array.flatten()
    _refuse_missing(values, place)
    lengths = compute.list_value_length(array).to_numpy(zero_copy_only=False)
    offsets = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])
    return Column(_as_ids(values, place), offsets)


def _refuse_missing(array: Any, place: str) -> None:
    if array.null_count:
        raise InvalidArgumentError(
            f"{place}: expected an integer everywhere, found {array.null_count} missing"
        )


def _as_ids(array: Any, place: str) -> Keys:
    ids: NDArray[Any] = array.to_numpy(zero_copy_only=False)
    if ids.dtype == np.uint64 and len(ids) and ids.max() > _INT64_MAX:
        raise InvalidArgumentError(f"{place}: expected ids below 2**63, found {ids.max()}")
    return np.ascontiguousarray(ids, np.int64)
