"""Stores whose planner can be held, and whose jobs are counted.

The planner's thread takes the engine for one short **job** after the other. What comes between two
jobs, a plain call or a trainer that finishes steps, is up to a test here: it is done on that
thread, ahead of each job, so nothing depends on how threads happen to run.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from embstore.arrays import KEY_MASK
from embstore.errors import CorruptTableError
from tests.conformance.emulated import Emulated
from tests.conformance.sessions import PATIENCE_S
from tests.conformance.test_session_races import Holding


class HoldingEmulated(Holding, Emulated):
    """Stores on an emulated GPU whose planner can be held."""


class Jobs:
    """The jobs for which the planner takes a store's engine."""

    def __init__(self, store: Any) -> None:
        self.count = 0
        self.before: Callable[[], None] = lambda: None
        """Done ahead of each, on the planner's thread, without the engine."""
        self.passed: list[int] = []
        """Of each reading call of the thread that made this: jobs begun while it waited."""
        self._thread = threading.get_ident()
        self._reading = store._engine.reading
        self._background = store._engine.background
        store._engine.reading = self._watched
        store._engine.background = self._counted

    @contextmanager
    def _watched(self) -> Iterator[None]:
        before = self.count
        with self._reading():
            if threading.get_ident() == self._thread:
                self.passed.append(self.count - before)
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
    storage = store._engine.storage
    copy = storage._copy

    def copy_or_fail(located: Any, *rest: Any) -> None:
        if (located.keys & KEY_MASK == key).any():
            raise CorruptTableError(f"the record of key {key} fails its checksum")
        copy(located, *rest)

    storage._copy = copy_or_fail
    try:
        yield
    finally:
        storage._copy = copy


def pool_of(store: Any, table: str) -> Any:
    """Return the pool that a table's rows are cached in."""
    return store._engine.find(table).pool
