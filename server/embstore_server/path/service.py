"""The path that calls of all transports have in common: client, deadline, queue, stats.

`execute` executes a command as its effect requires (`embstore.commands`). Most commands are
executed in their turn on the engine thread; a command with an origin is executed at most once. A
command that takes long gets a thread of its own. A command that needs no engine is executed at
once, so that a lease is renewed even while other calls wait. Event loop only.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from time import monotonic
from typing import Any, TypeVar

from embstore.checks.call_bytes import reply_bytes
from embstore.commands import Command, Effect, GetStats, Lookup, Progress, Promote, Reads, Retry
from embstore.engine.engine import Engine
from embstore.errors import CheckpointExistsError, InvalidArgumentError, TableNotFoundError
from embstore.layout import VALUE_BYTES
from embstore.lookahead.handles import StepOutcome
from embstore.results import KeptCheckpoint, Membership, ServerInfo
from embstore_proto.envelope import Origin
from embstore_proto.frame import ALIGNMENT
from embstore_proto.verbs import Arrived, Verb
from embstore_server.access import shares
from embstore_server.path.answers import Answered, Work, answering
from embstore_server.path.caller import Caller
from embstore_server.path.concurrency import Place
from embstore_server.path.incoming import Request
from embstore_server.path.inflight import Reservation
from embstore_server.path.replay import check_epoch
from embstore_server.path.rights import permitted
from embstore_server.path.served import Served
from embstore_server.path.warming import Warming
from embstore_server.path.worker import Task
from embstore_server.setup.settings import Settings
from embstore_server.telemetry.metrics import Metrics

C = TypeVar("C", bound=Command[Any])
T = TypeVar("T")

_PARSED_TIMES = 30
"""The most memory that a document takes while it is parsed, as a multiple of its size.

