"""Stores whose planner can be held, and whose jobs are counted.

The planner's thread takes the engine for one short **job** after the other. What comes between two
jobs, a plain call or a trainer that finishes steps, is up to a test here: it is done on that
thread, ahead of each job, so nothing depends on how threads happen to run.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from embstore.arrays import KEY_MASK
from embstore.errors import CorruptTableError
from tests.conformance.backends import Embedded, UnsyncedFiles
from tests.conformance.cases import engine_of, is_waiting
from tests.conformance.emulated import Emulated
from tests.conformance.sessions.training import PATIENCE_S, until


class HoldingFiles(UnsyncedFiles):
    """Holds whoever comes to a point, once, and lets it go again."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self._lock = threading.Lock()
        self._point = ""
        self._go = threading.Event()
        self.is_held = threading.Event()
        self.error = None

    def hold(self, point: str) -> None:
        """Hold the next thread that comes to a point."""
        with self._lock:
            self._point = point

    def let_go(self, error: Exception | None = None) -> None:
        """Let it go, or have it fail."""
        self.error = error
        self._go.set()

    def reached(self, point: str) -> None:
        with self._lock:
            if point != self._point:
                return
            self._point = ""
        self.is_held.set()
        assert self._go.wait(PATIENCE_S)
        if self.error is not None:
            raise self.error


class Holding(Embedded):
    """Embedded stores whose planner can be held."""

    files: HoldingFiles

    def _files(self, path: Path) -> HoldingFiles:
        self.files = HoldingFiles(path)
        return self.files


class HoldingEmulated(Holding, Emulated):
    """Stores on an emulated GPU whose planner can be held."""


class Waiting(set[object]):
    """The calls that wait for an engine, and how many jobs had begun when each thread's last came.

    Not when it was about to come: a thread may lose its core there, for any number of jobs.
    """

    def __init__(self, jobs: "Jobs") -> None:
        super().__init__()
        self.begun: dict[int, int] = {}
        self._jobs = jobs

    def add(self, token: object) -> None:
        super().add(token)
        self.begun[threading.get_ident()] = self._jobs.count


class Jobs:
    """The jobs for which the planner takes a store's engine."""

    def __init__(self, store: Any) -> None:
        self.count = 0
        self.before: Callable[[], None] = lambda: None
        """Done ahead of each, on the planner's thread, without the engine."""
        self.passed: list[int] = []
        """Of each reading call of the thread that made this: jobs begun while it waited."""
        self._thread = threading.get_ident()
        tables = engine_of(store).tables
        self._waiting = tables.frame._waiting = Waiting(self)
        self._reading, self._background = tables.reading, tables.background
        tables.reading, tables.background = self._watched, self._counted

    @contextmanager
    def _watched(self) -> Iterator[None]:
        with self._reading():
            if threading.get_ident() == self._thread:
                self.passed.append(self.count - self._waiting.begun[self._thread])
            yield

    @contextmanager
    def _counted(self) -> Iterator[None]:
        self.before()
        with self._background():
            self.count += 1
            yield

    @contextmanager
    def held(self) -> Iterator[threading.Event]:
        """Hold the planner before its next job for as long as the block lasts.

        Gives what says that it has come there.
        """
        go, has_come = threading.Event(), threading.Event()

        def hold() -> None:
            has_come.set()
            assert go.wait(PATIENCE_S)

        self.before = hold
        try:
            yield has_come
        finally:
            self.before = lambda: None
            go.set()


@contextmanager
def unreadable(store: Any, key: int) -> Iterator[None]:
    """Have the stored record of a key fail its checksum."""
    storage = engine_of(store).storage.rows
    check = storage._check

    def check_or_fail(keys: Any, *rest: Any) -> None:
        if (keys & KEY_MASK == key).any():
            raise CorruptTableError(f"the record of key {key} fails its checksum")
        check(keys, *rest)

    storage._check = check_or_fail
    try:
        yield
    finally:
        storage._check = check


def pool_of(store: Any, table: str) -> Any:
    """Return the pool that a table's rows are cached in."""
    return engine_of(store).tables.find(table).pool


def while_held(backend: Holding, call: Callable[[], Any]) -> Any:
    """Do a call while the planner is held; if the call waits for it, let it go."""
    done = []
    thread = threading.Thread(target=lambda: done.append(call()))
    thread.start()
    until(lambda: not thread.is_alive() or is_waiting(thread))
    backend.files.let_go()
    thread.join(PATIENCE_S)
    assert done, "the call has not ended, or has raised"
    return done[0]


def planner_threads() -> list[threading.Thread]:
    """Return the threads of all planners."""
    return [t for t in threading.enumerate() if t.name.startswith(("lookahead", "collector-"))]
