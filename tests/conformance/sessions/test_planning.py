"""Planning, pins and slabs, at points between the planner's stages, or ahead of one of its jobs.

A review found each; it says what went wrong.
"""

import threading
from contextlib import suppress
from itertools import count

import numpy as np
import pytest

from embstore.arrays import KEY_MASK
from embstore.cache.prefetch import EVICTED_ROWS_MAX
from embstore.errors import CorruptTableError, StoreClosedError
from tests.conformance.cases import OPTIMIZERS, config, engine_of, generator, normal
from tests.conformance.sessions.planner_jobs import (
    Holding,
    HoldingEmulated,
    Jobs,
    planner_threads,
    pool_of,
    unreadable,
    while_held,
)
from tests.conformance.sessions.training import (
    PATIENCE_S,
    Plan,
    Rank,
    apply_step,
    await_planned,
    expect,
    expire,
    facts_of,
    finish,
    pinned_rows,
    step_of,
    steps_of,
    train,
    until,
)

ROWS = 20_000
TABLE = config(dim=30, rows=ROWS)
TABLES = {"a": TABLE, "b": TABLE | {"optimizer": OPTIMIZERS["rowwise_adagrad"]}}


@pytest.fixture(params=[Holding, HoldingEmulated], ids=["embedded", "emulated"])
def backend(request, tmp_path):
    made = request.param(tmp_path)
    yield made
    made.files.let_go()
    made.close()


def written(open_twin, cache_bytes, rows=ROWS):
    """Return a twin with a table "a" whose rows are stored, and a table "b" of another pool."""
    twin, rng = open_twin(cache_bytes=cache_bytes, threads=1, **TABLES), generator(700)
    twin.on("a", "assign", np.arange(rows), normal(rng, rows, 30))
    return twin


def runs(first, size, steps, table="a"):
    """Return keys for steps, each the next `size` keys from `first` on."""
    return [{table: np.arange(first + n * size, first + (n + 1) * size)} for n in range(steps)]


def check_free(twin):
    """Check that nothing stays pinned, and that no slot says otherwise."""
    until(lambda: not pinned_rows(twin.store))
    twin.store.check_integrity()


# Slabs and pins


def test_slots_that_go_take_the_pins_of_their_own_steps_only(open_twin):
    """All steps that were planned lost theirs, and were planned again, for each slice that went."""
    twin = written(open_twin, cache_bytes=512 << 10)
    pool = pool_of(twin.store, "a")
    keys = pool.slots.keys & KEY_MASK
    assert pool.slots.slab_count > 2 and not pool.slots.free_count
    steps = steps_of(701, TABLES, [{"a": np.sort(keys[:50])}, {"a": np.sort(keys[-50:])}])
    rank = Rank(twin.store, Plan(("a",), planner="window"), 0)
    rank.announce(steps)
    await_planned(twin.store, 2)
    with twin.store.executor.tables.reading():
        assert pool.pins.count == 100
        pool.evictor.release_slice()
        assert pool.pins.count == 50
    rank.train(steps, expect(twin.reference, steps))
    rank.close()
    check_free(twin)


def test_no_slab_changes_hands_while_a_group_is_planned(open_twin, backend):
    """Pool b grew by slabs of a, with slots that rows of a were on their way to.

    These were written to the slots all the same, whoever had them by then.
    """
    twin = written(open_twin, cache_bytes=512 << 10)
    a, b = (pool_of(twin.store, name) for name in "ab")
    twin.store.table("a").lookup(np.arange(a.slots.count))  # the last slabs have what came first
    wide = b.slots.count + 20
    in_b = runs(0, wide, 4, "b")
    steps = steps_of(
        701, TABLES, [of_a | of_b for of_a, of_b in zip(runs(10_000, 200, 4), in_b, strict=True)]
    )
    rank = Rank(twin.store, Plan(("a", "b"), planner="group:4"), 0)
    backend.files.hold("lookahead:collect")
    rank.announce(steps)
    assert backend.files.is_held.wait(PATIENCE_S)
    for pool in (a, b):
        for collection in pool.finder.arriving:
            assert (np.asarray(collection._slots) < pool.slots.count).all()
    backend.files.let_go()
    rank.train(steps, expect(twin.reference, steps))
    rank.close()
    until(lambda: not pinned_rows(twin.store))


