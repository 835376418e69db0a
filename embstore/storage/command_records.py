"""Records of the command log: their form on the disk, and reading them after a crash.

    commands/000000000003.commands    header page (number, the end of the segment before, bytes of
                                      this segment), records

A record begins at a multiple of 64 bytes. Its head has 64 bytes: magic (4), kind (4), command
number (8), bytes of the body (8), **synced segment** and **synced offset** (16), CRC-32 of the body
(8), the command's life (8; lives.py), CRC-32 of these 56 bytes and the segment's number (8). The
body follows.

**Torn tails.** After a crash the last records may exist in part, or later records may exist without
earlier ones. None of these records was acknowledged, so reading ends before the first record that
is not whole. If a record is not whole although it *was* synced, acknowledged data is damaged. Later
records distinguish the two cases: each record contains the position up to which the log was synced
when the record was written. (No record follows the last group of records that were synced together,
so damage in that group cannot be distinguished from a torn write.)

**Missing and cut segments.** A segment is *sure* once its header, its length and its first records
are on the disk. The catalogue names a sure segment; for every later segment that becomes sure, a
last record (NEXT) is written to the segment before it. The commands of the later segment are
acknowledged only after that. Therefore every segment that may contain acknowledged commands is
known to have begun. If such a segment is missing, or its first records are not whole, acknowledged
commands are lost, which is damage. A segment always has the length that its header records; a
segment of another length was cut short. The remaining part is read, and the reader reports the
segment (`cut`), because commands may be lost.

A crash may leave the header of a segment without its first record. Such a segment counts as not
begun, unless it is sure: the log ends in the segment before, and the next process (a later life)
begins the segment anew. If that process appended to the segment instead, a segment without a first
record would become sure.

**Another life.** A process that continues after a crash writes and syncs again the records that
were not known to be synced. This is necessary because, after a failed sync, the system may take
pages in memory for clean although they are not on the disk. The process then removes the segments
after the torn tail (`go_on_behind`) and begins a new segment, whose header contains the end of the
segment before.
"""

import struct
import zlib
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing
from typing import NamedTuple

import numpy as np

from embstore.errors import CorruptTableError
from embstore.storage.files import File, Files
from embstore.storage.format import COMMANDS_MAGIC, PAGE_BYTES, unpack_header

DIRECTORY, _SUFFIX, _SPARE_SUFFIX = "commands", ".commands", ".spare"
_MAGIC = b"EMCR"
_HEAD = struct.Struct("<4sIQQQQQQQ")
HEAD_BYTES = _HEAD.size
_ALIGNMENT = 64
_SMALL_BYTES = 64 << 10
"""The parts of a record that are smaller than this are joined before they are written."""
_COPY_BYTES = 8 << 20

Part = bytes | memoryview

COMMAND, ANSWERS, FORGOTTEN, CHECKPOINT, LABELS, NEXT = 1, 2, 3, 4, 5, 6
"""Kinds of records: a command; answers; a note that the resume position of a session was forgotten;
a note that a label was made; the list of all kept labels; a note that the next segment has begun. A
command's record contains the command's number. A record of another kind contains the number of the
last command before the record, but NEXT contains 0."""


class Place(NamedTuple):
    """A position in the log. Positions compare in the order of the log."""

    segment: int
    offset: int


class Record(NamedTuple):
    """A record that was read."""

    kind: int
    command: int
    body: bytes
    path: str
    life: int = 0
    """For a command: the id of the process (life) that gave the command its number (lives.py)."""


def segment_path(number: int) -> str:
    """Return the path of a segment."""
    return f"{DIRECTORY}/{number:012d}{_SUFFIX}"


def spare_path(number: int) -> str:
    """Return the path of a released segment, which will be overwritten."""
    return f"{DIRECTORY}/{number:012d}{_SPARE_SUFFIX}"


