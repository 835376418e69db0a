"""The frame of every call: one after the other, on a store that is open and usable.

The engine is single-threaded: a call of any thread takes the one lock, and calls of other threads
wait for it. Before a call the store is checked to be usable, and a finished merge is installed;
after each acknowledged command that writes, the **command number** grows by one, and the command is
logged, where the store has a command log.

No call runs inside another: a signal handler may try, and may only close. An interrupt can strike
between any two lines, where memory may be half changed; so it fails the store, which opens again at
its last commit.

**No memory.** A call usually runs out of memory when it allocates its arrays, before anything has
changed, and is refused then (CapacityError), like one that finds no room on the disk. A call that
changes data in parts announces it (`Storage.begin_change`): from there to the end of the call, and
inside `irreversible`, a lack of memory fails the store. All other code leaves rows, cache and log
whole wherever memory ends: it allocates first, then changes.
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
"""Placeholder for a command that is only known later."""
_PATIENCE_S, _PAUSE_S = 2e-3, 5e-5
_CUTS = (KeyboardInterrupt, SystemExit, MemoryError)
_IS_BUSY = (
    "a call of this thread is still running (is this a signal handler?); only close() may be "
    "called now, which waits for the call to end"
)
_NO_MEMORY = "no memory; nothing has changed: send less in a call, or give less cache_bytes"


@dataclass(frozen=True)
class Lease:
    """Writes that are paused for a while."""

    by: str
    why: str
    """The message with which a command that writes is refused."""
    until: float
    """The end, by the monotonic clock."""

    @property
    def is_live(self) -> bool:
        """Whether they still are."""
        return monotonic() < self.until


class Frame:
    """The turns of one store's calls. Any thread."""

    def __init__(self, storage: Storage, device: Device) -> None:
        self.storage = storage
        self.device = device
        self.stages = Stages()
        self.command_number = storage.catalogue.head.command
        self.lives = storage.catalogue.lives
        """The lives of all commands so far; see `embstore.storage.lives`."""
        self.life = lives.new_id()
        """The life that gives the next command its number: this process's, or, of a command that is
        executed again, its own."""
        self.log: CommandLog | None = None
        """Where commands are logged; None: nowhere."""
        self.is_covered = False
        """Whether acknowledged commands survive a crash without a commit."""
        self.after_writes: list[Callable[[], Callable[[], None] | None]] = []
        """Weak references to functions called at the end of each command that writes."""
        self.paused = ""
        """Why no command that writes is taken, as of a shard whose partitions move; "": they are.
        Set inside a call."""
        self.lease: Lease | None = None
        """While it runs, no writes are taken, independently of `paused`. Set inside a call."""
        self.may_pass: Callable[[SessionPlace | None], bool] = _nothing
        """Returns whether a command that writes is taken all the same, by the place that a step of
        its session reaches."""
        self.is_closed = False
        self._lock = threading.RLock()
        self._waiting: set[object] = set()  # a token for each call that waits for the lock
        self._is_busy = False  # a call is running
        self._appends: Callable[[int, int], None] | None = None  # of the running command
        self._place: SessionPlace | None = None  # likewise
        self._close: Callable[[], None] | None = None  # asked for inside the running call
        self._process = os.getpid()

    def reading(self) -> AbstractContextManager[None]:
        """Run a call that changes no row; StoreClosedError after `close` or a failure."""
        return self._call()

    def writing(
        self,
        command: Command[Any] | None,
        place: SessionPlace | None = None,
        *,
        even_paused: bool = False,
    ) -> AbstractContextManager[None]:
        """Run a command that writes, counted and logged if it does not raise; not in a read-only
        store.

        command : a command with the same effect; None: no row or table changes; LATER: the argument
            of `logs`, called inside
        place : the session's place afterwards
        even_paused : also while writes are paused

        Raises WritesPausedError: they are.
        """
        return self._call((command, place), even_paused=even_paused)

    def logs(self, command: Command[Any]) -> None:
        """Log a command, which owns its arrays, for the running call, before it changes anything.

        Raises CapacityError: there is no room for it in the log.
        """
        if self.log is not None:
            self._appends = self.log.begin(command, self._place, is_own=True)

    @contextmanager
    def background(self) -> Iterator[None]:
        """Run work that can wait: calls that wait for the lock go first, for a while."""
        patience = monotonic() + _PATIENCE_S
        while self._waiting and monotonic() < patience:
            sleep(_PAUSE_S)
        with self._call():
            yield

    @property
    def is_taken(self) -> bool:
        """Whether a call has the lock now, or a slice of longer work."""
        if self._lock.acquire(blocking=False):
            self._lock.release()
            return False
        return True

    @property
    def is_waited_for(self) -> bool:
        """Whether a call waits for the one that runs."""
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
        """Go on behind a command of another store's history, in a life that begins with it: this
        process may have given that number before. Inside a call."""
        self.command_number, self.life = command, lives.new_id()
        before = tuple(one for one in self.lives if one.first < command)
        self.lives = lives.numbered(before, self.life, command)

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Have the engine for several calls. Waits for the lock, noticed by work that lets calls go
        first."""
        self._check_process()
        token = object()
        self._waiting.add(token)
        try:
            with self._lock:  # any interrupt leaves it free
                self._waiting.discard(token)
                yield
        finally:
            self._waiting.discard(token)

    def pause(self, why: str) -> None:
        """Take no commands that write; "": take them again. Inside a call, or before the first."""
        self.paused, self.may_pass = why, _nothing

    @property
    def is_paused(self) -> bool:
        """Whether nothing may be written."""
        return bool(self.paused) or (self.lease is not None and self.lease.is_live)

    def check_paused(self) -> None:
        """Raise WritesPausedError while nothing may be written."""
        if self.paused:
            raise WritesPausedError(self.paused)
        if self.lease is not None and self.lease.is_live:
            raise WritesPausedError(self.lease.why)

    def _begin_writing(
        self, command: Command[Any] | None, place: SessionPlace | None, *, even_paused: bool
    ) -> None:
        """Make sure that a command may write, and can be logged."""
        if not even_paused and self.is_paused and not self.may_pass(place):
            self.check_paused()
        if not self.is_covered:
            self.storage.begin_tail()
        self._place = place
        if self.log is not None and command is not LATER:
            self._appends = self.log.begin(command, place)

    def _end_raised(self, exc: BaseException, *, is_writing: bool) -> CapacityError | None:
        """End a call that raised: the device's work may refer to the caller's arrays, so it is
        waited for; and the store fails if the call was cut off, or the device is lost.

        A command is also cut off by any exception of a signal handler: it may have changed rows.
        Returns the error that refuses the call in place of `exc`, if it may be refused.
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
            self.storage.fail(exc)  # its rows are logged no more
        return refusal

    @contextmanager
    def having(self, origin: Any) -> Iterator[None]:
        """Have the engine for a command and the answer that is kept of it: no commit in between."""
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
        """Look at the store while no call is changing it; also inside a call."""
        self._check_process()
        with self._lock:
            self._check_open()
            yield

    def check_open(self) -> None:
        """Raise StoreClosedError if the store is closed, or another process's. Takes no lock."""
        self._check_process()
        self._check_open()

    def _check_process(self) -> None:
        """Before any lock: a fork has locks of other threads, and no thread to release them."""
        if os.getpid() != self._process:
            raise StoreClosedError("the store belongs to the process that opened it, not to a fork")

    def _check_open(self) -> None:
        if self.is_closed:
            raise StoreClosedError("the store is closed; open it again")

    def close(self, last: Callable[[], None]) -> None:
        """Run `last` as the last call; inside a running call, at its end. Once only.

        In a forked child nothing is run: all that is open is its parent's.
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
    """Let no command pass."""
    return False


def _is_lack(exc: BaseException) -> bool:
    """Return whether the system had no memory, or no thread, which usually means the same."""
    if isinstance(exc, RuntimeError):
        return "can't start new thread" in str(exc)
    return isinstance(exc, MemoryError)
