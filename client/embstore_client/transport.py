"""One call over gRPC: unary or streamed, with a deadline, in as many attempts as it takes.

**Size.** A message of up to UNARY_BYTES travels in a unary call, a larger one, or one whose reply
will be larger, as a stream of chunks. A server that takes less says so in its GetServerInfo.
Measured on two cores: a unary call of 5 MiB is a tenth faster than a stream, at 16 MiB they are
equal, at 64 MiB a stream is three times as fast.

**Attempts.** What the server surely did not do, or may do again, is sent again with a growing,
random pause, until the deadline: calls refused because the queue is full or the server stops, and
calls that lost their connection. A mutating call carries an Origin for that: the server applies a
sequence once, and answers further attempts as the first. Where it cannot know, because it restarted
or was restored in between, it says OutcomeUnknownError. Attempts are counted from the first that
was lost: one that was refused has left nothing, so that a restarted server may take the next.
gRPC connects again by itself, in the background; a call waits for it within its deadline.

**Sessions.** Their calls need no Origin: the server knows them by member and step. A call
that finishes a step may wait for other ranks, and a server that stops cuts it off after it has been
done, perhaps; then it counts as lost. A session ends with its server's process, so the next attempt
is told that there is none: it is OutcomeUnknownError after a lost one, else SessionExpiredError.

**Errors.** A status that names a class of embstore.errors raises it; the others are gRPC's own: no
connection and no time.

Any thread. Nothing here knows what a table is.
"""

import os
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum, auto
from time import monotonic, sleep
from typing import Any, Protocol, TypeVar

import grpc

from embstore.errors import (
    DeadlineError,
    EmbstoreError,
    InvalidArgumentError,
    OutcomeUnknownError,
    OverloadedError,
    SessionExpiredError,
    StoreClosedError,
)
from embstore_client.origins import Origins
from embstore_proto import codec
from embstore_proto.codec import Framed, Received
from embstore_proto.status import NOT_AGAIN_METADATA, error_of
from embstore_proto.v1 import embstore_pb2 as pb

UNARY_BYTES = 8 << 20


class InContext(Protocol):
    """A reply, which says what state it is of."""

    @property
    def context(self) -> pb.Context:
        """Store, epoch, command number, instance."""


class KnownBy(Enum):
    """What a server knows a mutating call again by, when it is sent a second time."""

    ORIGIN = auto()
    STEP = auto()  # a session's member and step


Reply = TypeVar("Reply", bound=InContext)
T = TypeVar("T")

_SERVICE = "/" + pb.DESCRIPTOR.services_by_name["Embstore"].full_name + "/"
_REPLY_BYTES_MAX = (1 << 31) - 1
_LOST = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED)
"""No connection, or one that a server cut off as it ended; the client itself cancels no call."""
_SECONDS_MAX = 1e8
_PAUSE_FIRST_S, _PAUSE_MAX_S = 0.02, 1.0
_OPTIONS = [
    ("grpc.max_send_message_length", -1),
    ("grpc.max_receive_message_length", -1),
    ("grpc.use_local_subchannel_pool", 1),  # a connection of one's own
    ("grpc.enable_retries", 0),  # the attempts are ours, they carry an origin
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.max_reconnect_backoff_ms", 2000),
    ("grpc.keepalive_time_ms", 60_000),  # a peer that vanished without a word is found out
]


def checked_seconds(value: Any, name: str) -> float:
    """Return a timeout, in seconds.

    Raises
    ------
    InvalidArgumentError : no number, not above 0, or more than gRPC can count.
    """
    if (
        isinstance(value, bool)
        or not isinstance(value, int | float)
        or not 0 < value <= _SECONDS_MAX
    ):
        raise InvalidArgumentError(
            f"expected {name} to be a number of seconds in (0, {_SECONDS_MAX:g}], found {value!r}"
        )
    return value


