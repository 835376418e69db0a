"""One call with a deadline, in as many attempts as necessary, over any connection (`Wire`).

**Attempts.** A call is repeated until the deadline, with growing random pauses, if it is certain
that the server did not execute it, or if executing it twice does no harm. Examples are calls that
were refused because the queue is full or the server is stopping, and calls whose connection was
lost. In the last case the server may have executed the call. A mutating call therefore carries an
Origin (client id and sequence number), by which the server applies the call only once (the
deduplication window, `embstore_server.path.replay`). The origin counts attempts only from the first
lost attempt: a refused attempt has left nothing on the server, so a restarted server can accept the
next attempt.

**Sessions.** Calls of a session need no Origin: the server identifies them by member and step. A
call that finishes a step may wait for other ranks. A server that stops interrupts the call, perhaps
after it was executed, so the attempt counts as lost. A session ends with its server's process, so
the next attempt finds no session. The error is OutcomeUnknownError if an attempt was lost, else
SessionExpiredError. A training loop opens the session again by itself
(`embstore_training.rank_session`).

All methods can be called from any thread. The module does not depend on tables.
"""

import logging
import os
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from time import monotonic, sleep
from typing import Any, TypeVar

from grpc import StatusCode

from embstore import commands as c
from embstore.commands import Effect, PartOf, Retry, after_timeout
from embstore.config import Limits
from embstore.errors import (
    DeadlineError,
    EmbstoreError,
    InvalidArgumentError,
    OutcomeUnknownError,
    OverloadedError,
    PermissionDeniedError,
    SessionExpiredError,
    StoreClosedError,
)
from embstore.results import ServerInfo
from embstore_client.origins import Origins
from embstore_client.wire import Wire, WireError
from embstore_proto.envelope import Origin
from embstore_proto.verbs import VERBS, Answer, Outgoing, Verb

T = TypeVar("T")

_READ = (
    *(c.Lookup, c.LookupPooled, c.ReadRows, c.OpenScan),
    *(c.GetTable, c.ListTables, c.GetDigest, c.GetLeaves),
)
"""Commands that return rows, t or a digest: results that a new epoch makes void."""
_INFO = VERBS["GetServerInfo"]
_LOST = (StatusCode.UNAVAILABLE, StatusCode.CANCELLED)
"""The codes of a lost attempt: there is no connection, or the server closed it when the server
ended. The client itself cancels no call."""
_SECONDS_MAX = 1e8
_PAUSE_FIRST_S, _PAUSE_MAX_S = 0.02, 1.0
_SHOWN_EVERY_S = 5.0
"""Seconds between two warnings in the log "embstore" about a server that is starting. Python prints
warnings even if no logging is configured."""


