"""The threads of look-ahead: the planner's own, and collectors that read rows without the engine.

They are daemons, started with the first session. A thread that the interpreter's end cuts off
inside a kernel takes the process with it, so then at the latest they are waited for. A forked child
has none of them: they are its parent's.
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
    """The threads of one planner. Only they refer to their functions, so no cycle outlives them."""

    def __init__(self, changed: threading.Condition) -> None:
        self.stopping = threading.Event()
        self._collections: Queue = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._ends = (os.getpid(), self.stopping, changed, self._collections, self._threads)
        weakref.finalize(self, _end, *self._ends)

    @property
    def are_here(self) -> bool:
        """Whether this is the process that they belong to."""
        return self._ends[0] == os.getpid()

    def start(self, plan: Callable[[], None], collect: Callable[[Collection], None]) -> None:
        """Start them, if they have not been: one runs `plan` until it returns, the others `collect`
        for every collection that is put. Under the lock."""
        if self._threads or self.stopping.is_set():
            return
        jobs = {"lookahead": partial(self._run, plan)}
        jobs |= {f"collector-{n}": partial(self._collect, collect) for n in range(_COLLECTORS)}
        for name, job in jobs.items():
            self._threads.append(threading.Thread(target=job, name=name, daemon=True))
        for thread in self._threads:
            thread.start()

    def put(self, collection: Collection) -> None:
        """Have a collector read its rows."""
        self._collections.put(collection)

    def join(self) -> None:
        """Stop, and wait for the threads to end. Not on one of them, nor with the engine."""
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
