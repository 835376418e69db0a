"""A run of the base: records in key order, in files that never change.

A run contains rows of one age, of any tables; if several runs contain a row, the newest run is
valid. A run is cut into files of about `base_segment_bytes`, its **parts**, so that a merge
rewrites no more than one part at a time:

    header | record record ... | directory | containers | trailer

Directory and containers are the key index (key_index.py); trailer.py describes the trailer. A file
contains either rows or **tombstones**. A tombstone is a record without a row, so it has
RECORD_HEADER_BYTES. It marks a row of an older run as deleted. The index alone shows which records
are tombstones; the records need not be read. The catalogue can name a range of a file's keys, or
two ranges of the same file: then the records outside of these ranges have been merged into another
run, and are dead.
"""

from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from embstore.arrays import KEY_BITS, Keys
from embstore.errors import CorruptTableError
from embstore.layout import RECORD_HEADER_BYTES
from embstore.storage.catalogue import PartEntry, part_path
from embstore.storage.files import File, Files
from embstore.storage.format import BASE_MAGIC, PAGE_BYTES, checksum, pack_header, unpack_header
from embstore.storage.key_index import COLUMNS, SIZE, KeyIndex
from embstore.storage.records import pack
from embstore.storage.trailer import pack_trailer, read_index

_TRAILER_MAGIC = b"EMBS.RUN"
_ENTRY_BYTES = 8 * COLUMNS


class RunIndex(NamedTuple):
    """The key index of a file as it was read, the index's offset `at`, and the index's counts."""

    records: int
    groups: int
    at: int
    content: bytes

    def of(self, index: NDArray[np.uint8]) -> KeyIndex:
        """Decode the key index from its bytes."""
        size = self.groups * _ENTRY_BYTES
        directory = index[:size].view(np.int64).reshape(self.groups, COLUMNS)
        return KeyIndex(directory, index[size:].view(np.uint16), self.at)


def check_run_header(file: File, store_id: bytes, entry: PartEntry) -> None:
    """Check that a file's header is that of the part `entry` of this store."""
    found = unpack_header(file.read(0, PAGE_BYTES), BASE_MAGIC, store_id, file.path)
    if found[:2] != (entry.number, entry.part):
        raise CorruptTableError(f"{file.path}: the header is that of another part")


def read_run_index(file: File, entry: PartEntry) -> RunIndex:
    """Return the key index of a file after checking its size, trailer and index against `entry`."""
    records, groups, at, content = read_index(file, _TRAILER_MAGIC, entry)
    if len(content) < groups * _ENTRY_BYTES:
        raise CorruptTableError(f"{file.path}: the key index is shorter than its directory")
    return RunIndex(records, groups, at, content)


@dataclass(frozen=True)
class RunFile:
    """One file, mapped. Any thread."""

    path: str
    map: NDArray[np.uint8] = field(repr=False)
    index: KeyIndex = field(repr=False)
    table_bytes: dict[int, int] = field(repr=False)

    @classmethod
    def open(cls, files: Files, store_id: bytes, entry: PartEntry) -> "RunFile":
        """Map a file after checking it against the catalogue. Records are not read."""
        path, length = entry.path, entry.bytes
        if not files.exists(path):
            raise CorruptTableError(f"{path}: expected {length} bytes of rows, found no file")
        with closing(files.open(path)) as file:
            check_run_header(file, store_id, entry)
            found = read_run_index(file, entry)
            mapped = file.map(length)
        keys = found.of(mapped[found.at : found.at + len(found.content)])
        return cls(path, mapped, keys, keys.table_bytes(KEY_BITS))

    @cached_property
    def has_tombstones(self) -> bool:
        """Whether the file contains tombstones rather than rows."""
        return int(self.index.directory[0, SIZE]) == RECORD_HEADER_BYTES

    def rows_between(
        self, low: int, high: int
    ) -> tuple[Keys, NDArray[np.uint64], NDArray[np.int64]]:
        """Return the row keys in [low, high), and the address and size of each key's record."""
        keys, offsets, sizes = self.index.between(low, high)
        return keys, offsets + np.uint64(self.map.ctypes.data), sizes


@dataclass(frozen=True)
class Part:
    """A range of the keys of a file. The rows that a run has in that range are in this file."""

    entry: PartEntry
    file: RunFile = field(repr=False)

    @cached_property
    def bytes(self) -> int:
        """Bytes of the records in the range."""
        return int(self.bytes_between(np.array([self.entry.low, self.entry.high]))[0])

    def bytes_between(self, cuts: Keys) -> NDArray[np.int64]:
        """For every two neighbouring row keys of `cuts`, return the total size in bytes of those
        records of the part that are between them. `cuts` are in ascending order."""
        return np.diff(self.file.index.offsets_of(cuts.clip(self.entry.low, self.entry.high)))

    def without(self, low: int, high: int) -> "Run":
        """Return the part without the row keys in [low, high): up to two parts."""
        own = self.entry
        if high <= own.low or own.high <= low:
            return (self,)
        ranges = [(own.low, low), (high, own.high)]
        cut = [Part(replace(own, low=a, high=b), self.file) for a, b in ranges if a < b]
        return tuple(part for part in cut if part.bytes)


