"""The segments of the command log, for the thread that has the engine: each has its room at once.

A segment gets all of its bytes when it is begun, so that a full disk refuses the command before it
changes anything, a sync has no new size to write, and a segment of another length was cut short.
The next one is as long as the log by then: so a short log takes little, and a long one has few
segments.

A segment whose records a commit has is written over: that is several times as fast as to write
where nothing was. Until then it has the name of a **spare**.
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
    """A segment that is appended to."""

    number: int
    file: File
    bytes: int
    end: int = PAGE_BYTES

    @property
    def left(self) -> int:
        """Bytes of it that no record has."""
        return self.bytes - self.end


class CommandSegments:
    """The segments that there are, behind those that were `read`. With the engine, but for
    `missing`."""

    def __init__(self, files: Files, store_id: bytes, read: RecordReader) -> None:
        self.newest: Segment | None = None
        """The segment that records are appended to; None: the next record begins one."""
        self.needed: Callable[[list[int]], int | None] = lambda numbers: None
        """Returns the first of the segments that are still read; None: none is."""
        self.numbers, self._spares = go_on_behind(files, read)
        self._files = files
        self._store_id = store_id
        self._number, self._end_before = read.end
        self._bytes_before = sum(read.ends.values())

    @property
    def bytes(self) -> int:
        """Bytes of all segments that no commit has."""
        return self._bytes_before + (self.newest.end if self.newest else 0)

    def missing(self) -> str:
        """Return a segment that is not there any more; "": all are. Any thread."""
        numbers, there = list(self.numbers), segment_numbers(self._files)
        gone = next((n for n in numbers if n not in there and n in self.numbers), None)
        return "" if gone is None else segment_path(gone)

    def reserve(self, size: int) -> None:
        """Make room for `size` bytes of records in the newest segment.

        Raises CapacityError: there is none; nothing has changed.
        """
        if self.newest is not None and self.newest.left < size:
            self.end()
        if self.newest is None:
            self.newest = self._begun(PAGE_BYTES + size)

    def end(self) -> None:
        """Let the next record be the first of a segment."""
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
        """Release the segments before one that a commit has begun, except needed ones; their
        records are written. Spares are kept, up to the number of segments that the log had at this
        commit."""
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
        """Begin a segment of `needed` bytes, or more."""
        number = self._number + 1
        self._files.make_directory(DIRECTORY)
        path = segment_path(number)
        # The last ones are the longest; should this fail, it is a spare no more.
        spare = spare_path(self._spares.pop()) if self._spares else ""
        if spare and self._files.exists(spare):
            self._files.rename(spare, path)
            file = self._files.open(path, write=True)
        else:
            file = self._files.create(path)
        try:
            # First: a file that is written over has lost its other names by then. And now: of two
            # names that wait for one sync, one may be lost without the other.
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
        """Reserve as many bytes as the log has by now; where there is no room for them, only
        `needed`. Return their number."""
        wanted = min(max(self._bytes_before, _SEGMENT_BYTES_LEAST), SEGMENT_BYTES)
        least, size = (-(-n // PAGE_BYTES) * PAGE_BYTES for n in (needed, max(needed, wanted)))
        try:
            file.allocate(0, size)
        except CapacityError:
            file.truncate(0)  # there may be a part of it
            file.allocate(0, size := least)
        return size
