"""A segment of the write-back log: a file to which records are appended until it is sealed.

A segment is a header page, records back to back, and, once **sealed**, a key index and a trailer.

    header | record record ... | key (int64) of each record | runs | trailer
    runs: (first record, byte offset, record bytes) wherever the record size changes, as three int64

The index contains the keys in the order in which they were appended, repeated keys included.
Therefore sealing costs one write, and a reader of the index in this order finds the newest record
of each key without touching a row. Merges sort the keys, because they need ascending keys. The
trailer (trailer.py) contains the numbers of records and runs.

A **tombstone** is a record without a row, so it has RECORD_HEADER_BYTES. The runs show which
records are tombstones, and the position of a tombstone has a bit set (row_index.py).

Space for the records, index and trailer is reserved before a command changes anything (`reserve`),
so that `append` cannot fail for lack of space. One segment receives all rows that a command evicts,
so a segment can be larger than the configured size.

A sealed segment never changes. Its map stays readable after the file is removed.
"""

from contextlib import closing
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from embstore.arrays import Keys
from embstore.errors import CorruptTableError
from embstore.layout import RECORD_HEADER_BYTES
from embstore.storage.catalogue import SegmentEntry, segment_path
from embstore.storage.files import File, Files
from embstore.storage.format import LOG_MAGIC, PAGE_BYTES, checksum, pack_header, unpack_header
from embstore.storage.row_index import OFFSET_MASK, PLACE_BITS, TOMBSTONE
from embstore.storage.trailer import TRAILER_BYTES, pack_trailer, read_index

_TRAILER_MAGIC = b"EMBS.END"
_INDEX_ENTRY_BYTES = 8
_RUN_BYTES = 24
_ALLOCATE_BYTES = 8 << 20
"""Space is reserved in pieces of this size, so that many commands share one system call."""


@dataclass
class Segment:
    """One log segment.

    `place` is the number that identifies the segment: the upper bits of the position of each of its
    records are this number (row_index.py). `commit` is the number of the commit that made the
    segment durable; 0: the segment is not durable yet.
    """

    number: int
    place: int
    file: File | None
    map: NDArray[np.uint8] = field(repr=False)  # printing it would read every page
    bytes: int  # of header and records so far; of the whole file once it is sealed
    records: int = 0
    commit: int = 0
    checksum: int = 0  # of the index, once sealed
    keys: list[Keys] = field(default_factory=list, repr=False)
    runs: list[tuple[int, int, int]] = field(default_factory=list)

    @property
    def path(self) -> str:
        """The file's path in the store."""
        return segment_path(self.number)

    def close(self) -> None:
        """Close the descriptor; the map stays valid."""
        if self.file is not None:
            self.file.close()
            self.file = None

    def keys_and_positions(self) -> tuple[Keys, NDArray[np.int64]]:
        """Return the key and position of every record, in the order of appending."""
        if not self.records:
            return np.empty(0, np.int64), np.empty(0, np.int64)
        keys = np.concatenate(self.keys)
        positions = np.empty(self.records, np.int64)
        ends = [run[0] for run in self.runs[1:]] + [self.records]
        for (first, offset, size), end in zip(self.runs, ends, strict=True):
            positions[first:end] = _positions(self.place, offset, end - first, size)
        return keys, positions


def _positions(place: int, offset: int, count: int, size: int) -> NDArray[np.int64]:
    """Return the positions of consecutive records of one size."""
    bits = (place << PLACE_BITS) | (TOMBSTONE if size == RECORD_HEADER_BYTES else 0)
    positions: NDArray[np.int64] = (offset + np.arange(count, dtype=np.int64) * size) | bits
    return positions