def record_bytes(size: int) -> int:
    """Return the bytes of a record with a body of `size` bytes."""
    return _HEAD.size + -(-size // _ALIGNMENT) * _ALIGNMENT


# Writing


def pieces_of(
    number: int, kind: int, command: int, synced: Place, parts: Sequence[Part], life: int = 0
) -> Iterator[Part]:
    """Yield a record of segment `number`, head and body, in pieces to be written one by one.

    Small parts are joined, so that each piece is large enough for a system call.
    """
    size = crc = 0
    for part in parts:
        size += len(part)
        crc = zlib.crc32(part, crc)
    head = _HEAD.pack(_MAGIC, kind, command, size, *synced, crc, life, 0)[:56]
    small: list[Part] = [head, struct.pack("<Q", _head_crc(head, number))]
    for part in parts:
        if len(part) < _SMALL_BYTES:
            small.append(part)
            continue
        if small:
            yield b"".join(small)
            small = []
        yield part
    if small:
        yield b"".join(small)


def next_record(number: int, synced: Place) -> bytes:
    """Return the record NEXT, which ends segment `number` and shows that the next segment has
    begun."""
    return b"".join(pieces_of(number, NEXT, 0, synced, ()))


def _head_crc(head: bytes, number: int) -> int:
    return zlib.crc32(head, number & 0xFFFFFFFF)


# Reading


class RecordReader:
    """Reads the records of all segments, in order, up to the torn tail if there is one.

    `begin` is from the catalogue: the first segment to read, and the position up to which the log
    was durable at the commit; None: there is no log.

    Raises CorruptTableError if a record that was durable is not whole, or if a segment is missing.
    """

    def __init__(self, files: Files, store_id: bytes, begin: Place | None) -> None:
        self.end = Place(0, 0)
        """The end of the records that were read so far."""
        self.synced = begin or Place(0, 0)
        """The position up to which records are known to be on the disk."""
        self.ends: dict[int, int] = {}
        """The end of the records in each segment that was read, by segment number."""
        self.bytes: dict[int, int] = {}
        """The full length of each segment that was read, by segment number."""
        self.sure: set[int] = set()
        """Numbers of the segments that are known to have begun."""
        self.cut: dict[int, str] = {}
        """A message for each segment that was cut short, by segment number."""
        self.begin = begin
        self._files = files
        self._store_id = store_id

    def __iter__(self) -> Iterator[Record]:
        if self.begin is None:
            return
        numbers = segment_numbers(self._files)
        number, is_sure = self.begin.segment, True
        while is_sure or number in numbers:
            path = segment_path(number)
            if number not in numbers:
                raise CorruptTableError(
                    f"{path}: missing; it may have had acknowledged commands: put it back, or "
                    "restore a backup; with read_only=True the store opens at its last commit"
                )
            with closing(self._files.open(path)) as file:
                if not self._begins(file, number, is_sure):
                    break  # the log was continued after a record that is not whole
                is_sure = yield from self._records(file, number)
            number += 1
        for number in numbers:
            if number >= self.end.segment:
                self._check_torn(number)

    def _begins(self, file: File, number: int, is_sure: bool) -> bool:
        """Begin to read a segment. Return False if the log ends before the segment. In that case,
        no record of the segment was acknowledged, and the segment either does not follow the last
        segment or has no first record."""
        found, before, size = self._header(file, number)
        is_first = not self.ends
        is_next = found == number and (is_first or before == self.end.offset)
        if is_sure and not is_next:
            raise self._damaged(file.path, 0)
        if not is_sure and not (is_next and _record(file, number, PAGE_BYTES)):
            return False
        if is_sure:
            self.sure.add(number)
            if file.size != size:
                self.cut[number] = f"{file.path} has {file.size} bytes, and had {size}"
        self.bytes[number], self.end = size, Place(number, PAGE_BYTES)
        return True

    def _header(self, file: File, number: int) -> tuple[int, int, int]:
        """Return three numbers of a segment's header: the segment's number, the end of the segment
        before, and the bytes of the segment. All three are 0 if the header was never written."""
        page = file.read(0, PAGE_BYTES)
        if not any(page):
            return 0, 0, 0
        return unpack_header(page, COMMANDS_MAGIC, self._store_id, file.path)

    def _records(self, file: File, number: int) -> Generator[Record, None, bool]:
        """Yield the records of a segment; return whether the segment ends with NEXT, which shows
        that the next segment has begun."""
        is_followed = False
        while (found := _record(file, number, self.end.offset)) is not None:
            head, body = found
            self.synced = max(self.synced, head.synced)
            if is_followed := head.kind == NEXT:
                break
            yield Record(head.kind, head.command, body, file.path, head.life)
            self.end = Place(number, self.end.offset + record_bytes(len(body)))
        least = PAGE_BYTES + HEAD_BYTES if self.ends or self.begin is None else self.begin.offset
        if number in self.sure and self.end.offset < least:
            raise self._damaged(file.path, self.end.offset)
        self.ends[number] = self.end.offset
        return is_followed

    def _check_torn(self, number: int) -> None:
        """Check that no record after `end` shows that the log was synced beyond `end`."""
        path = segment_path(number)
        with closing(self._files.open(path)) as file:
            first = self.end.offset if number == self.end.segment else PAGE_BYTES
            for at in range(first, file.size, _COPY_BYTES):
                if _is_beyond(file.read(at, _COPY_BYTES), number, self.end):
                    raise self._damaged(segment_path(self.end.segment), self.end.offset)

    def _damaged(self, path: str, offset: int) -> CorruptTableError:
        return CorruptTableError(
            f"{path}: the record at {offset} is not what was written; acknowledged commands "
            "cannot be read: restore a backup"
        )


def _is_beyond(content: bytes, number: int, end: Place) -> bool:
    """Return whether a record in a piece of a segment shows that the log was synced beyond `end`.

    The piece may be old content of an overwritten segment. Therefore every multiple of 64 bytes is
    searched for a head, rather than one record after another.
    """
    words = np.frombuffer(content, "<u8", len(content) // _ALIGNMENT * 8).reshape(-1, 8)
    segments, offsets = words[:, 3], words[:, 4]
    is_beyond = (segments > end.segment) | ((segments == end.segment) & (offsets > end.offset))
    is_beyond &= (words[:, 0] & 0xFFFFFFFF) == int.from_bytes(_MAGIC, "little")
    places = (np.flatnonzero(is_beyond) * _ALIGNMENT).tolist()
    return any(unpacked(content[at : at + HEAD_BYTES], number) is not None for at in places)


class Unpacked(NamedTuple):
    """The decoded head of a record."""

    kind: int
    command: int
    size: int
    synced: Place
    crc: int
    life: int


def unpacked(data: bytes, number: int) -> Unpacked | None:
    """Decode the head of a record of a segment; None if the bytes are no valid head."""
    if len(data) < _HEAD.size:
        return None
    magic, kind, command, size, segment, offset, crc, life, own = _HEAD.unpack(data)
    if magic != _MAGIC or own != _head_crc(data[:56], number):
        return None
    return Unpacked(kind, command, size, Place(segment, offset), crc, life)


def _record(file: File, number: int, offset: int) -> tuple[Unpacked, bytes] | None:
    """Return the record at an offset; None if there is no whole record."""
    head = unpacked(file.read(offset, _HEAD.size), number)
    if head is None:
        return None
    body = file.read(offset + _HEAD.size, head.size)
    if len(body) < head.size or zlib.crc32(body) != head.crc:
        return None
    return head, body


def segment_numbers(files: Files) -> list[int]:
    """Return the numbers of the existing segments, ascending."""
    return _numbers(files, _SUFFIX)


def _numbers(files: Files, suffix: str) -> list[int]:
    names = [name for name in files.list(DIRECTORY) if name.endswith(suffix)]
    return sorted(int(n) for name in names if (n := name.removesuffix(suffix)).isdigit())


def remove_segments(files: Files) -> None:
    """Remove all segments, after their commands were committed."""
    for number in segment_numbers(files):
        files.discard(segment_path(number))
    for number in _numbers(files, _SPARE_SUFFIX):
        files.discard(spare_path(number))
    if files.exists(DIRECTORY):
        files.sync_directory(DIRECTORY)  # else they could reappear, together with later segments


def go_on_behind(files: Files, read: RecordReader) -> tuple[list[int], list[int]]:
    """Make the records that were read durable, and record that their segments have begun; remove
    later segments. Return the numbers of the remaining segments, and the numbers of the spare
    segments, which can be overwritten."""
    numbers = segment_numbers(files)
    for number in reversed(numbers):
        if number > read.end.segment:
            files.remove(segment_path(number))
    kept = [number for number in numbers if number <= read.end.segment]
    for number in reversed(read.ends):  # a segment becomes sure before its predecessor gets NEXT
        is_sound = number + 1 in read.sure and number not in read.cut
        if number >= read.synced.segment or not is_sound:
            with closing(files.open(segment_path(number), write=True)) as file:
                _write_again(file, number, read)
    spares = _numbers(files, _SPARE_SUFFIX)
    usable = [n for n in spares if n < read.end.segment and n not in kept]
    for number in spares:
        if number not in usable:  # it is from another log, or a second name of a needed file
            files.remove(spare_path(number))
    if numbers or spares:
        files.sync_directory(DIRECTORY)
    return kept, usable


def _write_again(file: File, number: int, read: RecordReader) -> None:
    end = read.ends[number]
    first = 0 if number > read.synced.segment else read.synced.offset
    first = end if number < read.synced.segment else first
    if file.size != read.bytes[number]:
        file.truncate(read.bytes[number])
    for at in range(first, end, _COPY_BYTES):
        file.write(at, file.read(at, min(_COPY_BYTES, end - at)))
    if number != read.end.segment:
        file.write(end, next_record(number, read.end))
    file.sync()


def segment_bytes(files: Files, number: int) -> int:
    """Return the size of a segment."""
    with closing(files.open(segment_path(number))) as file:
        return file.size
