"""Defects of look-ahead that reviews have shown: of planning, pins and slabs.

Each test is named for what holds now and says what went wrong. What happens between two stages of
the planner is decided by the test (planner_jobs.py), or by the points that files are told of.
"""

import threading
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from embstore.cache.prefetch import EVICTED_ROWS_MAX
from embstore.errors import CorruptTableError, StoreClosedError
from tests.conformance.cases import OPTIMIZERS, config, generator, normal
from tests.conformance.planner_jobs import HoldingEmulated, Jobs, pool_of, unreadable
from tests.conformance.sessions import (
    PATIENCE_S,
    Plan,
    Rank,
    Step,
    apply_step,
    await_planned,
    expect,
    facts_of,
    finish,
    pinned_rows,
    step_of,
    train,
    until,
)
from tests.conformance.test_session_races import Holding, while_held

Open = Callable[..., Any]
ROWS = 20_000
TABLE = config(dim=30, rows=ROWS)
OF_ANOTHER_POOL = TABLE | {"optimizer": OPTIMIZERS["rowwise_adagrad"]}


@pytest.fixture(params=[Holding, HoldingEmulated], ids=["embedded", "emulated"])
def backend(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Holding]:
    made: Holding = request.param(tmp_path)
    yield made
    made.files.let_go()
    made.close()


def written(open_twin: Open, cache_bytes: int, rows: int = ROWS) -> Any:
    """Return a twin with a table "a" whose rows are stored, and a table "b" of another pool."""
    twin, rng = open_twin(cache_bytes=cache_bytes, threads=1), generator(700)
    twin.create_table("a", **TABLE)
    twin.create_table("b", **OF_ANOTHER_POOL)
    twin.on("a", "assign", np.arange(rows), normal(rng, rows, 30))
    return twin


def steps_of(keys: list[dict[str, Any]], **given: Any) -> list[Step]:
    """Return steps of these keys by table, of one rank."""
    rng, tables = generator(701), {"a": TABLE, "b": OF_ANOTHER_POOL}
    return [step_of(rng, n, [named], tables, **given) for n, named in enumerate(keys, 1)]


def runs(first: int, size: int, steps: int, table: str = "a") -> list[dict[str, Any]]:
    """Return keys for steps, each the next `size` keys from `first` on."""
    return [{table: np.arange(first + n * size, first + (n + 1) * size)} for n in range(steps)]


def check_free(twin: Any) -> None:
    """Check that nothing stays pinned, and that no slot says otherwise."""
    until(lambda: not pinned_rows(twin.store))
    twin.store.check_integrity()


# Slabs and pins


def test_no_slab_changes_hands_while_a_group_is_planned(open_twin: Open, backend: Holding) -> None:
    """Pool b grew by slabs of a, with slots that rows of a were on their way to.

    These were written to the slots all the same, whoever had them by then.
    """
    twin = written(open_twin, cache_bytes=512 << 10)
    a, b = (pool_of(twin.store, name) for name in "ab")
    twin.store.table("a").lookup(np.arange(a.slot_count))  # the last slabs have what came first
    wide = b.slot_count + 20
    in_b = runs(0, wide, 4, "b")
    steps = steps_of([of_a | of_b for of_a, of_b in zip(runs(10_000, 200, 4), in_b, strict=True)])
    rank = Rank(twin.store, Plan(("a", "b"), planner="group:4"), 0)
    backend.files.hold("lookahead:collect")
    rank.announce(steps)
    assert backend.files.is_held.wait(PATIENCE_S)
    for pool in (a, b):
        for collection in pool.arriving:
            assert (np.asarray(collection._slots) < pool.slot_count).all()
    backend.files.let_go()
    rank.train(steps, expect(twin.reference, steps))
    rank.close()
    until(lambda: not pinned_rows(twin.store))


