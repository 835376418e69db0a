"""The check of one file: header, size, trailer, key index and every record (or every id).

A file is read from its first byte to its last, in pieces, and reading continues after damage: if
the disk does not return a piece, the piece is halved again and again until the damaged records are
known. Therefore a check can list the damaged rows. It needs memory for the file's key index and one
piece.

The store may be closed or open during a check. Files that the catalogue names never change, so one
thread can check them while other threads use the store (`embstore.engine.scrubbing`).
"""

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from embstore.arithmetic.jit import address
from embstore.arrays import Keys
from embstore.errors import CapacityError, CorruptTableError, StorageError, TableMismatchError
from embstore.storage.catalogue import Entry, IdsEntry, PartEntry, SegmentEntry
from embstore.storage.files import File, Files
from embstore.storage.format import PAGE_BYTES
from embstore.storage.id_files import check_ids_header, read_ids
from embstore.storage.key_index import GROUP_BITS, GROUP_KEYS, LIST_MAX, KeyIndex, container_bytes
from embstore.storage.records import find_wrong
from embstore.storage.run import check_run_header, read_run_index
from embstore.storage.segment import check_segment_header, read_segment_index

PIECE_BYTES = 8 << 20
"""Number of bytes that are read at a time; a disk reads pieces of this size at its full rate."""
_PIECE_KEYS = 1 << 18
"""Number of keys of an index that are decoded at a time."""
DAMAGED_MAX = 1 << 20
"""Maximum number of keys of damaged rows that are listed per file; further keys are only
counted."""
UNUSABLE = (CorruptTableError, TableMismatchError, StorageError, CapacityError)
"""The errors that reading a damaged file can raise."""

RowsEntry = PartEntry | SegmentEntry


class Records(NamedTuple):
    """Consecutive records of a file: the row key, offset and size in bytes of each record."""

    keys: Keys
    offsets: NDArray[np.int64]
    sizes: NDArray[np.int64]

    def between(self, low: int, high: int) -> "Records":
        """Return the records with the indexes `low` to `high` - 1."""
        return Records(*(column[low:high] for column in self))

    @property
    def end(self) -> int:
        """The offset after the last record."""
        return int(self.offsets[-1] + self.sizes[-1])


@dataclass
class FileReport:
    """The result of a check of one file."""

    path: str
    bytes: int
    rows: int = 0
    """Number of records that were checked."""
    problems: list[str] = field(default_factory=list)
    damaged: Keys = field(default_factory=lambda: np.empty(0, np.int64))
    """Row keys whose newest record in the file is damaged, ascending; at most DAMAGED_MAX."""
    damaged_count: int = 0
    is_lost: bool = False
    """Whether the file's rows are unknown, because the file is missing, or its size or index is
    wrong."""

    def fail(self, problem: object) -> None:
        """Add a problem; its text names the file."""
        self.problems.append(str(problem))


def keys_in(files: Files, entry: RowsEntry, wanted: Keys) -> NDArray[np.bool_]:
    """For each row key in `wanted`, return whether a file's index contains it, (n,) bool; all False
    if the index is unreadable."""
    found = np.zeros(len(wanted), np.bool_)
    try:
        with closing(files.open(entry.path)) as file:
            for records in _records(file, entry):
                found |= np.isin(wanted, records.keys)
    except UNUSABLE:
        return found
    return found


class FileCheck:
    """A check of one file; `report` contains the findings so far. One thread."""

    def __init__(self, files: Files, store_id: bytes, entry: Entry) -> None:
        self.report = FileReport(entry.path, entry.bytes)
        self._files = files
        self._store_id = store_id
        self._entry = entry
        self._wrong: list[tuple[Keys, NDArray[np.int64]]] = []  # row keys and offsets

    def run(self) -> Iterator[int]:
        """Check the file; yield the number of bytes read after each piece."""
        report, entry = self.report, self._entry
        try:
            if not self._files.exists(report.path):
                raise CorruptTableError(f"{report.path}: expected {entry.bytes} bytes, found none")
            file = self._files.open(report.path)
        except UNUSABLE as exc:
            report.is_lost = True
            report.fail(exc)
            return
        with closing(file):
            self._check_header(file)
            try:
                if isinstance(entry, IdsEntry):
                    yield read_ids(file, entry).nbytes
                else:
                    for records in _records(file, entry):
                        yield from self._check_pieces(file, records)
            except UNUSABLE as exc:  # the index is unusable, and no record is checked without it
                report.is_lost = True
                report.fail(exc)
            if self._wrong:
                self._note_damage(file)

    def _check_header(self, file: File) -> None:
        try:
            if isinstance(self._entry, PartEntry):
                check_run_header(file, self._store_id, self._entry)
            elif isinstance(self._entry, IdsEntry):
                check_ids_header(file, self._store_id, self._entry)
            else:
                check_segment_header(file, self._store_id, self._entry)
        except UNUSABLE as exc:
            self.report.fail(exc)

    def _check_pieces(self, file: File, records: Records) -> Iterator[int]:
        """Check records, in pieces of about PIECE_BYTES."""
        first = int(records.offsets[0])
        cuts = np.arange(first + PIECE_BYTES, records.end, PIECE_BYTES)
        ends = [*np.searchsorted(records.offsets, cuts).tolist(), len(records.keys)]
        low = 0
        for high in dict.fromkeys(ends):  # a record may be larger than a piece
            piece = records.between(low, high)
            if high < len(records.keys):
                file.will_read(piece.end, PIECE_BYTES)
            self._check_piece(file, piece)
            self.report.rows += len(piece.keys)
            size = piece.end - int(piece.offsets[0])
            file.was_read(int(piece.offsets[0]), size)
            low = high
            yield size

    def _check_piece(self, file: File, piece: Records) -> None:
        first = int(piece.offsets[0])
        try:
            content = np.frombuffer(file.read(first, piece.end - first), np.uint8)
        except StorageError as exc:
            if len(piece.keys) == 1:
                self.report.fail(exc)
                self._wrong.append((piece.keys, piece.offsets))
                return
            middle = len(piece.keys) // 2
            self._check_piece(file, piece.between(0, middle))
            self._check_piece(file, piece.between(middle, len(piece.keys)))
            return
        addresses = (piece.offsets - first).astype(np.uint64) + np.uint64(address(content))
        wrong = np.empty(len(piece.keys), np.int64)
        places = wrong[: find_wrong(addresses, piece.sizes, piece.keys, wrong)]
        if len(places):
            self._wrong.append((piece.keys[places], piece.offsets[places]))

    def _note_damage(self, file: File) -> None:
        report, entry = self.report, self._entry
        keys = np.concatenate([keys for keys, _ in self._wrong])
        offsets = np.concatenate([offsets for _, offsets in self._wrong])
        text = ", ".join(map(str, offsets[:3])) + (", ..." if len(offsets) > 3 else "")
        report.fail(
            f"{report.path}: {len(keys)} of {report.rows} records are not what was written, "
            f"at {text}"
        )
        if isinstance(entry, SegmentEntry):
            keys = _not_repeated(read_segment_index(file, entry).keys, keys, offsets, file, entry)
        report.damaged_count = len(keys)
        report.damaged = np.sort(keys)[:DAMAGED_MAX]


