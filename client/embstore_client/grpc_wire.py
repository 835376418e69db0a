"""Calls over gRPC: unary or streamed.

**Size.** A message of up to UNARY_BYTES is sent in a unary call. A larger message, or a message
whose reply will be larger, is sent as a stream of chunks. A server with a lower limit returns that
limit in GetServerInfo. Measured on two cores: at 5 MiB a unary call is a tenth faster than a
stream, at 16 MiB they are equal, and at 64 MiB a stream is three times as fast.

gRPC reconnects by itself, in the background, and a call waits for the connection until the call's
deadline. Before the first connection a call does not wait: it reports why there is no connection
(`unreached`), and the caller decides whether to try again.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import monotonic
from typing import Any, NoReturn

import grpc

from embstore.commands import PartOf
from embstore.errors import EmbstoreError
from embstore.results import ServerInfo
from embstore_client.device_message import rows_not_shared
from embstore_client.tls import TlsFiles
from embstore_client.wire import WireError
from embstore_proto import frame
from embstore_proto.envelope import MAP_METADATA, metadata_of
from embstore_proto.frame import Framed, Message
from embstore_proto.received import Assembly, Received, split
from embstore_proto.status import NOT_AGAIN_METADATA, error_of
from embstore_proto.verbs import SERVICE, Verb

UNARY_BYTES = 8 << 20

_SERVICE = f"/{SERVICE.full_name}/"
_REPLY_BYTES_MAX = (1 << 31) - 1
KEEPALIVE_MS = 60_000
_OPTIONS = [
    ("grpc.max_send_message_length", -1),
    ("grpc.max_receive_message_length", -1),
    ("grpc.use_local_subchannel_pool", 1),  # each channel has its own connection
    ("grpc.enable_retries", 0),  # the transport makes the retries, and each carries an origin
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.max_reconnect_backoff_ms", 2000),
    ("grpc.keepalive_time_ms", KEEPALIVE_MS),  # detects a peer that vanished silently
]


class GrpcWire:
    """A channel to a server."""

    shares_memory = False

    def __init__(
        self,
        address: str,
        *,
        label: str,
        tls: TlsFiles | None = None,
        token: str = "",
        traceparent: Callable[[], str] | None = None,
    ) -> None:
        """For each call, `traceparent` returns the W3C id of the current trace span, "" if there is
        no span."""
        said = {"embstore-client": label, "authorization": f"Bearer {token}" if token else ""}
        self._metadata = tuple((key, value) for key, value in said.items() if value)
        if tls is None:
            self._channel = grpc.insecure_channel(address, options=_OPTIONS)
        else:
            self._channel = grpc.secure_channel(address, tls.credentials(), options=_OPTIONS)
        self._address, self._tls = address, tls
        self._traceparent = traceparent
        self._was_connected = False
        self._methods: dict[tuple[str, str], Any] = {}
        self._unary_bytes_max = UNARY_BYTES
        self._is_closed = False

    def connected(self, info: ServerInfo) -> None:
        """Remember the size of the largest unary message that the server accepts, less the size of
        a reply's header."""
        self._was_connected = True
        limit = info.server.unary_bytes_max if info.server else UNARY_BYTES
        self._unary_bytes_max = max(limit // 2, limit - frame.HEADER_BYTES_MAX)

    def close(self) -> None:
        """Close the channel."""
        self._is_closed = True
        self._channel.close()

    def _raise(self, exc: Exception) -> NoReturn:
        """Raise an error of gRPC as a WireError, and any other error unchanged."""
        if isinstance(exc, grpc.RpcError):
            status: Any = exc
            code, text = status.code(), status.details()
            trailing = status.trailing_metadata() or ()
            is_final = any(key == NOT_AGAIN_METADATA for key, _ in trailing)
            error = error_of(code, text, trailing)
            if error is None and code is grpc.StatusCode.UNAVAILABLE and not self._was_connected:
                text, error = self._unreached(text)
            raise WireError(code, text or "", error, is_final=is_final) from exc
        if self._is_closed and not isinstance(exc, EmbstoreError):  # gRPC raises ValueError then
            raise WireError(grpc.StatusCode.CANCELLED, str(exc)) from exc
        raise exc

    def _unreached(self, text: str) -> tuple[str, EmbstoreError | None]:
        """Return why there is no connection, as text; also as an error, or None if waiting may
        help."""
        from embstore_client.unreached import why_unreached  # not at the top: it imports ssl

        why = why_unreached(self._address, self._tls)
        return str(why) or text, why if isinstance(why, EmbstoreError) else None

    def send(
        self,
        verb: Verb,
        header: bytes,
        message: Message | None,
        reply_bytes: int,
        deadline: float,
        part_of: PartOf | None = None,
    ) -> bytes | Received:
        """Send a call with one answer; see `Wire.send`."""
        options = self._call_options(deadline, part_of)
        name, unary = verb.name, self._channel.unary_unary
        try:
            if message is None:
                answer: bytes = self._method(name, unary)(header, **options)
                return answer
            size = max(message.total_bytes(header), reply_bytes)
            if verb.is_streamed:
                return split(self._stream(name, message.framed(header), size, options))
            if size <= min(UNARY_BYTES, self._unary_bytes_max):
                reply = self._method(name, unary)(message.joined(header), **options)
                return split(frame.writable(reply))
            framed = message.framed(header)
            return split(self._stream(f"{name}Stream", framed, reply_bytes, options))
        except (grpc.RpcError, ValueError) as exc:
            self._raise(exc)

    def share_device(self, deadline: float, name: str | None) -> None:
        """Raise the error for a connection that shares no memory; see `Wire.share_device`."""
        raise rows_not_shared()

    @contextmanager
    def receive(
        self, verb: Verb, header: bytes, deadline: float, part_of: PartOf | None = None
    ) -> Iterator[Iterator[bytes | Received]]:
        """Send a call, and yield the messages of its answer; see `Wire.receive`."""
        try:
            method = self._method(verb.name, self._channel.unary_stream)
            replies = method(header, **self._call_options(deadline, part_of))
            try:
                yield _whole_messages(replies) if verb.has_bulk_reply else replies
            finally:
                replies.cancel()  # has no effect on a call that has ended
        except (grpc.RpcError, ValueError) as exc:
            self._raise(exc)

    def _stream(
        self, name: str, framed: Framed, reply_bytes: int, options: dict[str, Any]
    ) -> memoryview:
        """Send and receive chunks. If a side has only one chunk, gRPC is called as if that side
        were unary: the bytes sent are the same, and gRPC needs no thread or queue for that side."""
        channel = self._channel
        if framed.total_bytes <= frame.CHUNK_BYTES:
            (request,) = framed.chunks()
            replies = self._method(name, channel.unary_stream)(request, **options)
        elif not reply_bytes:  # an acknowledgement
            replies = [self._method(name, channel.stream_unary)(framed.chunks(), **options)]
        else:
            replies = self._method(name, channel.stream_stream)(framed.chunks(), **options)
        assembly = Assembly(_REPLY_BYTES_MAX)
        for chunk in replies:
            assembly.add(chunk)
        return assembly.whole()

    def _method(self, name: str, make: Callable[..., Any]) -> Any:
        place = (name, make.__name__)
        method = self._methods.get(place)
        if method is None:  # two threads may make it concurrently; both results work
            method = self._methods[place] = make(_SERVICE + name)
        return method

    def _call_options(self, deadline: float, part_of: PartOf | None) -> dict[str, Any]:
        metadata = self._metadata
        if self._traceparent is not None and (span := self._traceparent()):
            metadata = (*metadata, ("traceparent", span))
        if part_of is not None:
            metadata = (*metadata, (MAP_METADATA, metadata_of(part_of)))
        return {
            "timeout": max(deadline - monotonic(), 0.001),
            "metadata": metadata,
            "wait_for_ready": self._was_connected,
        }


def _whole_messages(chunks: Iterator[bytes]) -> Iterator[Received]:
    """Yield the bulk messages whose pieces are the chunks of a stream."""
    assembly = Assembly(_REPLY_BYTES_MAX)
    for chunk in chunks:
        assembly.add(chunk)
        if assembly.is_whole:
            yield split(assembly.whole())
            assembly = Assembly(_REPLY_BYTES_MAX)
    if assembly.total_bytes:
        assembly.whole()  # raises an error that names the missing part