def test_pins_of_another_pool_do_not_leak_when_those_of_one_are_taken(open_twin: Open) -> None:
    """Steps that were still planned were planned once more, and pinned twice."""
    twin = written(open_twin, cache_bytes=1 << 20, rows=100)
    steps = steps_of([*runs(0, 50, 2), *runs(0, 40, 1, "b")])
    rank = Rank(twin.store, Plan(("a", "b")), 0)
    rank.announce(steps)
    for _ in range(3):
        await_planned(twin.store, 3)
        with twin.store._engine.reading():
            assert [pool_of(twin.store, name).pinned_count for name in "ab"] == [100, 40]
            pool_of(twin.store, "a").unpin_all()
    rank.train(steps, expect(twin.reference, steps))
    rank.close()
    assert pinned_rows(twin.store) == 0


def test_steps_that_lose_their_pins_while_later_ones_are_planned_are_planned_again(
    open_twin: Open, backend: Holding
) -> None:
    """What was planned last counted as planned so far, and the steps before it waited for ever."""
    twin = written(open_twin, cache_bytes=1 << 20, rows=1000)
    steps = steps_of(runs(0, 50, 6))
    rank = Rank(twin.store, Plan(("a",)), 0)
    rank.announce(steps[:2])
    await_planned(twin.store, 2)
    backend.files.hold("lookahead:plan")
    rank.announce(steps[2:])
    assert backend.files.is_held.wait(PATIENCE_S)
    with twin.store._engine.reading():
        pool_of(twin.store, "a").unpin_all()
    backend.files.let_go()
    rank.train(steps, expect(twin.reference, steps))
    rank.close()
    check_free(twin)


def test_an_ended_session_gives_its_pins_back_before_its_slabs_go(open_twin: Open) -> None:
    """Slots left with the pins of a session whose lease had run out, and were pinned for ever."""
    twin = written(open_twin, cache_bytes=512 << 10)
    pool = pool_of(twin.store, "a")
    twin.store.table("a").lookup(np.arange(4000))
    Plan(("a",)).open(twin.store, lease_ms=500)
    member = twin.store.sessions.join("run", 0).member
    twin.store.sessions.announce(member, {1: {"a": np.arange(15_000, 15_200)}})

    def is_ready() -> bool:
        twin.store.sessions.renew(member)
        return bool(facts_of(twin.store)["ready_steps"] and not pool.arriving)

    until(is_ready)
    with twin.store._engine.reading():
        until(lambda: not twin.store.sessions.facts())
        assert pool.pinned_count == 200
        pool.release_slabs(pool.slab_count - 1)
        assert pool.pinned_count == 0
    check_free(twin)


# Waiting steps


def test_plain_lookups_with_misses_do_not_keep_a_step_from_being_planned(open_twin: Open) -> None:
    """What was freed for the step went to calls in between, and was freed again without an end."""
    twin = open_twin(cache_bytes=1 << 20, threads=1)
    table = twin.create_table("a", **config(dim=4, rows=1 << 24))
    pool, cold = pool_of(twin.store, "a"), count(1 << 20, 2 * EVICTED_ROWS_MAX)

    def look_up_cold_rows() -> None:
        first = next(cold)
        table.lookup(np.arange(first, first + 2 * EVICTED_ROWS_MAX))

    while pool.free_count or pool.grow():
        look_up_cold_rows()
    size = pool.slot_count * 3 // 4
    assert size > 4 * EVICTED_ROWS_MAX, "it takes several jobs to free them"
    jobs = Jobs(twin.store)
    jobs.before = look_up_cold_rows
    rank = Rank(twin.store, Plan(("a",)), 0)
    (step,) = [step_of(generator(702), 1, [{"a": np.arange(size)}], {"a": config(rows=1 << 24)})]
    rank.announce([step])
    until(lambda: facts_of(twin.store)["planned_step"] == 1 or jobs.count > 200)
    assert jobs.count <= size // EVICTED_ROWS_MAX + 4
    jobs.before = lambda: None
    rank.train([step], expect(twin.reference, [step]))
    rank.close()