def _not_repeated(
    all_keys: Keys, keys: Keys, offsets: NDArray[np.int64], file: File, entry: SegmentEntry
) -> Keys:
    """Return the keys of a segment's damaged records, except keys that have a later record in the
    segment."""
    last: dict[int, int] = {}
    for records in _records(file, entry):
        here = np.isin(records.keys, keys)
        last |= zip(records.keys[here].tolist(), records.offsets[here].tolist(), strict=True)
    newest = [
        last[key] == offset for key, offset in zip(keys.tolist(), offsets.tolist(), strict=True)
    ]
    return keys[np.array(newest, np.bool_)]


def _records(file: File, entry: RowsEntry) -> Iterator[Records]:
    """Yield the records that a file's index names, in the order of the file."""
    if isinstance(entry, SegmentEntry):
        yield from _records_of_segment(file, entry)
    else:
        yield from _records_of_part(file, entry)


def _records_of_segment(file: File, entry: SegmentEntry) -> Iterator[Records]:
    index = read_segment_index(file, entry)
    ends = [run[0] for run in index.runs[1:]] + [len(index.keys)] * bool(index.runs)
    expected = PAGE_BYTES
    for (first, offset, size), end in zip(index.runs, ends, strict=True):
        if offset != expected or not 0 <= first < end or size <= 0 or size % 8:
            raise _contradiction(file)
        expected = offset + (end - first) * size
    if expected != index.at:
        raise _contradiction(file)
    for (first, offset, size), end in zip(index.runs, ends, strict=True):
        for low in range(first, end, _PIECE_KEYS):
            keys = index.keys[low : min(low + _PIECE_KEYS, end)]
            offsets = offset + (low - first + np.arange(len(keys), dtype=np.int64)) * size
            yield Records(keys, offsets, np.full(len(keys), size, np.int64))


def _records_of_part(file: File, entry: PartEntry) -> Iterator[Records]:
    found = read_run_index(file, entry)
    content = np.frombuffer(found.content, np.uint8)
    index = found.of(content)
    counts = _checked_counts(index, file)
    if int(counts.sum()) != found.records:
        raise _contradiction(file)
    groups = index.directory[:, 0]
    ends = np.cumsum(counts)
    low = 0
    while low < len(groups):
        done = int(ends[low - 1]) if low else 0
        high = max(low + 1, int(np.searchsorted(ends, done + _PIECE_KEYS, "right")))
        limits = int(groups[low]) << GROUP_BITS, (int(groups[high - 1]) + 1) << GROUP_BITS
        keys, offsets, sizes = index.between(*limits)
        if len(keys) != int(ends[high - 1]) - done or np.any(np.diff(keys) <= 0):
            raise _contradiction(file)
        yield Records(keys, offsets.astype(np.int64), sizes)
        low = high


def _checked_counts(index: KeyIndex, file: File) -> NDArray[np.int64]:
    """Return the number of keys of each group of an index.

    Raises CorruptTableError if the parts of the index contradict each other: such an index cannot
    be decoded.
    """
    groups, counts, sizes, starts, places = index.directory.T
    ends = starts + counts * sizes
    lengths = np.diff(places, append=index.containers.nbytes)
    if (
        not len(groups)
        or np.any(np.diff(groups) <= 0)
        or np.any((counts < 1) | (counts > GROUP_KEYS) | (sizes <= 0) | (sizes % 8 != 0))
        or starts[0] != PAGE_BYTES
        or np.any(starts[1:] != ends[:-1])
        or ends[-1] != index.end
        or places[0] != 0
        or np.any(lengths != container_bytes(counts))
    ):
        raise _contradiction(file)
    for count, place in zip(counts.tolist(), places.tolist(), strict=True):
        if LIST_MAX < count < GROUP_KEYS:
            bits = index.containers[place >> 1 : (place >> 1) + GROUP_KEYS // 16]
            if int(np.bitwise_count(bits).sum()) != count:
                raise _contradiction(file)
    return np.ascontiguousarray(counts)


def _contradiction(file: File) -> CorruptTableError:
    return CorruptTableError(f"{file.path}: the key index does not agree with itself")