def checked_seconds(value: Any, name: str) -> float:
    """Return a timeout in seconds; refuse it unless it is a number above 0 that gRPC supports."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not 0 < value <= _SECONDS_MAX:
        raise InvalidArgumentError(
            f"expected {name} to be a number of seconds in (0, {_SECONDS_MAX:g}], found {value!r}"
        )
    return value  # type: ignore[no-any-return]


class Transport:
    """A connection to a server, and the facts that the client has about it."""

    def __init__(self, wire: Wire, address: str, *, timeout_s: float, waits: bool = True) -> None:
        """`waits` is whether the first call waits for a server that does not listen yet."""
        self.address = address
        self.timeout_s = timeout_s
        self.wire = wire
        self._origins = Origins()
        self._process = os.getpid()
        self._closed = False
        self._waits = waits
        self._is_connected = False
        self.info: ServerInfo | None = None
        """The facts that the server returned last; None: the server has not been asked yet."""
        self.limits = Limits()
        """The server's limits, from the same answer."""

    def close(self) -> None:
        """Close the connection and interrupt running calls. Closing twice is harmless."""
        self._closed = True
        self.wire.close()

    # Calls

    def send(
        self,
        verb: Verb,
        request: Outgoing,
        *,
        reply_bytes: int = 0,
        timeout_s: float | None = None,
        part_of: PartOf | None = None,
    ) -> Answer:
        """Send a command with a single answer, and return the answer; raise the server's error.

        `reply_bytes` is the approximate size of the reply, if it can be large. `part_of` is the
        command of a cluster of which the command is a part; None: it was not split.
        """

        def attempt(origin: Origin | None, deadline: float) -> Answer:
            header = request.serialised(origin)
            message, wire = request.message, self.wire
            return verb.answer(wire.send(verb, header, message, reply_bytes, deadline, part_of))

        answer = self._attempts(verb, attempt, timeout_s)
        if verb.command in _READ:
            self._origins.read(answer.context)
        elif isinstance(answer.value, ServerInfo):
            self._connected(answer.value)
        elif verb.command is c.OpenSession:
            self._origins.placed(answer.context)
        else:
            self._origins.knows(answer.context)
        return answer

    def _connected(self, info: ServerInfo) -> None:
        self._waits = self._is_connected = True
        self._origins.connected(info)
        self.wire.connected(info)
        self.info, self.limits = info, info.limits

    def begin_epoch(self, verb: Verb, request: Outgoing, **how: Any) -> Answer:
        """Send a command that begins another epoch, as `send` does, but accept the new epoch."""
        origins = self._origins
        with origins.beginning_epoch():
            if verb.command.effect is Effect.WRITES:
                answer = self.send(verb, request, **how)
                origins.changed_epoch(answer.context.epoch)
            else:
                before = self.send(_INFO, _INFO.outgoing(c.GetServerInfo()), **how).context.epoch
                answer = self.send(verb, request, **how)
                origins.promoted(before, answer.context.epoch)
        return answer

    def receive(
        self,
        verb: Verb,
        request: Outgoing,
        take: Callable[[Iterator[Answer]], T],
        *,
        timeout_s: float | None = None,
        part_of: PartOf | None = None,
    ) -> T:
        """Send a command that has several answers and can be sent again.

        `take` gets an iterator over the answers as they arrive, and its result is returned. It is
        called once per attempt, and must start from the beginning each time. An error that `take`
        raises ends the call. Raises the errors of `send` and of `take`.
        """
        serialised = request.serialised(None)

        def attempt(_: Origin | None, deadline: float) -> T:
            with self.wire.receive(verb, serialised, deadline, part_of) as messages:
                return take(self._noted(map(verb.answer, messages)))

        return self._attempts(verb, attempt, timeout_s)

    def share_device(self, verb: Verb, name: str | None = None) -> None:
        """Have the server share its GPU's memory with this process, for calls of `verb`.

        Raises InvalidArgumentError if the server refuses, if this process cannot open the memory,
        or if this process has another name than `name` for the GPU.
        """
        self._attempts(verb, lambda _, deadline: self.wire.share_device(deadline, name), None)

    def _noted(self, answers: Iterator[Answer]) -> Iterator[Answer]:
        for answer in answers:
            self._origins.knows(answer.context)
            yield answer

    # Attempts

    def _attempts(
        self,
        verb: Verb,
        attempt: Callable[[Origin | None, float], T],
        timeout_s: float | None,
    ) -> T:
        """Return the result of the first attempt that succeeds."""
        seconds = self.timeout_s
        if timeout_s is not None:
            seconds = checked_seconds(timeout_s, "timeout_s")
        now = monotonic()
        deadline = now + seconds
        is_remembered = verb.command.retry is Retry.WINDOW
        origin = self._origins.begin(deadline) if is_remembered else None
        sent = _Sent(verb, deadline, origin, now + _SHOWN_EVERY_S)
        pause = _PAUSE_FIRST_S
        try:
            while True:
                if self._closed:
                    raise StoreClosedError("the connection is closed; connect again")
                if os.getpid() != self._process:
                    raise StoreClosedError(
                        "the connection belongs to the parent of this forked process; connect in "
                        "this one"
                    )
                try:
                    return attempt(sent.origin, sent.deadline)
                except WireError as exc:
                    # The connection's error text is in the message, and in __context__ for
                    # debugging: a caller's traceback ends with an error that the caller can act on.
                    again = self._in_session(self._error(exc, sent), sent)
                    if not isinstance(again, _PassingError):
                        raise again from None
                    self._wait(again, sent, pause, seconds)
                    pause = min(2 * pause, _PAUSE_MAX_S)
        finally:
            if origin is not None:
                self._origins.end(origin)

    def _wait(self, again: "_PassingError", sent: "_Sent", pause: float, seconds: float) -> None:
        """Wait before a further attempt. `seconds` is the timeout of the whole call."""
        if sent.verb.command is c.GetServerInfo and not self._is_connected:
            sent.wait_for_a_start(again, seconds, self.timeout_s)
        if monotonic() + pause >= sent.deadline:
            raise DeadlineError(sent.too_late(again, seconds)) from None
        sleep(pause * random.uniform(0.5, 1.0))
        sent.was_lost |= again.was_lost
        if sent.origin is not None and sent.was_lost:
            sent.origin = replace(sent.origin, attempt=sent.origin.attempt + 1)

    def _in_session(self, error: Exception, sent: "_Sent") -> Exception:
        """Return the error for a call of a session, given the error of the last attempt. If an
        earlier attempt was lost, the server may have executed the call."""
        if sent.verb.command.retry is Retry.STEP:
            if isinstance(error, _PassingError) and isinstance(error.error, StoreClosedError):
                error.was_lost = True  # the server may have accepted the call before it stopped
            elif isinstance(error, SessionExpiredError) and sent.was_lost:
                self._origins.changed_epoch()
                return OutcomeUnknownError(
                    "the session ended while a call that finishes a step was in flight: open it "
                    f"again; its last step shows whether this one was finished. {error}"
                )
        return error

    def _cut_off(self, sent: "_Sent") -> EmbstoreError:
        if sent.mutates:
            return OutcomeUnknownError(
                "the connection was closed while a call that writes was in flight: it may have "
                "been applied; read t and the command number before you repeat it"
            )
        return StoreClosedError("the connection was closed during the call")

    def _error(self, lost: WireError, sent: "_Sent") -> Exception:
        """Return the error for an attempt without an answer: an EmbstoreError, or a _PassingError
        if another attempt is allowed."""
        code, error = lost.code, lost.error
        if isinstance(error, OverloadedError | StoreClosedError):
            return error if lost.is_final else _PassingError(error)
        if isinstance(error, OutcomeUnknownError):
            self._origins.changed_epoch()  # this is the only error that the caller gets
        if isinstance(error, PermissionDeniedError) and sent.was_lost and sent.mutates:
            return OutcomeUnknownError(
                "the connection was lost while a call that writes was in flight: it may have been "
                f"applied; read t and the command number before you repeat it. {error}"
            )
        if error is not None:
            return error
        if self._closed:
            return self._cut_off(sent)
        if code in _LOST:
            closed = StoreClosedError(f"no connection to {self.address}: {lost.text}")
            return _PassingError(closed, was_lost=True) if self._waits else closed
        if code is StatusCode.DEADLINE_EXCEEDED:
            advice = after_timeout(sent.verb.command)
            return DeadlineError(f"{self.address} did not answer in time{advice}")
        if code is StatusCode.RESOURCE_EXHAUSTED:
            return InvalidArgumentError(f"the message is too large for {self.address}: {lost.text}")
        kind = OutcomeUnknownError if sent.mutates else EmbstoreError
        return kind(f"{self.address} answered {code.name}: {lost.text}")