@pytest.mark.parametrize("verb", ["release", "skip", "update"])
@pytest.mark.parametrize("finished", [5, 8])
def test_steps_finished_while_their_group_waits_end_no_session(
    open_twin: Open, verb: str, finished: int
) -> None:
    """The uses of a finished step were noted, which failed, and with it every session."""
    twin = written(open_twin, cache_bytes=1 << 20, rows=1000)
    jobs, innocent = Jobs(twin.store), Rank(twin.store, Plan(("b",), name="innocent"), 0)
    other = steps_of([{"b": np.arange(30)}])
    innocent.announce(other)
    await_planned(twin.store, 1, "innocent")
    steps = steps_of(runs(0, 40, 16), verb=verb)
    rank = Rank(twin.store, Plan(("a",), planner="group:8", lookahead=16), 0)
    with jobs.held() as has_come:
        rank.announce(steps[:8])
        assert has_come.wait(PATIENCE_S)
        for step in steps[:finished]:
            finish(twin.store, rank.member, step)
            apply_step(twin.reference, step)
    rank.train(steps[finished:], expect(twin.reference, steps[finished:]))
    rank.close()
    innocent.train(other, expect(twin.reference, other))
    innocent.close()
    check_free(twin)


def test_an_unreadable_row_of_a_far_step_is_told_to_that_step_alone(open_twin: Open) -> None:
    """All steps were planned again with the one whose row could not be read, over and over."""
    twin = written(open_twin, cache_bytes=1 << 20)
    twin.store.table("a").lookup(np.arange(10_000, 19_000))
    steps = steps_of([*runs(1000, 20, 19), {"a": np.array([776, 777])}])
    rank = Rank(twin.store, Plan(("a",), lookahead=64), 0)
    with unreadable(twin.store, 777):
        rank.announce(steps)
        until(lambda: not twin.store.sessions.planning()["inserting"] and ready(twin) == 19)
        assert pinned_rows(twin.store) == 19 * 20
        rank.train(steps[:19], expect(twin.reference, steps[:19]))
        assert facts_of(twin.store)["steps_planned_again"] <= len(steps)
        with pytest.raises(CorruptTableError, match="777"):
            twin.store.sessions.lookup_step(rank.member, 20, timeout_s=PATIENCE_S)
    rank.train(steps[19:], expect(twin.reference, steps[19:]))
    rank.close()
    check_free(twin)


def ready(twin: Any) -> int:
    """Return how many steps are ready, if every one has been planned."""
    facts = facts_of(twin.store)
    return int(facts["ready_steps"]) if facts["planned_step"] == facts["announced_step"] else 0


# The end of a store, and its change


def test_restore_while_rows_of_an_ended_session_are_on_their_way(
    open_twin: Open, backend: Holding
) -> None:
    """The pool went with rows to come, which the planner tried to write for ever after."""
    twin = written(open_twin, cache_bytes=512 << 10)
    twin.store.table("a").lookup(np.arange(10_000, 19_000))
    twin.checkpoint("kept")
    pool, steps = pool_of(twin.store, "a"), steps_of(runs(0, 400, 2))
    rank = Rank(twin.store, Plan(("a",)), 0)
    backend.files.hold("lookahead:collect")
    rank.announce(steps)
    assert backend.files.is_held.wait(PATIENCE_S)

    def restore() -> bool:
        rank.close()
        twin.restore("kept")
        return True

    while_held(backend, restore)
    assert not pool.arriving
    train(twin.store, Plan(("a",)), steps, expect(twin.reference, steps))
    check_free(twin)


def test_a_failed_store_leaves_no_planner_that_spins(backend: Holding) -> None:
    """The planner took up the same job again and again, and each time was told of the failure."""
    store = backend.open_store()
    store.create_table("a", **TABLE)
    rank = Rank(store, Plan(("a",)), 0)
    steps = steps_of(runs(0, 10, 2))
    rank.announce(steps[:1])
    await_planned(store, 1)
    until(lambda: not store.sessions.planning()["inserting"])
    threads = [t for t in threading.enumerate() if t.name.startswith(("lookahead", "collector-"))]
    assert len(threads) >= 2
    with pytest.raises(KeyboardInterrupt), store._engine.writing():
        raise KeyboardInterrupt
    rank.announce(steps[1:])
    until(lambda: not any(thread.is_alive() for thread in threads))
    with pytest.raises(StoreClosedError):
        store.sessions.lookup_step(rank.member, 1, timeout_s=PATIENCE_S)
