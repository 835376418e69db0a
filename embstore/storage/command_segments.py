"""The segments of the command log. The whole space of a segment is allocated when it is begun.

Allocating all bytes of a segment at once has three effects: a full disk refuses a command before
the command changes anything; a sync has no new file size to write; and a segment of another length
is known to have been cut short. A new segment is as long as the log at that time, so that a short
log takes little space, and a long log has few segments.

Once a commit includes the records of a segment, the segment's file becomes a **spare**: it is
renamed, and a later segment overwrites it. That is several times as fast as writing to a new file.

All functions except `missing` run on the thread that has the engine.
"""

from collections.abc import Callable
from dataclasses import dataclass

from embstore.errors import CapacityError, StorageError
from embstore.storage.command_records import (
    DIRECTORY,
    RecordReader,
    go_on_behind,
    segment_numbers,
    segment_path,
    spare_path,
)
from embstore.storage.files import File, Files
from embstore.storage.format import COMMANDS_MAGIC, PAGE_BYTES, pack_header

SEGMENT_BYTES = 64 << 20
_SEGMENT_BYTES_LEAST = 64 << 10


@dataclass
class Segment:
    """The segment to which records are appended."""

    number: int
    file: File
    bytes: int
    end: int = PAGE_BYTES

    @property
    def left(self) -> int:
        """Bytes of the segment that no record occupies."""
        return self.bytes - self.end


class CommandSegments:
    """The existing segments of the command log. New segments follow the segments that were
    `read`."""

    def __init__(self, files: Files, store_id: bytes, read: RecordReader) -> None:
        self.newest: Segment | None = None
        """The segment to which records are appended; None: the next record begins a segment."""
        self.needed: Callable[[list[int]], int | None] = lambda numbers: None
        """A function that returns the first of the given segments that is still being read, or
        None."""
        self.numbers, self._spares = go_on_behind(files, read)
        self._files = files
        self._store_id = store_id
        self._number, self._end_before = read.end
        self._bytes_before = sum(read.ends.values())

    @property
    def bytes(self) -> int:
        """Bytes of all segments that contain records which are in no commit."""
        return self._bytes_before + (self.newest.end if self.newest else 0)

    def missing(self) -> str:
        """Return the path of a segment whose file was removed; "" if none was. Any thread."""
        numbers, there = list(self.numbers), segment_numbers(self._files)
        gone = next((n for n in numbers if n not in there and n in self.numbers), None)
        return "" if gone is None else segment_path(gone)

    def reserve(self, size: int) -> None:
        """Reserve `size` bytes for records in the newest segment, or in a new one.

        Raises CapacityError if there is not enough space; nothing has changed then.
        """
        if self.newest is not None and self.newest.left < size:
            self.end()
        if self.newest is None:
            self.newest = self._begun(PAGE_BYTES + size)

    def end(self) -> None:
        """End the newest segment: the next record will be the first of a new segment."""
        segment, self.newest = self.newest, None
        if segment is None:
            return
        if segment.end > PAGE_BYTES:
            self._end_before = segment.end
            self._bytes_before += segment.end
            return
        self.numbers.pop()
        self._number -= 1
        segment.file.close()
        self._files.discard(segment_path(segment.number))

    def forget(self, first: int) -> None:
        """Release the segments before segment `first` (the segment that a commit has begun), except
        segments that are still `needed`. All records of the released segments must have been
        written. The released segments become the spares, and earlier spares are removed."""
        needed = self.needed(list(self.numbers))
        first = first if needed is None else min(first, needed)
        old = [number for number in self.numbers if number < first]
        self.numbers = self.numbers[len(old) :]
        while self._spares:
            self._files.discard(spare_path(self._spares.pop()))
        for number in old:
            try:
                self._files.rename(segment_path(number), spare_path(number))
                self._spares.append(number)
            except (CapacityError, StorageError):
                self._files.discard(segment_path(number))
            self._files.reached("commands:removed")
        self._bytes_before = 0

    def _begun(self, needed: int) -> Segment:
        """Begin a segment of `needed` bytes or more."""
        number = self._number + 1
        self._files.make_directory(DIRECTORY)
        path = segment_path(number)
        # The last spare is the longest. If a step below fails, the file no longer is a spare.
        spare = spare_path(self._spares.pop()) if self._spares else ""
        if spare and self._files.exists(spare):
            self._files.rename(spare, path)
            file = self._files.open(path, write=True)
        else:
            file = self._files.create(path)
        try:
            # Before the file is overwritten, the disk must no longer have its old name. The sync
            # cannot be left to a later one: of two names that wait for a sync, one may be lost.
            self._files.sync_directory(DIRECTORY)
            size = file.size
            if size < needed:
                size = self._allocate(file, needed)
            header = number, self._end_before, size
            file.write(0, pack_header(COMMANDS_MAGIC, self._store_id, *header))
        except BaseException:
            file.close()
            self._files.discard(path)
            raise
        self.numbers.append(number)
        self._number = number
        return Segment(number, file, size)

    def _allocate(self, file: File, needed: int) -> int:
        """Allocate as many bytes as the log has at present, or only `needed` bytes if there is not
        enough space. Return the number of bytes."""
        wanted = min(max(self._bytes_before, _SEGMENT_BYTES_LEAST), SEGMENT_BYTES)
        least, size = (-(-n // PAGE_BYTES) * PAGE_BYTES for n in (needed, max(needed, wanted)))
        try:
            file.allocate(0, size)
        except CapacityError:
            file.truncate(0)  # a part may have been allocated
            file.allocate(0, size := least)
        return size
