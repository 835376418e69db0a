"""The engine thread: it alone touches the store, and takes what waits from a bounded, fair queue.

**Fair.** Each client has a lane; the thread takes from the lanes in turn. A client with a hundred
calls waiting delays another's by one call, not by a hundred. Calls of one lane keep their order.

**Bounded.** A call that finds `queue_calls_max` others waiting is refused at once
(OverloadedError): its client backs off, and waits where it costs nothing.

**Leaving.** A task is *waiting*, then *started*, then done. While it waits it may be withdrawn
(its call was cancelled, its deadline passed) and then leaves no trace. Once started it runs to its
end, whoever still wants to know. The step from waiting to started, or to withdrawn, is taken under
the queue's lock, so that it is always exactly one of the two.

The event loop gives tasks and gets results; the thread never waits for the loop.
"""

import asyncio
import threading
from collections import OrderedDict, deque
from collections.abc import Callable
from time import monotonic
from typing import Any

from embstore.errors import DeadlineError, OverloadedError, StoreClosedError
from embstore.store import Store

Work = Callable[[Store], Any]


class Task:
    """One call's work for the engine thread. `outcome` is for the event loop alone."""

    def __init__(self, verb: str, work: Work, lane: str, deadline: float) -> None:
        self.verb = verb
        self.work = work
        self.lane = lane
        self.deadline = deadline  # monotonic seconds
        self.enqueued = monotonic()
        self.wait_s = 0.0
        self.run_s = 0.0
        self.is_waiting = True
        self.loop = asyncio.get_running_loop()
        self.outcome: asyncio.Future[Any] = self.loop.create_future()

    def _finish(self, result: Any, error: BaseException | None) -> None:
        if self.outcome.done():
            return  # withdrawn
        if error is None:
            self.outcome.set_result(result)
        else:
            self.outcome.set_exception(error)
            self.outcome.exception()  # retrieved: it may be that nobody waits any more


class Worker:
    """The engine thread of one store, and its queue."""

    def __init__(self, open_store: Callable[[], Store], queue_calls_max: int) -> None:
        self._open_store = open_store
        self._queue_calls_max = queue_calls_max
        self._lanes: OrderedDict[str, deque[Task]] = OrderedDict()
        self._waiting = 0
        self._changed = threading.Condition()
        self._closing = False
        self._running: Task | None = None
        self._thread = threading.Thread(target=self._run, name="engine")
        self._opened: asyncio.Future[Store] | None = None
        self._close_error: BaseException | None = None

    # The event loop's side

    async def start(self) -> Store:
        """Open the store on the engine thread, and return it; errors are those of opening."""
        loop = asyncio.get_running_loop()
        self._opened = loop.create_future()
        self._thread.start()
        return await self._opened

    @property
    def waiting_calls(self) -> int:
        """Calls in the queue."""
        return self._waiting

    @property
    def running(self) -> Task | None:
        """The task at work."""
        return self._running

    def submit(self, verb: str, work: Work, *, lane: str, deadline: float) -> Task:
        """Queue `work`, which gets the store, and return its task.

        Raises
        ------
        OverloadedError : the queue is full.
        StoreClosedError : the server is stopping.
        """
        task = Task(verb, work, lane, deadline)
        with self._changed:
            if self._closing:
                raise StoreClosedError("the server is stopping; send the call to it once it is up")
            if self._waiting >= self._queue_calls_max:
                raise OverloadedError(
                    f"{self._waiting} calls wait for the engine (limits.queue_calls_max); "
                    "back off, then retry"
                )
            self._lanes.setdefault(lane, deque()).append(task)
            self._waiting += 1
            self._changed.notify()
        return task

    def withdraw(self, task: Task) -> bool:
        """Take a task out of the queue; False if it has started."""
        with self._changed:
            if not task.is_waiting:
                return False
            task.is_waiting = False
            lane = self._lanes[task.lane]
            lane.remove(task)
            if not lane:
                del self._lanes[task.lane]
            self._waiting -= 1
        task.outcome.cancel()
        return True

    async def stop(self) -> None:
        """Finish what is queued, close the store, which commits it, and end the thread.

        Raises
        ------
        CapacityError, StorageError : not everything could be committed.
        """
        with self._changed:
            self._closing = True
            self._changed.notify()
        await asyncio.to_thread(self._thread.join)
        if self._close_error is not None:
            raise self._close_error

    # The thread's side

    def _run(self) -> None:
        assert self._opened is not None
        loop = self._opened.get_loop()
        try:
            store = self._open_store()
        except BaseException as exc:
            loop.call_soon_threadsafe(self._opened.set_exception, exc)
            return
        loop.call_soon_threadsafe(self._opened.set_result, store)
        while (task := self._next()) is not None:
            self._do(task, store)
            task = None  # its arrays are not kept until the next one comes
        try:
            store.close()
        except BaseException as exc:
            self._close_error = exc

    def _next(self) -> Task | None:
        """Wait for a task; None when the queue is empty for good."""
        with self._changed:
            while not self._waiting:
                if self._closing:
                    return None
                self._changed.wait()
            name, lane = self._lanes.popitem(last=False)
            task = lane.popleft()
            if lane:
                self._lanes[name] = lane  # at the end: the other lanes come first
            self._waiting -= 1
            task.is_waiting = False
            self._running = task
            return task

    def _do(self, task: Task, store: Store) -> None:
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
            try:
                result = task.work(store)
            except BaseException as exc:
                error = exc
        task.run_s = monotonic() - started
        self._running = None
        task.work = _done
        task.loop.call_soon_threadsafe(task._finish, result, error)


def _done(store: Store) -> Any:
    raise AssertionError("a task runs once")
