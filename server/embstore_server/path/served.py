"""The store that is served, whether it takes calls, and the calls that wait for it.

It is opened by `embstore_server.host`, which gives it to `use`; a standby that takes its leader's
commit gives another one. Stats, queue and callers outlive a store.

**Waiting for others.** A command of a look-ahead session may wait for a step: for its rows, or for
its last rank. It holds no thread meanwhile: `until` polls its condition, and again after each
progress that a session makes. The sessions report progress on any thread; reports that come before
the loop has woken the waiting calls need no second wake-up, so a burst costs one. Every call that
waits is woken, which is a poll for each rank of each session: few, and cheap.

**Threads.** Long work takes the store's own lock piece by piece (long_jobs.py). Meanwhile no task
is done by the event loop at once, which would stand still while it waits for that lock; nor is one
while a merge waits to be installed.

**The end.** A server that stops gives its calls a while. Then it cuts off the rest: calls in the
queue at once, and long works at their next piece. Both get an error, and have done nothing.
"""

import asyncio
import logging
from collections import defaultdict
from collections.abc import Callable
from contextlib import suppress
from dataclasses import fields
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, Protocol, TypeVar
from uuid import uuid4

from embstore.commands import Progress
from embstore.engine.admin import context
from embstore.engine.engine import Engine
from embstore.engine.replication_role import ReplicationRole
from embstore.engine.scan_places import SCANS_MAX
from embstore.errors import DeviceError, OutcomeUnknownError, StoreClosedError
from embstore.results import Context, ServerLimits
from embstore.storage import lineage as lineages
from embstore.storage.lineage import Lineage, Promotion
from embstore.tables.answers import CALLS_MAX
from embstore_proto.frame import CHUNK_BYTES_MAX
from embstore_server.access import shares
from embstore_server.access.callers import Callers
from embstore_server.access.certificates import Certificates
from embstore_server.path.caller import Caller
from embstore_server.path.disk_space import DiskSpace
from embstore_server.path.durable import Durable
from embstore_server.path.inflight import Inflight
from embstore_server.path.long_jobs import LongJobs
from embstore_server.path.memory_trim import MemoryTrim
from embstore_server.path.quorum import Quorum
from embstore_server.path.replay import ReplayWindow
from embstore_server.path.timed_calls import TimedCaller, TimedTask
from embstore_server.path.traffic import Traffic
from embstore_server.path.worker import Worker
from embstore_server.setup.settings import Settings
from embstore_server.telemetry.logs import event
from embstore_server.telemetry.metrics import Metrics

if TYPE_CHECKING:
    from embstore.handles.store import Store

T = TypeVar("T")


class PendingEvent(Protocol):
    """An event that a call waits for: a step's rows, its last rank, a warm-up."""

    @property
    def left_s(self) -> float:
        """Seconds after which it is to be polled again, without any progress."""


