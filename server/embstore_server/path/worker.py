"""The engine thread, which owns the store, and takes tasks from a bounded, fair queue.

**Fair.** Each client has a queue; the thread takes from the queues in turn. A client with a hundred
waiting calls delays a call of another client by one call, not by a hundred. Calls of one client
keep their order.

**Bounded.** A call that finds `queue_calls_max` calls waiting is refused at once (OverloadedError):
the client backs off, and its wait costs the server nothing.

**Leaving.** A task is *waiting*, then *started*, then done. A waiting task is withdrawn if its call
was cancelled or its deadline passed; a withdrawn task has changed nothing. A started task runs to
its end, even if its caller has disconnected. A waiting task is started or withdrawn under the
queue's lock, so exactly one of the two happens.

**At once.** A *brief* task (a few keys, on a device that queues no work) that finds the engine idle
is executed by the event loop itself, because two switches of threads cost more than such a call.
Strictly speaking, the store's owner is the holder of the lock `_turn`. The thread takes this lock
for each task; the loop only tries to take it, and never waits for it.

The event loop passes tasks and receives results; the thread never waits for the loop. The loop
wakes the thread by a token per task, through a SimpleQueue. Waiting for a Condition costs several
times as much, enough to slow a call of one key. The token of a withdrawn task wakes the thread in
vain.
"""

import asyncio
import threading
from collections import OrderedDict, deque
from collections.abc import Callable
from queue import SimpleQueue
from time import monotonic
from traceback import format_exception
from typing import Any

from embstore.engine.engine import Engine
from embstore.errors import DeadlineError, EmbstoreError, OverloadedError, StoreClosedError
from embstore.stages import StageSeconds
from embstore_server.path.concurrency import ConcurrencyLimiter

Work = Callable[[Engine], Any]


class Task:
    """One call's work for the engine thread. Only the event loop uses `outcome`."""

    def __init__(self, verb: str, work: Work, client: str, deadline: float) -> None:
        self.verb = verb
        self.work = work
        self.client = client
        self.deadline = deadline  # monotonic seconds
        self.enqueued = monotonic()
        self.wait_s = 0.0
        self.run_s = 0.0
        self.stage_seconds = StageSeconds()
        self.is_waiting = True
        self.loop = asyncio.get_running_loop()
        self.outcome: asyncio.Future[Any] = self.loop.create_future()

    def finish(self, result: Any, error: BaseException | None) -> None:
        """Set the outcome, on the event loop."""
        if self.outcome.done():
            return  # withdrawn
        if error is None:
            self.outcome.set_result(result)
        else:
            self.outcome.set_exception(error)
            self.outcome.exception()  # retrieved here, because the caller may have disconnected