@dataclass
class _Sent:
    """The state of a call over all its attempts."""

    verb: Verb
    deadline: float
    origin: Origin | None
    shown_next_at: float  # the time of the next log line about a server that is starting
    was_lost: bool = False  # an attempt was lost, so the call may have been executed
    said: str = ""  # the last progress report of a server that is starting

    @property
    def mutates(self) -> bool:
        return self.verb.command.retry is not Retry.FREE

    def wait_for_a_start(self, again: "_PassingError", absent_s: float, starting_s: float) -> None:
        """Extend the deadline of the first call while the server starts. After a new progress
        report the deadline is in `starting_s` or `absent_s` seconds, whichever is longer. If the
        connection is lost after a report, the deadline is in `absent_s` seconds."""
        if again.was_lost:
            if self.said:
                self.said, self.deadline = "", monotonic() + absent_s
            return
        now = monotonic()
        if str(again) != self.said:
            self.said, self.deadline = str(again), now + max(absent_s, starting_s)
        if now >= self.shown_next_at:
            self.shown_next_at = now + _SHOWN_EVERY_S
            logging.getLogger("embstore").warning("waiting for the server: %s", self.said)

    def too_late(self, again: "_PassingError", seconds: float) -> str:
        """Return the message for a call that has no time left."""
        if self.said:
            return f"{again.error}, and that has not changed for a long time: see the server's log"
        return f"{self.verb.name}: no success within {seconds:g} s; the last answer: {again.error}"


class _PassingError(Exception):
    """The call can be sent again; `error` is raised if there is no time left.

    If `was_lost`, the server may have executed the call; otherwise it has certainly not executed
    it.
    """

    def __init__(self, error: EmbstoreError, *, was_lost: bool = False) -> None:
        super().__init__(str(error))
        self.error, self.was_lost = error, was_lost
