"""The files of the command log: records in order, durable before they are acknowledged.

command_records.py defines the form of records, command_segments.py the segments.

**Group commit.** A thread writes and syncs the waiting records; records that arrive meanwhile are
written and synced together in the next round. There is no timer: a record that arrives alone waits
only for its own sync, and the busier the store, the more records share a sync. If `sync_every_s` is
not 0, records are written at once, and synced at that interval.

Space is reserved before a command changes anything (`reserve`).

**Removed files.** If the file of a segment was removed from its directory, the segment is lost when
the process ends. Therefore each sync checks that the file still has its name before any record of
the segment is acknowledged.
"""

import errno
import threading
from collections.abc import Callable, Sequence
from contextlib import closing
from time import monotonic
from typing import NamedTuple

from embstore.errors import EmbstoreError, StorageError, StoreClosedError
from embstore.storage.command_records import (
    HEAD_BYTES,
    Part,
    Place,
    RecordReader,
    next_record,
    pieces_of,
    record_bytes,
    segment_path,
)
from embstore.storage.command_segments import CommandSegments, Segment
from embstore.storage.file_errors import removed
from embstore.storage.files import Files

_PROMPT_BYTES = 16 << 10
_PAUSE_S = 0.1
_QUEUED_BYTES_MAX = 256 << 20
"""Maximum number of bytes that wait to be written; above it, commands wait for the disk."""


class _Waiting(NamedTuple):
    """A record that is not yet written."""

    segment: Segment
    offset: int
    kind: int
    command: int
    parts: Sequence[Part]
    size: int
    life: int


