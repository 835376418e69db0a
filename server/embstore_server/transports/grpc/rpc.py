"""The calls of the gRPC port: how they arrive, and how their answers are sent.

A control or bulk verb has one message each way; a bulk verb also has a second method, with a stream
each way. Other verbs answer by a stream. gRPC itself never answers a request that ends without its
message, and waits for a message without a time limit. Therefore this module receives every request
as a stream, within the call's deadline. There are no serialisers: gRPC passes on the received
bytes, and gets the bytes to send. A stream is received as a whole before anything is queued, so a
stream that ends before it is complete changes nothing.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from functools import partial
from time import monotonic
from typing import Any

import grpc
from numpy.typing import NDArray

from embstore.errors import DeadlineError, InvalidArgumentError
from embstore_proto import frame
from embstore_proto.envelope import MAP_METADATA, part_of
from embstore_proto.frame import Blank, Framed
from embstore_proto.received import Assembly
from embstore_proto.status import NOT_AGAIN_METADATA
from embstore_proto.verbs import SERVICE, VERBS, Verb
from embstore_server.access.callers import names_of_peer
from embstore_server.path.caller import Caller
from embstore_server.path.calls import BRIEF_BYTES, Calls
from embstore_server.path.inflight import Reservation
from embstore_server.path.service import Service
from embstore_server.transports.grpc.endings import refuse, sent
from embstore_server.transports.grpc.receiving import Receiving

SERVICE_NAME = SERVICE.full_name
TRANSPORT = "grpc"

_METADATA_CHARACTERS_MAX = 200

Handler = Callable[[Any, Any], Awaitable[Any]]


class GrpcCalls:
    """The handlers of one service."""

    def __init__(self, service: Service, receiving: Receiving) -> None:
        self._service = service
        self._receiving = receiving
        self._calls = Calls(service)

    def handlers(self) -> grpc.GenericRpcHandler:
        """Return every method of the .proto file, for `add_generic_rpc_handlers`."""
        methods: dict[str, Any] = {}
        for name, verb in VERBS.items():
            if verb.is_streamed:
                methods[name] = _streamed(partial(self._stream, name, verb))
                continue
            methods[name] = grpc.stream_unary_rpc_method_handler(partial(self._unary, verb))
            if verb.has_twin:
                twin = f"{name}Stream"
                methods[twin] = _streamed(partial(self._stream, twin, verb))
        return grpc.method_handlers_generic_handler(SERVICE_NAME, methods)

    async def _unary(self, verb: Verb, _: Any, context: Any) -> bytes:
        call = GrpcIncoming(self._service, context)
        async with self._calls.answered(verb.name, call) as caller:
            self._calls.let_in(call, caller, verb)
            receive = self._receiving.bulk if verb.is_bulk else self._receiving.control
            request = await receive(caller, context)
            limit = self._service.settings.unary_bytes_max
            if verb.is_bulk:
                _check_unary(len(request), limit, "request", verb.name)
            caller.received_bytes = len(request)
            caller.brief = verb.is_bulk and len(request) <= BRIEF_BYTES
            with self._service.reservation(caller) as reservation:
                if verb.is_bulk:  # a lease is renewed even if too many bytes are in flight
                    reservation.add(len(request))
                reply = await self._calls.reply(verb, call, caller, [request], reservation)
                if verb.is_bulk:
                    _check_unary(reply.total_bytes, limit, "reply", verb.name)
                return reply.joined()

    async def _stream(
        self, name: str, verb: Verb, requests: AsyncIterator[bytes], context: Any
    ) -> None:
        # Metadata are sent before the first message. If a deadline passed during the first write,
        # the metadata would be half sent: gRPC could then send no status, and the client would wait
        # for ever.
        await sent(context.send_initial_metadata(()))
        call = GrpcIncoming(self._service, context, in_chunks=verb.has_bulk_reply or verb.is_bulk)
        async with self._calls.answered(name, call) as caller:
            self._calls.let_in(call, caller, verb)
            await self._answer_stream(verb, call, caller, requests)

    async def _answer_stream(
        self, verb: Verb, call: "GrpcIncoming", caller: Caller, requests: AsyncIterator[bytes]
    ) -> None:
        """Answer a stream.

        This method exists so that message and reply have a frame of their own. The frame of
        `_stream` lives until the status is sent, and a client that does not read the status must
        not keep message and reply alive.
        """
        with self._service.reservation(caller) as reservation:
            if verb.is_bulk:
                request: list[Any] = [await self._assembled(caller, requests, reservation)]
            else:
                request = [await self._receiving.control(caller, call.context)]
                caller.received_bytes = len(request[0])
            await self._calls.answer(verb, call, caller, request, reservation)

    async def _assembled(
        self, caller: Caller, chunks: AsyncIterator[bytes], reservation: Reservation
    ) -> memoryview:
        most, limit = self._service.call_bytes_max(caller)
        assembly = Assembly(most + frame.HEADER_BYTES_MAX, limit)
        async for chunk in chunks:
            if not assembly.total_bytes:
                reservation.check_room(assembly.announced(chunk))
            assembly.add(chunk)
            reservation.add(min(len(chunk), assembly.total_bytes - reservation.reserved_bytes))
        caller.received_bytes = assembly.total_bytes
        return assembly.whole()


class GrpcIncoming:
    """One call, as gRPC represents it."""

    transport = TRANSPORT

    def __init__(self, service: Service, context: Any, *, in_chunks: bool = False) -> None:
        self.context = context
        self._service = service
        self._in_chunks = in_chunks
        self._metadata = dict(context.invocation_metadata() or ())
        self.authorization = str(self._metadata.get("authorization", ""))
        self.certificate_names: Sequence[str] = names_of_peer(context.auth_context())

    def caller(self, verb: str) -> Caller:
        """Return the caller, with the call's deadline."""
        settings = self._service.settings
        label, request, traceparent = _labels(self._metadata)
        remaining = self.context.time_remaining()
        seconds = settings.call_timeout_s if remaining is None else remaining
        return self._service.caller_of(
            verb,
            self.context.peer(),
            monotonic() + min(seconds, settings.call_timeout_max_s),
            label,
            request,
            traceparent,
            part_of(self._metadata.get(MAP_METADATA, "")),
        )

    def has_room(self, count: int) -> bool:
        """Return whether `count` is 0: replies of gRPC have no space of their own, so `expect` must
        reserve their bytes."""
        return not count

    async def expect(self, count: int, reservation: Reservation | None) -> None:
        """Add `count` bytes of the reply to `reservation`, if there is one."""
        if reservation is not None:
            reservation.add(count)

    def blank(
        self,
        room: int,
        shapes: Sequence[tuple[int, ...]],
        others: Sequence[NDArray[Any]],
        dtype: str,
    ) -> Blank:
        """Return a message in one piece."""
        return Blank(room, shapes, others, dtype=dtype)

    async def send(self, reply: Framed, *, is_last: bool) -> None:
        """Send a message of a stream, once the client has received the previous one."""
        for message in reply.chunks() if self._in_chunks else (reply.joined(),):
            await self._write(message)

    async def _write(self, message: bytes) -> None:
        seconds = self._service.settings.read_timeout_s
        try:
            async with asyncio.timeout(seconds):
                await sent(self.context.write(message))
        except TimeoutError:
            raise DeadlineError(
                f"the client read nothing of the reply for {seconds:g} s (the setting "
                "read_timeout_s)"
            ) from None

    async def refuse(self, error: Exception, *, is_final: bool) -> None:
        """End the call with an error, by raising gRPC's own exception."""
        metadata = [(NOT_AGAIN_METADATA, "the store has failed")] if is_final else []
        await refuse(self.context, error, metadata)


def _streamed(handler: Handler) -> Any:
    return grpc.stream_stream_rpc_method_handler(handler)


def _labels(metadata: dict[str, Any]) -> list[str]:
    """Return the labels of client, request and trace from the metadata."""
    labels: list[str] = []
    for key in ("embstore-client", "embstore-request", "traceparent"):
        value = metadata.get(key, "")
        text = value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
        labels.append(text[:_METADATA_CHARACTERS_MAX])
    return labels


def _check_unary(size: int, limit: int, what: str, verb: str) -> None:
    if size > limit:
        raise InvalidArgumentError(
            f"{verb}: expected a {what} of at most {limit} bytes (limits.unary_bytes_max), found "
            f"{size}; call {verb}Stream"
        )
