"""What happens to a session while its planner stands still between two stages.

The planner, or a collector, is held at a named point, once; meanwhile a trainer, an operator or a
lease does something to the step that is on its way. Whatever it is, in the end the rows are the
reference's and nothing is pinned.
"""

from functools import partial

import numpy as np
import pytest

from embstore.errors import CorruptTableError, StorageError
from tests.conformance.cases import assert_same, config, generator, normal
from tests.conformance.sessions.planner_jobs import Holding, planner_threads, while_held
from tests.conformance.sessions.training import (
    PATIENCE_S,
    Plan,
    Rank,
    apply_step,
    assert_nothing_pinned,
    expect,
    finish,
    pinned_rows,
    step_of,
    steps_of,
    train,
    until,
    written,
)
from tests.conformance.twin import Twin

TABLE = config(dim=30, rows=4000)
PLAN = Plan(("a",))


@pytest.fixture
def backend(tmp_path):
    made = Holding(tmp_path)
    yield made
    made.files.let_go()
    made.close()


@pytest.fixture
def twin(backend):
    """A table whose rows are in storage, and not in the cache."""
    made = written(Twin(backend, cache_bytes=128 << 10, threads=1, a=TABLE), generator(901), "a")
    yield made
    backend.files.let_go()
    made.check()


def steps_from_1(count):
    """Return steps of forty cold rows, some of which the next one has too."""
    keys = (np.arange(30 * n, 30 * n + 40) for n in range(1, count + 1))
    return steps_of(902, {"a": TABLE}, keys)


def check_free(twin):
    """Check that nothing stays pinned, and that a new session trains."""
    until(lambda: not pinned_rows(twin.store))
    assert_nothing_pinned(twin.store, "a")
    steps = steps_from_1(9)
    place = PLAN.open(twin.store).last_step
    train(twin.store, PLAN, steps[place:], expect(twin.reference, steps[place:]))


# What happens meanwhile, up to a `yield`, and what follows when the planner goes on


def finishes_a_step(verb, twin, rank, steps):
    """Without having looked it up."""
    first = step_of(np.random.default_rng(902), 1, steps[0].keys, {"a": TABLE}, verb=verb)
    finish(twin.store, rank.member, first)
    yield
    apply_step(twin.reference, first)
    rank.train(steps[1:3], expect(twin.reference, steps[1:3]))
    until(lambda: not pinned_rows(twin.store))
    rank.close()


def closes_the_session(twin, rank, steps):
    rank.close()
    yield


def closes_the_session_and_opens_it_again(twin, rank, steps):
    rank.close()
    other = Rank(twin.store, PLAN, 0)
    other.announce(steps[:2])
    yield
    other.train(steps, expect(twin.reference, steps))
    other.close()


def looks_rows_up_that_are_on_their_way(twin, rank, steps):
    keys = np.arange(20, 120)
    assert_same(twin.store.table("a").lookup(keys), twin.reference.table("a").lookup(keys))
    yield
    rank.close()


def drops_the_table_after_its_session_was_closed(twin, rank, steps):
    rank.close()
    twin.drop_table("a")
    yield
    twin.create_table("a", **TABLE)


def closes_the_store(twin, rank, steps):
    twin.store.close()
    yield
    assert not planner_threads()
    twin.reopen()


def flushes_and_commits(twin, rank, steps):
    twin.store.flush()
    twin.checkpoint("kept")
    yield
    rank.train(steps[:3], expect(twin.reference, steps[:3]))
    rank.close()


ACTS = {f"{verb}s_a_step": partial(finishes_a_step, verb) for verb in ("update", "release", "skip")}
ACTS |= {
    act.__name__: act
    for act in (
        closes_the_session,
        closes_the_session_and_opens_it_again,
        looks_rows_up_that_are_on_their_way,
        drops_the_table_after_its_session_was_closed,
        closes_the_store,
        flushes_and_commits,
    )
}


@pytest.mark.parametrize("point", ["plan", "collect", "insert"])
@pytest.mark.parametrize("act", ACTS.values(), ids=ACTS)
def test_somebody_acts_while_steps_are_on_their_way(backend, twin, point, act):
    steps = steps_from_1(5)
    rank = Rank(twin.store, PLAN, 0)
    backend.files.hold(f"lookahead:{point}")
    rank.announce(steps[:3])
    assert backend.files.is_held.wait(PATIENCE_S)
    acting = act(twin, rank, steps)
    while_held(backend, lambda: next(acting))
    next(acting, None)
    check_free(twin)


@pytest.mark.parametrize("verb", ["assign", "delete"])
def test_shared_session_whose_rows_are_written_while_they_are_read(backend, twin, verb):
    """What a collector has read is not what was written, or deleted, since."""
    steps = steps_from_1(2)
    plan = Plan(("a",), shared=True)
    rank = Rank(twin.store, plan, 0)
    backend.files.hold("lookahead:collect")
    rank.announce(steps)
    assert backend.files.is_held.wait(PATIENCE_S)
    keys, rows = np.arange(30, 80), normal(generator(903), 50, 30)
    given = (keys, rows) if verb == "assign" else (keys,)
    while_held(backend, lambda: twin.on("a", verb, *given))
    rank.train(steps, expect(twin.reference, steps))
    rank.close()


@pytest.mark.parametrize("error", [CorruptTableError, StorageError])
def test_error_of_a_collector_is_told_to_the_step_or_fails_the_store(backend, twin, error):
    """A read that fails is no hang: the step is done by reading once more, or says why not."""
    steps = steps_from_1(2)
    rank = Rank(twin.store, PLAN, 0)
    backend.files.hold("read")
    rank.announce(steps)
    assert backend.files.is_held.wait(PATIENCE_S)
    backend.files.let_go(error("injected"))
    rank.train(steps, expect(twin.reference, steps))
    rank.close()
    check_free(twin)