For each row of a profile, two bytes become two int64, and checks, ranks and the result need further
memory. Measured: 29.
"""
_PARSING_SHARE = 2
"""Parsing a document counts at most as the bound of bytes in flight divided by this number, so that
other calls continue."""
_MEMBERS_MAX = 4096
"""Number of members whose session and rank are remembered, for the log of slow calls."""


class Service(Served):
    """A served store, and the path of calls to it.

    One class, because a call passes through all of its methods in one order, on one thread.
    """

    def __init__(
        self,
        settings: Settings,
        metrics: Metrics,
        open_engine: Callable[[], Engine],
        promote: Callable[[], Awaitable[bool]],
    ) -> None:
        """Prepare; `promote` makes a standby the leader, and returns False on other servers."""
        super().__init__(settings, metrics, open_engine)
        self.warming = Warming(self)
        self._promote = promote
        # by member, for members that joined recently
        self._places: OrderedDict[str, Membership] = OrderedDict()

    # Commands

    def permitted(self, caller: Caller, command: C) -> C:
        """Return a command with full names of its sessions and scans, as `rights.permitted`. Any
        thread.

        All code that passes a command to `execute`, `begin` or the engine calls this method first.
        Raises PermissionDeniedError if the caller lacks the right.
        """
        command = permitted(caller, command, lambda: self.engine.sessions)
        if member := getattr(command, "member", ""):
            self.engine.sessions.used_by(member, caller.process)
        return command

    def arrived(self, verb: Verb, caller: Caller, request: Request) -> Arrived:
        """Read a command from its message, and check its caller's right. Any thread."""
        limits = self.engine.tables.limits
        arrived = verb.arrived(request, call_bytes_max=limits.call_bytes_max)
        command = self.permitted(caller, arrived.command)
        shares.check_call(caller.principal, command, self.engine)
        return arrived._replace(command=command)

    async def execute(
        self, caller: Caller, command: Command[Any], origin: Origin | None = None
    ) -> Answered:
        """Execute a command as its effect requires, and return its result."""
        return await self.finished(caller, await self.begin(caller, command, origin))

    async def begin(
        self,
        caller: Caller,
        command: Command[Any],
        origin: Origin | None = None,
        *,
        out: Any = None,
        stages: bool = False,
    ) -> Answered:
        """Execute a command as `execute` does, but do not wait for the other ranks of a step.

        `finished` waits for these ranks. `out` is as in `Executor.execute`, and is called on the
        engine thread; with `stages` the answer contains the times of the command's stages. Raises
        OverloadedError, DeadlineError or StoreClosedError if the command was not executed;
        StoreClosedError can also mean that the store failed after the execution. Raises
        OutcomeUnknownError, see `embstore_server.path.replay`, and the command's own errors.
        """
        self.note(caller, command)
        self.disk_space.check(command)
        if isinstance(command, Promote) and await self._promote():
            return answering(lambda _: None, self.instance)(self.engine)
        if isinstance(command, GetStats) and self.durable is not None:
            self.replication.writes_waiting = self.durable.writes_waiting
        work = answering(
            partial(self._begun, caller, command, out=out, origin=origin),
            self.instance,
            stages=stages,
        )
        match command.effect:
            case Effect.PROMPT:
                answered = work(self.engine)
            case Effect.LONG:
                answered = await self._in_thread(caller, command)
            case _:
                if self.engine.is_prepared(command):
                    verb = type(command).__name__
                    # the first attempt of this call may have made the checkpoint
                    with suppress(CheckpointExistsError):
                        await self.run_in_thread(
                            verb, lambda e, progress: e.prepare(command, progress), caller
                        )
                answered = await self._in_turn(caller, origin, work)
                answered = answered._replace(value=command.full_answer(answered.value))
                if caller.place is not None:
                    caller.place.leave()
                is_write = command.effect is Effect.WRITES or command.retry is Retry.WINDOW
                await self._until_durable(caller, answered, is_write=is_write)
        return self._noted(caller, answered)

    def look_up_at_once(
        self, callers: Sequence[Caller], commands: Sequence[Lookup], outs: Sequence[Any]
    ) -> Answered | None:
        """Execute the lookups of several callers as one, if none of them has to wait.

        None: one of them has to wait. All lookups have the same `admit`.
        """
        if self._engine is None or self.stopping or self.long_jobs.running:
            return None
        if not self._engine.is_prompt or self._engine.tables.frame.is_taken:
            return None
        log = self._engine.log
        if self.durable is not None and log is not None and not self.durable.has(log.mark):
            return None  # the lookups may have to wait for the disk
        began = monotonic()
        versions = {one.part_of.map_version for one in callers if one.part_of is not None}
        work = answering(lambda e: e.look_up_resident(commands, outs, versions), self.instance)
        answered: Answered | None = self.worker.at_once(work)
        if answered is None or answered.value is None:
            return None
        for caller in callers:
            caller.run_s = (monotonic() - began) / len(callers)
        return answered

    def _begun(self, caller: Caller, command: Command[Any], engine: Engine, **how: Any) -> Any:
        """Begin a command, if the share of its caller allows the call."""
        shares.check(caller.principal, command, engine)
        return command.short_answer(engine.begin(command, part_of=caller.part_of, **how))

    def reservation(self, caller: Caller) -> Reservation:
        """Return a reservation, which is released at the end of its block."""
        principal = caller.principal
        return self.inflight.reservation(principal.name, principal.limits.get("inflight_bytes"))

    def lend(self, caller: Caller, count: int) -> Reservation:
        """Return the loan of memory that is shared with a caller; raises OverloadedError."""
        principal = caller.principal
        return self.inflight.lend(principal.name, principal.limits.get("inflight_bytes"), count)

    async def _in_thread(self, caller: Caller, command: Command[Any]) -> Answered:
        """Execute a command that takes long on a thread of its own."""

        def work(engine: Engine, progress: Progress) -> Answered:
            execute = partial(
                Engine.begin, command=command, progress=progress, part_of=caller.part_of
            )
            return answering(execute, self.instance)(engine)

        answered = await self.run_in_thread(type(command).__name__, work, caller)
        if command.reads is Reads.TABLE:
            await self._until_durable(caller, answered, is_write=False)
        return answered

    async def _until_durable(self, caller: Caller, answered: Answered, *, is_write: bool) -> None:
        """Wait until all writes that an answer reflects, also of other clients, are durable.

        If standbys are required, the write of this call is then on standbys, too. The rows of a
        session's step need not wait. If a crash undoes an earlier step, that step was not
        acknowledged, so its client sends it again, with the same gradients.
        """
        # a step whose outcome depends on other ranks waits later, in `finished`
        is_known = not isinstance(answered.value, StepOutcome)
        if self.durable is not None and is_known:
            began = monotonic()
            await self.durable.wait(answered.mark, is_write=is_write)
            caller.waited("durable", began)

    async def finished(self, caller: Caller, answered: Answered) -> Answered:
        """Wait for the other ranks that an answer depends on, and return the answer."""
        if isinstance(answered.value, StepOutcome):
            began = monotonic()
            answered = answered.finished(await self.until(answered.value, answered.value.poll))
            caller.waited("ranks", began)
            log = self.engine.log
            mark = log.mark if log is not None else 0
            await self._until_durable(caller, answered._replace(mark=mark), is_write=True)
        return answered

    def note(self, caller: Caller, command: Any) -> None:
        """Note the command's size, session, rank and step in its caller."""
        caller.note(command)
        place = self._places.get(getattr(command, "member", ""))
        if place is not None:
            caller.session, caller.rank = place.name, place.rank

    def _noted(self, caller: Caller, answered: Answered) -> Answered:
        match answered.value:
            case Membership(member, name, rank) as place:
                self._places[member] = place
                caller.session, caller.rank = name, rank
                if len(self._places) > _MEMBERS_MAX:
                    self._places.popitem(last=False)
            case KeptCheckpoint() | tuple():
                kept = self.engine.storage.catalogue.checkpoint
                return answered._replace(value=caller.principal.visible(answered.value, kept))
            case ServerInfo() as info:
                info = replace(
                    info,
                    context=answered.context,
                    server=self.limits,
                    process=self.process,
                    socket=self.socket,
                )
                return answered._replace(value=info)
        return answered

    async def _in_turn(
        self, caller: Caller, origin: Origin | None, work: Callable[[Engine], Answered]
    ) -> Answered:
        """Do work on the engine thread; work with an origin is done at most once."""
        if origin is None:
            answered: Answered = await self.run(caller, work)
            return answered
        store_id = self.engine.storage.catalogue.store_id
        if origin.store_id and origin.store_id != store_id:
            raise InvalidArgumentError(
                f"the call is for store {origin.store_id}, served here is {store_id}; connect again"
            )
        caller.rank = caller.rank if origin.rank is None else origin.rank
        caller.step = caller.step if origin.step is None else origin.step
        verb = caller.verb.removesuffix("Stream")  # a further attempt may arrive as a stream

        def in_its_epoch(engine: Engine) -> Answered:
            # a restore may have been queued before this command
            check_epoch(origin, engine.storage.catalogue.epoch)
            return work(engine)

        epoch = self.engine.storage.catalogue.epoch
        answered, task = await self.replay.call(
            verb, caller.principal.origin(origin), epoch, lambda: self._submit(caller, in_its_epoch)
        )
        caller.worked(task)
        return answered

    # Documents

    def check_document(self, size: int, what: str) -> None:
        """Refuse a document, the file of a profile or of a hot set, if the file is too large."""
        limit = self.engine.tables.limits.call_bytes_max
        if size > limit:
            raise InvalidArgumentError(
                f"expected {what} of at most {limit} bytes (limits.call_bytes_max), found {size}"
            )

    def call_bytes_max(self, caller: Caller) -> tuple[int, str]:
        """Return the largest size of a call, and the name of the limit."""
        most, limit = self.engine.tables.limits.call_bytes_max, "limits.call_bytes_max"
        own = caller.principal.limits.get("call_bytes", most)
        return (own, f"call_bytes of {caller.principal.name!r}") if own < most else (most, limit)

    def parsing_bytes(self, size: int) -> int:
        """Return the bytes that parsing a document adds to the bytes in flight, in addition to the
        document itself."""
        share = self.settings.inflight_bytes_max // _PARSING_SHARE
        return min((_PARSED_TIMES - 1) * size, share)

    def expected_bytes(self, command: Command[Any], value_bytes: int = VALUE_BYTES) -> int:
        """Return the largest size of the rows in a command's reply, in bytes, as far as it is known
        before the command's turn; 0 if a table does not exist.

        The table may be created before that turn.
        """
        try:
            size = reply_bytes(command, self.engine.tables.config_of)
        except TableNotFoundError:
            return 0
        arrays = len(getattr(command, "tables", ())) + 2
        return size * value_bytes // VALUE_BYTES + ALIGNMENT * arrays if size else 0

    # Work

    async def run(self, caller: Caller, work: Work) -> Any:
        """Do `work` on the engine thread, and return its result.

        If the caller is cancelled before the work has started, the work is withdrawn. Raises
        OverloadedError, DeadlineError or StoreClosedError if nothing has been done.
        """
        task = self._submit(caller, work)
        try:
            return await task.outcome
        except asyncio.CancelledError:
            self.worker.withdraw(task)
            raise
        finally:
            caller.worked(task)

    async def place(self, caller: Caller) -> Place:
        """Wait until a call's message can be read and queued for the engine; raises
        OverloadedError."""
        self.worker.check_room(caller.client, caller.principal.limits.get("queue_calls"))
        began = monotonic()
        caller.place = await self.worker.limiter.enter(caller.client)
        caller.queued(began)
        return caller.place

    async def turn(self, command: Any, reservation: Reservation) -> None:
        """Wait until `command`, which finishes a step, can be executed: until all earlier steps of
        its session are finished. Only trainers that run ahead send such commands early.

        Raises OverloadedError, as `Reservation.before_turn` does.
        """
        turn = self.engine.sessions.turn(command)
        if turn is not None:
            with reservation.before_turn():
                await self.until(turn, turn.poll)

    def _submit(self, caller: Caller, work: Work) -> Task:
        if self._engine is None or self.stopping:
            raise self.closed()
        return self.worker.submit(
            caller.verb,
            work,
            client=caller.client,
            deadline=caller.deadline,
            brief=caller.brief and not self.long_jobs.running and self._engine.is_prompt,
            client_calls_max=caller.principal.limits.get("queue_calls"),
            has_waited=caller.place is not None,
        )
