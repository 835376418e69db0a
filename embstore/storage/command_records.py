"""Records of the command log: their form on the disk, and what a crash may have left of them.

    commands/000000000003.commands    header page (number, where the segment before ends), records

A record begins at a multiple of 64 bytes. Its head has 64 bytes: magic (4), kind (4), command
number (8), bytes of the body (8), **synced segment** and **synced offset** (16), CRC-32 of the body
(8), zero (8), CRC-32 of these 56 bytes and the segment's number (8). The body follows.

**Torn tails.** After a crash the last records may be there in part, or later ones without earlier
ones: nobody was told of them, so reading ends before the first that is not whole. A record that
*was* synced and is not whole is something else, damage, and acknowledged. Each record says how far
the log was synced when it was written, so any later one shows it. (In the last group there is no
later one: damage there cannot be told from a torn write.)

**Another life.** Who goes on after a crash writes again what was not known to be synced, and syncs
it: after a sync that failed the system has pages that it takes for clean, and that are not on the
disk. It removes the segments behind the torn tail (`go_on_behind`), and begins a segment of its
own, which says where the one before ended.
"""

import struct
import zlib
from collections.abc import Iterator, Sequence
from contextlib import closing
from typing import NamedTuple

from embstore.errors import CorruptTableError
from embstore.storage.files import File, Files
from embstore.storage.format import COMMANDS_MAGIC, PAGE_BYTES, unpack_header

DIRECTORY, _SUFFIX, _SPARE_SUFFIX = "commands", ".commands", ".spare"
_MAGIC = b"EMCR"
_HEAD = struct.Struct("<4sIQQQQQQQ")
HEAD_BYTES = _HEAD.size
_ALIGNMENT = 64
_SMALL_BYTES = 64 << 10
"""Parts of a record below this size are joined before they are written."""
_COPY_BYTES = 8 << 20

Part = bytes | memoryview

COMMAND, ANSWERS, FORGOTTEN, CHECKPOINT, LABELS = 1, 2, 3, 4, 5
"""Kinds of records: a command; answers; a session's place, forgotten; a label that was made; all
labels that are kept. A command has a number of its own, the others that of the command before."""


class Place(NamedTuple):
    """A place in the log, in its order."""

    segment: int
    offset: int


class Record(NamedTuple):
    """A record that was read."""

    kind: int
    command: int
    body: bytes
    path: str


def segment_path(number: int) -> str:
    """Return the path of a segment."""
    return f"{DIRECTORY}/{number:012d}{_SUFFIX}"


def spare_path(number: int) -> str:
    """Return the path of a segment that was given up, and is to be written over."""
    return f"{DIRECTORY}/{number:012d}{_SPARE_SUFFIX}"