class SegmentWriter:
    """Appends records to one new segment. Only one thread uses it: the engine thread or the thread
    of a merge."""

    def __init__(
        self, files: Files, store_id: bytes, number: int, place: int, capacity: int
    ) -> None:
        file = files.create(segment_path(number))
        try:
            file.write(0, pack_header(LOG_MAGIC, store_id, number))
            file.truncate(capacity)  # sparse; a map must not reach beyond the file
            self.segment = Segment(number, place, file, file.map(capacity), PAGE_BYTES)
        except BaseException:
            file.close()
            raise
        self._file = file
        self._capacity = capacity
        self._allocated = PAGE_BYTES

    def fits(self, records: int, record_bytes: int) -> bool:
        """Return whether `records` more records of at most `record_bytes` each fit."""
        return self._end(records, record_bytes) <= self._capacity

    def reserve(self, records: int, record_bytes: int) -> None:
        """Reserve space for `records` more records, and for the index and trailer after them."""
        end = self._end(records, record_bytes)
        assert end <= self._capacity, "a segment was made too small for its records"
        if end > self._allocated:
            wanted = min(max(end, self._allocated + _ALLOCATE_BYTES), self._capacity)
            self._file.allocate(self._allocated, wanted - self._allocated)
            self._allocated = wanted

    def append(self, keys: Keys, records: NDArray[np.uint64]) -> NDArray[np.int64]:
        """Write packed records (n, words) in one piece; return the records' positions."""
        offset, positions = self.place(keys, 8 * records.shape[1])
        self.write(offset, records)
        return positions

    def place(self, keys: Keys, size: int) -> tuple[int, NDArray[np.int64]]:
        """Assign an offset to the next records, of `size` bytes each; return the offset and the
        records' positions."""
        segment = self.segment
        offset = segment.bytes
        if not segment.runs or segment.runs[-1][2] != size:
            segment.runs.append((segment.records, offset, size))
        segment.keys.append(keys.copy())
        segment.records += len(keys)
        segment.bytes += len(keys) * size
        return offset, _positions(segment.place, offset, len(keys), size)

    def write(self, offset: int, records: NDArray[np.uint64]) -> None:
        """Write packed records at the offset that `place` has returned. Any thread."""
        self._file.write(offset, records.data)

    def index(self) -> bytes:
        """Return the bytes of the index of all records, and of the trailer after it."""
        segment = self.segment
        runs = np.array(segment.runs, np.int64)
        index = b"".join([*(keys.data for keys in segment.keys), runs.data])
        segment.checksum = checksum(index)
        trailer = pack_trailer(
            _TRAILER_MAGIC,
            segment.number,
            segment.records,
            len(segment.runs),
            segment.bytes,
            segment.checksum,
        )
        return index + trailer

    def seal(self, index: bytes | None = None) -> Segment:
        """Write the index, free unused space, and return the finished segment. The index is made by
        this call unless it is given."""
        segment = self.segment
        index = self.index() if index is None else index
        self._file.write(segment.bytes, index)
        at, segment.bytes = segment.bytes, segment.bytes + len(index)
        self._file.truncate(segment.bytes)
        segment.map = self._file.map(segment.bytes)  # the old map reaches beyond the file now
        segment.keys = [segment.map[at : at + 8 * segment.records].view(np.int64)]
        return segment

    def _end(self, records: int, record_bytes: int) -> int:
        segment = self.segment
        index = (segment.records + records) * _INDEX_ENTRY_BYTES
        # Every append can start a run. A command appends only a few times: a page of runs suffices.
        runs = len(segment.runs) * _RUN_BYTES + PAGE_BYTES
        return segment.bytes + records * record_bytes + index + runs + TRAILER_BYTES


