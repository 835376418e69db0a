"""The gRPC border: bytes in, checked work to the service, the answer or the error out.

Handlers are registered by name from the tables of `bulk`, `control`, `sessions` and `frequency`,
with no serialisers: gRPC hands over the bytes that came, so that arrays are never copied by
protobuf. There is one handler for unary bulk calls, one for their stream twins, one for control
calls, one for each way to read a session's step, one for calls that are answered by a document, and
one that follows a warm-up.

Every handler is one `_answered` block: it makes the caller from the call's metadata and deadline,
turns errors into a status (the map is `embstore_proto.status`), and hands the figures in. A call
whose client has gone is cancelled by gRPC at whatever it awaits: nothing has been queued then, or
it is withdrawn, or it runs to its end and is remembered.

A stream is taken whole before anything is queued, so a stream cut in the middle applies nothing.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from functools import partial
from time import monotonic
from traceback import clear_frames
from typing import Any

import grpc

import embstore
from embstore.config import INITIALIZERS, OPTIMIZERS
from embstore.errors import (
    DeadlineError,
    EmbstoreError,
    InvalidArgumentError,
    StoreClosedError,
)
from embstore_proto import codec
from embstore_proto.codec import Assembly, Framed
from embstore_proto.status import ERROR_METADATA, NOT_AGAIN_METADATA, answer_of, message_of
from embstore_proto.v1 import embstore_pb2 as pb
from embstore_server import bulk, control, frequency, sessions
from embstore_server.answers import Answered, Awaited, answering
from embstore_server.inflight import Reservation
from embstore_server.logs import event
from embstore_server.once import CALLS_MAX
from embstore_server.service import Caller, Service
from embstore_server.worker import Work

SERVICE_NAME = pb.DESCRIPTOR.services_by_name["Embstore"].full_name

_FRAME_BYTES_MAX = 1 << 20
"""What a bulk message may have beside its arrays: names and places, of thousands of tables."""

_BRIEF_BYTES = 1 << 10
"""Of a unary request: at most a hundred keys, a fraction of a millisecond where rows are cached and
milliseconds where the disk is asked for each."""

_METADATA_CHARACTERS_MAX = 200

_READING = ("CheckIntegrity", "Export", "Get", "List", "Lookup", "Read")
"""What the names of the verbs begin with that change nothing."""

Handler = Callable[[Any, Any], Awaitable[Any]]


class Rpc:
    """The handlers of one service."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._ranks = sessions.Ranks()
        self._calls = 0
        self._idle = asyncio.Event()
        self._idle.set()

    async def idle(self) -> None:
        """Wait until no call is under way."""
        await self._idle.wait()

    def handlers(self) -> grpc.GenericRpcHandler:
        """Return every method of the .proto file, for `add_generic_rpc_handlers`."""
        methods = {"GetServerInfo": grpc.unary_unary_rpc_method_handler(self._server_info)}
        for name, verb in (control.VERBS | sessions.CONTROL | frequency.CONTROL).items():
            methods[name] = grpc.unary_unary_rpc_method_handler(self._control(name, verb))
        for name, prepare in (bulk.VERBS | sessions.BULK | frequency.BULK).items():
            unary, stream = self._unary(name, prepare), self._stream(name, prepare)
            methods[name] = grpc.unary_unary_rpc_method_handler(unary)
            methods[f"{name}Stream"] = grpc.stream_stream_rpc_method_handler(stream)
        methods["LookupStep"] = grpc.unary_stream_rpc_method_handler(self._lookup_step)
        methods["LookupStepPooled"] = grpc.stream_stream_rpc_method_handler(
            self._lookup_step_pooled
        )
        for name, document in frequency.DOCUMENTS.items():
            methods[name] = grpc.unary_stream_rpc_method_handler(self._document(name, document))
        methods["WarmCache"] = grpc.unary_stream_rpc_method_handler(self._warm_cache)
        return grpc.method_handlers_generic_handler(SERVICE_NAME, methods)

    # What every handler does

    @asynccontextmanager
    async def _answered(self, verb: str, context: Any) -> AsyncIterator[Caller]:
        caller = self._caller(verb, context)
        self._begun(1)
        code = grpc.StatusCode.OK.name
        try:
            async with asyncio.timeout(caller.deadline - monotonic()):
                yield caller
        except asyncio.CancelledError:
            code = grpc.StatusCode.CANCELLED.name
            raise
        except Exception as exc:
            error = _named_timeout(exc, verb)
            code = answer_of(error).code.name
            if not isinstance(error, EmbstoreError):
                event(logging.ERROR, "internal error", verb=verb, exc_info=error)
            _let_go(exc)
            await self._abort(context, error)
        finally:
            self._begun(-1)
            self._service.finished(caller, code)

    def _begun(self, calls: int) -> None:
        self._calls += calls
        if self._calls:
            self._idle.clear()
        else:
            self._idle.set()

    async def _abort(self, context: Any, error: Exception) -> None:
        metadata = []
        if isinstance(error, EmbstoreError):
            metadata.append((ERROR_METADATA, type(error).__name__))
            if isinstance(error, StoreClosedError) and self._service.has_failed:
                metadata.append((NOT_AGAIN_METADATA, "the store has failed"))
        try:
            code, text = answer_of(error).code, message_of(error)
            await _sent(context.abort(code, text, tuple(metadata)))
        except grpc.aio.AbortError as ended:
            context.add_done_callback(partial(_untrace, ended))
            raise

    def _caller(self, verb: str, context: Any) -> Caller:
        settings = self._service.settings
        metadata = dict(context.invocation_metadata() or ())
        remaining = context.time_remaining()
        seconds = settings.call_timeout_s if remaining is None else remaining
        return Caller(
            verb,
            context.peer(),
            monotonic() + min(seconds, settings.call_timeout_max_s),
            _label(metadata, "embstore-client"),
            _label(metadata, "embstore-request"),
            _label(metadata, "traceparent"),
        )

    async def _do(
        self, caller: Caller, origin: pb.Origin | None, work: Work, *, beside: bool
    ) -> Answered:
        """Return the answer of work that brings Answered; it may have others to wait for yet."""
        if beside:
            answered: Answered = await self._service.run_beside(work)
        else:
            answered = await self._service.mutate(caller, origin, work)
        return answered

    # Bulk calls

    def _unary(self, verb: str, prepare: Callable[[Any], bulk.Call]) -> Handler:
        async def handler(request: bytes, context: Any) -> bytes:
            async with self._answered(verb, context) as caller:
                limit = self._service.settings.unary_bytes_max
                _check_unary(len(request), limit, "request", verb)
                caller.received_bytes = len(request)
                caller.brief = len(request) <= _BRIEF_BYTES
                with self._service.inflight.reservation() as held:
                    held.add(len(request))
                    reply = await self._reply(caller, prepare(codec.split(request)), held)
                    _check_unary(reply.total_bytes, limit, "reply", verb)
                    return reply.joined()

        return handler

    def _stream(self, name: str, prepare: Callable[[Any], bulk.Call]) -> Handler:
        verb = f"{name}Stream"

        async def handler(chunks: AsyncIterator[bytes], context: Any) -> None:
            # First of all, because a deadline that passes during the first write would leave the
            # metadata half sent: then gRPC can send no status, and the client waits for ever.
            await _sent(context.send_initial_metadata(()))
            async with self._answered(verb, context) as caller:
                await self._streamed(caller, chunks, context, prepare)

        return handler

    async def _streamed(
        self,
        caller: Caller,
        chunks: AsyncIterator[bytes],
        context: Any,
        prepare: Callable[[Any], bulk.Call],
    ) -> None:
        with self._service.inflight.reservation() as held:
            # No name is given to the message: a call that waits for others holds it no longer.
            reply = await self._reply(
                caller, prepare(codec.split(await self._assembled(caller, chunks, held))), held
            )
            for chunk in reply.chunks():
                await _sent(context.write(chunk))

    async def _assembled(
        self, caller: Caller, chunks: AsyncIterator[bytes], held: Reservation
    ) -> memoryview:
        assembly = Assembly(self._service.store.limits.call_bytes_max + _FRAME_BYTES_MAX)
        async for chunk in chunks:
            if not assembly.total_bytes:
                held.check_room(assembly.announced(chunk))
            assembly.add(chunk)
            held.add(min(len(chunk), assembly.total_bytes - held.held_bytes))
        caller.received_bytes = assembly.total_bytes
        return assembly.whole()

    async def _reply(self, caller: Caller, call: bulk.Call, held: Reservation) -> Framed:
        if call.header is not None:
            self._ranks.tell(caller, call.header)
            caller.brief = False  # the last rank's share does the work of all
        if caller.verb.removesuffix("Stream") in frequency.BULK:
            held.add(frequency.parsing_bytes(self._service, held.held_bytes))
        work = answering(call.work, self._service.instance, stages=call.stages)
        answered = await self._do(caller, call.origin, work, beside=call.beside)
        make_reply = call.reply
        if isinstance(answered.value, Awaited):
            del call, work  # with the arrays that came: the session has copied what it waits with
            held.release()
        reply = make_reply(await self._service.settled(answered))
        held.add_unchecked(reply.total_bytes)
        caller.sent_bytes = reply.total_bytes
        return reply

    # Control calls

    def _control(self, name: str, verb: control.Verb) -> Handler:
        async def handler(request: bytes, context: Any) -> bytes:
            async with self._answered(name, context) as caller:
                caller.received_bytes = len(request)
                message = codec.parse(verb.request, request)
                origin = message.origin if verb.mutates and message.HasField("origin") else None
                self._ranks.tell(caller, message)
                work = answering(verb.prepare(message), self._service.instance)
                done = await self._do(caller, origin, work, beside=verb.beside)
                answered = await self._service.settled(done)
                if isinstance(answered.value, pb.MembershipReply):
                    self._ranks.joined(caller, answered.value)
                return _serialised(answered, caller)

        return handler

    # Reading a session's step

    async def _lookup_step(self, request: bytes, context: Any) -> None:
        await _sent(context.send_initial_metadata(()))  # as a stream does
        async with self._answered("LookupStep", context) as caller:
            caller.received_bytes = len(request)
            message = codec.parse(pb.LookupStepRequest, request)
            self._ranks.tell(caller, message)
            send = partial(self._write, caller, context)
            await sessions.send_rows(self._service, caller, message, send)

    async def _lookup_step_pooled(self, chunks: AsyncIterator[bytes], context: Any) -> None:
        await _sent(context.send_initial_metadata(()))
        async with self._answered("LookupStepPooled", context) as caller:
            with self._service.inflight.reservation() as held:
                message = codec.split(await self._assembled(caller, chunks, held))
                header = codec.parse(pb.LookupStepPooledRequest.Header, message.header)
                self._ranks.tell(caller, header)
                reply = await sessions.pooled_rows(self._service, caller, header, message)
                await self._write(caller, context, reply)

    async def _write(self, caller: Caller, context: Any, reply: Framed) -> None:
        """Send one of the messages of a stream; its bytes are in flight until gRPC has them."""
        caller.sent_bytes += reply.total_bytes
        with self._service.inflight.reservation() as held:
            held.add_unchecked(reply.total_bytes)
            for chunk in reply.chunks():
                await _sent(context.write(chunk))

    # Frequencies

    def _document(self, name: str, verb: frequency.Document) -> Handler:
        async def handler(request: bytes, context: Any) -> None:
            await _sent(context.send_initial_metadata(()))  # as a stream does
            async with self._answered(name, context) as caller:
                caller.received_bytes = len(request)
                call = verb.prepare(codec.parse(verb.request, request))
                work = answering(call.work, self._service.instance)
                reply = call.reply(await self._service.run_beside(work))
                await self._write(caller, context, reply)

        return handler

    async def _warm_cache(self, request: bytes, context: Any) -> None:
        await _sent(context.send_initial_metadata(()))  # as a stream does
        async with self._answered("WarmCache", context) as caller:
            caller.received_bytes = len(request)
            message = codec.parse(pb.WarmCacheRequest, request)
            async for reply in frequency.warmed(self._service, message):
                serialised = reply.SerializeToString()
                caller.sent_bytes += len(serialised)
                await _sent(context.write(serialised))

    async def _server_info(self, request: bytes, context: Any) -> bytes:
        async with self._answered("GetServerInfo", context):
            codec.parse(pb.GetServerInfoRequest, request)
            return server_info(self._service).SerializeToString()


