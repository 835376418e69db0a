"""What every call goes through, whichever border it came in by: lane, deadline, queue, figures.

A **caller** is what a border knows of who calls: the lane it queues in, a label and ids for the log
of slow calls, and its deadline. `run` takes work to the engine thread and back; `mutate` does so at
most once for an origin. Both keep the figures. Event loop only.

**Waiting for others.** A call of a look-ahead session may wait for a step: for its rows, or for its
last rank. It holds no thread meanwhile: `until` polls what it waits for, and again after each
progress that a session makes. The sessions tell of progress on any thread; what is told before the
loop has come to wake the waiting calls needs no second wake-up, so a burst costs one. Every call
that waits is woken, which is a poll for each rank of each session: few, and cheap.

**Beside the engine thread** runs what any thread may do: it takes the store's own lock for as long
as it needs it, in pieces where that is long. Meanwhile no task is done by the event loop at once,
which would stand still while it waits for that lock; nor is one while a merge waits to be
installed.
"""

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from time import monotonic
from typing import Any, Protocol, TypeVar
from uuid import uuid4

from embstore.errors import DeviceError, InvalidArgumentError, StoreClosedError
from embstore.store import Store
from embstore_proto.v1 import embstore_pb2 as pb
from embstore_server.answers import Answered, Awaited
from embstore_server.inflight import Inflight
from embstore_server.logs import event
from embstore_server.metrics import Metrics
from embstore_server.once import Once, check_epoch
from embstore_server.settings import Settings
from embstore_server.warming import Warming
from embstore_server.worker import Task, Work, Worker

T = TypeVar("T")


class Patient(Protocol):
    """What a call waits for: a step's rows, its last rank, a warm-up."""

    @property
    def left_s(self) -> float:
        """In so many seconds it is worth another look, whatever happens."""


@dataclass
class Caller:
    """Who calls, by when, and what the call cost so far."""

    verb: str
    lane: str
    deadline: float  # monotonic seconds
    label: str = ""
    request: str = ""
    traceparent: str = ""
    rank: int | None = None
    step: int | None = None
    started: float = field(default_factory=monotonic)
    wait_s: float = 0.0
    run_s: float = 0.0
    brief: bool = False  # a few keys: may be done at once
    received_bytes: int = 0
    sent_bytes: int = 0


