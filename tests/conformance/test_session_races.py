"""What happens to a session while its planner stands still between two stages.

The planner, or a collector, is held at a named point, once; meanwhile a trainer, an operator or a
lease does something to the step that is on its way. Whatever it is, in the end the rows are the
reference's and nothing is pinned.
"""

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from embstore.errors import CorruptTableError, StorageError
from tests.conformance.backends import Embedded, UnsyncedFiles
from tests.conformance.cases import assert_same, config, generator, normal
from tests.conformance.sessions import (
    PATIENCE_S,
    Plan,
    Rank,
    Step,
    apply_step,
    assert_nothing_pinned,
    expect,
    finish,
    pinned_rows,
    step_of,
    train,
    until,
)
from tests.conformance.twin import Twin

TABLE = config(dim=30, rows=4000)
POINTS = pytest.mark.parametrize("point", ["plan", "collect", "insert"])
PLAN = Plan(("a",))


class HoldingFiles(UnsyncedFiles):
    """Holds whoever comes to a point, once, and lets it go again."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self._lock = threading.Lock()
        self._point = ""
        self._go = threading.Event()
        self.is_held = threading.Event()
        self.error: Exception | None = None

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


@pytest.fixture
def backend(tmp_path: Path) -> Iterator[Holding]:
    made = Holding(tmp_path)
    yield made
    made.files.let_go()
    made.close()


@pytest.fixture
def twin(backend: Holding) -> Iterator[Twin]:
    """A table whose rows are in storage, and not in the cache."""
    made, rng = Twin(backend, cache_bytes=128 << 10, threads=1), generator(901)
    made.create_table("a", **TABLE)
    for part in np.split(np.arange(4000), 4):
        made.on("a", "assign", part, normal(rng, 1000, 30))
    yield made
    backend.files.let_go()
    made.check()


def steps_of(count: int, verb: str = "update") -> list[Step]:
    """Return steps of forty cold rows, some of which the next one has too."""
    rng = np.random.default_rng(902)
    return [
        step_of(rng, n, [{"a": np.arange(30 * n, 30 * n + 40)}], {"a": TABLE}, verb=verb)
        for n in range(1, count + 1)
    ]


def announced(twin: Twin, backend: Holding, point: str, steps: list[Step]) -> Rank:
    """Return a rank that has announced steps, and whose planner stands at a point."""
    rank = Rank(twin.store, PLAN, 0)
    backend.files.hold(f"lookahead:{point}")
    rank.announce(steps)
    assert backend.files.is_held.wait(PATIENCE_S)
    return rank


def check_free(twin: Twin) -> None:
    """Check that nothing stays pinned, and that a new session trains."""
    until(lambda: not pinned_rows(twin.store))
    assert_nothing_pinned(twin.store, "a")
    steps = steps_of(9)
    place = PLAN.open(twin.store).last_step
    train(twin.store, PLAN, steps[place:], expect(twin.reference, steps[place:]))


Call = Callable[[], Any]


def while_held(backend: Holding, call: Call) -> Any:
    """Do a call while the planner is held; if the call waits for it, let it go."""
    done: list[Any] = []
    thread = threading.Thread(target=lambda: done.append(call()))
    thread.start()
    thread.join(0.05)
    backend.files.let_go()
    thread.join(PATIENCE_S)
    assert done, "the call has not ended, or has raised"
    return done[0]


@POINTS
@pytest.mark.parametrize("verb", ["update", "release", "skip"])
def test_step_finished_without_a_lookup_while_it_is_on_its_way(
    backend: Holding, twin: Twin, point: str, verb: str
) -> None:
    steps = steps_of(3, verb)
    rank = announced(twin, backend, point, steps)
    while_held(backend, lambda: finish(twin.store, rank.member, steps[0]))
    apply_step(twin.reference, steps[0])
    rank.train(steps[1:], expect(twin.reference, steps[1:]))
    until(lambda: not pinned_rows(twin.store))
    rank.close()
    check_free(twin)


@POINTS
def test_session_closed_while_its_steps_are_on_their_way(
    backend: Holding, twin: Twin, point: str
) -> None:
    rank = announced(twin, backend, point, steps_of(3))

    def close() -> bool:
        rank.close()
        return True

    while_held(backend, close)
    check_free(twin)


@POINTS
def test_session_closed_and_opened_again_while_its_steps_are_on_their_way(
    backend: Holding, twin: Twin, point: str
) -> None:
    steps = steps_of(5)
    rank = announced(twin, backend, point, steps[:3])

    def again() -> Rank:
        rank.close()
        other = Rank(twin.store, PLAN, 0)
        other.announce(steps[:2])
        return other

    other = while_held(backend, again)
    other.train(steps, expect(twin.reference, steps))
    other.close()
    check_free(twin)


@POINTS
def test_plain_lookup_of_rows_that_are_on_their_way(
    backend: Holding, twin: Twin, point: str
) -> None:
    rank = announced(twin, backend, point, steps_of(3))
    keys = np.arange(20, 120)
    found = while_held(backend, lambda: twin.store.table("a").lookup(keys))
    assert_same(found, twin.reference.table("a").lookup(keys))
    rank.close()
    check_free(twin)


@POINTS
def test_table_dropped_after_its_session_was_closed(
    backend: Holding, twin: Twin, point: str
) -> None:
    rank = announced(twin, backend, point, steps_of(3))

    def drop() -> bool:
        rank.close()
        twin.store.drop_table("a")
        return True

    while_held(backend, drop)
    twin.reference.drop_table("a")
    twin.create_table("a", **TABLE)
    check_free(twin)


@POINTS
def test_store_closed_while_steps_are_on_their_way(
    backend: Holding, twin: Twin, point: str
) -> None:
    before = threading.active_count()
    announced(twin, backend, point, steps_of(3))
    while_held(backend, lambda: (twin.store.close(), True))
    twin.reopen()
    assert threading.active_count() < before + 3
    check_free(twin)


@POINTS
def test_flush_and_checkpoint_while_steps_are_on_their_way(
    backend: Holding, twin: Twin, point: str
) -> None:
    steps = steps_of(3)
    rank = announced(twin, backend, point, steps)
    while_held(backend, lambda: (twin.store.flush(), twin.checkpoint("kept")))
    rank.train(steps, expect(twin.reference, steps))
    rank.close()
    check_free(twin)


def test_shared_session_whose_rows_are_written_while_they_are_read(
    backend: Holding, twin: Twin
) -> None:
    """What a collector has read is not what was written since."""
    steps = steps_of(2)
    plan = Plan(("a",), shared=True)
    rank = Rank(twin.store, plan, 0)
    backend.files.hold("lookahead:collect")
    rank.announce(steps)
    assert backend.files.is_held.wait(PATIENCE_S)
    keys, rows = np.arange(30, 80), normal(generator(903), 50, 30)
    while_held(backend, lambda: twin.on("a", "assign", keys, rows))
    rank.train(steps, expect(twin.reference, steps))
    rank.close()


@pytest.mark.parametrize("error", [CorruptTableError, StorageError])
def test_error_of_a_collector_is_told_to_the_step_or_fails_the_store(
    backend: Holding, twin: Twin, error: type[Exception]
) -> None:
    """A read that fails is no hang: the step is done by reading once more, or says why not."""
    steps = steps_of(2)
    rank = Rank(twin.store, PLAN, 0)
    backend.files.hold("read")
    rank.announce(steps)
    assert backend.files.is_held.wait(PATIENCE_S)
    backend.files.let_go(error("injected"))
    rank.train(steps, expect(twin.reference, steps))
    rank.close()
    check_free(twin)
