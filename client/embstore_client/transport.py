"""One call over gRPC: unary or streamed, with a deadline, in as many attempts as it takes.

**Size.** A message of up to UNARY_BYTES travels in a unary call, a larger one, or one whose reply
will be larger, as a stream of chunks. A server that takes less says so in its GetServerInfo.
Measured on two cores: a unary call of 5 MiB is a tenth faster than a stream, at 16 MiB they are
equal, at 64 MiB a stream is three times as fast.

**Attempts.** What the server surely did not do, or may do again, is sent again with a growing,
random pause, until the deadline: calls refused because the queue is full or the server stops, and
calls that lost their connection. A mutating call carries an Origin for that, by which the server
applies it once (`embstore_server.replay`). Attempts are counted from the first that was lost: one
that was refused has left nothing, so that a restarted server may take the next. gRPC connects again
by itself, in the background; a call waits for it within its deadline.

**Sessions.** Their calls need no Origin: the server knows them by member and step. A call
that finishes a step may wait for other ranks, and a server that stops cuts it off after it has been
done, perhaps; then it counts as lost. A session ends with its server's process, so the next attempt
is told that there is none: it is OutcomeUnknownError after a lost one, else SessionExpiredError. A
training loop opens it again by itself (`embstore_training.rank_session`).

Any thread. Nothing here knows what a table is.
"""

import os
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from time import monotonic, sleep
from typing import Any, TypeVar

import grpc

from embstore import commands as c
from embstore.commands import Retry, after_timeout
from embstore.errors import (
    DeadlineError,
    EmbstoreError,
    InvalidArgumentError,
    OutcomeUnknownError,
    OverloadedError,
    SessionExpiredError,
    StoreClosedError,
)
from embstore.results import ServerInfo
from embstore_client.origins import Origins
from embstore_proto import frame
from embstore_proto.envelope import Origin
from embstore_proto.frame import Framed, Received
from embstore_proto.status import NOT_AGAIN_METADATA, error_of
from embstore_proto.verbs import SERVICE, Answer, Outgoing, Verb

UNARY_BYTES = 8 << 20

T = TypeVar("T")

_SERVICE = f"/{SERVICE.full_name}/"
_REPLY_BYTES_MAX = (1 << 31) - 1
_READ = (c.Lookup, c.LookupPooled, c.ReadRows, c.GetTable, c.ListTables, c.GetDigest)
"""Commands that return rows, t, or a digest: what another epoch makes void."""
_LOST = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED)
"""No connection, or one that a server cut off as it ended; the client itself cancels no call."""
_SECONDS_MAX = 1e8
_PAUSE_FIRST_S, _PAUSE_MAX_S = 0.02, 1.0
KEEPALIVE_MS = 60_000
_OPTIONS = [
    ("grpc.max_send_message_length", -1),
    ("grpc.max_receive_message_length", -1),
    ("grpc.use_local_subchannel_pool", 1),  # a connection of one's own
    ("grpc.enable_retries", 0),  # the attempts are ours, they carry an origin
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.max_reconnect_backoff_ms", 2000),
    ("grpc.keepalive_time_ms", KEEPALIVE_MS),  # a peer that vanished without a word is found out
]


