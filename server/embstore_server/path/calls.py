"""A call, whichever transport it came by: message in, the answer or the error out.

The wire's rows (`embstore_proto.verbs`) say how each verb travels, and so how it is answered:

    control, bulk        one message in, one out
    LookupStep           answered by one message of rows or two
    LookupStepPooled     one message in, one out; never on the event loop
    ReadStep             one message in, one out, when its rows are in the cache
    a document           one message in or out that takes long
    ReadScan             answered by one message, whose rows a thread of its own reads
    WarmCache            answered by how far it is, again and again

A transport brings an `Incoming`: who calls, by when, and how an answer or an error leaves. Rows are
written straight to where it sends them from (`Blank`), so that protobuf never copies an array.
Every call is one `answered` block. A call whose client has gone is cancelled by its transport at
whatever it awaits: nothing has been queued then, or it is withdrawn, or it runs to its end and is
remembered. A message is taken whole before anything is queued.

**Early and late rows.** Rows that no unfinished step touches are final while earlier steps are
still at work. LookupStep sends them at once, with their positions among the announced keys, and the
others when the step is ready: the network works while the trainer computes, and training stays
synchronous to the bit. With no early row, or none wanted, there is one message, without positions.

**Rounded rows.** A client on a slow link may ask for rows of two bytes a value (`narrow`). They are
read as float32 into arrays of their own, and rounded into the message when the engine is done with
them, many of them on another thread.

**Documents.** A profile and a hot set travel as the bytes of their files. To read one of a GiB
takes seconds, so a command that takes long is taken apart on its own thread.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, nullcontext
from functools import partial
from time import monotonic
from typing import Any, NamedTuple, Protocol, cast

import numpy as np
from numpy.typing import NDArray

from embstore.commands import Command, Effect, Lookup, Progress, Retry
from embstore.engine.engine import Engine
from embstore.errors import InvalidArgumentError, StoreClosedError
from embstore.layout import VALUE_BYTES
from embstore.lookahead.handles import Readiness, StepLookup
from embstore.lookahead.records import StepReading
from embstore.results import RowsRead, StepRows, StepTableRows
from embstore.rights import EVERYTHING
from embstore_proto import frame
from embstore_proto.frame import ALIGNMENT, NARROW, Blank, Framed, Received
from embstore_proto.narrow import NARROW_BYTES
from embstore_proto.status import answer_of
from embstore_proto.verbs import VERBS, Arrived, Verb
from embstore_server.access import shares
from embstore_server.path.answers import Answered, Work, answered_error, answering, drop_trace
from embstore_server.path.caller import Caller, observe
from embstore_server.path.inflight import Reservation
from embstore_server.path.service import Service

BRIEF_BYTES = 1 << 10
"""Of a brief request: at most a hundred keys, a fraction of a millisecond where rows are cached and
milliseconds where the disk is asked for each."""
AT_ONCE_BYTES = 16 << 20
"""Of rows that are looked up at once, together. If they are in the cache that takes a few
milliseconds, in which the engine would be busy anyway."""
_ROUNDED_AT_ONCE_BYTES = 64 << 10
"""Of rows: a few dozen microseconds."""
_POSITION_BYTES = 4
_SCANNED_ARRAYS = 3
"""Of a page: keys, rows, state."""
_CONTEXT_ROOM, _TABLE_ROOM, _STAGES_ROOM = 160, 80, 600
"""Bytes of a reply's header: what is not said per table, what is beside its name, stage times."""

_LOOKUP = VERBS["Lookup"]

Request = bytes | memoryview | Received


class Incoming(Protocol):
    """A call as its transport knows it."""

    transport: str
    """Whose stats count it."""
    authorization: str
    certificate_names: Sequence[str]

    def caller(self, verb: str) -> Caller:
        """Return who calls, by when."""

    def has_room(self, count: int) -> bool:
        """Tell whether `expect` of so many bytes has nothing to do."""

    async def expect(self, count: int, reservation: Reservation | None) -> None:
        """Have room for so many bytes of rows in the reply, on a reservation if that is bounded;
        raises OverloadedError."""

    def blank(
        self,
        room: int,
        shapes: Sequence[tuple[int, ...]],
        others: Sequence[NDArray[Any]],
        dtype: str,
    ) -> Blank:
        """Return a message to be filled where it is sent from. Any thread."""

    async def send(self, reply: Framed, *, is_last: bool) -> None:
        """Send a message of the answer, once the client has taken what came before it."""

    async def refuse(self, error: Exception, *, is_final: bool) -> None:
        """End the call by an error; `is_final`: it is no use to send it again."""


