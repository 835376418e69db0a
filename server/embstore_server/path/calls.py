"""A call, the same for all transports: a message arrives, an answer or an error is sent.

The table of verbs (`embstore_proto.verbs`) defines how each verb is sent and answered:

    control, bulk        one message each way
    LookupStep           answered by one or two messages of rows
    LookupStepPooled     one message each way; never on the event loop
    ReadStep             one message each way; the answer is sent when its rows are in the cache
    a document           one message each way, one of which takes long to read or to write
    ReadScan             answered by one message; a thread of its own reads the rows
    WarmCache            answered by several messages about its progress

A transport passes an `Incoming`: the caller, the deadline, and the functions that send an answer or
an error. Rows are written straight to the transport's send buffer (`Blank`), so that protobuf never
copies an array. Every call is one `answered` block. If the client disconnects, its transport
cancels the call at the point where the call waits. If the call's task has not been queued, or can
still be withdrawn, the call changes nothing; otherwise the task runs to its end, and its answer is
remembered. A message is received as a whole before anything is queued.

**Documents.** A profile and a hot set are sent as the bytes of their files. Reading a file of one
GiB takes seconds. So if a command takes long, its message is read on the command's own thread.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, nullcontext
from functools import partial
from time import monotonic
from typing import Any

from embstore.commands import Effect, Progress, Retry
from embstore.engine.engine import Engine
from embstore.errors import InvalidArgumentError, StoreClosedError
from embstore.rights import EVERYTHING
from embstore_proto.frame import ALIGNMENT, NARROW, Framed
from embstore_proto.status import answer_of
from embstore_proto.verbs import VERBS, Verb
from embstore_server.path.answers import answered_error, answering, drop_trace
from embstore_server.path.caller import Caller, observe
from embstore_server.path.incoming import (
    Incoming,
    ReplyRows,
    Request,
    framed,
    payload_of,
    value_bytes,
)
from embstore_server.path.inflight import Reservation
from embstore_server.path.merged_lookups import MergedLookups
from embstore_server.path.service import Service
from embstore_server.path.step_answers import StepAnswers, send

BRIEF_BYTES = 1 << 10
"""The largest size of a brief request, which has at most a hundred keys.