class Service:
    """One store, served."""

    def __init__(self, settings: Settings, worker: Worker, metrics: Metrics) -> None:
        self.settings = settings
        self.metrics = metrics
        self.instance = uuid4().hex
        self.started = monotonic()
        self.inflight = Inflight(settings.inflight_bytes_max)
        self._stopping = False
        self._moved = asyncio.Event()  # of the progress to come: a new one after each
        self._is_watching = False
        self._is_waking = False  # the loop has been asked to wake the waiting calls
        self.failed = asyncio.Event()
        """Set once a call has failed the store, also one that nobody waits for any more."""
        self.worker = worker
        worker.after_task = self._notice_failure
        self.once = Once(worker, self.instance)
        self.warming = Warming(self)
        self._beside: set[object] = set()  # works on threads of their own
        self._store: Store | None = None

    def opened(self, store: Store) -> None:
        """Take the store that the worker opened: from now on calls are served."""
        self.metrics.sessions = store.sessions
        self._store = store

    def _watch(self, store: Store) -> None:
        """Be told of the sessions' progress, from the first call that waits."""
        self._is_watching = True
        loop = asyncio.get_running_loop()

        def progressed() -> None:
            if not self._is_waking:
                self._is_waking = True
                loop.call_soon_threadsafe(self.wake)

        store.sessions.watch(progressed)

    def wake(self) -> None:
        """Let every waiting call poll again."""
        self._is_waking = False  # before they poll: what is told from now on may be after that
        moved, self._moved = self._moved, asyncio.Event()
        moved.set()

    @property
    def stopping(self) -> bool:
        """Whether new calls are refused for good; calls that wait for others end then."""
        return self._stopping

    @stopping.setter
    def stopping(self, stopping: bool) -> None:
        self._stopping = stopping
        self.wake()

    @property
    def store(self) -> Store:
        """The store, for what is not the engine thread's: limits, ids, epoch, command number.

        Raises
        ------
        StoreClosedError : it is still being opened.
        """
        if self._store is None:
            raise self._closed()
        return self._store

    def context(self) -> pb.Context:
        """Return which state of which store answers now."""
        store = self.store
        return pb.Context(
            store_id=store.store_id,
            epoch=store.epoch,
            command=store.command,
            instance=self.instance,
        )

    @property
    def is_open(self) -> bool:
        """Whether the store has been opened; one that failed since is still open."""
        return self._store is not None

    @property
    def has_failed(self) -> bool:
        """Whether the store refuses every call until the server is started again."""
        return self._store is not None and self._store.failure is not None

    @property
    def device_error(self) -> DeviceError | None:
        """What failed the store, if that was its device."""
        failure = self._store.failure if self._store is not None else None
        return failure if isinstance(failure, DeviceError) else None

    @property
    def not_ready(self) -> str:
        """Why calls are not served; empty when they are."""
        if self._store is None:
            return "starting: the store is being opened"
        if self._store.failure is not None:
            return f"the store has failed, restart the server: {self._store.failure}"
        return "stopping" if self.stopping else ""

    async def run(self, caller: Caller, work: Work) -> Any:
        """Return what `work` returns on the engine thread; withdrawn if the caller leaves in time.

        Raises
        ------
        OverloadedError, DeadlineError, StoreClosedError : nothing has been done.
        Exception : what `work` raised.
        """
        task = self._submit(caller, work)
        try:
            return await task.outcome
        except asyncio.CancelledError:
            self.worker.withdraw(task)
            raise
        finally:
            self._account(caller, task)

    async def run_beside(self, work: Callable[[Store], T]) -> T:
        """Return what `work` returns on a thread of its own: for what any thread may do, at length.

        Raises
        ------
        StoreClosedError : nothing has been done.
        Exception : what `work` raised.
        """
        if self._store is None or self.stopping:
            raise self._closed()

        def noted(store: Store) -> T:
            self._beside.add(work)  # here: it goes on when nobody waits for it any more
            try:
                return work(store)
            finally:
                self._beside.discard(work)

        return await asyncio.to_thread(noted, self._store)

    async def until(self, handle: Patient, poll: Callable[[], T | None]) -> T:
        """Return what `poll` returns of a handle, once that is not None.

        It is called after each progress of a session, and when the handle's patience ends.

        Raises
        ------
        StoreClosedError : the server stops, or the store has failed; others will not come any more.
        Exception : what `poll` raised.
        """
        if not self._is_watching:
            self._watch(self.store)
        while True:
            moved = self._moved  # taken first: progress during the poll is not missed
            found = poll()
            if found is not None:
                return found
            if self.not_ready:
                raise self._closed()
            with suppress(TimeoutError):
                async with asyncio.timeout(handle.left_s):
                    await moved.wait()

    async def settled(self, answered: Answered) -> Answered:
        """Return an answer for which others had to do their part, when they have."""
        if not isinstance(answered.value, Awaited):
            return answered
        outcome = answered.value.outcome
        return answered.settled(await self.until(outcome, outcome.poll))

    async def mutate(self, caller: Caller, origin: pb.Origin | None, work: Work) -> Any:
        """Do the same for a mutating call; with an origin at most once.

        Raises
        ------
        OutcomeUnknownError : see `embstore_server.once`.
        """
        if origin is None:
            return await self.run(caller, work)
        if origin.store_id and origin.store_id != self.store.store_id:
            raise InvalidArgumentError(
                f"the call is for store {origin.store_id}, served here is {self.store.store_id}; "
                "connect again"
            )
        caller.rank = origin.rank if origin.HasField("rank") else caller.rank
        caller.step = origin.step if origin.HasField("step") else caller.step
        verb = caller.verb.removesuffix("Stream")  # a further attempt may be a little longer

        def in_its_epoch(store: Store) -> Any:
            check_epoch(origin, store.epoch)  # again: a restore may have been ahead in the queue
            return work(store)

        result, task = await self.once.call(
            verb, origin, self.store.epoch, lambda: self._submit(caller, in_its_epoch)
        )
        self._account(caller, task)
        return result

    def _submit(self, caller: Caller, work: Work) -> Task:
        if self._store is None or self.stopping:
            raise self._closed()
        return self.worker.submit(
            caller.verb,
            work,
            lane=caller.lane,
            deadline=caller.deadline,
            brief=caller.brief and not self._beside and not self._store.is_merging,
        )

    def _closed(self) -> StoreClosedError:
        if self.has_failed:
            return StoreClosedError(self.not_ready)
        return StoreClosedError(f"the server is {self.not_ready}; send the call again later")

    def _notice_failure(self) -> None:
        if self.has_failed and not self.failed.is_set():
            self.failed.set()
            self.wake()
            level = logging.CRITICAL if self.device_error else logging.ERROR
            event(level, "store failed", reason=self.not_ready)

    def _account(self, caller: Caller, task: Task) -> None:
        caller.wait_s += task.wait_s
        caller.run_s += task.run_s

    def finished(self, caller: Caller, code: str) -> None:
        """Keep the figures of a call that has been answered with `code`; log it if it was slow."""
        seconds = monotonic() - caller.started
        self.metrics.observe_call(
            caller.verb,
            code,
            seconds=seconds,
            wait_s=caller.wait_s,
            run_s=caller.run_s,
            received_bytes=caller.received_bytes,
            sent_bytes=caller.sent_bytes,
        )
        if seconds * 1000 >= self.settings.slow_call_ms:
            event(
                logging.WARNING,
                "slow call",
                verb=caller.verb,
                code=code,
                ms=round(seconds * 1000, 1),
                wait_ms=round(caller.wait_s * 1000, 1),
                run_ms=round(caller.run_s * 1000, 1),
                received_bytes=caller.received_bytes,
                sent_bytes=caller.sent_bytes,
                client=caller.label,
                request=caller.request,
                traceparent=caller.traceparent,
                rank=caller.rank,
                step=caller.step,
            )
