"""The frame of every call: calls run one after the other, on a store that is open and usable.

The engine is single-threaded: a call takes the only lock, on any thread, and calls on other threads
wait for this lock. Before a call the frame checks that the store is usable, and installs a finished
merge. After each acknowledged command that writes, the **command number** grows by one, and the
command is logged if the store has a command log.

No call runs inside another. A call from a signal handler gets an error, unless it is `close`.
An interrupt of a call can occur between any two lines, when memory may be half changed. Therefore
an interrupt fails the store, which opens again at its last commit.

**No memory.** A call usually runs out of memory when it allocates its arrays, before anything has
changed. In this case it is refused (CapacityError), as a call that finds no space on the disk. A
call that changes data in parts announces the change (`Storage.begin_change`): from the announcement
to the end of the call, and inside `irreversible`, a lack of memory fails the store. All other code
leaves rows, cache and log intact wherever memory runs out, because it first allocates and then
changes data.
"""

import errno
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from time import monotonic, sleep
from typing import Any

from embstore.commands import Command
from embstore.device.base import Device
from embstore.errors import (
    CapacityError,
    DeviceError,
    EmbstoreError,
    InvalidArgumentError,
    StorageError,
    StoreClosedError,
    WritesPausedError,
)
from embstore.stages import LAPS_MAX, Stages, now
from embstore.storage import lives
from embstore.storage.storage import Storage
from embstore.tables.command_log import CommandLog
from embstore.tables.logged import SessionPlace

LATER: Any = object()
"""A placeholder for the command of a call that does not know the command when it begins. Later the
call passes the command to `Frame.logs`."""
_PATIENCE_S, _PAUSE_S = 2e-3, 5e-5
_CUTS = (KeyboardInterrupt, SystemExit, MemoryError)
_IS_BUSY = (
    "a call of this thread is still running (is this a signal handler?); only close() may be "
    "called now, which waits for the call to end"
)
_NO_MEMORY = "no memory; nothing has changed: send less in a call, or give less cache_bytes"


@dataclass(frozen=True)
class Lease:
    """A lease for a pause of writes. It limits the duration of the pause."""

    by: str
    why: str
    """The message of the error that refuses a command that writes."""
    until: float
    """The end of the lease, by the monotonic clock."""

    @property
    def is_live(self) -> bool:
        """Whether this lease still pauses writes."""
        return monotonic() < self.until


