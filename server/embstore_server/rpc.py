"""The calls of the gRPC port: bytes in, the answer or the error out.

The wire's rows (`embstore_proto.verbs`) say how each verb travels, and so which handler it has:

    control, bulk        one message in, one out; of a bulk verb also a stream twin of both
    LookupStep           answered by one message of rows or two
    LookupStepPooled     a stream in, one message out
    a document           one message in, one streamed out
    WarmCache            answered by how far it is, again and again

gRPC itself never answers a request that ends without its message, and waits for one as long as it
takes. So every request is taken as a stream here, within the call's deadline. There are no
serialisers: gRPC hands over the bytes that came, and rows are written straight into the message
that it sends (`Blank`), so that protobuf never copies an array. Every call is one `_answered`
block. A call whose client has gone is cancelled by gRPC at whatever it awaits: nothing has been
queued then, or it is withdrawn, or it runs to its end and is remembered. A stream is taken whole
before anything is queued, so a stream cut in the middle applies nothing.

**Early and late rows.** Rows that no unfinished step touches are final while earlier steps are
still at work. LookupStep sends them at once, with their positions among the announced keys, and the
others when the step is ready: the network works while the trainer computes, and training stays
synchronous to the bit. With no early row, or none wanted, there is one message, without positions.

**Documents.** A profile and a hot set travel as the bytes of their files. To read one of a GiB
takes seconds, so a command that takes long is taken apart on its own thread.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, nullcontext
from functools import partial
from time import monotonic
from typing import Any, cast

import grpc
import numpy as np

from embstore.commands import Command, Effect, Progress, Retry
from embstore.engine.engine import Engine
from embstore.errors import (
    DeadlineError,
    InvalidArgumentError,
    StoreClosedError,
)
from embstore.layout import VALUE_BYTES
from embstore.lookahead.handles import Readiness, StepLookup
from embstore.rights import EVERYTHING
from embstore_proto import frame
from embstore_proto.frame import Assembly, Blank, Framed
from embstore_proto.status import NOT_AGAIN_METADATA, answer_of
from embstore_proto.verbs import SERVICE, VERBS, Arrived, Verb
from embstore_server.access import shares
from embstore_server.access.callers import certificate_names
from embstore_server.answers import Answered, answered_error, answering
from embstore_server.caller import Caller, observe
from embstore_server.endings import drop_trace, refuse, sent
from embstore_server.inflight import Reservation
from embstore_server.service import Service

SERVICE_NAME = SERVICE.full_name

_BRIEF_BYTES = 1 << 10
"""Of a unary request: at most a hundred keys, a fraction of a millisecond where rows are cached and
milliseconds where the disk is asked for each."""
_METADATA_CHARACTERS_MAX = 200
_CONTEXT_ROOM, _TABLE_ROOM, _STAGES_ROOM = 160, 80, 600
"""Bytes of a reply's header: what is not said per table, what is beside its name, stage times."""

Handler = Callable[[Any, Any], Awaitable[Any]]
Answer = Callable[[Caller, Any, Any], Awaitable[None]]


