"""A few worker threads. A call is cut into ranges, which the calling thread and the workers execute
together.

`run` calls `work(low, high)` once per range, in the calling thread and in the workers, and returns
the results in the order of the ranges. The work is a kernel that runs without the GIL. Threads take
ranges from a shared iterator. Therefore a thread that the system starts late takes fewer ranges,
and the caller never waits for a thread that has not begun.

Threads are daemons. They are started at the first call that needs them, and keep no reference to a
finished call. Only one thread at a time can call `run`. Rejected: concurrent.futures (an empty call
takes 16 us, but 1 us here) and Numba's prange (its threading layers are not safe when several
Python threads call it).
"""

import itertools
import queue
import threading
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from embstore.errors import DeviceError, EmbstoreError

COPY_THREADS_MAX = 8
"""Maximum number of threads that copy rows between pinned buffers and the cache. More threads do
not copy faster."""
READ_THREADS_MAX = 16
"""Maximum number of threads that read rows of storage at random. There are more of these threads,
because each waits for memory."""
SPLIT_BYTES = 1 << 20
"""Number of bytes that a call must move so that a second thread is worth its cost."""
_THREADS_PER_SPLIT = 4
"""Number of ranges per SPLIT_BYTES of a call, so that a thread works on each range for some 0.1
ms."""
Range = tuple[int, int]
Work = Callable[[int, int], Any]
"""A function: work(low, high) does the part [low, high) of a call."""


def equal_ranges(count: int, pieces: int) -> list[Range]:
    """Cut [0, count) into `pieces` ranges of nearly the same length."""
    cuts = [count * i // pieces for i in range(pieces + 1)]
    return list(itertools.pairwise(cuts))


class _Job:
    """One call: the ranges, and the result or error of each range. Any number of threads take
    part."""

    def __init__(self, work: Work, ranges: Sequence[Range]) -> None:
        self._work = work
        self._ranges = ranges
        # next() of a count is atomic under the GIL: a range is taken once, and one thread is last.
        self._places = itertools.count()
        self._finished = itertools.count(1)
        self._done = threading.Lock()
        self._done.acquire()
        self._results: list[Any] = [None] * len(ranges)
        self._errors: list[BaseException] = []

    def take_part(self) -> None:
        for place in self._places:
            if place >= len(self._ranges):
                return
            try:
                self._results[place] = self._work(*self._ranges[place])
            except BaseException as exc:  # The caller raises it once no thread works any more.
                self._errors.append(exc)
            if next(self._finished) == len(self._ranges):
                self._done.release()

    def results(self) -> list[Any]:
        """Wait until every range is done; then return the results, or raise the first error."""
        self._done.acquire()
        for error in self._errors:
            _fail(error)
        return self._results


def _fail(error: BaseException) -> NoReturn:
    """Raise an error that the work of a call has raised. An error that no kernel should raise
    becomes a DeviceError."""
    if isinstance(error, (EmbstoreError, MemoryError)) or not isinstance(error, Exception):
        raise error
    raise DeviceError(f"a kernel failed: {error!r}") from error


def _serve(jobs: "queue.SimpleQueue[_Job | None]") -> None:
    while True:
        job = jobs.get()
        if job is None:
            return
        job.take_part()
        del job  # The arrays belong to the caller: do not keep them until the next call.


class Workers:
    """`threads` - 1 worker threads, to which the calling thread is added.

    ranges_per_thread : number of ranges per thread; if it is more than 1, other threads take over
        ranges of a thread that starts late
    """

    def __init__(self, threads: int, ranges_per_thread: int = 1) -> None:
        self.threads = threads
        self._ranges_max = threads * ranges_per_thread
        self.split_bytes = SPLIT_BYTES
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._workers: list[threading.Thread] = []

    def ranges(self, count: int, item_bytes: int) -> list[Range]:
        """Cut [0, count) into equal ranges; into one range if the bytes to move are not worth a
        second thread."""
        if self.threads == 1 or count * item_bytes < self.split_bytes:
            return [(0, count)]
        pay = _THREADS_PER_SPLIT * count * item_bytes // max(self.split_bytes, 1)
        return equal_ranges(count, min(max(pay, 2), self._ranges_max))

    def share(self, work: Work, count: int, item_bytes: int) -> list[Any]:
        """Cut [0, count) into ranges, and return the result of `work` for each range."""
        return self.run(work, self.ranges(count, item_bytes))

    def run(self, work: Work, ranges: Sequence[Range]) -> list[Any]:
        """Return [work(low, high) for low, high in ranges]. `ranges` must not be empty.

        Raises
        ------
        DeviceError : a call of `work` has raised an error; every range has been tried.
        """
        if len(ranges) == 1:
            try:
                return [work(*ranges[0])]
            except Exception as exc:
                _fail(exc)
        job = _Job(work, ranges)
        self._start()
        for _ in range(min(len(ranges), self.threads) - 1):
            self._jobs.put(job)
        job.take_part()
        return job.results()

    def close(self) -> None:
        """End the threads. A later `run` starts new threads."""
        for _ in self._workers:
            self._jobs.put(None)
        for worker in self._workers:
            worker.join()
        self._workers.clear()

    def _start(self) -> None:
        while len(self._workers) < self.threads - 1:
            name = f"embstore-rows-{len(self._workers)}"
            worker = threading.Thread(target=_serve, args=(self._jobs,), name=name, daemon=True)
            try:
                worker.start()
            except RuntimeError:  # the system starts no more threads: fewer must do
                return
            self._workers.append(worker)
