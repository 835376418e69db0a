"""The files of the command log: records in order, on the disk before anybody relies on them.

What a record is, command_records.py says.

**Group commit.** A thread writes what waits, and syncs it; what comes meanwhile is written and
synced together next. There is no timer: a record that comes alone waits for its own sync, and the
busier the store, the more records share one. With `sync_every_s` records are written at once, and
synced that often.

Room is set aside before a command changes anything (`reserve`): a segment gets all of its bytes
when it is begun, so that a full disk refuses the command, a sync has no new size to write, and a
segment of another length was cut short. The next one is as long as the log by then: so a short log
takes little, and a long one has few segments.

**Removed.** A segment that nobody finds by its name any more is lost with the process. So each sync
looks whether it is still there, before anything that it has is acknowledged.
"""

import errno
import threading
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from time import monotonic
from typing import NamedTuple

from embstore.errors import CapacityError, EmbstoreError, StorageError, StoreClosedError
from embstore.storage.command_records import (
    DIRECTORY,
    HEAD_BYTES,
    Part,
    Place,
    RecordReader,
    go_on_behind,
    next_record,
    pieces_of,
    record_bytes,
    segment_numbers,
    segment_path,
    spare_path,
)
from embstore.storage.files import File, Files, removed
from embstore.storage.format import COMMANDS_MAGIC, PAGE_BYTES, pack_header

SEGMENT_BYTES = 64 << 20
_SEGMENT_BYTES_LEAST = 64 << 10
_PROMPT_BYTES = 16 << 10
_PAUSE_S = 0.1
_QUEUED_BYTES_MAX = 256 << 20
"""What may wait to be written: then commands wait for the disk."""


@dataclass
class _Segment:
    """A segment that is appended to."""

    number: int
    file: File
    bytes: int
    end: int = PAGE_BYTES


class _Waiting(NamedTuple):
    """A record that waits to be written."""

    segment: _Segment
    offset: int
    kind: int
    command: int
    parts: Sequence[Part]
    size: int


