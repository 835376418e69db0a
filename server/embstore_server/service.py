"""What every call goes through, whichever transport it came in by: lane, deadline, queue, stats.

`execute` has a command executed where its effect says
(`embstore.commands`): on the engine thread in its turn, with an origin at most once; on a thread of
its own, where it takes long; or at once, where it needs no engine, so that a lease is renewed
whatever else waits. Event loop only.

**Waiting for others.** A command of a look-ahead session may wait for a step: for its rows, or for
its last rank. It holds no thread meanwhile: `until` polls what it waits for, and again after each
progress that a session makes. The sessions report progress on any thread; what is reported before
the loop has come to wake the waiting calls needs no second wake-up, so a burst costs one. Every
call that waits is woken, which is a poll for each rank of each session: few, and cheap.

**Threads.** What takes long takes the store's own lock piece by piece (long_works.py). Meanwhile no
task is done by the event loop at once, which would stand still while it waits for that lock; nor is
one while a merge waits to be installed.

**The end.** A server that stops gives its calls a while. What is left then is cut off: what waits
in the queue, and what takes long at its next piece. Both are told so, and have done nothing.
"""

import asyncio
import logging
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import fields, replace
from functools import partial
from time import monotonic
from typing import Any, Protocol, TypeVar
from uuid import uuid4

from embstore.checks.call_bytes import reply_bytes
from embstore.commands import (
    Checkpoint,
    Command,
    Effect,
    GetDigest,
    GetLeaves,
    GetStats,
    Lookup,
    OpenScan,
    Progress,
    Promote,
    Retry,
)
from embstore.engine.admin import context
from embstore.engine.engine import Engine
from embstore.engine.standing import Standing
from embstore.errors import (
    CheckpointExistsError,
    DeviceError,
    InvalidArgumentError,
    StoreClosedError,
    TableNotFoundError,
)
from embstore.handles.store import Store
from embstore.layout import VALUE_BYTES
from embstore.lookahead.handles import StepOutcome
from embstore.results import Checkpoint as Kept
from embstore.results import Context, Membership, ServerInfo, ServerLimits
from embstore.storage.lineage import Lineage
from embstore.storage.lineage import read as read_lineage
from embstore.tables.command_log import CALLS_MAX
from embstore_proto.envelope import Origin
from embstore_proto.frame import ALIGNMENT, CHUNK_BYTES_MAX
from embstore_server.access import shares
from embstore_server.access.callers import Callers
from embstore_server.access.certificates import Certificates
from embstore_server.access.rights import permitted
from embstore_server.answers import Answered, Work, answering
from embstore_server.caller import Caller
from embstore_server.durable import Durable
from embstore_server.following import Following
from embstore_server.freed import Freed
from embstore_server.inflight import Inflight, Reservation
from embstore_server.logs import event
from embstore_server.long_works import LongWorks
from embstore_server.metrics import Metrics
from embstore_server.parsing import SECONDS_MAX
from embstore_server.quorum import Quorum
from embstore_server.replay import ReplayWindow, check_epoch
from embstore_server.room import Room
from embstore_server.settings import Settings
from embstore_server.shards import take_place
from embstore_server.standbys import Standbys
from embstore_server.timed_calls import TimedCaller, TimedTask
from embstore_server.traffic import Traffic
from embstore_server.turnstile import Place
from embstore_server.warming import Warming
from embstore_server.worker import Task, Worker

C = TypeVar("C", bound=Command[Any])
T = TypeVar("T")

_PARSED_TIMES = 30
"""A document takes so many times its size, at most, until the store has it: the two bytes of a row
of a profile become two int64, and checks, ranks and what is kept take more. Measured: 29."""
_PARSING_SHARE = 2
"""Of what may be in flight, a document's parsing takes one part in so many: others go on."""
_MEMBERS_MAX = 4096
"""Of which session and rank are remembered, for the log of slow calls."""


class Patient(Protocol):
    """What a call waits for: a step's rows, its last rank, a warm-up."""

    @property
    def left_s(self) -> float:
        """In so many seconds it is worth another look, whatever happens."""