class Calls:
    """Answers the calls of every transport.

    One class, because every way to answer takes a message apart, has room for the reply and sends
    it by the same few steps.
    """

    def __init__(self, service: Service) -> None:
        self._service = service

    async def answer(
        self,
        verb: Verb,
        call: Incoming,
        caller: Caller,
        request: list[Any],
        reservation: Reservation,
    ) -> None:
        """Answer a call by messages that it sends. Inside `answered`.

        The request is in a list, and taken out of it: a call that waits for other ranks no longer
        keeps the message, whose arrays the session has copied.
        """
        if verb.name in _ANSWERS:
            await getattr(self, _ANSWERS[verb.name])(verb, call, caller, request)
        else:
            await call.send(
                await self.reply(verb, call, caller, request, reservation), is_last=True
            )

    @asynccontextmanager
    async def answered(self, verb: str, call: Incoming) -> AsyncIterator[Caller]:
        """Yield who calls, who has to be `let_in`; what the block raises ends the call by an
        error."""
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
            drop_trace(exc)  # which may be another one
            service.freed.after(error)
            has_failed = isinstance(error, StoreClosedError) and service.failure is not None
            await call.refuse(error, is_final=has_failed)
        finally:
            service.count_calls(-1)
            service.traffic[call.transport].count(caller)
            observe(caller, code, service.metrics, service.settings.slow_call_ms)

    def let_in(self, call: Incoming, caller: Caller, verb: Verb) -> None:
        """Find out who calls, before the request is read: arrays only of those who may use them
        somewhere. A request without any is small, and read, so that the log says what a refused
        call of administration was about."""
        caller.principal = self._service.callers.principal(
            call.authorization, call.certificate_names
        )
        if verb.is_bulk:
            caller.principal.check_somewhere(verb.command.right)

    def at_once(self, calls: Sequence[tuple[Incoming, Received]]) -> list[Framed | None]:
        """Answer lookups that came together and have to wait for nothing: neither for the engine,
        nor the disk, nor memory. None: of one that has to, or is to be refused; nothing is done.

        What it spares is a task for each, its time-out and turns of the event loop, which together
        cost more than to look up a thousand rows; and those that came together are one lookup.
        """
        asked, left = [], AT_ONCE_BYTES
        for call, request in calls:
            one = self._asked(call, request, left)
            left -= one.bytes if one else 0
            asked.append(one)
        replies: list[Framed | None] = [None] * len(calls)
        for admit in (True, False):
            places = [i for i, one in enumerate(asked) if one and one.command.admit is admit]
            found = self._looked_up([cast(_Asked, asked[i]) for i in places]) if places else []
            if not found and len(places) > 1:  # it may be for one of them
                found = [(self._looked_up([cast(_Asked, asked[i])]) or [None])[0] for i in places]
            for i, reply in zip(places, found, strict=False):
                replies[i] = reply
        return replies

    def _looked_up(self, asked: Sequence["_Asked"]) -> "list[Framed | None]":
        """Return the replies to lookups with one `admit`; none, if not all can be answered."""
        calls, callers, commands, rows, _ = zip(*asked, strict=True)
        try:
            answered = self._service.look_up_at_once(callers, commands, rows)
            if answered is None:
                return []
            replies: list[Framed | None] = [
                _LOOKUP.framed(value, answered.context, places=own.blank)
                for own, value in zip(rows, answered.value, strict=True)
            ]
        except Exception:  # whichever it is of; the usual way says what is wrong
            return []
        for call, caller, command, reply in zip(calls, callers, commands, replies, strict=True):
            caller.sent_bytes = reply.total_bytes if reply else 0
            self._service.traffic[call.transport].count(caller)
            slow_call_ms = self._service.settings.slow_call_ms
            observe(caller, "OK", self._service.metrics, slow_call_ms, command)
        return replies

    def _asked(self, call: Incoming, request: Received, bytes_max: int) -> "_Asked | None":
        """Return a lookup that may be answered at once, of so many bytes of rows at most."""
        caller = call.caller(_LOOKUP.name)
        try:
            caller.principal = self._service.callers.principal(
                call.authorization, call.certificate_names
            )
            arrived = self._arrived(_LOOKUP, caller, request)
            command: Any = arrived.command
            size = self._service.expected_bytes(command)
        except Exception:  # the usual way says what is wrong
            return None
        is_plain = not arrived.stages and arrived.rows_dtype not in NARROW
        if not is_plain or size > bytes_max or not call.has_room(size):
            return None
        caller.received_bytes = len(request.header) + len(request.payload)
        return _Asked(call, caller, command, _Rows(call), size)

    def _arrived(self, verb: Verb, caller: Caller, request: Request) -> Arrived:
        """Take a command apart, and see that its caller may give it. Any thread."""
        limits = self._service.engine.tables.limits
        arrived = verb.arrived(request, call_bytes_max=limits.call_bytes_max)
        command = self._service.permitted(caller, arrived.command)
        shares.check_call(caller.principal, command, self._service.engine)
        return arrived._replace(command=command)

    # One message

    async def reply(
        self,
        verb: Verb,
        call: Incoming,
        caller: Caller,
        request: list[Any],
        reservation: Reservation,
    ) -> Framed:
        """Return the reply to a request that has one; see `answer`."""
        service, is_step = self._service, verb.command.retry is Retry.STEP
        if verb.command.effect is Effect.LONG and (verb.is_bulk or verb.is_streamed):
            if verb.document:  # not taken apart for nothing
                caller.principal.check(verb.command.right, [EVERYTHING])
                service.check_document(len(_payload_of(request[0])), verb.document)
                reservation.add(service.parsing_bytes(reservation.reserved_bytes))
            return await self._long_reply(verb, caller, request.pop())
        caller.brief = caller.brief and not is_step  # the last rank's share does the work of all
        is_counted = caller.principal.name and verb.is_bulk and not is_step
        with await service.place(caller) if is_counted else nullcontext():
            arrived = self._arrived(verb, caller, request.pop())
            if arrived.grown_bytes:
                reservation.add(arrived.grown_bytes)
                caller.brief &= arrived.grown_bytes <= BRIEF_BYTES  # as deltas, keys are many
            dtype = arrived.rows_dtype
            rows = _Rows(call, arrived.stages, dtype) if verb.reads_rows else None
            if is_step:
                began = monotonic()
                await service.turn(arrived.command, reservation)
                caller.waited("step", began)
            expected = service.expected_bytes(arrived.command, _value_bytes(dtype))
            if expected:  # whatever is in flight, what has no rows is answered
                await call.expect(expected, reservation)
            if dtype in NARROW:  # until they are rounded
                reservation.add(service.expected_bytes(arrived.command))
            answered = await service.begin(
                caller, arrived.command, arrived.origin, out=rows, stages=arrived.stages
            )
            del arrived
        if is_step:
            reservation.release()
            answered = await service.finished(caller, answered)
        reply = await _framed(verb, answered, rows)
        if reply.lent is None:
            reservation.add_unchecked(max(reply.total_bytes - expected, 0))
        caller.sent_bytes = reply.total_bytes
        return reply

    async def _long_reply(self, verb: Verb, caller: Caller, request: Request) -> Framed:
        """Take a command apart, execute it and frame its result on a thread of its own."""
        service = self._service

        def work(engine: Engine, progress: Progress) -> Framed:
            command = self._arrived(verb, caller, request).command
            service.note(caller, command)
            execute = partial(
                Engine.begin, command=command, progress=progress, map_version=caller.map_version
            )
            answered = answering(execute, service.instance)(engine)
            return verb.framed(answered.value, answered.context)

        return await service.run_in_thread(verb.name, work, caller)

    # Answers by several messages, or by what takes long

    async def _document(
        self, verb: Verb, call: Incoming, caller: Caller, request: list[Any]
    ) -> None:
        await self._send(call, caller, await self._long_reply(verb, caller, request.pop()))

    async def _read_scan(
        self, verb: Verb, call: Incoming, caller: Caller, request: list[Any]
    ) -> None:
        """Send a page of a scan, which a thread writes to where it is sent from."""
        arrived = self._arrived(verb, caller, request.pop())
        command: Any = arrived.command
        size = self._service.engine.scans.reply_bytes(command)
        most, limit = self._service.call_bytes_max(caller)
        if size > most:
            raise InvalidArgumentError(
                f"expected a page of at most {most} bytes ({limit}), found {size}; ask for fewer "
                "rows"
            )
        rows = _Rows(call)

        def work(engine: Engine, _: Progress) -> Framed:
            version = caller.map_version
            execute = partial(Engine.begin, command=command, out=rows, map_version=version)
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
        command: Any = self._arrived(verb, caller, request.pop()).command
        async for warmed in self._service.warming.followed(command.share):
            reply = verb.framed(warmed, self._service.context())
            caller.sent_bytes += reply.total_bytes
            await call.send(reply, is_last=warmed.finished)

    async def _send(
        self, call: Incoming, caller: Caller, reply: Framed, *, is_last: bool = True
    ) -> None:
        """Send a message; its bytes are in flight until the client has them."""
        caller.sent_bytes += reply.total_bytes
        with self._service.reservation(caller) as reservation:
            if reply.lent is None:
                reservation.add_unchecked(reply.total_bytes)
            await call.send(reply, is_last=is_last)

    async def _lookup_step(
        self, verb: Verb, call: Incoming, caller: Caller, request: list[Any]
    ) -> None:
        arrived = self._arrived(verb, caller, request.pop())
        command: Any = arrived.command
        dtype = arrived.rows_dtype
        lookup = self._lookup(caller, command)

        async def send(positions: Mapping[str, Any] | None, *, is_last: bool) -> bool:
            """Send a message of some of the rows, or of all; False: they are not there any more."""
            await self._expect(call, lookup, positions, dtype)
            rows = _Rows(call, dtype=dtype)

            def read(_: Engine) -> StepRows | None:
                if positions is None:  # which may be in a GPU's memory
                    return _whole(lookup.read(rows))
                return lookup.some(positions, rows)

            work = answering(read, self._service.instance)
            answered: Answered = await self._service.run(caller, work)
            if answered.value is None:
                return False
            reply = await _framed(verb, answered, rows)
            await self._send(call, caller, reply, is_last=is_last)
            return True

        others: Mapping[str, Any] | None = None
        if (
            command.early
            and await self._reached(caller, lookup, Readiness.EARLY) == Readiness.EARLY
        ):
            early = lookup.early()
            has_early = any(len(places) for places in early.values())
            if has_early and await send(early, is_last=False):
                others = {n: _others(p, lookup.shapes[n][0]) for n, p in early.items()}
        await self._reached(caller, lookup, Readiness.READY)
        while not await send(others, is_last=True):
            await self._reached(caller, lookup, Readiness.READY)

    async def _expect(
        self,
        call: Incoming,
        lookup: StepLookup,
        positions: Mapping[str, Any] | None,
        dtype: str,
    ) -> None:
        """Have room for rows of a step, which is bounded by what was announced."""
        size, value_bytes = 0, _value_bytes(dtype)
        for name, (count, dim) in lookup.shapes.items():
            size += 2 * ALIGNMENT
            if positions is None:
                size += value_bytes * count * dim
            else:
                size += len(positions[name]) * (value_bytes * dim + _POSITION_BYTES)
        await call.expect(size, None)

    async def _lookup_step_pooled(
        self, verb: Verb, call: Incoming, caller: Caller, request: list[Any]
    ) -> None:
        """Send the pooled rows of a step, once its turn has come."""

        def begin(engine: Engine, _: Progress) -> tuple[Arrived, StepLookup]:
            arrived = self._arrived(verb, caller, request.pop())
            return arrived, cast("StepLookup", engine.begin(arrived.command))

        # Passes over every occurrence: not on the event loop.
        arrived, lookup = await self._service.run_in_thread(verb.name, begin, caller)
        self._check_step(caller, arrived.command, lookup)
        await self._reached(caller, lookup, Readiness.READY)
        await self._expect(call, lookup, None, arrived.rows_dtype)
        rows = _Rows(call, arrived.stages, arrived.rows_dtype)
        work = answering(lambda _: lookup.read(rows), self._service.instance, stages=arrived.stages)
        answered = await self._read(caller, lookup, Readiness.READY, work)
        await self._send(call, caller, await _framed(verb, answered, rows))

    async def _read_step(
        self, verb: Verb, call: Incoming, caller: Caller, request: list[Any]
    ) -> None:
        """Send whole rows of a step, once they are in the cache."""
        command: Any = self._arrived(verb, caller, request.pop()).command
        reading = cast("StepReading", self._lookup(caller, command))
        await self._reached(caller, reading, Readiness.EARLY)
        await call.expect(reading.reply_bytes + 2 * ALIGNMENT * len(command.tables), None)
        work = answering(lambda _: reading.read(), self._service.instance)
        answered = await self._read(caller, reading, Readiness.EARLY, work)
        await self._send(call, caller, await _framed(verb, answered, None))

    def _lookup(self, caller: Caller, command: Command[Any]) -> StepLookup:
        """Return what a step's lookup waits for; no turn of the engine is needed for it."""
        lookup = cast("StepLookup", self._service.engine.begin(command))
        self._check_step(caller, command, lookup)
        return lookup

    def _check_step(self, caller: Caller, command: Command[Any], lookup: StepLookup) -> None:
        """Note whose step it is, and refuse rows that are too large to be sent."""
        self._service.note(caller, command)
        limit = self._service.engine.tables.limits.call_bytes_max
        size = sum(VALUE_BYTES * rows * dim for rows, dim in lookup.shapes.values())
        if size > limit:
            raise InvalidArgumentError(
                f"expected rows of at most {limit} bytes (limits.call_bytes_max) in a step, found "
                f"{size}; make smaller batches"
            )

    async def _read(
        self, caller: Caller, lookup: StepLookup, least: Readiness, work: Work
    ) -> Answered:
        """Read the rows of a step that was as ready as `least`; wait again where it is not now."""
        while True:
            answered: Answered = await self._service.run(caller, work)
            if answered.value is not None:
                return answered
            await self._reached(caller, lookup, least)

    async def _reached(self, caller: Caller, lookup: StepLookup, least: Readiness) -> Readiness:
        """Wait until a step is as ready as `least`; return how ready it is."""

        def poll() -> Readiness | None:
            found = lookup.poll()
            return found if found >= least else None

        began = monotonic()
        try:
            return await self._service.until(lookup, poll)
        finally:
            caller.waited("step", began)