class Frame:
    """Runs the calls of one store, one at a time. Any thread."""

    def __init__(self, storage: Storage, device: Device) -> None:
        self.storage = storage
        self.device = device
        self.stages = Stages()
        self.command_number = storage.catalogue.head.command
        self.lives = storage.catalogue.lives
        """The lives of all commands so far; see `embstore.storage.lives`."""
        self.life = lives.new_id()
        """The life that gives the next command its number: the life of this process, or, for a
        command that is executed again, the command's own life."""
        self.log: CommandLog | None = None
        """The command log; None: commands are not logged."""
        self.is_covered = False
        """Whether acknowledged commands survive a crash without a commit."""
        self.after_writes: list[Callable[[], Callable[[], None] | None]] = []
        """Weak references to functions that are called at the end of each command that writes."""
        self.paused = ""
        """The reason why commands that write are refused, for example on a shard whose partitions
        move; "": they are accepted. It is set inside a call."""
        self.lease: Lease | None = None
        """While the lease is live, commands that write are refused, independently of `paused`. It
        is set inside a call."""
        self.may_pass: Callable[[SessionPlace | None], bool] = _nothing
        """A function that returns whether a command that writes is accepted despite a pause. Its
        argument is the resume position that the step of a session reaches."""
        self.part_id = 0
        """The id of the cluster's command of which the running command is a part (`PartOf`); 0: it
        has none."""
        self.update_id = 0
        """The `part_id` of the running command that writes; 0 for rows of a session's member, which
        are sent again until all shards have them."""
        self.is_closed = False
        self._lock = threading.RLock()
        self._waiting: set[object] = set()  # a token for each call that waits for the lock
        self._is_busy = False  # a call is running
        self._appends: Callable[[int, int], None] | None = None  # of the running command
        self._place: SessionPlace | None = None  # of the running command
        self._close: Callable[[], None] | None = None  # requested inside the running call
        self._process = os.getpid()

    def reading(self) -> AbstractContextManager[None]:
        """Run a call that changes no row. Raises StoreClosedError after `close` or a failure."""
        return self._call()

    def writing(
        self,
        command: Command[Any] | None,
        place: SessionPlace | None = None,
        *,
        even_paused: bool = False,
    ) -> AbstractContextManager[None]:
        """Run a command that writes. If it does not raise, it is counted and logged. A read-only
        store refuses the command.

        command : the command to log, which has the same effect as the running command; None: no row
            or table changes; LATER: the command is passed to `logs` inside the call
        place : the resume position of a session after the command
        even_paused : whether the command runs even while writes are paused

        Raises WritesPausedError if writes are paused.
        """
        return self._call((command, place), even_paused=even_paused)

    def logs(self, command: Command[Any]) -> None:
        """Log a command for the running call, before anything changes. The log then owns the
        command's arrays.

        Raises CapacityError if the command log has no space for the command.
        """
        if self.log is not None:
            self._appends = self.log.begin(command, self._place, self.part_id, is_own=True)

    @contextmanager
    def background(self) -> Iterator[None]:
        """Run work that can wait. For a short time, calls that wait for the lock run first."""
        patience = monotonic() + _PATIENCE_S
        while self._waiting and monotonic() < patience:
            sleep(_PAUSE_S)
        with self._call():
            yield

    @property
    def is_taken(self) -> bool:
        """Whether a call, or a slice of longer work, has the lock now."""
        if self._lock.acquire(blocking=False):
            self._lock.release()
            return False
        return True

    @property
    def is_waited_for(self) -> bool:
        """Whether a call waits for the running call."""
        return bool(self._waiting)

    @contextmanager
    def _call(
        self,
        written: tuple[Command[Any] | None, SessionPlace | None] | None = None,
        *,
        even_paused: bool = False,
    ) -> Iterator[None]:
        with self.turn():
            self._check_open()
            if self._is_busy:
                raise InvalidArgumentError(_IS_BUSY)
            if len(self.stages.laps) > LAPS_MAX:
                self.stages.add_up()
            self.stages.laps += "", now()
            self.storage.is_changing = False
            self._is_busy = True
            try:
                self.storage.check_usable(write=written is not None)
                self.storage.merges.poll()
                if written is None:
                    yield
                else:
                    self._begin_writing(*written, even_paused=even_paused)
                    yield
                    if self.storage.is_check:
                        self.storage.end_check()  # of a command that changes nothing
                    self.storage.is_changing = True
                    self.command_number += 1
                    self.lives = lives.numbered(self.lives, self.life, self.command_number)
                    if self.log is not None:
                        assert self._appends is not None
                        self._appends(self.command_number, self.life)
                    for reference in self.after_writes:
                        if (call := reference()) is not None:
                            call()
            except BaseException as exc:
                refusal = self._end_raised(exc, is_writing=written is not None)
                if refusal is None:
                    raise
                raise refusal from exc
            finally:
                self._is_busy, self._appends = False, None
                if self._close is not None:
                    self.close(self._close)

    def stand_at(self, command: int) -> None:
        """Continue after the command of number `command` in another store's history. A new life
        begins with this command, because this process may have used the command's number before.
        Use this only inside a call."""
        self.command_number, self.life = command, lives.new_id()
        before = tuple(one for one in self.lives if one.first < command)
        self.lives = lives.numbered(before, self.life, command)

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Take the engine for several calls. `background` work lets a thread that waits here go
        first."""
        self._check_process()
        token = object()
        self._waiting.add(token)
        try:
            with self._lock:  # the lock is free after an interrupt at any point
                self._waiting.discard(token)
                yield
        finally:
            self._waiting.discard(token)

    def pause(self, why: str) -> None:
        """Refuse commands that write, for the reason `why`; "": accept these commands again. Use
        this only inside a call, or before the first call."""
        self.paused, self.may_pass = why, _nothing

    @property
    def is_paused(self) -> bool:
        """Whether writes are paused."""
        return bool(self.paused) or (self.lease is not None and self.lease.is_live)

    def check_paused(self) -> None:
        """Raise WritesPausedError if writes are paused."""
        if self.paused:
            raise WritesPausedError(self.paused)
        if self.lease is not None and self.lease.is_live:
            raise WritesPausedError(self.lease.why)

    def _begin_writing(
        self, command: Command[Any] | None, place: SessionPlace | None, *, even_paused: bool
    ) -> None:
        """Check that a command may write, and reserve space for it in the command log."""
        step = place if place is not None and place.is_step else None
        is_check = self.storage.is_check  # the sender waits for the end of a pause afterwards
        if not (even_paused or is_check) and self.is_paused and not self.may_pass(step):
            self.check_paused()
        if not self.is_covered:
            self.storage.begin_tail()
        self._place, self.update_id = place, self.part_id if place is None else 0
        if self.log is not None and command is not LATER:
            self._appends = self.log.begin(command, place, self.part_id)

    def _end_raised(self, exc: BaseException, *, is_writing: bool) -> CapacityError | None:
        """End a call that raised. Wait for the device, whose queued work may refer to the caller's
        arrays. Fail the store if the call was cut off, or if the device is lost.

        Every exception that is not one of the store's errors, such as an exception of a signal
        handler, cuts off a command that writes: the command may have changed rows. If the call has
        changed nothing and failed for lack of memory, return the error that is to be raised in
        place of `exc`; else return None.
        """
        refusal = None
        if _is_lack(exc) and not self.storage.is_changing:
            if self.storage.failure is None:
                refusal = CapacityError(f"{_NO_MEMORY} ({exc})")
        elif isinstance(exc, _CUTS) or (is_writing and not isinstance(exc, EmbstoreError)):
            self.storage.fail(StorageError(errno.EINTR, f"a call was cut off by {exc!r}"))
        try:
            if not self.device.is_lost:
                self.device.finish()
        except DeviceError as lost:
            exc = lost
        if isinstance(exc, DeviceError) and self.device.is_lost:
            self.storage.fail(exc)  # rows on the lost device can no longer be logged
        return refusal

    @contextmanager
    def having(self, origin: Any) -> Iterator[None]:
        """Take the engine for a command and for keeping its answer, so that no commit comes in
        between."""
        with self.turn():
            if self.log is not None:
                self.log.origin = origin
            try:
                yield
            finally:
                if self.log is not None:
                    self.log.origin = None

    @contextmanager
    def looking(self) -> Iterator[None]:
        """Take the lock to look at the store while no call changes it. This is also possible inside
        a call."""
        self._check_process()
        with self._lock:
            self._check_open()
            yield

    def check_open(self) -> None:
        """Raise StoreClosedError if the store is closed, or if this process is a fork. Takes no
        lock."""
        self._check_process()
        self._check_open()

    def _check_process(self) -> None:
        """Refuse a fork, before any lock is taken: a fork inherits locks of other threads, but has
        no thread that releases them."""
        if os.getpid() != self._process:
            raise StoreClosedError("the store belongs to the process that opened it, not to a fork")

    def _check_open(self) -> None:
        if self.is_closed:
            raise StoreClosedError("the store is closed; open it again")

    def close(self, last: Callable[[], None]) -> None:
        """Run `last` as the last call, but only once. Inside a running call, run it at the end of
        that call.

        In a forked child nothing runs, because all open files and memory belong to the parent.
        """
        if os.getpid() != self._process:
            self.is_closed = True
            return
        with self._lock:
            if self.is_closed:
                return
            if self._is_busy:
                self._close = last
                return
            self.is_closed = True
            last()


def _nothing(place: SessionPlace | None) -> bool:
    """Accept no command."""
    return False


def _is_lack(exc: BaseException) -> bool:
    """Return whether the system had no memory, or no thread, which usually has the same cause."""
    if isinstance(exc, RuntimeError):
        return "can't start new thread" in str(exc)
    return isinstance(exc, MemoryError)