class Service:
    """One store, served.

    One class, because a call passes through all of it in one order, on one thread.
    """

    def __init__(
        self, settings: Settings, open_engine: Callable[[], Engine], metrics: Metrics
    ) -> None:
        self.settings = settings
        self.metrics = metrics
        self.process = uuid4().hex
        """Of this process alone, whatever outlives it."""
        self.instance = self.process
        self.started = monotonic()
        limits = shares.defaults(settings.queue_calls_max, settings.inflight_bytes_max)
        self.callers = Callers(settings.tokens, limits)
        self.certificates = None if settings.tls_cert is None else Certificates(settings)
        self.inflight = Inflight(settings.inflight_bytes_max)
        self.traffic: defaultdict[str, Traffic] = defaultdict(Traffic)
        """By transport."""
        self.socket = ""
        """Where the shared-memory transport listens; "": nowhere."""
        self.standing = Standing(settings.standbys)
        self.lineage = Lineage()
        """What the store continues; replaced whole."""
        self._open_engine = open_engine
        self.worker = Worker(self._opened, settings.queue_calls_max, self.notice_failure)
        self.caller_of: type[Caller] = Caller
        """What a transport makes of who calls."""
        if metrics.traces is not None:
            self.caller_of, self.worker.task_of = TimedCaller, TimedTask
        self.replay = ReplayWindow(self.worker, self.instance)
        self.warming = Warming(self)
        self.room = Room(self)
        self.freed = Freed()
        self.failed = asyncio.Event()
        """Set once a call has failed the store, also one that nobody waits for any more."""
        self._stopping = False
        self._progress = asyncio.Event()  # the next progress of a session: a new one after each
        self._is_watching = False
        self._is_waking = False  # the loop has been asked to wake the waiting calls
        self.long_works = LongWorks(self.notice_failure)
        self._calls = 0
        self.idle = asyncio.Event()
        """Set while no call is under way."""
        self.idle.set()
        self._places: OrderedDict[str, Membership] = OrderedDict()  # by member that joined of late
        self._engine: Engine | None = None
        self.preparing = ""
        """What is done before the store is opened, and how far it is; any thread sets it."""
        self.durable: Durable | None = None
        """What answers wait for; None: for nothing."""
        self.standbys = Standbys(self)
        self.quorum = Quorum(settings.standbys, self._has_grown)
        self.following = Following(self, settings)

    # Life

    async def open(self) -> None:
        """Open the store on the engine thread; from then on calls are served."""
        self._use(await self.worker.start())
        self.following.start()

    def _opened(self) -> Engine:
        """Open the store. On the engine thread."""
        engine = self._open_engine()
        try:
            take_place(self.settings, engine)
        except BaseException:
            engine.close()
            raise
        self.lineage = read_lineage(engine.storage.files)
        engine.standing = self.standing
        self.following.opened(engine, self.lineage)
        return engine

    def _use(self, engine: Engine) -> None:
        self._engine = engine
        self.following.decide(engine)  # not before: the store until now stays what it is
        self._is_watching = False
        engine.sessions.owner_bytes_max = partial(
            shares.announced_bytes_max, self.callers, engine.tables.limits.announced_bytes_max
        )
        if (log := engine.log) is None:
            return
        self.standbys.use(engine)
        self.quorum = Quorum(self.settings.standbys, self._has_grown)
        self.durable = Durable(
            log,
            self.quorum,
            refusal=self._closed,
            failed=self.notice_failure,
            progressed=self.standbys.wake,
        )
        durable = log.files.durable  # now: of what is synced from here on it is told
        self.quorum.synced(durable, log.files.synced)
        self.recall()

    def recall(self) -> None:
        """Answer calls as the command log has it."""
        log = self.engine.log
        assert log is not None
        self.instance = log.memory.life
        self.replay = ReplayWindow(self.worker, self.instance)
        self.replay.recall(log.memory.answers, log.mark)

    async def reopen(self) -> None:
        """Open what is in the directory now, in place of the store that was served."""
        lane, deadline = "follow", monotonic() + SECONDS_MAX
        task = self.worker.submit("Follow", self.worker.reopen, lane=lane, deadline=deadline)
        self._use(await task.outcome)

    def _has_grown(self) -> None:
        if self.durable is not None:
            self.durable.look()

    def reload(self) -> None:
        """Read tokens and certificates again, for calls and connections from now on."""
        self.callers.reload()
        if self.certificates is not None:
            self.certificates.reload()

    async def stop(self) -> None:
        """Finish what is queued, and close the store, which commits it; see `Worker.stop`."""
        await self.following.stop()
        try:
            await self.worker.stop()
        finally:
            self.long_works.close()

    def count_calls(self, more: int) -> None:
        """Note that calls have begun, or, of less than none, ended."""
        self._calls += more
        if self._calls:
            self.idle.clear()
        else:
            self.idle.set()

    def cut_off(self) -> None:
        """End what takes long, and what waits for its turn: the time to drain is over."""
        self.long_works.cut_off()
        self.worker.cut_off(StoreClosedError("the server is stopping; send the call again later"))

    @property
    def stopping(self) -> bool:
        """Whether new calls are refused for good; calls that wait for others end then."""
        return self._stopping

    @stopping.setter
    def stopping(self, stopping: bool) -> None:
        self._stopping = stopping
        self.wake()

    @property
    def engine(self) -> Engine:
        """The engine, for what needs no turn of it; StoreClosedError before the store is open."""
        if self._engine is None:
            raise self._closed()
        return self._engine

    @property
    def store_id(self) -> str:
        """The id of the store; another one when a standby has taken its leader's first commit."""
        return self.engine.storage.catalogue.store_id

    @property
    def store(self) -> Store:
        """The store's handle; its calls are the engine thread's, or long."""
        return Store(self.engine)

    @property
    def is_open(self) -> bool:
        """Whether the store has been opened; one that failed since is still open."""
        return self._engine is not None

    @property
    def failure(self) -> BaseException | None:
        """What failed the store, so that it refuses every call until the server is restarted."""
        return None if self._engine is None else self._engine.failure

    @property
    def device_error(self) -> DeviceError | None:
        """What failed the store, if that was its device."""
        return self.failure if isinstance(self.failure, DeviceError) else None

    @property
    def not_ready(self) -> str:
        """Why calls are not served; empty when they are."""
        if self._engine is None:
            return f"starting: {self.preparing or 'the store is being opened'}"
        if self.failure is not None:
            return f"the store has failed, restart the server: {self.failure}"
        if self.standing.is_empty:
            return f"starting: the first commit of {self.standing.leader} is awaited"
        return "stopping" if self.stopping else ""

    @property
    def unready(self) -> str:
        """Why nobody should be sent here, though reads may be served (room.py); empty: do."""
        return self.not_ready or self.room.lack

    @property
    def limits(self) -> ServerLimits:
        """The named bounds of the server."""
        fixed = {"chunk_bytes_max": CHUNK_BYTES_MAX, "remembered_calls_max": CALLS_MAX}
        bounds = vars(self.settings) | fixed
        return ServerLimits(**{f.name: bounds[f.name] for f in fields(ServerLimits)})

    # Commands

    def permitted(self, caller: Caller, command: C) -> C:
        """Return a command as its caller means it, if the caller may give it. Any thread.

        Whatever brings a command to `execute`, `begin` or the engine asks this first. Raises
        PermissionDeniedError.
        """
        command = permitted(caller, command, lambda: self.engine.sessions)
        if member := getattr(command, "member", ""):
            self.engine.sessions.used_by(member, caller.process)
        return command

    async def execute(
        self, caller: Caller, command: Command[Any], origin: Origin | None = None
    ) -> Answered:
        """Have a command executed where its effect says, and return its result when it is there."""
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
        """Do the same, but not wait for the other ranks of a step: `finished` does.

        `out` is as of `Executor.execute`, called on the engine thread; with `stages` the answer
        says where the time went. Raises OverloadedError, DeadlineError, StoreClosedError: nothing
        has been done, but that StoreClosedError may also say that the store has failed since;
        OutcomeUnknownError: see `embstore_server.replay`; what the command raised.
        """
        self.note(caller, command)
        self.room.check(command)
        if isinstance(command, Promote) and await self.following.promote():
            return answering(lambda _: None, self.instance)(self.engine)
        if isinstance(command, GetStats) and self.durable is not None:
            self.standing.writes_waiting = self.durable.writes_waiting
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
                if isinstance(command, Checkpoint):
                    with suppress(CheckpointExistsError):  # maybe by this call, that is sent again
                        await self.run_in_thread(
                            "Checkpoint", lambda e, progress: e.prepare(command, progress), caller
                        )
                answered = await self._in_turn(caller, origin, work)
                if caller.place is not None:
                    caller.place.leave()
                is_write = command.effect is Effect.WRITES or command.retry is Retry.WINDOW
                await self._until_durable(caller, answered, is_write=is_write)
        return self._noted(caller, answered)

    def look_up_at_once(
        self, callers: Sequence[Caller], commands: Sequence[Lookup], outs: Sequence[Any]
    ) -> Answered | None:
        """Look rows up for several callers, as one, if nothing has to be waited for; None:
        something has. The lookups have one `admit`."""
        if self._engine is None or self.stopping or self.long_works.running:
            return None
        if not self._engine.is_prompt or self._engine.tables.frame.is_taken:
            return None
        log = self._engine.log
        if self.durable is not None and log is not None and not self.durable.has(log.mark):
            return None  # what it reads may have to wait
        began = monotonic()
        versions = {caller.map_version for caller in callers} - {0}
        work = answering(lambda e: e.look_up_resident(commands, outs, versions), self.instance)
        answered: Answered | None = self.worker.at_once(work)
        if answered is None or answered.value is None:
            return None
        for caller in callers:
            caller.run_s = (monotonic() - began) / len(callers)
        return answered

    def _begun(self, caller: Caller, command: Command[Any], engine: Engine, **how: Any) -> Any:
        """Begin a command, if its caller's share has room."""
        shares.check(caller.principal, command, engine)
        return engine.begin(command, map_version=caller.map_version, **how)

    def reservation(self, caller: Caller) -> Reservation:
        """Give back at the end what a caller reserves inside."""
        principal = caller.principal
        return self.inflight.reservation(principal.name, principal.limits.get("inflight_bytes"))

    def lend(self, caller: Caller, count: int) -> Reservation:
        """Return the loan of memory that is shared with a caller; raises OverloadedError."""
        principal = caller.principal
        return self.inflight.lend(principal.name, principal.limits.get("inflight_bytes"), count)

    async def _in_thread(self, caller: Caller, command: Command[Any]) -> Answered:
        """Have a command that takes long executed on a thread of its own."""

        def work(engine: Engine, progress: Progress) -> Answered:
            execute = partial(
                Engine.begin, command=command, progress=progress, map_version=caller.map_version
            )
            return answering(execute, self.instance)(engine)

        answered = await self.run_in_thread(type(command).__name__, work, caller)
        if isinstance(command, GetDigest | GetLeaves | OpenScan):
            await self._until_durable(caller, answered, is_write=False)
        return answered

    async def _until_durable(self, caller: Caller, answered: Answered, *, is_write: bool) -> None:
        """Wait until a crash cannot take back what an answer says, also of what others wrote; what
        this call wrote is then on standbys, too, where that is asked for.

        Not for the rows of a session's step: a step before it that a crash takes back is not
        acknowledged, and so is sent again, with the same gradients.
        """
        is_known = not isinstance(answered.value, StepOutcome)  # else it is waited for when it is
        if self.durable is not None and is_known:
            began = monotonic()
            await self.durable.wait(answered.mark, is_write=is_write)
            caller.waited("durable", began)

    async def finished(self, caller: Caller, answered: Answered) -> Answered:
        """Return an answer for which other ranks had to do their part, when they have."""
        if isinstance(answered.value, StepOutcome):
            began = monotonic()
            answered = answered.finished(await self.until(answered.value, answered.value.poll))
            caller.waited("ranks", began)
            log = self.engine.log
            mark = log.mark if log is not None else 0
            await self._until_durable(caller, answered._replace(mark=mark), is_write=True)
        return answered

    def note(self, caller: Caller, command: Any) -> None:
        """Say in a caller what its command asks for, and of which session, rank and step."""
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
            case Kept() | tuple():
                return answered._replace(value=caller.principal.visible(answered.value))
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
        """Have work done on the engine thread; with an origin at most once."""
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
        verb = caller.verb.removesuffix("Stream")  # a further attempt may be a little longer

        def in_its_epoch(engine: Engine) -> Answered:
            check_epoch(origin, engine.storage.catalogue.epoch)  # a restore may have been ahead
            return work(engine)

        epoch = self.engine.storage.catalogue.epoch
        answered, task = await self.replay.call(
            verb, caller.principal.origin(origin), epoch, lambda: self._submit(caller, in_its_epoch)
        )
        caller.worked(task)
        return answered

    # Documents

    def check_document(self, size: int, what: str) -> None:
        """Refuse the file of a profile or hot set that is too large."""
        limit = self.engine.tables.limits.call_bytes_max
        if size > limit:
            raise InvalidArgumentError(
                f"expected {what} of at most {limit} bytes (limits.call_bytes_max), found {size}"
            )

    def call_bytes_max(self, caller: Caller) -> tuple[int, str]:
        """Return how large a call may be, and the name of the limit."""
        most, limit = self.engine.tables.limits.call_bytes_max, "limits.call_bytes_max"
        own = caller.principal.limits.get("call_bytes", most)
        return (own, f"call_bytes of {caller.principal.name!r}") if own < most else (most, limit)

    def parsing_bytes(self, size: int) -> int:
        """Return how many bytes count as in flight, beside its own, while a document is parsed."""
        share = self.settings.inflight_bytes_max // _PARSING_SHARE
        return min((_PARSED_TIMES - 1) * size, share)

    def expected_bytes(self, command: Command[Any], value_bytes: int = VALUE_BYTES) -> int:
        """Return how many bytes of rows the reply to a command will have at most, as far as that is
        known before its turn: a table may be made until then."""
        try:
            size = reply_bytes(command, self.engine.tables.config_of)
        except TableNotFoundError:
            return 0
        arrays = len(getattr(command, "tables", ())) + 2
        return size * value_bytes // VALUE_BYTES + ALIGNMENT * arrays if size else 0

    # Work

    async def run(self, caller: Caller, work: Work) -> Any:
        """Return what `work` returns on the engine thread; withdrawn if the caller leaves in time.

        Raises OverloadedError, DeadlineError, StoreClosedError: nothing has been done.
        """
        task = self._submit(caller, work)
        try:
            return await task.outcome
        except asyncio.CancelledError:
            self.worker.withdraw(task)
            raise
        finally:
            caller.worked(task)

    async def run_in_thread(
        self, verb: str, work: Callable[[Engine, Progress], T], caller: Caller | None = None
    ) -> T:
        """Return what `work` returns on a thread of the verb's own: for what takes long. It is
        ended between its pieces when its caller has gone."""
        if self._engine is None or self.stopping:
            raise self._closed()
        mine = partial(work, self._engine)
        if caller is None:
            return await self.long_works.run(verb, mine)
        lane, limits = caller.principal.name, caller.principal.limits
        began = monotonic()
        try:
            return await self.long_works.run(
                verb, mine, caller.gone, lane=lane, lane_calls_max=limits.get("queue_calls")
            )
        finally:
            caller.waited("thread", began)

    async def place(self, caller: Caller) -> Place:
        """Wait until a call may be taken apart, and have the engine; raises OverloadedError."""
        self.worker.check_room(caller.lane, caller.principal.limits.get("queue_calls"))
        began = monotonic()
        caller.place = await self.worker.turnstile.enter(caller.lane)
        caller.queued(began)
        return caller.place

    def _submit(self, caller: Caller, work: Work) -> Task:
        if self._engine is None or self.stopping:
            raise self._closed()
        return self.worker.submit(
            caller.verb,
            work,
            lane=caller.lane,
            deadline=caller.deadline,
            brief=caller.brief and not self.long_works.running and self._engine.is_prompt,
            lane_calls_max=caller.principal.limits.get("queue_calls"),
            has_waited=caller.place is not None,
        )

    # Waiting for others

    async def until(self, handle: Patient, poll: Callable[[], T | None]) -> T:
        """Return what `poll` returns of a handle, once that is not None.

        It is called after each progress of a session, and when the handle's patience ends. Raises
        StoreClosedError: the server stops, or the store has failed; others will not come any more.
        """
        if not self._is_watching:  # the first call that waits
            self._is_watching = True
            self.engine.sessions.watch(partial(self._progressed, asyncio.get_running_loop()))
        while True:
            progress = self._progress  # taken first: progress during the poll is not missed
            found = poll()
            if found is not None:
                return found
            if self.not_ready:
                raise self._closed()
            with suppress(TimeoutError):
                async with asyncio.timeout(handle.left_s):
                    await progress.wait()

    async def turn(self, command: Any, reservation: Reservation) -> None:
        """Wait until a step may be finished, in a session whose trainer runs ahead.

        Raises OverloadedError: as `Reservation.before_turn`.
        """
        turn = self.engine.sessions.turn(command)
        if turn is not None:
            with reservation.before_turn():
                await self.until(turn, turn.poll)

    def _progressed(self, loop: asyncio.AbstractEventLoop) -> None:
        if not self._is_waking:
            self._is_waking = True
            loop.call_soon_threadsafe(self.wake)

    def wake(self) -> None:
        """Let every waiting call poll again."""
        self._is_waking = False  # before they poll: what is reported from now on may be after that
        progress, self._progress = self._progress, asyncio.Event()
        progress.set()

    # Ends of calls

    def _closed(self) -> StoreClosedError:
        if self.failure is not None:
            return StoreClosedError(self.not_ready)
        later = "; send the call again later" if self.stopping else ""
        return StoreClosedError(f"the server is {self.not_ready}{later}")

    def notice_failure(self) -> None:
        """Tell health and the log, once, that the store has failed. Event loop only."""
        if self.failure is not None and not self.failed.is_set():
            self.failed.set()
            self.wake()
            level = logging.CRITICAL if self.device_error else logging.ERROR
            event(level, "store failed", reason=self.not_ready)

    def context(self) -> Context:
        """Return which state of which store answers now."""
        return context(self.engine, self.instance)