def checked_seconds(value: Any, name: str) -> float:
    """Return a timeout in seconds, if it is a number above 0 that gRPC can count."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not 0 < value <= _SECONDS_MAX:
        raise InvalidArgumentError(
            f"expected {name} to be a number of seconds in (0, {_SECONDS_MAX:g}], found {value!r}"
        )
    return value  # type: ignore[no-any-return]


class Transport:
    """A connection to a server, and what is known of it."""

    def __init__(
        self,
        address: str,
        *,
        timeout_s: float,
        label: str,
        credentials: Any = None,
        token: str = "",
    ) -> None:
        self.address = address
        self.timeout_s = timeout_s
        said = {"embstore-client": label, "authorization": f"Bearer {token}" if token else ""}
        self._metadata = tuple((key, value) for key, value in said.items() if value)
        if credentials is None:
            self._channel = grpc.insecure_channel(address, options=_OPTIONS)
        else:
            self._channel = grpc.secure_channel(address, credentials, options=_OPTIONS)
        self._methods: dict[tuple[str, str], Any] = {}
        self._origins = Origins()
        self._unary_bytes_max = UNARY_BYTES
        self._process = os.getpid()
        self._closed = False

    def close(self) -> None:
        """Close the connection; calls that run are cut off. Closing twice is harmless."""
        self._closed = True
        self._channel.close()

    # Calls

    def send(
        self,
        verb: Verb,
        request: Outgoing,
        *,
        reply_bytes: int = 0,
        timeout_s: float | None = None,
    ) -> Answer:
        """Send a command that has one answer, and return it; raise what the server answered.

        `reply_bytes` is about the size of the reply, where it may be large.
        """

        def attempt(origin: Origin | None, deadline: float) -> Answer:
            return verb.answer(self._reply(verb, request, reply_bytes, origin, deadline))

        answer = self._attempts(verb, attempt, timeout_s)
        if isinstance(answer.value, ServerInfo):
            self._origins.connected(answer.value)
            limits = answer.value.server
            limit = limits.unary_bytes_max if limits else UNARY_BYTES  # for a reply's header, too
            self._unary_bytes_max = max(limit // 2, limit - frame.HEADER_BYTES_MAX)
        elif issubclass(verb.command, _READ):
            self._origins.read(answer.context)
        elif verb.command is c.OpenSession:
            self._origins.placed(answer.context)
        else:
            self._origins.knows(answer.context)
        return answer

    def _reply(
        self,
        verb: Verb,
        request: Outgoing,
        reply_bytes: int,
        origin: Origin | None,
        deadline: float,
    ) -> bytes | Received:
        header, message = request.serialised(origin), request.message
        if message is None:
            return self._unary(verb.name, header, deadline)
        size = max(message.total_bytes(header), reply_bytes)
        if verb.is_streamed:
            return frame.split(self._stream(verb.name, message.framed(header), size, deadline))
        if size <= min(UNARY_BYTES, self._unary_bytes_max):
            reply = self._unary(verb.name, message.joined(header), deadline)
            return frame.split(frame.writable(reply))
        framed = message.framed(header)
        return frame.split(self._stream(f"{verb.name}Stream", framed, reply_bytes, deadline))

    def receive(
        self,
        verb: Verb,
        request: Outgoing,
        take: Callable[[Iterator[Answer]], T],
        *,
        timeout_s: float | None = None,
    ) -> T:
        """Send a command that is answered again and again, and may be sent again.

        `take` gets the answers as they come, and what it returns is returned. It is called once for
        each attempt, and must then begin anew; an error that it raises ends the call. Raises
        EmbstoreError: as in `send`, and what `take` raises.
        """
        serialised = request.serialised(None)

        def attempt(_: Origin | None, deadline: float) -> T:
            method = self._method(verb.name, self._channel.unary_stream)
            replies = method(serialised, **self._call_options(deadline))
            messages = _whole_messages(replies) if verb.has_bulk_reply else replies
            try:
                return take(self._noted(map(verb.answer, messages)))
            finally:
                replies.cancel()  # of one that has ended it does nothing

        return self._attempts(verb, attempt, timeout_s)

    def _noted(self, answers: Iterator[Answer]) -> Iterator[Answer]:
        for answer in answers:
            self._origins.knows(answer.context)
            yield answer

    @contextmanager
    def restoring(self) -> Iterator[Callable[[int], None]]:
        """Restore the store in between; call what is given with the epoch that this has begun."""
        with self._origins.restoring():
            yield self._origins.changed_epoch

    # Attempts

    def _attempts(
        self,
        verb: Verb,
        attempt: Callable[[Origin | None, float], T],
        timeout_s: float | None,
    ) -> T:
        """Return what an attempt returned."""
        seconds = self.timeout_s
        if timeout_s is not None:
            seconds = checked_seconds(timeout_s, "timeout_s")
        deadline = monotonic() + seconds
        retry = verb.command.retry
        origin = self._origins.begin(deadline) if retry is Retry.WINDOW else None
        sent = _Sent(verb, deadline, origin)
        pause = _PAUSE_FIRST_S
        try:
            while True:
                try:
                    return self._attempt(attempt, sent)
                except _PassingError as again:
                    if monotonic() + pause >= deadline:
                        raise DeadlineError(
                            f"{verb.name}: no success within {seconds:g} s; the last answer was: "
                            f"{again.error}"
                        ) from again.cause
                    sleep(pause * random.uniform(0.5, 1.0))
                    pause = min(2 * pause, _PAUSE_MAX_S)
                    sent.was_lost |= again.was_lost
                    if sent.origin is not None and sent.was_lost:
                        sent.origin = replace(sent.origin, attempt=sent.origin.attempt + 1)
        finally:
            if origin is not None:
                self._origins.end(origin)

    def _attempt(self, attempt: Callable[[Origin | None, float], T], sent: "_Sent") -> T:
        if self._closed:
            raise StoreClosedError("the connection is closed; connect again")
        if os.getpid() != self._process:
            raise StoreClosedError("the connection is of the process that was forked; connect here")
        try:
            return attempt(sent.origin, sent.deadline)
        except grpc.RpcError as exc:
            raise self._in_session(self._error(exc, sent), sent) from exc
        except ValueError as exc:  # how gRPC says that its channel was closed
            if self._closed:
                raise self._cut_off(sent) from exc
            raise

    def _in_session(self, error: Exception, sent: "_Sent") -> Exception:
        """Return what an error means to a call of a session, which an attempt may have done."""
        if sent.verb.command.retry is Retry.STEP:
            if isinstance(error, _PassingError) and isinstance(error.error, StoreClosedError):
                error.was_lost = True  # the server may have taken the call, and waited with it
            elif isinstance(error, SessionExpiredError) and sent.was_lost:
                self._origins.changed_epoch()
                return OutcomeUnknownError(
                    "the session ended while a call that finishes a step was out: open it again, "
                    f"its last step tells whether this one was finished. {error}"
                )
        return error

    def _cut_off(self, sent: "_Sent") -> EmbstoreError:
        if sent.mutates:
            return OutcomeUnknownError(
                "the connection was closed while a mutating call was out: it may have been applied"
            )
        return StoreClosedError("the connection was closed during the call")

    def _error(self, status: Any, sent: "_Sent") -> Exception:
        """Return what a status means: an error of the tree, or that it may be sent again."""
        code, details = status.code(), status.details()
        trailing = status.trailing_metadata() or ()
        error = error_of(code, details, trailing)
        if isinstance(error, OverloadedError | StoreClosedError):
            final = any(key == NOT_AGAIN_METADATA for key, _ in trailing)
            return error if final else _PassingError(error, status)
        if isinstance(error, OutcomeUnknownError):
            self._origins.changed_epoch()  # the caller is told by this error, and not again
        if error is not None:
            return error
        if self._closed:
            return self._cut_off(sent)
        if code in _LOST:
            lost = StoreClosedError(f"no connection to {self.address}: {details}")
            return _PassingError(lost, status, was_lost=True)
        if code is grpc.StatusCode.DEADLINE_EXCEEDED:
            advice = after_timeout(sent.verb.command)
            return DeadlineError(f"{self.address} did not answer in time{advice}")
        if code is grpc.StatusCode.RESOURCE_EXHAUSTED:
            return InvalidArgumentError(f"the message is too large for {self.address}: {details}")
        kind = OutcomeUnknownError if sent.mutates else EmbstoreError
        return kind(f"{self.address} answered {code.name}: {details}")

    # The wire

    def _unary(self, name: str, request: bytes, deadline: float) -> bytes:
        method = self._method(name, self._channel.unary_unary)
        reply: bytes = method(request, **self._call_options(deadline))
        return reply

    def _stream(self, name: str, framed: Framed, reply_bytes: int, deadline: float) -> memoryview:
        """Send and receive chunks. A side that has one chunk only is called as unary: on the wire
        it is the same, and gRPC needs no thread or queue for it."""
        options = self._call_options(deadline)
        channel = self._channel
        if framed.total_bytes <= frame.CHUNK_BYTES:
            (request,) = framed.chunks()
            replies = self._method(name, channel.unary_stream)(request, **options)
        elif not reply_bytes:  # an acknowledgement
            replies = [self._method(name, channel.stream_unary)(framed.chunks(), **options)]
        else:
            replies = self._method(name, channel.stream_stream)(framed.chunks(), **options)
        assembly = frame.Assembly(_REPLY_BYTES_MAX)
        for chunk in replies:
            assembly.add(chunk)
        return assembly.whole()

    def _method(self, name: str, make: Callable[..., Any]) -> Any:
        place = (name, make.__name__)
        method = self._methods.get(place)
        if method is None:  # two threads may both make it; either will do
            method = self._methods[place] = make(_SERVICE + name)
        return method

    def _call_options(self, deadline: float) -> dict[str, Any]:
        return {
            "timeout": max(deadline - monotonic(), 0.001),
            "metadata": self._metadata,
            "wait_for_ready": True,
        }


def _whole_messages(chunks: Iterator[bytes]) -> Iterator[Received]:
    """Yield the bulk messages that a stream's chunks are the pieces of."""
    assembly = frame.Assembly(_REPLY_BYTES_MAX)
    for chunk in chunks:
        assembly.add(chunk)
        if assembly.is_whole:
            yield frame.split(assembly.whole())
            assembly = frame.Assembly(_REPLY_BYTES_MAX)
    if assembly.total_bytes:
        assembly.whole()  # says what is missing


@dataclass
class _Sent:
    """A call on its way, over all its attempts."""

    verb: Verb
    deadline: float
    origin: Origin | None
    was_lost: bool = False  # one of the attempts was, so that the call may be done

    @property
    def mutates(self) -> bool:
        return self.verb.command.retry is not Retry.FREE


class _PassingError(Exception):
    """The call may be sent again; `error` is what to raise if there is no time left.

    `was_lost`: nobody knows whether the server did it; else it surely did not.
    """

    def __init__(self, error: EmbstoreError, cause: Any, *, was_lost: bool = False) -> None:
        super().__init__(str(error))
        self.error, self.cause, self.was_lost = error, cause, was_lost