def _let_go(error: BaseException) -> None:
    """Drop an error's trace, and what its frames hold: the message and the reply.

    The error may be remembered, and its status may wait for a client that does not read.
    """
    link: BaseException | None = error
    while link is not None:
        clear_frames(link.__traceback__)
        link.__traceback__ = None
        link = link.__cause__ or link.__context__


def _untrace(ended: grpc.aio.AbortError, context: Any) -> None:
    """Drop the trace of an error that gRPC keeps in a circle with the request."""
    ended.__traceback__ = ended.__context__ = None


async def _sent(sending: Awaitable[None]) -> None:
    """Wait until gRPC has sent something; if it could not, the client has gone."""
    try:
        await sending
    except grpc.aio.AbortError:
        raise
    except Exception as exc:  # of a class that has no public name
        raise asyncio.CancelledError from exc


def _serialised(answered: Answered, caller: Caller) -> bytes:
    reply = answered.value
    reply.context.CopyFrom(answered.context)
    serialised: bytes = reply.SerializeToString()
    caller.sent_bytes = len(serialised)
    return serialised


def _label(metadata: dict[str, Any], key: str) -> str:
    value = metadata.get(key, "")
    text = value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
    return text[:_METADATA_CHARACTERS_MAX]


def _check_unary(size: int, limit: int, what: str, verb: str) -> None:
    if size > limit:
        raise InvalidArgumentError(
            f"{verb}: expected a {what} of at most {limit} bytes (limits.unary_bytes_max), found "
            f"{size}; call {verb}Stream"
        )