class CommandFiles:
    """Appends records. `reserve`, `append` and `begin_segment` with the engine, the rest any
    thread.

    One class, because what waits, what is written and what is durable change under one lock.

    Parameters
    ----------
    read : the records that are there, which have been read; it goes on behind them
    sync_every_s : how long a record may be written and not yet synced; 0: not at all
    failed : called once, on the log's thread, with what made it fail
    """

    def __init__(
        self,
        files: Files,
        store_id: bytes,
        read: RecordReader,
        *,
        sync_every_s: float = 0.0,
        failed: Callable[[EmbstoreError], None],
    ) -> None:
        self.appended = 0
        """Records so far: the mark of the last one."""
        self.written = 0
        """The mark up to which records are written."""
        self.durable = 0
        """The mark up to which records are on the disk."""
        self.syncs = 0
        """Syncs so far, each of all records that were written."""
        self.progressed: Callable[[], None] = lambda: None
        """Called on the log's thread after each sync, and when it has failed."""
        self.needed: Callable[[list[int]], int | None] = lambda numbers: None
        """Returns the first of the segments that somebody still reads; None: nobody does. With the
        engine."""
        self.failure: EmbstoreError | None = None
        self._files = files
        self._store_id = store_id
        self._sync_every_s = sync_every_s
        self._failed = failed
        self._numbers, self._spares = go_on_behind(files, read)
        end = read.end
        self._segment: _Segment | None = None
        self._number = end.segment
        self._end_before = end.offset  # of the newest segment, before the next one
        self._bytes_before = sum(read.ends.values())
        self._changed = threading.Condition()
        self._queue: list[_Waiting] = []
        self._queued_bytes = 0
        self._is_closing = False
        self._open: dict[int, _Segment] = {}  # of the log's thread, by number; NEXT is missing
        if end.segment:
            file = files.open(segment_path(end.segment), write=True)
            self._open[end.segment] = _Segment(end.segment, file, 0, end.offset)
        self._unsynced: dict[int, _Segment] = {}
        self._sync_at = 0.0
        self._sync_now = 0  # the mark up to which somebody waits for it
        self._synced = self._end = end
        self._thread = threading.Thread(target=self._run, name="command log", daemon=True)
        self._thread.start()

    @property
    def synced(self) -> Place:
        """Where the log is on the disk; at least up to `durable`, if that was read before. Any
        thread."""
        return self._synced

    @property
    def numbers(self) -> list[int]:
        """The segments that are there. With the engine."""
        return list(self._numbers)

    @property
    def bytes(self) -> int:
        """Bytes of all segments that no commit has."""
        return self._bytes_before + (self._segment.end if self._segment else 0)

    def missing(self) -> str:
        """Return a segment that is not there any more; "": all are. Any thread."""
        numbers, there = list(self._numbers), segment_numbers(self._files)
        gone = next((n for n in numbers if n not in there and n in self._numbers), None)
        return "" if gone is None else segment_path(gone)

    # Appending

    def reserve(self, size: int) -> None:
        """Set aside room for a record with a body of so many bytes, at most.

        Raises
        ------
        CapacityError : no room; nothing has changed.
        StorageError, StoreClosedError : the log has failed, or is closed.
        """
        with self._changed:
            self._check_going()
            while self._queued_bytes > _QUEUED_BYTES_MAX:
                self._changed.wait()
                self._check_going()
        needed = record_bytes(size) + HEAD_BYTES  # and for a last record
        if self._segment is not None and self._segment.end + needed > self._segment.bytes:
            self.begin_segment()
        if self._segment is None:
            self._segment = self._new_segment(PAGE_BYTES + needed)

    def append(self, kind: int, command: int, parts: Sequence[Part]) -> int:
        """Append a record for which room was set aside, and return its mark.

        The parts are read by the log's thread: they stay as they are until `written` has come to
        the mark.
        """
        segment = self._segment
        assert segment is not None
        size = sum(len(part) for part in parts)
        waiting = _Waiting(segment, segment.end, kind, command, parts, size)
        end, mark = segment.end + record_bytes(size), self.appended + 1
        with self._changed:
            queued_bytes = self._queued_bytes + size
            self._queue.append(waiting)  # with all of this, or, should memory run out, none
            segment.end, self._queued_bytes, self.appended = end, queued_bytes, mark
            self._changed.notify_all()
        return mark

    def begin_segment(self) -> None:
        """Let the next record be the first of a segment."""
        segment, self._segment = self._segment, None
        if segment is None:
            return
        if segment.end > PAGE_BYTES:
            self._end_before = segment.end
            self._bytes_before += segment.end
            return
        self._numbers.pop()
        self._number -= 1
        segment.file.close()
        self._files.discard(segment_path(segment.number))

    def forget(self, first: int) -> None:
        """Give up the segments before one that a commit has begun, but those that are needed; their
        records are written.

        They are written again: to write over what is on the disk is several times as fast as to
        write where nothing was. As many are kept as the log had at this commit.
        """
        needed = self.needed(self.numbers)
        first = first if needed is None else min(first, needed)
        old = [number for number in self._numbers if number < first]
        self._numbers = self._numbers[len(old) :]
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

    def _new_segment(self, needed: int) -> _Segment:
        """Begin a segment of so many bytes, or more."""
        number, end = self._number + 1, self._end_before
        self._files.make_directory(DIRECTORY)
        path = segment_path(number)
        if self._spares:
            self._files.rename(spare_path(self._spares[-1]), path)
            self._spares.pop()  # the last ones are the longest
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
            file.write(0, pack_header(COMMANDS_MAGIC, self._store_id, number, end, size))
        except BaseException:
            file.close()
            self._files.discard(path)
            raise
        self._numbers.append(number)
        self._number = number
        return _Segment(number, file, size)

    def _allocate(self, file: File, needed: int) -> int:
        """Set aside as many bytes as the log has by now; where there is no room for them, what is
        needed. Return how many."""
        wanted = min(max(self._bytes_before, _SEGMENT_BYTES_LEAST), SEGMENT_BYTES)
        least, size = (-(-n // PAGE_BYTES) * PAGE_BYTES for n in (needed, max(needed, wanted)))
        try:
            file.allocate(0, size)
        except CapacityError:
            file.truncate(0)  # there may be a part of it
            file.allocate(0, size := least)
        return size

    # Waiting

    def sync(self) -> None:
        """Return once all records so far are durable, which are synced now."""
        with self._changed:
            mark = self._sync_now = self.appended
            self._changed.notify_all()
        self.wait(mark)

    def wait(self, mark: int, *, written: bool = False) -> None:
        """Return once a record is durable, or `written`.

        Raises
        ------
        StorageError, StoreClosedError : the log has failed, or was closed, before that.
        """
        with self._changed:
            while (self.written if written else self.durable) < mark:
                self._check_going()
                self._changed.wait()

    def let_read(self) -> None:
        """Return once the parts of all records so far have been read; an interrupt is raised then,
        and not before."""
        interrupt: BaseException | None = None
        mark = self.appended
        while self.written < mark and self.failure is None and self._thread.is_alive():
            try:
                with self._changed:
                    self._changed.notify_all()  # what was cut off may not have
                    self._changed.wait(_PAUSE_S)
            except BaseException as exc:
                interrupt = exc
        if interrupt is not None:
            raise interrupt

    @property
    def is_prompt(self) -> bool:
        """Whether a small record is appended without waiting for the disk."""
        segment = self._segment
        if segment is None or 2 * self._queued_bytes > _QUEUED_BYTES_MAX:
            return False
        return segment.bytes - segment.end >= _PROMPT_BYTES

    def _check_going(self) -> None:
        if self.failure is not None:
            raise self.failure
        if not self._thread.is_alive():
            raise StoreClosedError("the store was closed during the call")

    # The log's thread

    def _run(self) -> None:
        try:
            while self._step():
                pass
        except EmbstoreError as exc:
            self._fail(exc)
        except BaseException as exc:
            self._fail(StorageError(errno.EIO, f"the command log: {exc!r}"))
            raise
        finally:
            with self._changed:
                self._changed.notify_all()

    def _step(self) -> bool:
        """Write what waits, and sync it when that is due; return False at the end."""
        with self._changed:
            while not self._queue and not self._is_closing:
                left = self._left_s
                if left is not None and left <= 0:
                    break
                self._changed.wait(left)
            batch, self._queue = self._queue, []
            is_last = self._is_closing and not batch
        for record in batch:
            self._write(record)
        if batch:
            self._note(written=self.written + len(batch), queued=sum(r.size for r in batch))
        del batch  # arrays are not kept until the next record comes
        left = self._left_s
        if left is not None and (is_last or left <= 0):
            self._sync()
        return not is_last

    @property
    def _left_s(self) -> float | None:
        """When the next sync is due; None: nothing is to be synced."""
        if not self._unsynced:
            return None
        return 0.0 if self._sync_now > self.durable else self._sync_at - monotonic()

    def _write(self, record: _Waiting) -> None:
        segment, offset = record.segment, record.offset
        self._open[segment.number] = segment
        at = offset
        for piece in pieces_of(
            segment.number, record.kind, record.command, self._synced, record.parts
        ):
            segment.file.write(at, piece)
            at += len(piece)
        if not self._unsynced:
            self._sync_at = monotonic() + self._sync_every_s
        self._unsynced[segment.number] = segment
        self._end = Place(segment.number, offset + record_bytes(record.size))

    def _sync(self) -> None:
        self._files.reached("commands:written")
        for segment in self._unsynced.values():
            segment.file.sync()
            if not self._files.is_named(segment.file):
                raise removed(segment.file.path)
        self._unsynced.clear()
        for number in [n for n in self._open if n < self._end.segment]:
            last = self._open.pop(number)  # nothing is appended to it any more
            with closing(last.file) as file:
                file.write(last.end, next_record(number, self._end))
                file.sync()
        self._synced = self._end
        self.syncs += 1
        self._files.reached("commands:synced")
        self._note(durable=self.written)

    def _note(self, *, written: int = 0, durable: int = 0, queued: int = 0) -> None:
        with self._changed:
            self.written = max(self.written, written)
            self.durable = max(self.durable, durable)
            self._queued_bytes -= queued
            self._changed.notify_all()
        if durable:
            self.progressed()

    def _fail(self, error: EmbstoreError) -> None:
        if not isinstance(error, StorageError):  # room was set aside: no lack that could be mended
            error = StorageError(errno.EIO, f"the command log: {error}")
        self._failed(error)  # first: who is told next finds the store as it is
        with self._changed:
            self.failure = error
            self._open |= {r.segment.number: r.segment for r in self._queue}  # to be closed
            self._queue.clear()
            self._changed.notify_all()
        self.progressed()

    def close(self) -> None:
        """Write and sync what waits, and end. Closing twice is harmless."""
        with self._changed:
            self._is_closing = True
            self._changed.notify_all()
        self._thread.join()
        for segment in (*self._open.values(), *([self._segment] if self._segment else [])):
            segment.file.close()