_ANSWERS = {name: "_document" for name, verb in VERBS.items() if verb.is_streamed} | {
    "LookupStep": "_lookup_step",
    "LookupStepPooled": "_lookup_step_pooled",
    "ReadStep": "_read_step",
    "ReadScan": "_read_scan",
    "WarmCache": "_warm_cache",
}
"""How verbs are answered whose answer is not one message, or takes long."""


class _Rows:
    """Makes the reply in which rows are to be written, once their shapes are known."""

    def __init__(self, call: Incoming, stages: bool = False, dtype: str = "float32") -> None:
        self._call = call
        self._dtype = dtype
        self._room = _CONTEXT_ROOM + (_STAGES_ROOM if stages else 0)
        self.blank: Blank | None = None

    def __call__(
        self,
        names: Sequence[str],
        shapes: Sequence[tuple[int, int]],
        others: Sequence[NDArray[Any]] = (),
    ) -> Sequence[Any]:
        room = self._room + sum(len(name) + _TABLE_ROOM for name in names)
        self.blank = self._call.blank(room, shapes, others, self._dtype)
        return self.blank.arrays


class _Asked(NamedTuple):
    """A lookup that may be answered at once."""

    call: Incoming
    caller: Caller
    command: Lookup
    rows: _Rows
    bytes: int
    """Of the rows, about."""


async def _framed(verb: Verb, answered: Answered, rows: _Rows | None) -> Framed:
    value, context, seconds, _ = answered
    places = rows.blank if rows else None
    if places is not None and places.rounded_bytes:
        if places.rounded_bytes > _ROUNDED_AT_ONCE_BYTES:  # not on the event loop
            await asyncio.to_thread(places.round)
        else:
            places.round()
    return verb.framed(value, context, stage_seconds=seconds, places=places)


def _whole(read: RowsRead | None) -> StepRows | None:
    """Return all rows of a step as they are answered."""
    if read is None:
        return None
    return StepRows(tuple(StepTableRows(p.table, p.rows, None, p.t) for p in read.tables))


def _value_bytes(dtype: str) -> int:
    return NARROW_BYTES if dtype in NARROW else VALUE_BYTES


def _payload_of(request: Request) -> memoryview:
    return (request if isinstance(request, Received) else frame.split(request)).payload


def _others(places: Any, count: int) -> Any:
    """Return the positions below `count` that are not among `places`."""
    others = np.ones(count, np.bool_)
    others[places] = False
    return np.flatnonzero(others).astype(np.int32)
