"""The write-back log: segments that are not folded, and the index of their newest records.

A dirty row that leaves the cache is appended to the current segment and indexed; a row that is not
in the cache is found through the index. Segments are ordered, and only the latest record of a key
is valid. Each segment has a **place**, a small number that is part of the positions of its records.
A place is reused only when no index entry and no merge can refer to it.

`live` counts, per place, the records to which the index points. These counts are exact for the
state in memory. A kept checkpoint may need a record that a newer record in memory has superseded.
Therefore, when a checkpoint is made, the counts of its segments are **frozen** at the number of
records that the checkpoint needs.

Memory: one index entry per distinct row since the last fold, bounded by `rows_max`.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from functools import partial

import numpy as np
from numpy.typing import NDArray

from embstore.arrays import Keys
from embstore.errors import CapacityError
from embstore.storage.catalogue import SegmentEntry
from embstore.storage.files import Files
from embstore.storage.row_index import PLACE_BITS, RowIndex
from embstore.storage.segment import Segment, SegmentWriter, capacity_for, read_segment

SLICE_KEYS = 1 << 15
"""A finished merge is installed in slices; each slice handles this number of index entries."""

_NOTHING = nullcontext()


class Log:
    """All log segments of a store.

    Engine thread only, but a merge's thread reads the maps of sealed segments. `irreversible` is a
    context manager: an error inside its block fails the store.
    """

    def __init__(
        self,
        files: Files,
        store_id: bytes,
        *,
        segment_bytes: int,
        rows_max: int,
        irreversible: AbstractContextManager[None] = _NOTHING,
    ) -> None:
        self.index = RowIndex()
        self.segments: list[Segment] = []  # sealed, oldest first
        self.next_number = 1
        self.changes = 0  # grows whenever the segments or their commits change
        self.forgetful = False  # whether the index lacks entries that the last commit contains
        self.live = np.zeros(64, np.int64)
        self._frozen = np.zeros(64, np.uint8)
        self._addresses = np.zeros(64, np.uint64)
        self._writer: SegmentWriter | None = None
        self._files = files
        self._store_id = store_id
        self._segment_bytes = segment_bytes
        self._rows_max = rows_max
        self._irreversible = irreversible
        self._free_places = list(range(63, -1, -1))

    @property
    def bytes(self) -> int:
        """Bytes of all segments, including the current one."""
        return sum(segment.bytes for segment in self._all)

    @property
    def records(self) -> int:
        """Number of records in all segments, including the current one."""
        return sum(segment.records for segment in self._all)

    @property
    def arrays(self) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.uint64]]:
        """The arrays by which a kernel finds a record: the two tables of the index, and, by place,
        the address of the segment's map."""
        return (*self.index.tables, self._addresses)

    @property
    def maps(self) -> list[NDArray[np.uint8]]:
        """The memory maps of all segments, including the current one."""
        return [segment.map for segment in self._all]

    @property
    def _all(self) -> list[Segment]:
        return [*self.segments, self._writer.segment] if self._writer else self.segments

    @property
    def appending_records(self) -> int:
        """Number of records in the current segment."""
        return self._writer.segment.records if self._writer is not None else 0

    @property
    def uncommitted(self) -> list[Segment]:
        """Sealed segments that no commit has made durable yet."""
        return [s for s in self.segments if not s.commit]

    @property
    def uncommitted_bytes(self) -> int:
        """Bytes of records that no commit has made durable yet."""
        return self.bytes - sum(s.bytes for s in self.segments if s.commit)

    def unsynced(self) -> list[str]:
        """Return the paths of segments that no commit has made durable yet."""
        writing = [self._writer.segment] if self._writer else []
        return [segment.path for segment in (*self.uncommitted, *writing)]

    def load(self, entry: SegmentEntry) -> None:
        """Open a committed segment, and index its keys. The segment must be newer than all loaded
        segments."""
        segment = read_segment(self._files, self._store_id, self._take_place(), entry)
        self._addresses[segment.place] = segment.map.ctypes.data
        self.segments.append(segment)
        self.index.put(*segment.keys_and_positions(), self.live, self._frozen)

    def freeze(self) -> None:
        """Freeze the counts of the sealed segments, because a checkpoint needs the segments'
        records."""
        for segment in self.segments:
            self._frozen[segment.place] = 1

    def mark_committed(self, commit: int) -> None:
        """Record that a commit made the sealed segments durable. Close the files of these segments;
        their maps stay open."""
        for segment in self.uncommitted:
            segment.commit = commit
            segment.close()
        self.forgetful = False
        self.changes += 1

    def is_frozen(self, segment: Segment) -> bool:
        """Return whether the count of a segment is frozen, because a kept checkpoint needs the
        segment."""
        return bool(self._frozen[segment.place])

    def reserve(self, records: int, record_bytes: int, *, bounded: bool = True) -> None:
        """Reserve space, so that the method `place` can then add `records` records of at most
        `record_bytes` each.

        Raises CapacityError if the disk is full or the index would exceed its limit; nothing has
        changed then.
        """
        if bounded and self.index.size + records > self._rows_max:
            raise CapacityError(
                f"the log index has {self.index.size} rows of at most {self._rows_max}: make a "
                "checkpoint, which merges rows into the base, or raise limits.log_rows_max"
            )
        if self._writer is not None and not self._writer.fits(records, record_bytes):
            self.seal()
        if self._writer is None:
            capacity = capacity_for(records, record_bytes, self._segment_bytes)
            self._writer = self.new_writer(capacity)
        self._writer.reserve(records, record_bytes)

    def place(self, keys: Keys, record_bytes: int) -> Callable[[NDArray[np.uint64]], None]:
        """Index the next records, and return the function that writes the packed records to their
        offset. The keys must be unique.

        `reserve` must have been called. Any thread can write the records, but they must be written
        before the next read.
        """
        assert self._writer is not None
        offset, positions = self._writer.place(keys, record_bytes)
        self.index.put(keys, positions, self.live, self._frozen)
        return partial(self._writer.write, offset)

    def new_writer(self, capacity: int) -> SegmentWriter:
        """Start the file of a new segment. Only the returned writer uses the file until it is
        sealed."""
        number, self.next_number = self.next_number, self.next_number + 1
        self._files.make_directory("log")
        place = self._take_place()
        try:
            writer = SegmentWriter(self._files, self._store_id, number, place, capacity)
        except BaseException:
            self._free_places.append(place)
            raise
        self._addresses[place] = writer.segment.map.ctypes.data
        return writer

    def seal(self) -> None:
        """Finish the current segment, if there is one. The finished segment is not durable yet."""
        if self._writer is not None:
            index = self._writer.index()
            with self._irreversible:  # sealing replaces a map whose address is in use
                segment = self._writer.seal(index)
                self._addresses[segment.place] = segment.map.ctypes.data
                self.segments.append(segment)
                self._writer = None
            self.changes += 1

    def replace(
        self,
        old: list[Segment],
        new: Segment | None,
        keys: Keys,
        olds: NDArray[np.int64],
    ) -> Iterator[int]:
        """Replace merged segments by one new segment, or by none, in slices. Yield the number of
        index entries that were handled so far. Between slices some entries point to old records,
        and others to new records; both records of a row have the same content.

        keys, olds : (n,) the row keys and the old positions of the kept records; `new` has the
        records in the same order. In the order of segments, the new segment takes the position of
        the newest old segment: its records are newer than all records of older segments, and no
        newer record has one of its keys. No count may be frozen until all slices are done.
        """
        news = np.full(len(keys), -1, np.int64) if new is None else new.keys_and_positions()[1]
        if new is not None:
            self._addresses[new.place] = new.map.ctypes.data
        for low in range(0, len(keys), SLICE_KEYS):
            part = slice(low, low + SLICE_KEYS)
            self.index.repoint(keys[part], olds[part], news[part], self.live)
            yield min(low + SLICE_KEYS, len(keys))
        at = max(self.segments.index(segment) for segment in old)
        if new is not None:
            if self.is_frozen(old[0]):
                self._frozen[new.place] = 1
                self.live[new.place] = new.records
            self.segments.insert(at + 1, new)
        for segment in old:
            self.segments.remove(segment)
            self._retire(segment)
        self.changes += 1

    def forget_table(self, low: int, high: int) -> None:
        """Drop the index entries of row keys in [low, high); the records of these keys then count
        as dead."""
        keys = self.index.keys_between(low, high)
        olds = self.index.positions_of(keys)
        places = olds >> PLACE_BITS
        np.subtract.at(self.live, places[self._frozen[places] == 0], 1)
        self.forgetful = self.forgetful or len(keys) > 0
        self.index.repoint(keys, olds, np.full(len(keys), -1, np.int64), self.live)

    def check_integrity(self) -> None:
        """Raise AssertionError unless `live` is equal to the number of index entries per place."""
        counted = np.bincount(self.index.positions() >> PLACE_BITS, minlength=len(self.live))
        for segment in self._all:
            live, found = int(self.live[segment.place]), int(counted[segment.place])
            right = live >= found if self.is_frozen(segment) else live == found
            if not right or live > segment.records:
                raise AssertionError(
                    f"{segment.path}: {live} live of {segment.records} records, the index has "
                    f"{found}"
                )
        if counted.sum() != sum(counted[segment.place] for segment in self._all):
            raise AssertionError("the log index points to a segment that is gone")

    def close(self) -> None:
        """Close all descriptors. Nothing is sealed, synced or removed."""
        for segment in self._all:
            segment.close()

    def _take_place(self) -> int:
        """Return a free place, after setting its count to 0."""
        if not self._free_places:
            size = len(self.live)
            self.live = np.concatenate([self.live, np.zeros(size, np.int64)])
            self._frozen = np.concatenate([self._frozen, np.zeros(size, np.uint8)])
            self._addresses = np.concatenate([self._addresses, np.zeros(size, np.uint64)])
            self._free_places = list(range(2 * size - 1, size - 1, -1))
        place = self._free_places.pop()
        self.live[place] = self._frozen[place] = 0
        return place

    def abandon(self, writer: SegmentWriter) -> None:
        """Remove a segment that a merge has written, and to which no position refers."""
        self._retire(writer.segment)
        self._files.discard(writer.segment.path)

    def _retire(self, segment: Segment) -> None:
        segment.close()
        self._free_places.append(segment.place)