def _named_timeout(error: Exception, verb: str) -> Exception:
    if isinstance(error, TimeoutError) and not isinstance(error, EmbstoreError):
        effect = "" if verb.startswith(_READING) else "; it may be done: read t before another try"
        return DeadlineError(f"{verb}: no answer in time{effect}")
    return error


def device_info(facts: Mapping[str, Any]) -> pb.DeviceInfo:
    """Return a device's facts as a message."""
    names = pb.DeviceInfo.DESCRIPTOR.fields_by_name
    return pb.DeviceInfo(**{name: facts[name] for name in names if name in facts})


def server_info(service: Service) -> pb.GetServerInfoReply:
    """Return what a client may want to know before its first call."""
    store, settings = service.store, service.settings
    limits = store.limits
    return pb.GetServerInfoReply(
        context=service.context(),
        version=embstore.__version__,
        device=store.device,
        device_info=device_info(store.device_facts),
        policy=settings.policy,
        cache_bytes=store.cache_bytes,
        read_only=settings.read_only,
        dtypes=[pb.DTYPE_INT64, pb.DTYPE_FLOAT32, pb.DTYPE_UINT32, pb.DTYPE_UINT8],
        optimizers=OPTIMIZERS,
        initializers=INITIALIZERS,
        key_spaces=[pb.KEY_SPACE_DENSE],
        limits=pb.ServerLimits(
            call_bytes_max=limits.call_bytes_max,
            unary_bytes_max=settings.unary_bytes_max,
            chunk_bytes_max=codec.CHUNK_BYTES_MAX,
            tables_max=limits.tables_max,
            log_rows_max=limits.log_rows_max,
            metadata_bytes_max=limits.metadata_bytes_max,
            queue_calls_max=settings.queue_calls_max,
            inflight_bytes_max=settings.inflight_bytes_max,
            remembered_calls_max=CALLS_MAX,
            call_timeout_s=settings.call_timeout_s,
            call_timeout_max_s=settings.call_timeout_max_s,
        ),
    )