class GrpcCalls:
    """The handlers of one service."""

    def __init__(self, service: Service) -> None:
        self._service = service

    def handlers(self) -> grpc.GenericRpcHandler:
        """Return every method of the .proto file, for `add_generic_rpc_handlers`."""
        methods: dict[str, Any] = {}
        for name, verb in VERBS.items():
            if verb.is_streamed:
                answer = partial(getattr(self, _STREAMED.get(name, "_document")), verb)
                methods[name] = _streamed(partial(self._stream, name, answer))
                continue
            methods[name] = grpc.stream_unary_rpc_method_handler(partial(self._unary, verb))
            if verb.has_twin:
                twin = partial(self._twin, verb)
                methods[f"{name}Stream"] = _streamed(partial(self._stream, f"{name}Stream", twin))
        return grpc.method_handlers_generic_handler(SERVICE_NAME, methods)

    # What every handler does

    @asynccontextmanager
    async def _answered(self, verb: str, context: Any) -> AsyncIterator[Caller]:
        caller = self._caller(verb, context)
        self._service.count_calls(1)
        code = grpc.StatusCode.OK.name
        try:
            async with asyncio.timeout(caller.deadline - monotonic()):
                caller.principal = self._service.callers.principal(
                    dict(context.invocation_metadata() or ()).get("authorization", ""),
                    certificate_names(context.auth_context()),
                )
                yield caller
        except asyncio.CancelledError:
            code = grpc.StatusCode.CANCELLED.name
            raise
        except Exception as exc:
            error = answered_error(exc, verb)
            code = answer_of(error).code.name
            drop_trace(exc)  # which may be another one
            await self._refuse(context, error)
        finally:
            self._service.count_calls(-1)
            observe(caller, code, self._service.metrics, self._service.settings.slow_call_ms)

    async def _refuse(self, context: Any, error: Exception) -> None:
        has_failed = isinstance(error, StoreClosedError) and self._service.failure is not None
        metadata = [(NOT_AGAIN_METADATA, "the store has failed")] if has_failed else []
        await refuse(context, error, metadata)

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

    def _arrived(self, verb: Verb, caller: Caller, request: bytes | memoryview) -> Arrived:
        """Take a command apart, and see that its caller may give it. Any thread."""
        arrived = verb.arrived(request)
        command = self._service.permitted(caller, arrived.command)
        shares.check_call(caller.principal, command, self._service.engine)
        return arrived._replace(command=command)

    # One request, one reply

    async def _unary(self, verb: Verb, _: Any, context: Any) -> bytes:
        async with self._answered(verb.name, context) as caller:
            request = await _only(context)
            limit = self._service.settings.unary_bytes_max
            if verb.is_bulk:
                _check_unary(len(request), limit, "request", verb.name)
            caller.received_bytes = len(request)
            caller.brief = verb.is_bulk and len(request) <= _BRIEF_BYTES
            with self._service.reservation(caller) as reservation:
                if verb.is_bulk:  # whatever is in flight, a lease is renewed
                    reservation.add(len(request))
                reply = await self._reply(verb, caller, [request], reservation)
                if verb.is_bulk:
                    _check_unary(reply.total_bytes, limit, "reply", verb.name)
                return reply.joined()

    # Streams

    async def _stream(
        self, name: str, answer: Answer, requests: AsyncIterator[bytes], context: Any
    ) -> None:
        """Have a stream answered by `answer`, whose frame holds the message and the reply: this one
        lives until the status is sent, and a client that does not read it must not keep them."""
        # First of all, because a deadline that passes during the first write would leave the
        # metadata half sent: then gRPC can send no status, and the client waits for ever.
        await sent(context.send_initial_metadata(()))
        async with self._answered(name, context) as caller:
            await answer(caller, requests, context)

    async def _twin(
        self, verb: Verb, caller: Caller, chunks: AsyncIterator[bytes], context: Any
    ) -> None:
        with self._service.reservation(caller) as reservation:
            request = [await self._assembled(caller, chunks, reservation)]
            reply = await self._reply(verb, caller, request, reservation)
            for chunk in reply.chunks():
                await self._send(context, chunk)

    async def _send(self, context: Any, message: bytes) -> None:
        """Send a message of a stream, once the client has taken what came before it."""
        seconds = self._service.settings.read_timeout_s
        try:
            async with asyncio.timeout(seconds):
                await sent(context.write(message))
        except TimeoutError:
            raise DeadlineError(
                f"nothing of the reply was read for {seconds:g} s (the setting read_timeout_s)"
            ) from None

    async def _assembled(
        self, caller: Caller, chunks: AsyncIterator[bytes], reservation: Reservation
    ) -> memoryview:
        most, limit = self._service.engine.tables.limits.call_bytes_max, "limits.call_bytes_max"
        own = caller.principal.limits.get("call_bytes", most)
        if own < most:
            most, limit = own, f"call_bytes of {caller.principal.name!r}"
        assembly = Assembly(most + frame.HEADER_BYTES_MAX, limit)
        async for chunk in chunks:
            if not assembly.total_bytes:
                reservation.check_room(assembly.announced(chunk))
            assembly.add(chunk)
            reservation.add(min(len(chunk), assembly.total_bytes - reservation.reserved_bytes))
        caller.received_bytes = assembly.total_bytes
        return assembly.whole()

    async def _reply(
        self, verb: Verb, caller: Caller, request: list[Any], reservation: Reservation
    ) -> Framed:
        """Return the reply to a request, which is taken out of its list: a call that waits for
        other ranks no longer keeps the message, whose arrays the session has copied."""
        service, is_step = self._service, verb.command.retry is Retry.STEP
        if verb.command.effect is Effect.LONG and (verb.is_bulk or verb.is_streamed):
            if verb.document:  # not taken apart for nothing
                caller.principal.check(verb.command.right, [EVERYTHING])
                service.check_document(len(frame.split(request[0]).payload), verb.document)
                reservation.add(service.parsing_bytes(reservation.reserved_bytes))
            return await self._long_reply(verb, caller, request.pop())
        caller.brief = caller.brief and not is_step  # the last rank's share does the work of all
        is_counted = caller.principal.name and verb.is_bulk and not is_step
        with await service.place(caller) if is_counted else nullcontext():
            arrived = self._arrived(verb, caller, request.pop())
            rows = _Rows(arrived.stages) if verb.reads_rows else None
            expected = service.expected_bytes(arrived.command)
            if expected:  # whatever is in flight, what has no rows is answered
                reservation.add(expected)
            answered = await service.begin(
                caller, arrived.command, arrived.origin, out=rows, stages=arrived.stages
            )
            del arrived
        if is_step:
            reservation.release()
            answered = await service.finished(answered)
        reply = _framed(verb, answered, rows)
        reservation.add_unchecked(max(reply.total_bytes - expected, 0))
        caller.sent_bytes = reply.total_bytes
        return reply

    async def _long_reply(self, verb: Verb, caller: Caller, request: bytes | memoryview) -> Framed:
        """Take a command apart, execute it and frame its result on a thread of its own."""
        service = self._service

        def work(engine: Engine, progress: Progress) -> Framed:
            command = self._arrived(verb, caller, request).command
            service.note_rank(caller, command)
            execute = partial(Engine.begin, command=command, progress=progress)
            answered = answering(execute, service.instance)(engine)
            return verb.framed(answered.value, answered.context)

        return await service.run_in_thread(verb.name, work, caller)

    # Streamed replies

    async def _document(self, verb: Verb, caller: Caller, _: Any, context: Any) -> None:
        request = await self._request(caller, context)
        await self._write(caller, context, await self._long_reply(verb, caller, request))

    async def _warm_cache(self, verb: Verb, caller: Caller, _: Any, context: Any) -> None:
        command: Any = self._arrived(verb, caller, await self._request(caller, context)).command
        async for warmed in self._service.warming.followed(command.share):
            reply = verb.framed(warmed, self._service.context()).joined()
            caller.sent_bytes += len(reply)
            await self._send(context, reply)

    async def _request(self, caller: Caller, context: Any) -> bytes:
        request = await _only(context)
        caller.received_bytes = len(request)
        return request

    async def _write(self, caller: Caller, context: Any, reply: Framed) -> None:
        """Send one of the messages of a stream; its bytes are in flight until gRPC has them."""
        caller.sent_bytes += reply.total_bytes
        with self._service.reservation(caller) as reservation:
            reservation.add_unchecked(reply.total_bytes)
            for chunk in reply.chunks():
                await self._send(context, chunk)

    async def _lookup_step(self, verb: Verb, caller: Caller, _: Any, context: Any) -> None:
        command: Any = self._arrived(verb, caller, await self._request(caller, context)).command
        lookup = self._lookup(caller, command)

        async def write(positions: Mapping[str, Any] | None) -> None:
            """Send a message of some of the rows, or of all."""
            work = answering(lambda _: lookup.some(positions), self._service.instance)
            answered: Answered = await self._service.run(caller, work)
            await self._write(caller, context, _framed(verb, answered, None))

        others: Mapping[str, Any] | None = None
        if command.early and await self._reached(lookup, Readiness.EARLY) == Readiness.EARLY:
            early = lookup.early()
            if any(len(places) for places in early.values()):
                await write(early)
                others = {n: _others(p, lookup.shapes[n][0]) for n, p in early.items()}
        await self._reached(lookup, Readiness.READY)
        await write(others)

    async def _lookup_step_pooled(
        self, verb: Verb, caller: Caller, chunks: AsyncIterator[bytes], context: Any
    ) -> None:
        with self._service.reservation(caller) as reservation:
            request = [await self._assembled(caller, chunks, reservation)]
            await self._write(caller, context, await self._pooled(verb, caller, request))

    async def _pooled(self, verb: Verb, caller: Caller, request: list[memoryview]) -> Framed:
        """Return the pooled rows of a step, once its turn has come."""

        def begin(engine: Engine, _: Progress) -> tuple[Arrived, StepLookup]:
            arrived = self._arrived(verb, caller, request.pop())
            return arrived, cast("StepLookup", engine.begin(arrived.command))

        # Passes over every occurrence: not on the event loop.
        arrived, lookup = await self._service.run_in_thread(verb.name, begin, caller)
        self._check_step(caller, arrived.command, lookup)
        await self._reached(lookup, Readiness.READY)
        rows = _Rows(arrived.stages)
        work = answering(lambda _: lookup.read(rows), self._service.instance, stages=arrived.stages)
        return _framed(verb, await self._service.run(caller, work), rows)

    def _lookup(self, caller: Caller, command: Command[Any]) -> StepLookup:
        """Return what a step's lookup waits for; no turn of the engine is needed for it."""
        lookup = cast("StepLookup", self._service.engine.begin(command))
        self._check_step(caller, command, lookup)
        return lookup

    def _check_step(self, caller: Caller, command: Command[Any], lookup: StepLookup) -> None:
        """Note whose step it is, and refuse rows that are too large to be sent."""
        self._service.note_rank(caller, command)
        limit = self._service.engine.tables.limits.call_bytes_max
        size = sum(VALUE_BYTES * rows * dim for rows, dim in lookup.shapes.values())
        if size > limit:
            raise InvalidArgumentError(
                f"expected rows of at most {limit} bytes (limits.call_bytes_max) in a step, found "
                f"{size}; make smaller batches"
            )

    async def _reached(self, lookup: StepLookup, least: Readiness) -> Readiness:
        """Wait until a step is as ready as `least`; return how ready it is."""

        def poll() -> Readiness | None:
            found = lookup.poll()
            return found if found >= least else None

        return await self._service.until(lookup, poll)


