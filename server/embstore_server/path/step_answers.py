"""Answers that contain the rows of a session's steps, which are ready when the step's turn has
come.

**Early and late rows.** Rows that no unfinished step touches are final while earlier steps still
run. LookupStep sends them at once, with their positions among the announced keys, and the other
rows when the step is ready. In this way the network works while the trainer computes, and training
stays synchronous to the bit. If there is no early row, or the caller wants none, the answer is one
message, without positions. If a member has deleted rows meanwhile, the second message contains all
rows, without positions.
"""

from collections.abc import Mapping
from time import monotonic
from typing import Any, cast

from embstore.commands import Command, Progress
from embstore.engine.engine import Engine
from embstore.errors import InvalidArgumentError
from embstore.layout import VALUE_BYTES
from embstore.lookahead.handles import Readiness, StepLookup
from embstore.lookahead.records import StepReading
from embstore.results import RowsRead, StepRows, StepTableRows
from embstore_proto.frame import ALIGNMENT, Framed
from embstore_proto.verbs import Arrived, Verb
from embstore_server.path.answers import Answered, Work, answering
from embstore_server.path.caller import Caller
from embstore_server.path.incoming import Incoming, ReplyRows, framed, value_bytes
from embstore_server.path.service import Service

_POSITION_BYTES = 4


async def send(
    service: Service, call: Incoming, caller: Caller, reply: Framed, *, is_last: bool = True
) -> None:
    """Send a message; its bytes are in flight until the client has received them."""
    caller.sent_bytes += reply.total_bytes
    with service.reservation(caller) as reservation:
        if reply.lent is None:
            reservation.add_unchecked(reply.total_bytes)
        await call.send(reply, is_last=is_last)


class StepAnswers:
    """Sends the rows of steps. Event loop only."""

    def __init__(self, service: Service) -> None:
        self._service = service

    async def lookup_step(
        self, verb: Verb, call: Incoming, caller: Caller, request: list[Any]
    ) -> None:
        arrived = self._service.arrived(verb, caller, request.pop())
        command: Any = arrived.command
        dtype = arrived.rows_dtype
        lookup = self._lookup(caller, command)

        async def send_some(positions: Mapping[str, Any] | None, *, is_last: bool) -> bool:
            """Send a message of some rows, or of all rows; False: the rows are no longer
            available."""
            await self._expect(call, lookup, positions, dtype)
            rows = ReplyRows(call, dtype=dtype)

            def read(_: Engine) -> StepRows | None:
                if positions is None:  # the rows may be in a GPU's memory
                    return _whole(lookup.read(rows))
                return lookup.some(positions, rows)

            work = answering(read, self._service.instance)
            answered: Answered = await self._service.run(caller, work)
            if answered.value is None:
                return False
            reply = await framed(verb, answered, rows)
            await send(self._service, call, caller, reply, is_last=is_last)
            return True

        if (
            command.early
            and await self._reached(caller, lookup, Readiness.EARLY) == Readiness.EARLY
        ):
            early = lookup.early()
            if any(len(places) for places in early.values()):
                await send_some(early, is_last=False)
        await self._reached(caller, lookup, Readiness.READY)
        while not await send_some(lookup.late(), is_last=True):
            await self._reached(caller, lookup, Readiness.READY)

    async def _expect(
        self,
        call: Incoming,
        lookup: StepLookup,
        positions: Mapping[str, Any] | None,
        dtype: str,
    ) -> None:
        """Reserve space for a step's rows; the announcement bounds their number."""
        size, bytes_each = 0, value_bytes(dtype)
        for name, (count, dim) in lookup.shapes.items():
            size += 2 * ALIGNMENT
            if positions is None:
                size += bytes_each * count * dim
            else:
                size += len(positions[name]) * (bytes_each * dim + _POSITION_BYTES)
        await call.expect(size, None)

    async def lookup_step_pooled(
        self, verb: Verb, call: Incoming, caller: Caller, request: list[Any]
    ) -> None:
        """Send the pooled rows of a step, once its turn has come."""

        def begin(engine: Engine, _: Progress) -> tuple[Arrived, StepLookup]:
            arrived = self._service.arrived(verb, caller, request.pop())
            return arrived, cast("StepLookup", engine.begin(arrived.command))

        # This reads every occurrence, so it is not done on the event loop.
        arrived, lookup = await self._service.run_in_thread(verb.name, begin, caller)
        self._check_step(caller, arrived.command, lookup)
        await self._reached(caller, lookup, Readiness.READY)
        await self._expect(call, lookup, None, arrived.rows_dtype)
        rows = ReplyRows(call, arrived.stages, arrived.rows_dtype)
        work = answering(lambda _: lookup.read(rows), self._service.instance, stages=arrived.stages)
        answered = await self._read(caller, lookup, Readiness.READY, work)
        await send(self._service, call, caller, await framed(verb, answered, rows))

    async def read_step(
        self, verb: Verb, call: Incoming, caller: Caller, request: list[Any]
    ) -> None:
        """Send whole rows of a step, once they are in the cache."""
        command: Any = self._service.arrived(verb, caller, request.pop()).command
        reading = cast("StepReading", self._lookup(caller, command))
        await self._reached(caller, reading, Readiness.EARLY)
        await call.expect(reading.reply_bytes + 2 * ALIGNMENT * len(command.tables), None)
        work = answering(lambda _: reading.read(), self._service.instance)
        answered = await self._read(caller, reading, Readiness.EARLY, work)
        await send(self._service, call, caller, await framed(verb, answered, None))

    def _lookup(self, caller: Caller, command: Command[Any]) -> StepLookup:
        """Return the handle of a step's lookup, which needs no turn of the engine."""
        lookup = cast("StepLookup", self._service.engine.begin(command))
        self._check_step(caller, command, lookup)
        return lookup

    def _check_step(self, caller: Caller, command: Command[Any], lookup: StepLookup) -> None:
        """Note the session and rank of a step, and refuse rows that are too large to be sent."""
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
        """Read the rows of a step that was found to be at least as ready as `least`. Whenever the
        rows cannot be read because the step is less ready than `least` by now, wait and read
        again."""
        while True:
            answered: Answered = await self._service.run(caller, work)
            if answered.value is not None:
                return answered
            await self._reached(caller, lookup, least)

    async def _reached(self, caller: Caller, lookup: StepLookup, least: Readiness) -> Readiness:
        """Wait until a step is at least as ready as `least`; return the step's readiness."""

        def poll() -> Readiness | None:
            found = lookup.poll()
            return found if found >= least else None

        began = monotonic()
        try:
            return await self._service.until(lookup, poll)
        finally:
            caller.waited("step", began)


def _whole(read: RowsRead | None) -> StepRows | None:
    """Return all rows of a step in the form of an answer."""
    if read is None:
        return None
    return StepRows(tuple(StepTableRows(p.table, p.rows, None, p.t) for p in read.tables))