class CommandFiles:
    """Appends records to the command log, and syncs the records on a separate thread.

    Use `reserve`, `append` and `segments` only with the engine; any thread can use the rest.

    Parameters
    ----------
    read : the reader of the existing records, which has read all of them; new records are appended
        after the existing ones
    sync_every_s : seconds that a written record may wait for its sync; 0: it is synced at once
    failed : a function that is called once, on the log's thread, with the error, if the log fails
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
        """Number of records appended so far, which is the mark of the last record."""
        self.written = 0
        """The mark of the last record that was written."""
        self.durable = 0
        """The mark of the last record that is on the disk."""
        self.syncs = 0
        """Number of syncs so far; each covers all records that were written before it."""
        self.progressed: Callable[[], None] = lambda: None
        """A function that is called on the log's thread after each sync, and when the log has
        failed."""
        self.failure: EmbstoreError | None = None
        self._files = files
        self._sync_every_s = sync_every_s
        self._failed = failed
        self.segments = CommandSegments(files, store_id, read)
        end = read.end
        self._changed = threading.Condition()
        self._queue: list[_Waiting] = []
        self._queued_bytes = 0
        self._is_closing = False
        self._open: dict[int, Segment] = {}  # segments without a NEXT; for the log's thread only
        if end.segment:
            file = files.open(segment_path(end.segment), write=True)
            self._open[end.segment] = Segment(end.segment, file, 0, end.offset)
        self._unsynced: dict[int, Segment] = {}
        self._sync_at = 0.0
        self._sync_now = 0  # the mark up to which a caller waits for a sync
        self._synced = self._end = end
        self._thread = threading.Thread(target=self._run, name="command log", daemon=True)
        self._thread.start()

    @property
    def synced(self) -> Place:
        """The position up to which the log is on the disk. If a caller reads `durable` first, the
        position is after all records up to that mark. Any thread."""
        return self._synced

    # Appending

    def reserve(self, size: int) -> None:
        """Reserve space for a record with a body of at most `size` bytes.

        Raises
        ------
        CapacityError : there is not enough space; nothing has changed.
        StorageError, StoreClosedError : the log has failed or is closed.
        """
        with self._changed:
            self._check_going()
            while self._queued_bytes > _QUEUED_BYTES_MAX:
                self._changed.wait()
                self._check_going()
        self.segments.reserve(record_bytes(size) + HEAD_BYTES)  # with space for the record NEXT

    def append(self, kind: int, command: int, parts: Sequence[Part], life: int = 0) -> int:
        """Append a record for which space was reserved; return the record's mark. For a command,
        `life` identifies the process that gave the command its number (lives.py).

        The log's thread reads the parts: the caller must not change them until `written` has
        reached the mark.
        """
        segment = self.segments.newest
        assert segment is not None
        size = sum(len(part) for part in parts)
        waiting = _Waiting(segment, segment.end, kind, command, parts, size, life)
        end, mark = segment.end + record_bytes(size), self.appended + 1
        with self._changed:
            queued_bytes = self._queued_bytes + size
            self._queue.append(waiting)  # first: if memory runs out here, nothing has changed
            segment.end, self._queued_bytes, self.appended = end, queued_bytes, mark
            self._changed.notify_all()
        return mark

    # Waiting

    def sync(self) -> None:
        """Sync all records appended so far, without waiting for `sync_every_s`; return once the
        records are durable."""
        with self._changed:
            mark = self._sync_now = self.appended
            self._changed.notify_all()
        self.wait(mark)

    def wait(self, mark: int, *, written: bool = False) -> None:
        """Return once a record is durable, or, if `written` is true, once it is written.

        Raises
        ------
        StorageError, StoreClosedError : the log failed, or was closed, before that.
        """
        with self._changed:
            while (self.written if written else self.durable) < mark:
                self._check_going()
                self._changed.wait()

    def let_read(self) -> None:
        """Return once the log's thread has read the parts of all records appended so far. An
        interrupt is raised only after that, so that the caller can change the parts in any case."""
        interrupt: BaseException | None = None
        mark = self.appended
        while self.written < mark and self.failure is None and self._thread.is_alive():
            try:
                with self._changed:
                    self._changed.notify_all()  # an interrupted command may not have notified
                    self._changed.wait(_PAUSE_S)
            except BaseException as exc:
                interrupt = exc
        if interrupt is not None:
            raise interrupt

    @property
    def is_prompt(self) -> bool:
        """Whether a small record is appended without waiting for the disk."""
        segment = self.segments.newest
        if segment is None or 2 * self._queued_bytes > _QUEUED_BYTES_MAX:
            return False
        return segment.left >= _PROMPT_BYTES

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
        """Write the waiting records, and sync them when that is due. Return False once the log is
        being closed and no record is left."""
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
        del batch  # frees its arrays now, not when the next record arrives
        left = self._left_s
        if left is not None and (is_last or left <= 0):
            self._sync()
        return not is_last

    @property
    def _left_s(self) -> float | None:
        """Seconds until the next sync is due; None: there is nothing to sync."""
        if not self._unsynced:
            return None
        return 0.0 if self._sync_now > self.durable else self._sync_at - monotonic()

    def _write(self, record: _Waiting) -> None:
        segment, offset = record.segment, record.offset
        self._open[segment.number] = segment
        at = offset
        head = segment.number, record.kind, record.command, self._synced
        for piece in pieces_of(*head, record.parts, record.life):
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
            last = self._open.pop(number)  # no more records are appended to it
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
        if not isinstance(error, StorageError):  # space was reserved: freeing space mends nothing
            error = StorageError(errno.EIO, f"the command log: {error}")
        self._failed(error)  # first: whoever looks later finds that the store has failed
        with self._changed:
            self.failure = error
            self._open |= {r.segment.number: r.segment for r in self._queue}  # `close` closes them
            self._queue.clear()
            self._changed.notify_all()
        self.progressed()

    def close(self) -> None:
        """Write and sync the waiting records, and end the thread. Closing twice is harmless."""
        with self._changed:
            self._is_closing = True
            self._changed.notify_all()
        self._thread.join()
        for segment in filter(None, (*self._open.values(), self.segments.newest)):
            segment.file.close()