Run = tuple[Part, ...]
"""Parts by ascending key; no two parts have a key in common. Either all parts have rows, or all
have tombstones."""


def has_tombstones(run: Run) -> bool:
    """Return whether a run has tombstones rather than rows."""
    return run[0].file.has_tombstones


class RunWriter:
    """Writes one run durably, part after part. If there are tombstones, a second run of the same
    number contains them. No row key occurs in both runs. One thread.

    Parameters
    ----------
    number : number of the run, which is part of the names of its files
    commit : number of the commit of the run's newest row
    part_bytes : approximate bytes of the records of a part
    """

    def __init__(
        self, files: Files, store_id: bytes, number: int, commit: int, part_bytes: int
    ) -> None:
        self.entries: list[PartEntry] = []
        self.run: Run = ()
        self.tombstones: Run = ()
        self._files = files
        self._store_id = store_id
        self._number = number
        self._commit = commit
        self._part_bytes = part_bytes
        self._buried: list[Keys] = []
        self._file: File | None = None
        self._begin()

    def append(self, keys: Keys, records: NDArray[np.uint64]) -> None:
        """Write records (n, words) of ascending row keys, all larger than the keys written
        before."""
        size = 8 * records.shape[1]
        low = 0
        while low < len(keys):
            room = max(1, -(-(self._part_bytes - self._end + PAGE_BYTES) // size))
            piece = slice(low, min(low + room, len(keys)))
            self._write(keys[piece], records[piece], size)
            low = piece.stop
            if self._end - PAGE_BYTES >= self._part_bytes:
                self._finish()

    def bury(self, keys: Keys) -> None:
        """Remember row keys whose tombstones `close` will write. The keys are ascending, and all
        are larger than the keys of earlier calls."""
        self._buried.append(keys)

    def close(self) -> None:
        """Finish the last part, and write the tombstones. Make the names of the files durable, and
        open the files as `run` and `tombstones`."""
        if self._keys:
            self._finish()
        rows = len(self.entries)
        for keys in self._buried:
            self.append(keys, _tombstones(keys))
        if self._keys:
            self._finish()
        if self.entries:
            self._files.sync_directory("base")
        files = (RunFile.open(self._files, self._store_id, entry) for entry in self.entries)
        parts = tuple(Part(*each) for each in zip(self.entries, files, strict=True))
        self.run, self.tombstones = parts[:rows], parts[rows:]

    def abandon(self) -> None:
        """Remove the written files, which no catalogue names."""
        if self._file is not None:
            self._file.close()
            self._files.discard(self._path)
        for entry in self.entries:
            self._files.discard(entry.path)

    @property
    def _path(self) -> str:
        return part_path(self._number, len(self.entries))

    def _begin(self) -> None:
        self._keys: list[Keys] = []
        self._runs: list[tuple[int, int, int]] = []
        self._count = 0
        self._end = PAGE_BYTES

    def _write(self, keys: Keys, records: NDArray[np.uint64], size: int) -> None:
        if self._file is None:
            self._files.make_directory("base")
            self._file = self._files.create(self._path)
            part = len(self.entries)
            self._file.write(0, pack_header(BASE_MAGIC, self._store_id, self._number, part))
        if not self._runs or self._runs[-1][2] != size:
            self._runs.append((self._count, self._end, size))
        self._file.write(self._end, np.ascontiguousarray(records).data)
        self._keys.append(keys)
        self._count += len(keys)
        self._end += records.nbytes

    def _finish(self) -> None:
        assert self._file is not None
        keys = np.concatenate(self._keys)
        index = KeyIndex.of(keys, self._runs)
        content = index.directory.tobytes() + index.containers.tobytes()
        crc = checksum(content)
        groups = len(index.directory)
        trailer = pack_trailer(_TRAILER_MAGIC, self._number, len(keys), groups, self._end, crc)
        self._file.write(self._end, content + trailer)
        length = self._end + len(content) + len(trailer)
        self._file.truncate(length)
        self._file.sync()
        self._file.close()
        part = len(self.entries)
        low, high = int(keys[0]), int(keys[-1]) + 1
        self.entries.append(PartEntry(self._number, part, self._commit, low, high, length, crc))
        self._file = None
        self._begin()


def _tombstones(keys: Keys) -> NDArray[np.uint64]:
    """Return the records, (n, 2), that mark rows as deleted."""
    records = np.empty((len(keys), RECORD_HEADER_BYTES // 8), np.uint64)
    pack(np.empty((len(keys), 0), np.uint64), keys, keys, records, 0, len(keys))
    return records