class Worker:
    """The engine thread of one store, and its queue."""

    def __init__(
        self,
        open_engine: Callable[[], Engine],
        queue_calls_max: int,
        after_task: Callable[[], None] = lambda: None,
    ) -> None:
        """Prepare the thread, which calls `open_engine`.

        The event loop calls `after_task` after each task, even if no call waits for the task's
        outcome.
        """
        self._open_engine = open_engine
        self._after_task = after_task
        self._queue_calls_max = queue_calls_max
        self._queues: OrderedDict[str, deque[Task]] = OrderedDict()
        self._queued = 0
        self.limiter = ConcurrencyLimiter()
        self._lock = threading.Lock()
        self._turn = threading.Lock()
        self._engine: Engine | None = None
        self._tokens: SimpleQueue[None] = SimpleQueue()  # one per task, and one for the end
        self._closing = False
        self.running: Task | None = None
        """The running task."""
        self.task_of: type[Task] = Task
        self._thread = threading.Thread(target=self._run, name="engine")
        self._opened: asyncio.Future[Engine] | None = None
        self._close_error: BaseException | None = None

    # The event loop's side

    async def start(self) -> Engine:
        """Open the store on the engine thread, and return its engine. Raises the error of the
        opening."""
        loop = asyncio.get_running_loop()
        self._opened = loop.create_future()
        self._thread.start()
        return await self._opened

    def submit(
        self,
        verb: str,
        work: Work,
        *,
        client: str,
        deadline: float,
        brief: bool = False,
        client_calls_max: int | None = None,
        has_waited: bool = False,
    ) -> Task:
        """Queue `work`, which gets the engine, and return its task; if the work is brief, and the
        engine is idle, do it at once.

        `has_waited`: the call has already waited and been counted, so the bounds of the queue do
        not apply to it.

        Raises OverloadedError if the queue, or the client's queue, is full; StoreClosedError if the
        server is stopping.
        """
        task = self.task_of(verb, work, client, deadline)
        with self._lock:
            if self._closing:
                raise StoreClosedError(
                    "the server is stopping; send the call again when it runs again"
                )
            if not has_waited:
                self.check_room(client, client_calls_max)
            idle = not self._queued and self.running is None  # and no task may be about to run
            if brief and idle and self._turn.acquire(blocking=False):
                self.running, task.is_waiting = task, False
            else:
                self._queues.setdefault(client, deque()).append(task)
                self._queued += 1
                brief = False
        if not brief:
            self._tokens.put(None)
            return task
        try:
            result, error = self._do(task)
        finally:
            self._turn.release()
        self._finish(task, result, error)
        return task

    def at_once(self, work: Work) -> Any | None:
        """Do work that takes a fraction of a millisecond, and return its result.

        None: the engine was not idle, and nothing was done.
        """
        with self._lock:
            if self._queued or self.running is not None or self._closing or self._engine is None:
                return None
            if not self._turn.acquire(blocking=False):
                return None
        try:
            return work(self._engine)
        finally:
            self._turn.release()

    @property
    def waiting_calls(self) -> int:
        """The number of calls that wait for the engine in the queue, or before their messages are
        read."""
        return self._queued + self.limiter.waiting_calls

    def client_calls(self, client: str) -> int:
        """Return the number of waiting calls of one client."""
        return len(self._queues.get(client, ())) + self.limiter.client_calls(client)

    def check_room(self, client: str, client_calls_max: int | None) -> None:
        """Raise OverloadedError if no more calls can wait, or no more calls of the given client."""
        if self.waiting_calls >= self._queue_calls_max:
            raise OverloadedError(
                f"{self.waiting_calls} calls wait for the engine (limits.queue_calls_max); "
                "back off, then retry"
            )
        if client_calls_max is not None and self.client_calls(client) >= client_calls_max:
            raise OverloadedError(
                f"{client_calls_max} calls of {client!r} wait for the engine, as many as its "
                "queue_calls; back off, then retry"
            )

    def _finish(self, task: Task, result: Any, error: BaseException | None) -> None:
        task.finish(result, error)
        self._after_task()

    def withdraw(self, task: Task) -> bool:
        """Take a task out of the queue; return False if it has started."""
        with self._lock:
            if not task.is_waiting:
                return False
            task.is_waiting = False
            queue = self._queues[task.client]
            queue.remove(task)
            if not queue:
                del self._queues[task.client]
            self._queued -= 1
        task.outcome.cancel()
        return True

    def cut_off(self, why: EmbstoreError) -> None:
        """Take every task out of the queue; its outcome is the error `why`."""
        with self._lock:
            waiting = [task for queue in self._queues.values() for task in queue]
            self._queues.clear()
            self._queued = 0
            for task in waiting:
                task.is_waiting = False
        for task in waiting:
            self._finish(task, None, why)

    async def stop(self) -> None:
        """Finish the queued tasks, close the store, and end the thread; closing commits the store.

        Raises CapacityError or StorageError if not everything could be committed.
        """
        with self._lock:
            self._closing = True
        self._tokens.put(None)
        await asyncio.to_thread(self._thread.join)
        if self._close_error is not None:
            raise self._close_error

    # The thread's side

    def _run(self) -> None:
        assert self._opened is not None
        loop = self._opened.get_loop()
        try:
            engine = self._open_engine()
        except BaseException as exc:
            loop.call_soon_threadsafe(self._opened.set_exception, exc)
            return
        self._engine = engine
        loop.call_soon_threadsafe(self._opened.set_result, engine)
        del engine
        while (task := self._next()) is not None:
            with self._turn:
                result, error = self._do(task)
            task.loop.call_soon_threadsafe(self._finish, task, result, error)
            task = result = error = None  # release their arrays before the next task arrives
        try:
            with self._turn:
                self._engine.close()
        except BaseException as exc:
            self._close_error = exc

    def reopen(self, engine: Engine) -> Engine:
        """Abandon the store, and open its directory anew. This is the work of a task."""
        engine.abandon()
        self._engine = self._open_engine()
        return self._engine

    def _next(self) -> Task | None:
        """Wait for a task; return None when the queue is empty for good."""
        while True:
            self._tokens.get()
            with self._lock:
                if self._queued:
                    name, queue = self._queues.popitem(last=False)
                    task = self.running = queue.popleft()
                    if queue:
                        self._queues[name] = queue  # again, after the other clients
                    self._queued -= 1
                    task.is_waiting = False
                    return task
                if self._closing:
                    return None

    def _do(self, task: Task) -> tuple[Any, BaseException | None]:
        assert self._engine is not None
        started = monotonic()
        task.wait_s = started - task.enqueued
        result: Any = None
        error: BaseException | None = None
        if started > task.deadline:
            error = DeadlineError(
                f"{task.verb}: the deadline passed after {task.wait_s:.3f} s in the queue; "
                "nothing has changed"
            )
        else:
            stages = self._engine.tables.stages
            stages.add_up()  # seconds outside of tasks
            stages.of_work = task.stage_seconds
            try:
                result = task.work(self._engine)
            except BaseException as exc:
                error = _untraced(exc)
            stages.add_up()
        task.run_s = monotonic() - started
        self.running = None
        task.work = _done
        return result, error


def _untraced(error: BaseException) -> BaseException:
    """Return an error without its traceback: the error may be kept for long, and the traceback's
    frames refer to arrays.

    If the exception is a bug, its traceback is kept as text, for the log.
    """
    if not isinstance(error, EmbstoreError):
        error.add_note("".join(format_exception(error)))
    link: BaseException | None = error
    while link is not None:
        link.__traceback__ = None
        link = link.__cause__ or link.__context__
    return error


def _done(engine: Engine) -> Any:
    raise AssertionError("a task runs once")
