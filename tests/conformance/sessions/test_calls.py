"""Calls of a session: what they keep and count. A review found each; it says what went wrong."""

import numpy as np
import pytest

from embstore.config import Limits
from embstore.errors import CapacityError, SessionExpiredError
from embstore.handles.sessions import StepBags
from tests.conformance.cases import assert_same, config, generator
from tests.conformance.sessions.training import (
    PATIENCE_S,
    Plan,
    Rank,
    apply_step,
    await_planned,
    expect,
    facts_of,
    finish,
    lookup_of,
    refused_step,
    send,
    step_of,
    steps_of,
    until,
)

pytestmark = pytest.mark.needs("process")
TABLE = config(dim=8, rows=2000)
TABLES = {"a": TABLE}
EARLY, READY = 1, 2


@pytest.fixture
def twin(open_twin):
    """A table "a" without rows."""
    made = open_twin(threads=1, a=TABLE)
    return made


def place_of(twin, name):
    """Return the last finished step that a new session of this name would go on after."""
    place = int(Plan(("a",), name=name).open(twin.store).last_step)
    Rank(twin.store, Plan(("a",), name=name), 0).close()
    return place


# Ranks


def test_a_skip_sent_after_an_update_of_the_same_rank_is_what_holds(twin):
    """The skip was acknowledged, and the update applied when the other rank sent its own."""
    plan = Plan(("a",), ranks=2)
    plan.open(twin.store)
    ranks = [Rank(twin.store, plan, rank) for rank in (0, 1)]
    (step,) = [step_of(generator(711), 1, [{"a": [3, 1]}] * 2, {"a": TABLE}, verb="skip")]
    for rank in ranks:
        rank.announce([step])
    updated = send(twin.store, "update", ranks[0].member, 1, step.gradients[0])
    skipped = send(twin.store, "skip", ranks[0].member, 1)
    assert (updated.poll(), skipped.poll()) == (None, None)
    done = finish(twin.store, ranks[1].member, step, 1)
    assert done.skipped
    assert updated.poll() == skipped.poll() == done
    apply_step(twin.reference, step)
    for rank in ranks:
        rank.close()


# Places


def test_a_run_without_a_name_that_failed_leaves_no_place(twin):
    """Its name, which nobody can know, was kept from its opening on."""
    engine = twin.store.executor
    with pytest.raises(SessionExpiredError), twin.store.session(["a"]) as run:
        twin.store.sessions.end(twin.store.sessions.stats()[0]["name"])
        for step in run.steps([[1]], keys=lambda batch: {"a": batch}):
            step.lookup()
    assert engine.tables.places == {}


def test_a_place_that_was_forgotten_stays_so_when_the_store_is_opened_again(twin):
    """No command had come since the last commit, so that closing committed nothing."""
    plan, steps = Plan(("a",)), steps_of(710, TABLES, [[1], [2]])
    rank = Rank(twin.store, plan, 0)
    rank.train(steps, expect(twin.reference, steps))
    rank.close()
    twin.reopen()
    assert place_of(twin, "run") == 2
    plan.open(twin.store)
    member = twin.store.sessions.join("run", 0).member
    twin.store.sessions.close(member, forget=True)
    twin.reopen()
    assert place_of(twin, "run") == 0


# Refused


def test_keys_beyond_the_bytes_that_may_be_announced_are_refused(open_twin):
    """Announced keys were kept without a bound; none of what is refused is announced."""
    limits = Limits(announced_bytes_max=8 * 100)
    twin = open_twin(limits=limits, a=TABLE)
    steps = steps_of(710, TABLES, [np.arange(40)] * 4)
    rank = Rank(twin.store, Plan(("a",)), 0)
    told = {step.number: step.keys[0] for step in steps}
    with refused_step(twin.store, CapacityError, "announced_bytes_max"):
        twin.store.sessions.announce(rank.member, told)
    rank.announce(steps[:2])
    await_planned(twin.store, 2)
    with refused_step(twin.store, CapacityError, "announced_bytes_max"):
        twin.store.sessions.announce(rank.member, {3: told[3]})
    rank.train(steps[:1], expect(twin.reference, steps[:1]))
    assert facts_of(twin.store)["announced_bytes"] == 8 * 40
    rank.announce(steps[1:3])
    rank.train(steps[1:3], expect(twin.reference, steps[1:3]))
    rank.close()