class Transport:
    """A connection to a server, and what is known of it."""

    def __init__(
        self, address: str, *, timeout_s: float, label: str, credentials: Any = None
    ) -> None:
        self.address = address
        self.timeout_s = timeout_s
        self._metadata = (("embstore-client", label),) if label else ()
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

    # Control calls

    def call(
        self,
        name: str,
        request: Any,
        parse: Callable[[bytes], Reply],
        *,
        mutates: bool = False,
        known_by: KnownBy = KnownBy.ORIGIN,
        timeout_s: float | None = None,
    ) -> Reply:
        """Do a control call and return its reply, parsed.

        Raises
        ------
        EmbstoreError : what the server answered; DeadlineError, StoreClosedError.
        """

        def attempt(origin: pb.Origin | None, deadline: float) -> Reply:
            if origin is not None:
                request.origin.CopyFrom(origin)
            return parse(self._unary(name, request.SerializeToString(), deadline))

        effect = known_by if mutates else None
        result = self._attempts(name, attempt, effect, timeout_s)
        if isinstance(result, pb.GetServerInfoReply):
            self._origins.connected(result)
            limit = result.limits.unary_bytes_max  # for a reply's header, too
            self._unary_bytes_max = max(limit // 2, limit - codec.HEADER_BYTES_MAX)
        else:
            self._origins.knows(result.context)
        return result

    def changed_epoch(self, epoch: int) -> None:
        """Go by another epoch from now on: this client has restored the store."""
        self._origins.changed_epoch(epoch)

    # Bulk calls

    def bulk(
        self,
        name: str,
        header: Any,
        message: codec.Message,
        *,
        reply_bytes: int,
        mutates: bool = False,
        known_by: KnownBy = KnownBy.ORIGIN,
        timeout_s: float | None = None,
    ) -> Received:
        """Do a bulk call and return its reply, taken apart; `reply_bytes` is about its size.

        Raises
        ------
        EmbstoreError : as in `call`.
        """

        def attempt(origin: pb.Origin | None, deadline: float) -> Received:
            if origin is not None:
                header.origin.CopyFrom(origin)
            serialised = header.SerializeToString()
            size = max(message.total_bytes(serialised), reply_bytes)
            if size <= min(UNARY_BYTES, self._unary_bytes_max):
                reply = self._unary(name, message.joined(serialised), deadline)
                return codec.split(codec.writable(reply))
            framed = message.framed(serialised)
            return codec.split(self._stream(f"{name}Stream", framed, reply_bytes, deadline))

        return self._attempts(name, attempt, known_by if mutates else None, timeout_s)

    def stream(
        self, name: str, header: Any, message: codec.Message, *, timeout_s: float | None = None
    ) -> Received:
        """Do a bulk call that changes nothing and has no unary form.

        Raises
        ------
        EmbstoreError : as in `call`.
        """
        serialised = header.SerializeToString()

        def attempt(_: pb.Origin | None, deadline: float) -> Received:
            framed = message.framed(serialised)
            return codec.split(self._stream(name, framed, _REPLY_BYTES_MAX, deadline))

        return self._attempts(name, attempt, None, timeout_s)

    def messages(
        self,
        name: str,
        request: Any,
        take: Callable[[Iterator[Received]], T],
        *,
        timeout_s: float | None = None,
    ) -> T:
        """Do a call that changes nothing and is answered by bulk messages, one after the other.

        `take` gets them as they come, and what it returns is returned. It is called once for each
        attempt, and must then begin anew.

        Raises
        ------
        EmbstoreError : as in `call`, and what `take` raises.
        """
        serialised = request.SerializeToString()

        def attempt(_: pb.Origin | None, deadline: float) -> T:
            method = self._method(name, self._channel.unary_stream)
            replies = method(serialised, **self._call_options(deadline))
            try:
                return take(_whole_messages(replies))
            finally:
                replies.cancel()  # of one that has ended it does nothing

        return self._attempts(name, attempt, None, timeout_s)

    def follow(
        self,
        name: str,
        request: Any,
        parse: Callable[[bytes], Reply],
        told: Callable[[Reply], None],
        *,
        timeout_s: float | None = None,
    ) -> None:
        """Do a call that is answered by how far it is, again and again; `told` gets each answer.

        It must be one that may be sent again. An error that `told` raises ends the following.

        Raises
        ------
        EmbstoreError : as in `call`, and what `told` raises.
        """
        serialised = request.SerializeToString()

        def attempt(_: pb.Origin | None, deadline: float) -> None:
            method = self._method(name, self._channel.unary_stream)
            replies = method(serialised, **self._call_options(deadline))
            try:
                for serialised_reply in replies:
                    reply = parse(serialised_reply)
                    self.knows(reply.context)
                    told(reply)
            finally:
                replies.cancel()  # of one that has ended it does nothing

        self._attempts(name, attempt, None, timeout_s)

    def knows(self, context: pb.Context) -> None:
        """Take note of the state that a reply was of."""
        self._origins.knows(context)

    # Attempts

    def _attempts(
        self,
        name: str,
        attempt: Callable[[pb.Origin | None, float], T],
        effect: KnownBy | None,
        timeout_s: float | None,
    ) -> T:
        """Return what an attempt returned; `effect` is None of a call that changes nothing."""
        seconds = self.timeout_s
        if timeout_s is not None:
            seconds = checked_seconds(timeout_s, "timeout_s")
        deadline = monotonic() + seconds
        origin = self._origins.begin(deadline) if effect is KnownBy.ORIGIN else None
        sent = _Sent(deadline, effect, origin)
        pause = _PAUSE_FIRST_S
        try:
            while True:
                try:
                    return self._attempt(attempt, sent)
                except _PassingError as again:
                    if monotonic() + pause >= deadline:
                        raise self._too_late(name, seconds, again.error) from again.cause
                    sleep(pause * random.uniform(0.5, 1.0))
                    pause = min(2 * pause, _PAUSE_MAX_S)
                    sent.was_lost |= again.was_lost
                    if origin is not None and sent.was_lost:
                        origin.attempt += 1
        finally:
            if origin is not None:
                self._origins.end(origin)

    def _attempt(self, attempt: Callable[[pb.Origin | None, float], T], sent: "_Sent") -> T:
        if self._closed:
            raise StoreClosedError("the connection is closed; connect again")
        if os.getpid() != self._process:
            raise StoreClosedError("the connection is of the process that was forked; connect here")
        try:
            return attempt(sent.origin, sent.deadline)
        except grpc.RpcError as exc:
            raise self._in_session(self._error(exc, mutates=sent.mutates), sent) from exc
        except ValueError as exc:  # how gRPC says that its channel was closed
            if self._closed:
                raise self._cut_off(mutates=sent.mutates) from exc
            raise

    def _in_session(self, error: Exception, sent: "_Sent") -> Exception:
        """Return what an error means to a call of a session, which an attempt may have done."""
        if sent.effect is KnownBy.STEP:
            if isinstance(error, _PassingError) and isinstance(error.error, StoreClosedError):
                error.was_lost = True  # the server may have taken the call, and waited with it
            elif isinstance(error, SessionExpiredError) and sent.was_lost:
                self._origins.changed_epoch()
                return OutcomeUnknownError(
                    "the session ended while a call that finishes a step was out: open it again, "
                    f"its last step tells whether this one was finished. {error}"
                )
        return error

    def _cut_off(self, *, mutates: bool) -> EmbstoreError:
        if mutates:
            return OutcomeUnknownError(
                "the connection was closed while a mutating call was out: it may have been applied"
            )
        return StoreClosedError("the connection was closed during the call")

    def _error(self, status: Any, *, mutates: bool) -> Exception:
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
            return self._cut_off(mutates=mutates)
        if code in _LOST:
            lost = StoreClosedError(f"no connection to {self.address}: {details}")
            return _PassingError(lost, status, was_lost=True)
        if code is grpc.StatusCode.DEADLINE_EXCEEDED:
            effect = "; the call may have been applied: read t and the command number"
            return DeadlineError(
                f"{self.address} did not answer in time{effect if mutates else ''}"
            )
        if code is grpc.StatusCode.RESOURCE_EXHAUSTED:
            return InvalidArgumentError(f"the message is too large for {self.address}: {details}")
        kind = OutcomeUnknownError if mutates else EmbstoreError
        return kind(f"{self.address} answered {code.name}: {details}")

    def _too_late(self, name: str, seconds: float, last: EmbstoreError) -> EmbstoreError:
        return DeadlineError(
            f"{name}: no success within {seconds:g} s; the last answer was: {last}"
        )

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
        if framed.total_bytes <= codec.CHUNK_BYTES:
            (request,) = framed.chunks()
            replies = self._method(name, channel.unary_stream)(request, **options)
        elif not reply_bytes:  # an acknowledgement
            replies = [self._method(name, channel.stream_unary)(framed.chunks(), **options)]
        else:
            replies = self._method(name, channel.stream_stream)(framed.chunks(), **options)
        assembly = codec.Assembly(_REPLY_BYTES_MAX)
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
    assembly = codec.Assembly(_REPLY_BYTES_MAX)
    for chunk in chunks:
        assembly.add(chunk)
        if assembly.is_whole:
            yield codec.split(assembly.whole())
            assembly = codec.Assembly(_REPLY_BYTES_MAX)
    if assembly.total_bytes:
        assembly.whole()  # says what is missing


@dataclass
class _Sent:
    """A call on its way, over all its attempts."""

    deadline: float
    effect: KnownBy | None
    origin: pb.Origin | None
    was_lost: bool = False  # one of the attempts was, so that the call may be done

    @property
    def mutates(self) -> bool:
        return self.effect is not None


class _PassingError(Exception):
    """The call may be sent again; `error` is what to raise if there is no time left.

    `was_lost`: nobody knows whether the server did it; else it surely did not.
    """

    def __init__(
        self, error: EmbstoreError, cause: BaseException, *, was_lost: bool = False
    ) -> None:
        super().__init__(str(error))
        self.error = error
        self.cause = cause
        self.was_lost = was_lost