def record_bytes(size: int) -> int:
    """Return what a record with a body of so many bytes takes."""
    return _HEAD.size + -(-size // _ALIGNMENT) * _ALIGNMENT


# Writing


def pieces_of(
    number: int, kind: int, command: int, synced: Place, parts: Sequence[Part]
) -> Iterator[Part]:
    """Yield a record of segment `number`, head and body, in pieces that are worth a call each."""
    size = crc = 0
    for part in parts:
        size += len(part)
        crc = zlib.crc32(part, crc)
    head = _HEAD.pack(_MAGIC, kind, command, size, *synced, crc, 0, 0)[:56]
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


def _head_crc(head: bytes, number: int) -> int:
    return zlib.crc32(head, number & 0xFFFFFFFF)


# Reading


class RecordReader:
    """Reads the records of all segments, in order, up to the torn tail if there is one.

    Raises CorruptTableError: a record that was durable is not whole.
    """

    def __init__(self, files: Files, store_id: bytes) -> None:
        self.end = Place(0, 0)
        """Where the records end that have been read."""
        self.synced = Place(0, 0)
        """Up to where they are known to be on the disk."""
        self._files = files
        self._store_id = store_id

    @property
    def is_empty(self) -> bool:
        """Whether there is no log."""
        return not segment_numbers(self._files)

    def __iter__(self) -> Iterator[Record]:
        numbers = _last_run(segment_numbers(self._files))
        for number in numbers:
            path = segment_path(number)
            with closing(self._files.open(path)) as file:
                before = self._begun(file, number)
                if before is None or (number > numbers[0] and before != self.end.offset):
                    break  # it goes on behind what is not whole
                self.end = Place(number, PAGE_BYTES)
                while (found := _record(file, number, self.end.offset)) is not None:
                    head, body = found
                    self.synced = max(self.synced, head.synced)
                    yield Record(head.kind, head.command, body, path)
                    self.end = Place(number, self.end.offset + record_bytes(len(body)))
        for number in numbers:
            if number >= self.end.segment:
                self._check_torn(number)

    def _begun(self, file: File, number: int) -> int | None:
        """Return where the segment before ended; None where the header was never written: of a
        file that was given up before it is that of another number."""
        page = file.read(0, PAGE_BYTES)
        if not any(page):
            return None
        found, before = unpack_header(page, COMMANDS_MAGIC, self._store_id, file.path)
        return before if found == number else None

    def _check_torn(self, number: int) -> None:
        """Check that no record behind the end says that the log was synced beyond it."""
        path = segment_path(number)
        with closing(self._files.open(path)) as file:
            first = self.end.offset if number == self.end.segment else PAGE_BYTES
            content = file.read(first, file.size)
        at = content.find(_MAGIC)
        while at >= 0:
            head = None if at % _ALIGNMENT else unpacked(content[at : at + _HEAD.size], number)
            if head is not None and head.synced > self.end:
                raise CorruptTableError(
                    f"{segment_path(self.end.segment)}: the record at {self.end.offset} is not "
                    "what was written; commands that were acknowledged cannot be read"
                )
            at = content.find(_MAGIC, at + 1)


class Unpacked(NamedTuple):
    """The head of a record."""

    kind: int
    command: int
    size: int
    synced: Place
    crc: int


def unpacked(data: bytes, number: int) -> Unpacked | None:
    """Return the head of a record of a segment; None if it is none."""
    if len(data) < _HEAD.size:
        return None
    magic, kind, command, size, segment, offset, crc, _, own = _HEAD.unpack(data)
    if magic != _MAGIC or own != _head_crc(data[:56], number):
        return None
    return Unpacked(kind, command, size, Place(segment, offset), crc)


def _record(file: File, number: int, offset: int) -> tuple[Unpacked, bytes] | None:
    """Return the record at an offset; None if there is no whole one."""
    head = unpacked(file.read(offset, _HEAD.size), number)
    if head is None:
        return None
    body = file.read(offset + _HEAD.size, head.size)
    if len(body) < head.size or zlib.crc32(body) != head.crc:
        return None
    return head, body


def segment_numbers(files: Files) -> list[int]:
    """Return the numbers of the segments that are there, ascending."""
    return _numbers(files, _SUFFIX)


def _numbers(files: Files, suffix: str) -> list[int]:
    names = [name for name in files.list(DIRECTORY) if name.endswith(suffix)]
    return sorted(int(n) for name in names if (n := name.removesuffix(suffix)).isdigit())


def remove_segments(files: Files) -> None:
    """Remove all segments: what they have is committed."""
    for number in segment_numbers(files):
        files.discard(segment_path(number))
    for number in _numbers(files, _SPARE_SUFFIX):
        files.discard(spare_path(number))
    if files.exists(DIRECTORY):
        files.sync_directory(DIRECTORY)  # or they come back beside others


def _last_run(numbers: list[int]) -> list[int]:
    """Return the last numbers that follow each other: of those that were being removed some may be
    left."""
    first = len(numbers)
    while first and (first == len(numbers) or numbers[first - 1] + 1 == numbers[first]):
        first -= 1
    return numbers[first:]


def go_on_behind(files: Files, read: RecordReader) -> tuple[list[int], list[int]]:
    """Make what was read durable, remove what is behind it, and return the numbers of segments and
    spares."""
    numbers = segment_numbers(files)
    for number in reversed(numbers):
        if number > read.end.segment:
            files.remove(segment_path(number))
    kept = [number for number in numbers if number <= read.end.segment]
    for number in kept:
        if number >= read.synced.segment:
            first = read.synced.offset if number == read.synced.segment else 0
            with closing(files.open(segment_path(number), write=True)) as file:
                _write_again(file, first, read.end.offset if number == read.end.segment else None)
    spares = _numbers(files, _SPARE_SUFFIX)
    usable = [n for n in spares if n < read.end.segment and n not in kept]
    for number in spares:
        if number not in usable:  # of another log, or a second name of a file that is needed
            files.remove(spare_path(number))
    if numbers or spares:
        files.sync_directory(DIRECTORY)
    return kept, usable


def _write_again(file: File, first: int, end: int | None) -> None:
    end = file.size if end is None else end
    for at in range(first, end, _COPY_BYTES):
        file.write(at, file.read(at, min(_COPY_BYTES, end - at)))
    file.sync()


def segment_bytes(files: Files, number: int) -> int:
    """Return the size of a segment."""
    with closing(files.open(segment_path(number))) as file:
        return file.size
