"""The served store: whether it accepts calls, and the calls that wait for it.

`embstore_server.host` opens the store and passes it to `use`; when a standby takes over a commit of
its leader, the host passes another store. Stats, queue and callers outlive a store.

**Waiting for others.** A command of a look-ahead session may wait until the rows of a step are
ready, or until the last rank of a step has called. No thread waits meanwhile: `until` polls the
command's condition at once, and again after each progress of a session. The sessions report
progress on any thread. Reports that arrive before the loop has woken the waiting calls need no
second wake-up, so a burst of reports costs one wake-up. A wake-up makes every waiting call poll.
These are few and cheap polls: one per rank of each session.

**Threads.** Long jobs take the store's own lock piece by piece (long_jobs.py). While a long job
runs, the event loop executes no task itself, because the loop would stand still until that lock is
free. The same holds while a merge waits to be installed.

**The end.** A server that stops gives its calls some time. Then it cuts off the remaining calls:
queued calls at once, long jobs after their current piece. All of them end with an error, and have
changed nothing.
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
    """An event that a call waits for, for example that the rows of a step are ready, that the last
    rank of a step has called, or that a warm-up has progressed."""

    @property
    def left_s(self) -> float:
        """Seconds after which the event must be polled again, even without progress of a
        session."""


class Served:
    """A store, as calls see it. Event loop only, unless a docstring permits any thread."""

    def __init__(
        self, settings: Settings, metrics: Metrics, open_engine: Callable[[], Engine]
    ) -> None:
        """Prepare to serve a store, which `open_engine` will open on the engine thread."""
        self.settings = settings
        self.metrics = metrics
        self.process = uuid4().hex
        """The id of this process alone; `instance` can outlive the process."""
        self.instance = self.process
        self.started = monotonic()
        limits = shares.defaults(settings.queue_calls_max, settings.inflight_bytes_max)
        self.callers = Callers(settings.tokens, limits)
        self.certificates = None if settings.tls_cert is None else Certificates(settings)
        self.inflight = Inflight(settings.inflight_bytes_max)
        self.traffic: defaultdict[str, Traffic] = defaultdict(Traffic)
        """Traffic by transport."""
        self.socket = ""
        """The address of the shared-memory transport; empty if it does not listen."""
        self.replication = ReplicationRole(settings.standbys)
        self.lineage = Lineage()
        """The history that the store continues; replaced as a whole."""
        self.replaced = asyncio.Event()
        """Set once this leader was replaced, and the lineage on its disk records the
        replacement."""
        self.worker = Worker(open_engine, settings.queue_calls_max, self.notice_failure)
        self.caller_of: type[Caller] = Caller
        """The class of callers that a transport makes."""
        if metrics.traces is not None:
            self.caller_of, self.worker.task_of = TimedCaller, TimedTask
        self.replay = ReplayWindow(self.worker, self.instance)
        self.disk_space = DiskSpace(self)
        self.memory_trim = MemoryTrim()
        self.failed = asyncio.Event()
        """Set once the store has failed in a call, even if the client of that call has
        disconnected."""
        self.preparing = ""
        """The work that precedes the opening of the store, and the progress of this work. Any
        thread may set this attribute."""
        self.durable: Durable | None = None
        """The object that makes answers wait until they are durable; None: answers do not wait."""
        self.quorum = Quorum(settings.standbys, self._has_grown)
        self.long_jobs = LongJobs(self.notice_failure)
        self.idle = asyncio.Event()
        """Set while no call is running."""
        self.idle.set()
        self._calls = 0
        self._stopping = False
        # set at the next progress of a session; replaced each time
        self._progress = asyncio.Event()
        self._is_watching = False
        self._is_waking = False  # whether the loop was asked to wake the waiting calls
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
        durable = log.files.durable  # now, because only later syncs are reported
        self.quorum.synced(durable, log.files.synced)
        self.recall()

    def recall(self) -> None:
        """Take the remembered answers of calls from the command log, for further attempts of these
        calls."""
        log = self.engine.log
        assert log is not None
        self.instance = log.memory.instance
        self.replay = ReplayWindow(self.worker, self.instance)
        self.replay.recall(log.memory.answers, log.mark)

    def _has_grown(self) -> None:
        if self.durable is not None:
            self.durable.look()

    def reload(self) -> None:
        """Read tokens and certificates again; calls and connections from now on use them."""
        self.callers.reload()
        if self.certificates is not None:
            self.certificates.reload()

    def count_calls(self, more: int) -> None:
        """Note that `more` calls have begun; if `more` is negative, that -`more` calls have
        ended."""
        self._calls += more
        if self._calls:
            self.idle.clear()
        else:
            self.idle.set()

    def cut_off(self) -> None:
        """End long jobs and queued calls: the time to drain is over."""
        self.long_jobs.cut_off()
        self.worker.cut_off(StoreClosedError("the server is stopping; send the call again later"))

    @property
    def stopping(self) -> bool:
        """Whether the server is stopping: it refuses all new calls, and calls that wait for other
        calls end."""
        return self._stopping

    @stopping.setter
    def stopping(self, stopping: bool) -> None:
        self._stopping = stopping
        self.wake()

    @property
    def engine(self) -> Engine:
        """The engine, for work that needs no turn on the engine thread; raises StoreClosedError
        before the store is open."""
        if self._engine is None:
            raise self.closed()
        return self._engine

    @property
    def store_id(self) -> str:
        """The id of the store; it changes when a standby takes over its leader's first commit."""
        return self.engine.storage.catalogue.store_id

    @property
    def store(self) -> "Store":
        """The store's handle; use it on the engine thread, or for long calls."""
        from embstore.handles.store import Store

        return Store(self.engine)

    @property
    def is_open(self) -> bool:
        """Whether the store has been opened; a store that failed later is still open."""
        return self._engine is not None

    @property
    def failure(self) -> BaseException | None:
        """The error that made the store fail; a failed store refuses calls until the server is
        restarted."""
        return None if self._engine is None else self._engine.failure

    @property
    def device_error(self) -> DeviceError | None:
        """The error that made the store fail, if it is an error of the device."""
        return self.failure if isinstance(self.failure, DeviceError) else None

    @property
    def not_ready(self) -> str:
        """The reason why calls are not served; empty if calls are served."""
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
        """The reason why this server should get no work, although it may serve reads
        (disk_space.py); empty: it is ready."""
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
        """Return the result of a long job, which runs on a thread of the verb's own.

        The job is ended between two pieces when its caller disconnects.
        """
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
        """Accept no more writes: a standby of this store was promoted."""
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

        await asyncio.shield(keep())  # runs to its end, even if the caller disconnects

    # Waiting for others

    async def until(self, handle: PendingEvent, poll: Callable[[], T | None]) -> T:
        """Call `poll` until its result is not None, and return that result.

        `poll` is called after each progress of a session, and when the event's `left_s` is over.
        Raises StoreClosedError if the server stops or the store has failed, because no further
        progress is possible then.
        """
        if not self._is_watching:  # the first call that waits
            self._is_watching = True
            self.engine.sessions.watch(partial(self._progressed, asyncio.get_running_loop()))
        while True:
            # read before the poll, so that progress during the poll is not missed
            progress = self._progress
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
        """Make every waiting call poll again."""
        self._is_waking = False  # before the polls: a later report can arrive after them
        progress, self._progress = self._progress, asyncio.Event()
        progress.set()

    # Ends of calls

    def closed(self) -> StoreClosedError:
        """Return the error of a call that is not served, or no longer served."""
        if self.failure is not None:
            return StoreClosedError(self.not_ready)
        later = "; send the call again later" if self.stopping else ""
        return StoreClosedError(f"the server is {self.not_ready}{later}")

    def notice_failure(self) -> None:
        """If the store has failed, report this once, to the health service and in the log. Event
        loop only."""
        if self.failure is not None and not self.failed.is_set():
            self.failed.set()
            self.wake()
            level = logging.CRITICAL if self.device_error else logging.ERROR
            event(level, "store failed", reason=self.not_ready)

    def context(self) -> Context:
        """Return the context of an answer that is given now: the store and its state."""
        return context(self.engine, self.instance)


def _replaced(by: str) -> OutcomeUnknownError:
    return OutcomeUnknownError(
        f"this server was replaced by {by} while the call waited for a standby: read t and the "
        "command number from the server that was promoted"
    )
