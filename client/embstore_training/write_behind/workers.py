"""Daemon threads that make calls for a loop. A call that hangs does not keep the process alive."""

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

T = TypeVar("T")


class Workers:
    """A few threads that call submitted functions, in order."""

    def __init__(self, count: int, name: str) -> None:
        self._jobs: queue.SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = (
            queue.SimpleQueue()
        )
        self._count = count
        for number in range(count):
            threading.Thread(target=self._run, name=f"{name}-{number}", daemon=True).start()

    def submit(self, work: Callable[[], T]) -> "Future[T]":
        """Have a thread call `work`; the future gets the result or the error of `work`."""
        future: Future[T] = Future()
        self._jobs.put((future, work))
        return future

    def stop(self) -> None:
        """End the threads after they have called the functions submitted by now; return at once."""
        for _ in range(self._count):
            self._jobs.put(None)

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            future, work = job
            try:
                future.set_result(work())
            except BaseException as failure:  # the future passes it to the caller
                future.set_exception(failure)
            del job, future, work  # free them before waiting for the next job