def test_pins_of_another_pool_do_not_leak_when_those_of_one_are_taken(open_twin):
    """Steps that were still planned were planned once more, and pinned twice."""
    twin = written(open_twin, cache_bytes=1 << 20, rows=100)
    steps = steps_of(701, TABLES, [*runs(0, 50, 2), *runs(0, 40, 1, "b")])
    rank = Rank(twin.store, Plan(("a", "b"), planner="window"), 0)
    rank.announce(steps)
    for _ in range(3):
        await_planned(twin.store, 3)
        with twin.store.executor.tables.reading():
            assert [pool_of(twin.store, name).pins.count for name in "ab"] == [100, 40]
            pool_of(twin.store, "a").pins.reclaim()
    rank.train(steps, expect(twin.reference, steps))
    rank.close()
    assert pinned_rows(twin.store) == 0


def test_steps_that_lose_their_pins_while_later_ones_are_planned_are_planned_again(
    open_twin, backend
):
    """What was planned last counted as planned so far, and the steps before it waited for ever."""
    twin = written(open_twin, cache_bytes=1 << 20, rows=1000)
    steps = steps_of(701, TABLES, runs(0, 50, 6))
    rank = Rank(twin.store, Plan(("a",), planner="window"), 0)
    rank.announce(steps[:2])
    await_planned(twin.store, 2)
    backend.files.hold("lookahead:plan")
    rank.announce(steps[2:])
    assert backend.files.is_held.wait(PATIENCE_S)
    with twin.store.executor.tables.reading():
        pool_of(twin.store, "a").pins.reclaim()
    backend.files.let_go()
    rank.train(steps, expect(twin.reference, steps))
    rank.close()
    check_free(twin)


def test_an_ended_session_gives_its_pins_back_before_its_slabs_go(open_twin):
    """Slots left with the pins of a session whose lease had run out, and were pinned for ever."""
    twin = written(open_twin, cache_bytes=512 << 10)
    pool = pool_of(twin.store, "a")
    twin.store.table("a").lookup(np.arange(4000))
    Plan(("a",)).open(twin.store)
    member = twin.store.sessions.join("run", 0).member
    twin.store.sessions.announce(member, {1: {"a": np.arange(15_000, 15_200)}})
    until(lambda: facts_of(twin.store)["ready_steps"] and not pool.finder.arriving)
    with twin.store.executor.tables.reading():
        expire(twin.store)
        assert pool.pins.count == 200
        pool.evictor.release_slabs(pool.slots.slab_count - 1)
        assert pool.pins.count == 0
    check_free(twin)


# Waiting steps


def test_plain_lookups_with_misses_do_not_keep_a_step_from_being_planned(open_table):
    """What was freed for the step went to calls in between, and was freed again without an end."""
    twin, table = open_table(cache_bytes=1 << 20, threads=1, a=config(dim=4, rows=1 << 24))
    pool, cold = pool_of(twin.store, "a"), count(1 << 20, 2 * EVICTED_ROWS_MAX)

    def look_up_cold_rows():
        first = next(cold)
        table.lookup(np.arange(first, first + 2 * EVICTED_ROWS_MAX))

    while pool.slots.free_count or pool.evictor.grow():
        look_up_cold_rows()
    size = pool.slots.count * 3 // 4
    assert size > 4 * EVICTED_ROWS_MAX, "it takes several jobs to free them"
    jobs = Jobs(twin.store)
    of_plan = 0  # jobs that began while the step was not planned; those that insert its rows follow

    def look_up_and_count():
        nonlocal of_plan
        of_plan += facts_of(twin.store)["planned_step"] == 0
        look_up_cold_rows()

    jobs.before = look_up_and_count
    rank = Rank(twin.store, Plan(("a",)), 0)
    (step,) = [step_of(generator(702), 1, [{"a": np.arange(size)}], {"a": config(rows=1 << 24)})]
    rank.announce([step])
    until(lambda: facts_of(twin.store)["planned_step"] == 1 or of_plan > 200)
    assert of_plan <= size // EVICTED_ROWS_MAX + 4
    jobs.before = lambda: None
    rank.train([step], expect(twin.reference, [step]))
    rank.close()


@pytest.mark.parametrize("verb", ["release", "skip", "update"])
@pytest.mark.parametrize("finished", [5, 8])
def test_steps_finished_while_their_group_waits_end_no_session(open_twin, verb, finished):
    """The uses of a finished step were noted, which failed, and with it every session."""
    twin = written(open_twin, cache_bytes=1 << 20, rows=1000)
    jobs, innocent = Jobs(twin.store), Rank(twin.store, Plan(("b",), name="innocent"), 0)
    other = steps_of(701, TABLES, [{"b": np.arange(30)}])
    innocent.announce(other)
    await_planned(twin.store, 1, "innocent")
    steps = steps_of(701, TABLES, runs(0, 40, 16), verb=verb)
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


