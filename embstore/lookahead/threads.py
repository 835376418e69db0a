"""The threads of look-ahead: the planner's thread, and collectors, which read rows.

Collectors read without the engine, so that calls can run at the same time. All threads are daemon
threads, which start with the first session. If the interpreter's end cut off a thread inside a
kernel, the process would crash; therefore the threads are joined before the interpreter ends. A
forked child has none of the threads: they belong to its parent.
"""

import os
import queue
import threading
import weakref
from collections.abc import Callable
from functools import partial

from embstore.cache.prefetch import Collection

_COLLECTORS = 2

Queue = queue.SimpleQueue[Collection | None]


class Threads:
    """The threads of one planner. Only the threads refer to the functions that they run, so that no
    reference cycle outlives the threads."""

    def __init__(self, changed: threading.Condition) -> None:
        self.stopping = threading.Event()
        self._collections: Queue = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._ends = (os.getpid(), self.stopping, changed, self._collections, self._threads)
        weakref.finalize(self, _end, *self._ends)

    @property
    def are_here(self) -> bool:
        """Whether this process started the threads, and is not a fork."""
        return self._ends[0] == os.getpid()

    def start(self, plan: Callable[[], None], collect: Callable[[Collection], None]) -> None:
        """Start the threads, unless they run. One thread runs `plan` until it returns; the other
        threads call `collect` for every collection that is put. Under the lock."""
        if self._threads or self.stopping.is_set():
            return
        jobs = {"lookahead": partial(self._run, plan)}
        jobs |= {f"collector-{n}": partial(self._collect, collect) for n in range(_COLLECTORS)}
        for name, job in jobs.items():
            self._threads.append(threading.Thread(target=job, name=name, daemon=True))
        for thread in self._threads:
            thread.start()

    def put(self, collection: Collection) -> None:
        """Queue a collection; a collector will read its rows."""
        self._collections.put(collection)

    def join(self) -> None:
        """Stop the threads, and wait for their end. Neither one of the threads nor a caller with
        the engine may call this."""
        _end(*self._ends)

    def _run(self, plan: Callable[[], None]) -> None:
        plan()
        for _ in range(_COLLECTORS):
            self._collections.put(None)

    def _collect(self, collect: Callable[[Collection], None]) -> None:
        while (collection := self._collections.get()) is not None:
            collect(collection)


def _end(
    process: int,
    stopping: threading.Event,
    changed: threading.Condition,
    collections: Queue,
    threads: list[threading.Thread],
) -> None:
    if os.getpid() != process:
        return
    stopping.set()
    with changed:
        changed.notify_all()
    for _ in threads[1:]:
        collections.put(None)
    for thread in threads:
        thread.join()
    threads.clear()