class Interrupted:
    """A lock for which an interrupt comes while it is waited for."""

    def acquire(self):
        """Be interrupted."""
        raise KeyboardInterrupt

    def release(self):
        """Not reached, as it is never held."""
        raise AssertionError("it was not taken")

    def __enter__(self):
        return self.acquire()

    def __exit__(self, *_):
        self.release()


def test_an_interrupt_while_the_engine_is_waited_for_leaves_nobody_waiting(twin):
    """The planner let a call go first that was there no more, ahead of each of its jobs."""
    engine = twin.store.executor.tables.frame
    lock, engine._lock = engine._lock, Interrupted()
    try:
        with pytest.raises(KeyboardInterrupt), engine.reading():
            pass
    finally:
        engine._lock = lock
    assert not engine._waiting


# Figures


def test_a_pooled_lookup_counts_its_misses_and_its_own_tables(open_twin):
    """All keys of the step were counted as hits, whichever tables it named and had."""
    twin = open_twin(cache_bytes=128 << 10, threads=1)
    for name in "ab":
        twin.create_table(name, **config(dim=30, rows=4000))
    twin.store.table("a").lookup(np.arange(4))
    rank = Rank(twin.store, Plan(("a", "b")), 0)
    keys = {"a": np.arange(10), "b": np.arange(3000)}
    twin.store.sessions.announce(rank.member, {1: keys})
    bags = {"a": StepBags.of(np.array([0, 9, 0], np.int32), [0, 2, 3], table="a")}
    for _ in range(2):  # the second is not counted
        found = twin.store.sessions.lookup_step_pooled(rank.member, 1, bags, timeout_s=PATIENCE_S)
        assert found["a"].shape == (2, 30)
        facts = facts_of(twin.store)
        assert facts["steps_in_parts"] == 1, "its rows do not fit"
        assert (facts["lookup_keys"], facts["late_rows"]) == (10, 10)
        assert facts["lookup_hits"] < 10
        assert facts["late_bytes"] == found["a"].nbytes
    rank.close()


def test_a_lookup_that_is_repeated_counts_once(twin):
    """Each time a client sent a lookup again, its rows were counted again."""
    (step,) = steps_of(710, TABLES, [[1, 2, 3]])
    rank = Rank(twin.store, Plan(("a",)), 0)
    rank.announce([step])
    wanted = twin.reference.lookup(step.keys[0])["a"]
    for _ in range(3):
        rows = twin.store.sessions.lookup_step(rank.member, 1, timeout_s=PATIENCE_S)
        assert_same(rows["a"], wanted)
        facts = facts_of(twin.store)
        assert facts["lookup_keys"] == facts["lookup_hits"] == facts["late_rows"] == 3
        assert facts["late_bytes"] == wanted.nbytes
    rank.close()


def test_the_time_a_trainer_computes_is_no_stall(twin):
    """A lookup that was sent ahead of its turn counted as stalled all the while."""
    steps = steps_of(710, TABLES, [[1, 2], [2, 3]])
    rank = Rank(twin.store, Plan(("a",)), 0)
    rank.announce(steps)
    ahead = lookup_of(twin.store, rank.member, 2)
    until(lambda: ahead.poll() == EARLY)
    answers = expect(twin.reference, steps)
    rank.train(steps[:1], answers[:1])
    assert ahead.poll() == READY
    before = facts_of(twin.store)
    rank.train(steps[1:], answers[1:])
    after = facts_of(twin.store)
    assert [(facts["stall_s"], facts["stalls"]) for facts in (before, after)] == [(0.0, 0)] * 2
    rank.close()