def test_a_step_released_before_it_is_planned_ends_no_session(open_twin, monkeypatch):
    """A busy machine: The planner had chosen the session for its next step, and then had none."""
    twin = written(open_twin, cache_bytes=1 << 20, rows=1000)
    steps = steps_of(701, TABLES, runs(0, 40, 3), verb="release")
    rank, has_planned = Rank(twin.store, Plan(("a",)), 0), threading.Event()
    planner = engine_of(twin.store).sessions._planner
    plan = planner._plan

    def release_and_plan(session):
        if session.last_step == 0:
            finish(twin.store, rank.member, steps[0])
            apply_step(twin.reference, steps[0])
        try:
            plan(session)
        finally:
            has_planned.set()

    monkeypatch.setattr(planner, "_plan", release_and_plan)
    rank.announce(steps[:1])
    assert has_planned.wait(PATIENCE_S)
    rank.train(steps[1:], expect(twin.reference, steps[1:]))
    rank.close()
    check_free(twin)


def test_an_unreadable_row_of_a_far_step_is_told_to_that_step_alone(open_twin):
    """All steps were planned again with the one whose row could not be read, over and over."""
    twin = written(open_twin, cache_bytes=1 << 20)
    twin.store.table("a").lookup(np.arange(10_000, 19_000))
    steps = steps_of(701, TABLES, [*runs(1000, 20, 19), {"a": np.array([776, 777])}])
    rank = Rank(twin.store, Plan(("a",), planner="window", lookahead=64), 0)
    with unreadable(twin.store, 777):
        rank.announce(steps)
        until(lambda: ready(twin) == 19 and pinned_rows(twin.store) == 19 * 20)
        rank.train(steps[:19], expect(twin.reference, steps[:19]))
        assert facts_of(twin.store)["steps_planned_again"] <= len(steps)
        with pytest.raises(CorruptTableError, match="777"):
            twin.store.sessions.lookup_step(rank.member, 20, timeout_s=PATIENCE_S)
    rank.train(steps[19:], expect(twin.reference, steps[19:]))
    rank.close()
    check_free(twin)


def ready(twin):
    """Return how many steps are ready, if every one has been planned."""
    facts = facts_of(twin.store)
    return int(facts["ready_steps"]) if facts["planned_step"] == facts["announced_step"] else 0


# The end of a store, and its change


def test_restore_while_rows_of_an_ended_session_are_on_their_way(open_twin, backend):
    """The pool went with rows to come, which the planner tried to write for ever after."""
    twin = written(open_twin, cache_bytes=512 << 10)
    twin.store.table("a").lookup(np.arange(10_000, 19_000))
    twin.checkpoint("kept")
    pool, steps = pool_of(twin.store, "a"), steps_of(701, TABLES, runs(0, 400, 2))
    rank = Rank(twin.store, Plan(("a",)), 0)
    backend.files.hold("lookahead:collect")
    rank.announce(steps)
    assert backend.files.is_held.wait(PATIENCE_S)

    def restore():
        rank.close()
        twin.restore("kept")
        return True

    while_held(backend, restore)
    assert not pool.finder.arriving
    train(twin.store, Plan(("a",)), steps, expect(twin.reference, steps))
    check_free(twin)


def test_a_failed_store_leaves_no_planner_that_spins(backend):
    """The planner took up the same job again and again, and each time was told of the failure."""
    others = planner_threads()
    store = backend.open_store()
    store.create_table("a", **TABLE)
    rank = Rank(store, Plan(("a",)), 0)
    steps = steps_of(701, TABLES, runs(0, 10, 2))
    rank.announce(steps[:1])
    await_planned(store, 1)
    until(lambda: not store.executor.sessions.stats()["planning"]["inserting"])
    threads = [thread for thread in planner_threads() if thread not in others]
    assert len(threads) >= 2
    with pytest.raises(KeyboardInterrupt), store.executor.tables.writing(None):
        raise KeyboardInterrupt
    with suppress(StoreClosedError):  # the planner may have noticed the failure by now
        rank.announce(steps[1:])
    until(lambda: not any(thread.is_alive() for thread in threads))
    with pytest.raises(StoreClosedError):
        store.sessions.lookup_step(rank.member, 1, timeout_s=PATIENCE_S)
