"""A server inside the test's process, so that a test can hold its engine and see what it holds."""

import asyncio
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from time import monotonic
from typing import Any

import embstore
from embstore.handles.store import Store
from embstore_client import connect
from embstore_server.path.worker import Worker
from tests.serving import Server, on_loop

PATIENCE_S = 300.0
_LOOK_S = 0.0005
_CACHE_BYTES = 1 << 22


def until(condition: Callable[[], Any], seconds: float = PATIENCE_S) -> Any:
    """Wait until a condition holds, and return what it returned."""
    deadline, never = monotonic() + seconds, threading.Event()
    while not (found := condition()):
        assert monotonic() < deadline, "waited in vain"
        never.wait(_LOOK_S)
    return found


def on_loop_call(function: Callable[..., Any], *args: Any) -> Any:
    """Call a function on the event loop; return its result."""

    async def called() -> Any:
        return function(*args)

    return on_loop(called())


def task_count() -> int:
    """Return how many tasks the event loop has."""
    return int(on_loop_call(lambda: len(asyncio.all_tasks())))


def sockets() -> int:
    """Return how many sockets this process has open; a store's files come and go with its logs."""
    return sum(map(_is_socket, os.listdir("/proc/self/fd")))


def _is_socket(descriptor: str) -> bool:
    try:
        return os.readlink(f"/proc/self/fd/{descriptor}").startswith("socket:")
    except FileNotFoundError:  # closed since
        return False


def resident_bytes() -> int:
    """Return the memory that this process holds in RAM."""
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


class Served(Server):
    """A server whose engine can be held."""

    def __init__(self, path: Path, open_store: Callable[[], Store] | None = None, **settings: Any):
        opening = open_store or (lambda: embstore.open(path, cache_bytes=_CACHE_BYTES, threads=1))
        super().__init__(opening, path, **({"drain_s": 5.0} | settings))
        self.tasks = task_count()

    @property
    def worker(self) -> Worker:
        """Its engine thread and queue."""
        return self.service.worker

    def connect(self, **options: Any) -> Store:
        """Return a connected client."""
        return connect(self.address, **({"timeout_s": PATIENCE_S, "transport": "grpc"} | options))

    @contextmanager
    def held(self) -> Iterator[threading.Event]:
        """Keep the engine busy, until the event or the end: what is sent meanwhile waits."""
        busy, free = threading.Event(), threading.Event()

        def work(_: Any) -> None:
            busy.set()
            free.wait(PATIENCE_S)

        deadline = monotonic() + PATIENCE_S
        on_loop_call(lambda: self.worker.submit("Held", work, client="test", deadline=deadline))
        assert busy.wait(PATIENCE_S)
        try:
            yield free
        finally:
            free.set()

    def answered(self, verb: str, code: str) -> int:
        """Return how many calls have been answered so."""
        codes: Any = self.service.metrics.stats().get(verb, {}).get("codes", {})
        return int(codes.get(code, 0))

    def await_queue(self, calls: int) -> None:
        """Wait until so many calls are in the queue."""
        until(lambda: self.worker.waiting_calls == calls)

    def assert_free(self) -> None:
        """Check that no call holds anything that others need: engine, queue, bytes."""
        until(lambda: self.worker.waiting_calls == 0 and self.worker.running is None)
        until(lambda: self.service.inflight.reserved_bytes == 0)

    def assert_idle(self) -> None:
        """Check that no call holds anything any more, tasks included."""
        self.assert_free()
        until(lambda: task_count() <= self.tasks)