class Served:
    """A store, as calls find it. Event loop only, but where it says otherwise."""

    def __init__(
        self, settings: Settings, metrics: Metrics, open_engine: Callable[[], Engine]
    ) -> None:
        """Prepare to serve what `open_engine` opens, on the engine thread."""
        self.settings = settings
        self.metrics = metrics
        self.process = uuid4().hex
        """The id of this process alone; `instance` may outlive it."""
        self.instance = self.process
        self.started = monotonic()
        limits = shares.defaults(settings.queue_calls_max, settings.inflight_bytes_max)
        self.callers = Callers(settings.tokens, limits)
        self.certificates = None if settings.tls_cert is None else Certificates(settings)
        self.inflight = Inflight(settings.inflight_bytes_max)
        self.traffic: defaultdict[str, Traffic] = defaultdict(Traffic)
        """Traffic by transport."""
        self.socket = ""
        """Where the shared-memory transport listens; "": nowhere."""
        self.replication = ReplicationRole(settings.standbys)
        self.lineage = Lineage()
        """The history that the store continues; replaced whole."""
        self.replaced = asyncio.Event()
        """Set once this leader was replaced, and its lineage says so on the disk."""
        self.worker = Worker(open_engine, settings.queue_calls_max, self.notice_failure)
        self.caller_of: type[Caller] = Caller
        """The class of callers that a transport makes."""
        if metrics.traces is not None:
            self.caller_of, self.worker.task_of = TimedCaller, TimedTask
        self.replay = ReplayWindow(self.worker, self.instance)
        self.disk_space = DiskSpace(self)
        self.memory_trim = MemoryTrim()
        self.failed = asyncio.Event()
        """Set once a call has failed the store, also one whose client has gone."""
        self.preparing = ""
        """The work done before the store is opened, and its progress; any thread sets it."""
        self.durable: Durable | None = None
        """The durability that answers wait for; None: they do not wait."""
        self.quorum = Quorum(settings.standbys, self._has_grown)
        self.long_jobs = LongJobs(self.notice_failure)
        self.idle = asyncio.Event()
        """Set while no call is under way."""
        self.idle.set()
        self._calls = 0
        self._stopping = False
        self._progress = asyncio.Event()  # the next progress of a session: a new one after each
        self._is_watching = False
        self._is_waking = False  # the loop has been asked to wake the waiting calls
        self._engine: Engine | None = None

    # Life

    def use(self, engine: Engine, synced: Callable[[], None]) -> None:
        """Serve a store from now on; `synced` is called after each sync of its command log."""
        self._engine = engine
        self._is_watching = False
        limits, places = engine.tables.limits, engine.scans.places
        share, announcing = partial(shares.share_of, self.callers), engine.sessions.announcing
        announcing.owner_bytes_max = partial(share, "announced_bytes", limits.announced_bytes_max)
        places.owner_scans_max = partial(share, "scans", SCANS_MAX)
        places.owner_bytes_max = partial(share, "scan_bytes", limits.scan_bytes_max)
        if (log := engine.log) is None:
            return
        self.quorum = Quorum(self.settings.standbys, self._has_grown)
        self.durable = Durable(
            log,
            self.quorum,
            refusal=self.closed,
            failed=self.notice_failure,
            progressed=synced,
        )
        durable = log.files.durable  # now: later syncs are reported
        self.quorum.synced(durable, log.files.synced)
        self.recall()

    def recall(self) -> None:
        """Answer calls as the command log has it."""
        log = self.engine.log
        assert log is not None
        self.instance = log.memory.instance
        self.replay = ReplayWindow(self.worker, self.instance)
        self.replay.recall(log.memory.answers, log.mark)

    def _has_grown(self) -> None:
        if self.durable is not None:
            self.durable.look()

    def reload(self) -> None:
        """Read tokens and certificates again, for calls and connections from now on."""
        self.callers.reload()
        if self.certificates is not None:
            self.certificates.reload()

    def count_calls(self, more: int) -> None:
        """Note that calls have begun, or, of less than none, ended."""
        self._calls += more
        if self._calls:
            self.idle.clear()
        else:
            self.idle.set()

    def cut_off(self) -> None:
        """End long works and queued calls: the time to drain is over."""
        self.long_jobs.cut_off()
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
        """The engine, for work without a turn; StoreClosedError before the store is open."""
        if self._engine is None:
            raise self.closed()
        return self._engine

    @property
    def store_id(self) -> str:
        """The id of the store; another one when a standby has taken its leader's first commit."""
        return self.engine.storage.catalogue.store_id

    @property
    def store(self) -> "Store":
        """The store's handle; its calls are the engine thread's, or long."""
        from embstore.handles.store import Store

        return Store(self.engine)

    @property
    def is_open(self) -> bool:
        """Whether the store has been opened; one that failed since is still open."""
        return self._engine is not None

    @property
    def failure(self) -> BaseException | None:
        """The error that failed the store, which then refuses calls until the server is
        restarted."""
        return None if self._engine is None else self._engine.failure

    @property
    def device_error(self) -> DeviceError | None:
        """The error that failed the store, if that was its device's."""
        return self.failure if isinstance(self.failure, DeviceError) else None

    @property
    def not_ready(self) -> str:
        """Why calls are not served; empty when they are."""
        if self._engine is None:
            return f"starting: {self.preparing or 'the store is being opened'}"
        if self.failure is not None:
            return f"the store has failed, restart the server: {self.failure}"
        if self.replication.is_empty:
            return f"starting: waiting for the first commit of {self.replication.leader}"
        if self.replication.asks:
            return f"starting: {self.replication.asking}"
        return "stopping" if self.stopping else ""

    @property
    def unready(self) -> str:
        """Why this server should get no work, though it may serve reads (room.py); empty: ready."""
        return self.not_ready or self.disk_space.lack

    @property
    def limits(self) -> ServerLimits:
        """The named bounds of the server."""
        fixed = {"chunk_bytes_max": CHUNK_BYTES_MAX, "remembered_calls_max": CALLS_MAX}
        bounds = vars(self.settings) | fixed
        return ServerLimits(**{f.name: bounds[f.name] for f in fields(ServerLimits)})

    async def run_in_thread(
        self, verb: str, work: Callable[[Engine, Progress], T], caller: Caller | None = None
    ) -> T:
        """Return the result of long work, done on a thread of the verb's own. It is ended between
        its pieces when its caller has gone."""
        if self._engine is None or self.stopping:
            raise self.closed()
        mine = partial(work, self._engine)
        if caller is None:
            return await self.long_jobs.run(verb, mine)
        client, limits = caller.principal.name, caller.principal.limits
        began = monotonic()
        try:
            return await self.long_jobs.run(
                verb, mine, caller.gone, client=client, client_calls_max=limits.get("queue_calls")
            )
        finally:
            caller.waited("thread", began)

    # Replication

    async def replace_by(self, by: Promotion) -> None:
        """Take no writes any more: a standby of this store was promoted."""
        if self.replication.replaced_by:
            return
        found = f"promotion {by.id}, which began epoch {by.epoch}"
        self.replication.replaced_by, self.replication.asks = found, ""
        event(logging.ERROR, "replaced", by=found)
        self.lineage = lineage = self.lineage.fenced(found)
        if self.durable is not None:
            self.durable.refuse_writes(partial(_replaced, found))
        files = self.engine.storage.files

        async def keep() -> None:
            await asyncio.to_thread(lineages.write, files, lineage)
            self.replaced.set()

        await asyncio.shield(keep())  # to its end, though the server that notified us has gone

    # Waiting for others

    async def until(self, handle: PendingEvent, poll: Callable[[], T | None]) -> T:
        """Return the result of `poll`, once that is not None.

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
                raise self.closed()
            with suppress(TimeoutError):
                async with asyncio.timeout(handle.left_s):
                    await progress.wait()

    def _progressed(self, loop: asyncio.AbstractEventLoop) -> None:
        if not self._is_waking:
            self._is_waking = True
            loop.call_soon_threadsafe(self.wake)

    def wake(self) -> None:
        """Let every waiting call poll again."""
        self._is_waking = False  # before they poll: a later report may come after their poll
        progress, self._progress = self._progress, asyncio.Event()
        progress.set()

    # Ends of calls

    def closed(self) -> StoreClosedError:
        """Return the error of a call that is not served, or not any more."""
        if self.failure is not None:
            return StoreClosedError(self.not_ready)
        later = "; send the call again later" if self.stopping else ""
        return StoreClosedError(f"the server is {self.not_ready}{later}")

    def notice_failure(self) -> None:
        """Report to health and the log, once, that the store has failed. Event loop only."""
        if self.failure is not None and not self.failed.is_set():
            self.failed.set()
            self.wake()
            level = logging.CRITICAL if self.device_error else logging.ERROR
            event(level, "store failed", reason=self.not_ready)

    def context(self) -> Context:
        """Return which state of which store answers now."""
        return context(self.engine, self.instance)


def _replaced(by: str) -> OutcomeUnknownError:
    return OutcomeUnknownError(
        f"this server was replaced by {by} while the call waited for a standby: read t and the "
        "command number from the server that was promoted"
    )