Such a request takes a fraction of a millisecond if the rows are cached, and milliseconds if each
row is read from disk.
"""
_SCANNED_ARRAYS = 3
"""The number of arrays of a page: keys, rows, state."""

_DOCUMENTS = [name for name, verb in VERBS.items() if verb.is_streamed]
"""Verbs that are answered by a stream; if no other function answers them, `_document` does."""


class Calls:
    """Answers the calls of every transport.

    This is one class, because answers of every kind are made by the same few steps: read a message,
    reserve space for the reply, send the reply.
    """

    def __init__(self, service: Service) -> None:
        self._service = service
        self.merged_lookups = MergedLookups(service)
        steps = StepAnswers(service)
        self._answers = dict.fromkeys(_DOCUMENTS, self._document) | {
            "LookupStep": steps.lookup_step,
            "LookupStepPooled": steps.lookup_step_pooled,
            "ReadStep": steps.read_step,
            "ReadScan": self._read_scan,
            "WarmCache": self._warm_cache,
        }
        """Functions that answer verbs whose answer has several messages, or takes long."""

    async def answer(
        self,
        verb: Verb,
        call: Incoming,
        caller: Caller,
        request: list[Any],
        reservation: Reservation,
    ) -> None:
        """Answer a call by messages that this method sends. Called inside the block of `answered`.

        The request is passed in a list, and this method removes it from the list. Then a call that
        waits for other ranks does not keep its message alive; the session has copied the message's
        arrays.
        """
        if verb.name in self._answers:
            await self._answers[verb.name](verb, call, caller, request)
        else:
            await call.send(
                await self.reply(verb, call, caller, request, reservation), is_last=True
            )

    @asynccontextmanager
    async def answered(self, verb: str, call: Incoming) -> AsyncIterator[Caller]:
        """Yield the caller, which the block must authenticate by `let_in`.

        An exception of the block ends the call with an error.
        """
        service = self._service
        caller = call.caller(verb)
        service.count_calls(1)
        code = "OK"
        try:
            async with asyncio.timeout(caller.deadline - monotonic()):
                yield caller
        except asyncio.CancelledError:
            code = "CANCELLED"
            raise
        except Exception as exc:
            error = answered_error(exc, verb, caller)
            code = answer_of(error).code.name
            drop_trace(exc)  # `error` may be another object
            service.memory_trim.after(error)
            has_failed = isinstance(error, StoreClosedError) and service.failure is not None
            await call.refuse(error, is_final=has_failed)
        finally:
            service.count_calls(-1)
            service.traffic[call.transport].count(caller)
            observe(caller, code, service.metrics, service.settings.slow_call_ms)

    def let_in(self, call: Incoming, caller: Caller, verb: Verb) -> None:
        """Authenticate the caller, before the request is read.

        Arrays are read only from callers with the right to the verb on at least one table. A
        request without arrays is small, and is always read, so that the log contains the subject of
        an administrative call that is refused.
        """
        caller.principal = self._service.callers.principal(
            call.authorization, call.certificate_names
        )
        if verb.is_bulk:
            caller.principal.check_somewhere(verb.command.right)

    # One message

    async def reply(
        self,
        verb: Verb,
        call: Incoming,
        caller: Caller,
        request: list[Any],
        reservation: Reservation,
    ) -> Framed:
        """Return the reply to a request that is answered by one message. As in `answer`, the
        request is in a list."""
        service, is_step = self._service, verb.command.retry is Retry.STEP
        if verb.command.effect is Effect.LONG and (verb.is_bulk or verb.is_streamed):
            if verb.document:  # checked before the message is read, which takes long
                caller.principal.check(verb.command.right, [EVERYTHING])
                service.check_document(len(payload_of(request[0])), verb.document)
                reservation.add(service.parsing_bytes(reservation.reserved_bytes))
            return await self._long_reply(verb, caller, request.pop())
        caller.brief = caller.brief and not is_step  # the last rank's call does the work of all
        is_counted = caller.principal.name and verb.is_bulk and not is_step
        with await service.place(caller) if is_counted else nullcontext():
            arrived = self._service.arrived(verb, caller, request.pop())
            if arrived.grown_bytes:
                reservation.add(arrived.grown_bytes)
                # if keys are encoded as deltas, a brief request can contain many
                caller.brief &= arrived.grown_bytes <= BRIEF_BYTES
            dtype = arrived.rows_dtype
            rows = ReplyRows(call, arrived.stages, dtype) if verb.reads_rows else None
            if is_step:
                began = monotonic()
                await service.turn(arrived.command, reservation)
                caller.waited("step", began)
            expected = service.expected_bytes(arrived.command, value_bytes(dtype))
            if expected:  # a reply without rows needs no space
                await call.expect(expected, reservation)
            if dtype in NARROW:  # float32 rows and the space for rounded rows exist together
                reservation.add(service.expected_bytes(arrived.command))
            answered = await service.begin(
                caller, arrived.command, arrived.origin, out=rows, stages=arrived.stages
            )
            del arrived
        if is_step:
            reservation.release()
            answered = await service.finished(caller, answered)
        reply = await framed(verb, answered, rows)
        if reply.lent is None:
            reservation.add_unchecked(max(reply.total_bytes - expected, 0))
        caller.sent_bytes = reply.total_bytes
        return reply

    async def _long_reply(self, verb: Verb, caller: Caller, request: Request) -> Framed:
        """Read a command, execute it and encode its result on a thread of its own."""
        service = self._service

        def work(engine: Engine, progress: Progress) -> Framed:
            command = self._service.arrived(verb, caller, request).command
            service.note(caller, command)
            execute = partial(
                Engine.begin, command=command, progress=progress, part_of=caller.part_of
            )
            answered = answering(execute, service.instance)(engine)
            return verb.framed(answered.value, answered.context)

        return await service.run_in_thread(verb.name, work, caller)

    # Answers by several messages, or from long jobs

    async def _document(
        self, verb: Verb, call: Incoming, caller: Caller, request: list[Any]
    ) -> None:
        reply = await self._long_reply(verb, caller, request.pop())
        await send(self._service, call, caller, reply)

    async def _read_scan(
        self, verb: Verb, call: Incoming, caller: Caller, request: list[Any]
    ) -> None:
        """Send a page of a scan; a thread writes it to the buffer from which it is sent."""
        arrived = self._service.arrived(verb, caller, request.pop())
        command: Any = arrived.command
        size = self._service.engine.scans.reply_bytes(command)
        most, limit = self._service.call_bytes_max(caller)
        if size > most:
            raise InvalidArgumentError(
                f"expected a page of at most {most} bytes ({limit}), found {size}; ask for fewer "
                "rows"
            )
        rows = ReplyRows(call)

        def work(engine: Engine, _: Progress) -> Framed:
            part_of = caller.part_of
            execute = partial(Engine.begin, command=command, out=rows, part_of=part_of)
            answered = answering(execute, self._service.instance)(engine)
            return verb.framed(answered.value, answered.context, places=rows.blank)

        with self._service.reservation(caller) as reservation:
            await call.expect(size + ALIGNMENT * _SCANNED_ARRAYS, reservation)
            reply = await self._service.run_in_thread(verb.name, work, caller)
            caller.sent_bytes += reply.total_bytes
            await call.send(reply, is_last=True)

    async def _warm_cache(
        self, verb: Verb, call: Incoming, caller: Caller, request: list[Any]
    ) -> None:
        command: Any = self._service.arrived(verb, caller, request.pop()).command
        async for warmed in self._service.warming.followed(command.share):
            reply = verb.framed(warmed, self._service.context())
            caller.sent_bytes += reply.total_bytes
            await call.send(reply, is_last=warmed.finished)
