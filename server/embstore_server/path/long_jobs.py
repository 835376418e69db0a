"""Jobs that take long: on threads of their own, until they are done or their caller disconnects.

Each verb has threads of its own, so that a job waits only for jobs of its verb. A **client** (all
calls of one token) can use at most half of a verb's threads. Its further calls wait in its queue,
in order; calls of other clients still find a thread. A thread counts as the client's until the job
ends, even if the caller has disconnected. Otherwise a client that cancels and calls again could
occupy all threads. Callers without a name share all threads.

A thread cannot be stopped. But a long job works piece by piece, and checks between two pieces
whether it is still wanted (`Progress`). A job ends at such a check when its call was cancelled, its
deadline has passed or its connection was closed, or when the server's time to drain is over. Jobs
of the server itself, such as a warm-up, have no caller that could disconnect.
"""

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import TypeVar

from embstore.commands import Progress
from embstore.errors import DeadlineError, EmbstoreError, OverloadedError, StoreClosedError
from embstore_server.path.turns import Turns

T = TypeVar("T")
LongWork = Callable[[Progress], T]
"""The work of a job. It gets a function `progress`, calls it between two pieces of the work, and
ends if `progress` raises."""

_THREADS_MAX = 16
"""Threads per verb; further calls of the verb wait for one of them."""
_CLIENT_THREADS_MAX = _THREADS_MAX // 2
"""Most threads of a verb for one client."""


class _Wanted:
    """Whether a job is still wanted. Any thread."""

    def __init__(self, verb: str) -> None:
        self.verb = verb
        self._end: EmbstoreError | None = None

    def end(self, why: EmbstoreError) -> None:
        """Make the job end at its next check, with this error."""
        self._end = self._end or why

    def check(self, done: int, of: int) -> None:
        """If the job must end, raise the error that it ends with."""
        if self._end is not None:
            raise self._end


class LongJobs:
    """The running jobs, and their threads. Event loop only, except for the work on the threads."""

    def __init__(self, after_each: Callable[[], None]) -> None:
        self._after_each = after_each  # called on the loop, even if the caller has disconnected
        self.running: set[object] = set()
        """The running jobs, even those without a connected caller."""
        self._wanted: set[_Wanted] = set()
        self._pools: dict[str, ThreadPoolExecutor] = {}  # by verb
        self._queues: dict[tuple[str, str], Turns] = {}  # by verb and name
        self.is_cut_off = False

    def waiting_calls(self, client: str) -> int:
        """Return the number of calls of a client that wait for its running jobs to end."""
        return sum(of.waiting for (_, name), of in self._queues.items() if name == client)

    async def run(
        self,
        verb: str,
        work: LongWork[T],
        gone: Callable[[], Awaitable[None]] | None = None,
        *,
        client: str = "",
        client_calls_max: int | None = None,
    ) -> T:
        """Do `work` on one of the verb's threads, and return its result.

        gone : waits until the caller has disconnected; None: this coroutine is cancelled when the
            caller disconnects
        client : the name of the client; empty: the caller has no name, and waits only for a free
            thread
        client_calls_max : the largest number of jobs of the client that wait, for all verbs
            together

        Raises OverloadedError if no more jobs of the client can wait.
        """
        wanted = _Wanted(verb)
        loop = asyncio.get_running_loop()

        def noted() -> T:
            self.running.add(wanted)  # on the thread, because the job can outlive its call
            try:
                wanted.check(0, 0)
                return work(wanted.check)
            finally:
                self.running.discard(wanted)
                with suppress(RuntimeError):  # the loop is closed
                    loop.call_soon_threadsafe(self._after_each)

        if self.is_cut_off:
            raise _cut_off(verb)
        result = asyncio.ensure_future(self._in_client_queue(verb, client, client_calls_max, noted))
        self._wanted.add(wanted)
        left = asyncio.ensure_future(_left(gone))
        try:
            await asyncio.wait((result, left), return_when=asyncio.FIRST_COMPLETED)
            if result.done():
                return result.result()
            raise DeadlineError(f"{verb}: its client has disconnected")
        finally:
            left.cancel()
            self._wanted.discard(wanted)
            if result.done():
                # retrieved, even if its caller has disconnected
                result.cancelled() or result.exception()
            else:
                result.cancel()
                wanted.end(DeadlineError(f"{verb}: no client waits for it any more"))

    def _check_room(self, client: str, client_calls_max: int) -> None:
        if self.waiting_calls(client) >= client_calls_max:
            raise OverloadedError(
                f"{client_calls_max} long calls of {client!r} wait for others of it, as many as "
                "its queue_calls; back off, then retry"
            )

    async def _in_client_queue(
        self, verb: str, client: str, client_calls_max: int | None, work: Callable[[], T]
    ) -> T:
        """Return the result of `work`, which runs on a thread when its client's turn has come."""
        pool = self._pools.get(verb)
        if pool is None:
            pool = self._pools[verb] = ThreadPoolExecutor(_THREADS_MAX, verb)
        if not client:
            return await asyncio.wrap_future(pool.submit(work))
        own = self._queues.setdefault(
            (verb, client), Turns(lambda works: works < _CLIENT_THREADS_MAX)
        )
        if client_calls_max is not None and not own.is_free:
            self._check_room(client, client_calls_max)
        await own.enter()
        loop = asyncio.get_running_loop()

        def ended(_: Future[T]) -> None:  # or the job was withdrawn before it began
            with suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(own.leave)

        result = pool.submit(work)
        result.add_done_callback(ended)
        return await asyncio.wrap_future(result)

    def cut_off(self) -> None:
        """End jobs that run or wait for a thread, and begin no others, because the server's time to
        drain is over."""
        self.is_cut_off = True
        for wanted in self._wanted:
            wanted.end(_cut_off(wanted.verb))
        for (verb, _), queue in self._queues.items():
            queue.cut_off(_cut_off(verb))

    def close(self) -> None:
        """End the threads when their jobs are done."""
        for pool in self._pools.values():
            pool.shutdown(wait=False, cancel_futures=True)


async def _left(gone: Callable[[], Awaitable[None]] | None) -> None:
    if gone is None:
        await asyncio.Event().wait()  # for ever
    else:
        await gone()


def _cut_off(verb: str) -> StoreClosedError:
    return StoreClosedError(
        f"{verb} was cut off: the server is stopping; send the call again later"
    )