def capacity_for(records: int, record_bytes: int, segment_bytes: int) -> int:
    """Return a size of a new segment into which `records` records will certainly fit."""
    needed = 4 * PAGE_BYTES + records * (record_bytes + _INDEX_ENTRY_BYTES)
    return max(segment_bytes, -(-needed // PAGE_BYTES) * PAGE_BYTES)


def read_segment(files: Files, store_id: bytes, place: int, entry: SegmentEntry) -> Segment:
    """Open a sealed segment after checking it against the catalogue."""
    path, length = entry.path, entry.bytes
    if not files.exists(path):
        raise CorruptTableError(f"{path}: expected a log segment of {length} bytes, found none")
    with closing(files.open(path)) as file:
        check_segment_header(file, store_id, entry)
        index = read_segment_index(file, entry)
        mapped = file.map(length)
        keys = mapped[index.at : index.at + 8 * len(index.keys)].view(np.int64)
        return Segment(
            number=entry.number,
            place=place,
            file=None,
            map=mapped,
            bytes=length,
            records=len(keys),
            commit=entry.commit,
            checksum=entry.checksum,
            keys=[keys],
            runs=index.runs,
        )


class SegmentIndex(NamedTuple):
    """The key index of a sealed segment as it was read, and the index's offset `at`."""

    keys: Keys  # of each record
    runs: list[tuple[int, int, int]]
    at: int


def check_segment_header(file: File, store_id: bytes, entry: SegmentEntry) -> None:
    """Check that a file's header is that of the segment `entry` of this store."""
    found, *_ = unpack_header(file.read(0, PAGE_BYTES), LOG_MAGIC, store_id, file.path)
    if found != entry.number:
        raise CorruptTableError(f"{file.path}: the header is that of another segment")


def read_segment_index(file: File, entry: SegmentEntry) -> SegmentIndex:
    """Return the key index of a file after checking its size, trailer and index against `entry`."""
    records, runs, at, content = read_index(file, _TRAILER_MAGIC, entry)
    if len(content) != 8 * records + _RUN_BYTES * runs:
        raise CorruptTableError(f"{file.path}: expected an index of {records} keys and {runs} runs")
    keys = np.frombuffer(content, np.int64, records)
    table = np.frombuffer(content, np.int64, 3 * runs, 8 * records).reshape(runs, 3)
    return SegmentIndex(keys, [(int(a), int(b), int(c)) for a, b, c in table], at)


def record_sizes(segment: Segment, positions: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the sizes in bytes of the records at some positions of a segment."""
    offsets = positions & OFFSET_MASK
    starts = np.array([run[1] for run in segment.runs], np.int64)
    sizes = np.array([run[2] for run in segment.runs], np.int64)
    result: NDArray[np.int64] = sizes[np.searchsorted(starts, offsets, side="right") - 1]
    return result


def places_of(
    segments: list[Segment], positions: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.uint64]]:
    """Return the size in bytes and the address of the record at each position in some segments."""
    sizes = np.empty(len(positions), np.int64)
    addresses = np.empty(len(positions), np.uint64)
    places = positions >> PLACE_BITS
    for segment in segments:
        here = np.flatnonzero(places == segment.place)
        sizes[here] = record_sizes(segment, positions[here])
        offsets = (positions[here] & OFFSET_MASK).astype(np.uint64)
        addresses[here] = np.uint64(segment.map.ctypes.data) + offsets
    return sizes, addresses


def newest_in(segments: list[Segment]) -> tuple[Keys, NDArray[np.int64]]:
    """Return, in ascending order, the keys in some segments, and the position of each key's newest
    record."""
    parts = [segment.keys_and_positions() for segment in segments]
    keys = np.concatenate([k for k, _ in parts])
    positions = np.concatenate([p for _, p in parts])
    order = np.argsort(keys, kind="stable")
    keys = keys[order]
    last = np.append(keys[1:] != keys[:-1], True) if len(keys) else np.empty(0, bool)
    return keys[last], positions[order[last]]


def first_of(segments: list[Segment], size: int) -> list[Segment]:
    """Return segments from the first one on, until the next one would make more than `size` bytes
    in all. At least one segment is returned."""
    total = 0
    chosen: list[Segment] = []
    for segment in segments:
        total += segment.bytes
        if chosen and total > size:
            break
        chosen.append(segment)
    return chosen