_STREAMED = {
    "LookupStep": "_lookup_step",
    "LookupStepPooled": "_lookup_step_pooled",
    "WarmCache": "_warm_cache",
}
"""The handlers of verbs whose replies are always streams; of others that is a document."""


class _Rows:
    """Makes the reply in which rows are to be written, once their shapes are known."""

    def __init__(self, stages: bool) -> None:
        self._room = _CONTEXT_ROOM + (_STAGES_ROOM if stages else 0)
        self.blank: Blank | None = None

    def __call__(self, names: Sequence[str], shapes: Sequence[tuple[int, int]]) -> Sequence[Any]:
        room = self._room + sum(len(name) + _TABLE_ROOM for name in names)
        self.blank = Blank(room, shapes)
        return self.blank.arrays


def _framed(verb: Verb, answered: Answered, rows: _Rows | None) -> Framed:
    value, context, seconds, _ = answered
    places = rows.blank if rows else None
    return verb.framed(value, context, stage_seconds=seconds, places=places)


def _streamed(handler: Handler) -> Any:
    return grpc.stream_stream_rpc_method_handler(handler)


async def _only(context: Any) -> bytes:
    """Return the one message of a request."""
    request: bytes = await context.read()
    if request is grpc.aio.EOF:
        raise InvalidArgumentError("expected a message, found the end of the request")
    return request


def _others(places: Any, count: int) -> Any:
    """Return the positions below `count` that are not among `places`."""
    others = np.ones(count, np.bool_)
    others[places] = False
    return np.flatnonzero(others).astype(np.int32)


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
