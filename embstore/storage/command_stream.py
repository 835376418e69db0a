"""The command log as a stream of bytes, which a leader reads from its files and a standby parses.

The stream contains the bytes of the segments after their header pages, unchanged and in order. Each
piece is sent with the position at which it begins. Therefore a standby can check a record as
recovery does, by the record's magic number, position and checksums.
"""

import zlib
from collections.abc import Iterator
from contextlib import closing

from embstore.errors import CorruptTableError
from embstore.storage.command_records import (
    COMMAND,
    HEAD_BYTES,
    Place,
    Record,
    Unpacked,
    record_bytes,
    segment_path,
    unpacked,
)
from embstore.storage.files import File, Files
from embstore.storage.format import COMMANDS_MAGIC, PAGE_BYTES, unpack_header

START = PAGE_BYTES
"""The offset of a segment's first record."""


class SegmentReader:
    """Reads the log from a position on, never beyond its synced part. One thread at a time.

    The caller must prevent the release of segments from `place.segment` on.
    """

    def __init__(self, files: Files, store_id: bytes, place: Place) -> None:
        self.place = place
        """The position of the next bytes to read."""
        self._files = files
        self._store_id = store_id
        self._file: File | None = None

    def read(self, synced: Place, bytes_max: int) -> tuple[Place, bytes] | None:
        """Return the next bytes of one segment and their position; None: there are none yet."""
        while self.place < synced:
            end = synced.offset if self.place.segment == synced.segment else self._end()
            if self.place.offset < end:
                begin = self.place
                content = self._open().read(begin.offset, min(end - begin.offset, bytes_max))
                if not content:
                    raise CorruptTableError(f"{segment_path(begin.segment)}: shorter than it was")
                self.place = begin._replace(offset=begin.offset + len(content))
                return begin, content
            self.close()
            self.place = Place(self.place.segment + 1, START)
        return None

    def skip(self, synced: Place, command: int) -> None:
        """Skip to the first record that follows the command number `command`."""
        while self.place < synced:
            end = synced.offset if self.place.segment == synced.segment else self._end()
            while self.place.offset < end:
                head = self._head()
                if head.command > command:
                    return
                if head.command == command and head.kind != COMMAND:
                    return
                self.place = self.place._replace(offset=self.place.offset + record_bytes(head.size))
            if self.place.segment == synced.segment:
                return
            self.close()
            self.place = Place(self.place.segment + 1, START)

    def first_command(self) -> int:
        """Return the command number in the head of the next record."""
        return self._head().command

    def _head(self) -> Unpacked:
        segment, offset = self.place
        head = unpacked(self._open().read(offset, HEAD_BYTES), segment)
        if head is None:
            raise CorruptTableError(f"{segment_path(segment)}: expected a record at {offset}")
        return head

    def _end(self) -> int:
        """Return the end of the present segment, which the header of the next segment contains."""
        path = segment_path(self.place.segment + 1)
        with closing(self._files.open(path)) as file:
            page = file.read(0, PAGE_BYTES)
        return unpack_header(page, COMMANDS_MAGIC, self._store_id, path)[1]

    def _open(self) -> File:
        if self._file is None:
            self._file = self._files.open(segment_path(self.place.segment))
        return self._file

    def close(self) -> None:
        """Close the file that is being read. Closing twice is harmless."""
        if self._file is not None:
            self._file.close()
            self._file = None


class RecordStream:
    """Parses records from pieces of the log as the pieces arrive.

    Raises CorruptTableError if the bytes are no record, or do not follow the previous piece.
    """

    def __init__(self, body_bytes_max: int) -> None:
        self.place = Place(0, 0)
        """The end of the records that were parsed so far."""
        self._body_bytes_max = body_bytes_max
        self._rest = bytearray()

    def add(self, begin: Place, piece: bytes) -> Iterator[Record]:
        """Yield the records that are complete once this piece is added."""
        self._follow(begin)
        self._rest += piece
        at = 0
        while (record := self._whole(at)) is not None:
            at += record_bytes(len(record.body))
            self.place = self.place._replace(
                offset=self.place.offset + record_bytes(len(record.body))
            )
            yield record
        del self._rest[:at]

    def _follow(self, begin: Place) -> None:
        expected = self.place._replace(offset=self.place.offset + len(self._rest))
        is_next = begin.segment == self.place.segment + 1 and begin.offset == START
        if self.place.segment == 0 or (is_next and not self._rest):
            self.place = begin
        elif begin != expected:
            raise CorruptTableError(f"expected the log to go on at {expected}, found {begin}")

    def _whole(self, at: int) -> Record | None:
        """Return the record at offset `at` of the bytes that are not parsed yet; None: it is not
        complete."""
        if len(self._rest) - at < HEAD_BYTES:
            return None
        head = unpacked(bytes(self._rest[at : at + HEAD_BYTES]), self.place.segment)
        if head is None or head.size > self._body_bytes_max:
            raise CorruptTableError(f"expected a record of a command log at {self.place}")
        if len(self._rest) - at < record_bytes(head.size):
            return None
        body = bytes(self._rest[at + HEAD_BYTES : at + HEAD_BYTES + head.size])
        if zlib.crc32(body) != head.crc:
            raise CorruptTableError(f"the record at {self.place} is not what was written")
        path = f"{segment_path(self.place.segment)} (leader)"
        return Record(head.kind, head.command, body, path, head.life)
