"""Leases, failed ranks, and the place of a session over closing, killing and restoring a store.

A member that stays away loses its pins, and its session keeps its place. Leases are long here, and
run out when the test says so.
"""

import gc
import os
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from embstore.checks.sessions import LEASE_MS_MAX
from embstore.errors import RankFailedError, SessionExpiredError, TableHeldError
from embstore.lookahead.session import JOIN_S
from tests.conformance.cases import config, descriptors, generator
from tests.conformance.sessions.training import (
    PATIENCE_S,
    Plan,
    Rank,
    apply_step,
    assert_nothing_pinned,
    await_planned,
    engine_of,
    expect,
    expire,
    facts_of,
    finish,
    pinned_rows,
    send,
    step_of,
    train,
    until,
    written,
)
from tests.conformance.twin import digests

TABLE = config(dim=30, rows=4000)
PLAN = Plan(("a",), lookahead=64)


@pytest.fixture
def twin(open_twin):
    return written(open_twin(cache_bytes=256 << 10, a=TABLE), generator(601), "a")


def steps_of(count, ranks=1, seed=602):
    """Return steps of twenty random keys for each rank."""
    rng = np.random.default_rng(seed)
    tables = {"a": TABLE}
    return [
        step_of(rng, n, [{"a": rng.permutation(4000)[:20]} for _ in range(ranks)], tables)
        for n in range(1, count + 1)
    ]


def opened(store, plan=PLAN):
    """Open a session and join; return the place and the member."""
    return plan.open(store).last_step, store.sessions.join(plan.name, 0).member


def test_member_that_stays_away_loses_its_pins_and_keeps_its_place(twin):
    store, steps = twin.store, steps_of(80)
    _, member = opened(store)
    store.sessions.announce(member, {s.number: s.keys[0] for s in steps[:40]})
    for step in steps[:3]:
        finish(store, member, step)
        apply_step(twin.reference, step)
    expire(store)
    until(lambda: not pinned_rows(store))
    with pytest.raises(SessionExpiredError):
        store.sessions.renew(member)
    assert_nothing_pinned(store, "a")
    assert PLAN.open(store).last_step == 3
    trained(twin, steps[3:])


def test_renewed_lease_goes_on(twin):
    """Every call of a member renews; the oldest lease is the time since."""
    store = twin.store
    PLAN.open(store, lease_ms=60_000)
    member = store.sessions.join("run", 0).member
    until(lambda: facts_of(store)["oldest_lease_s"] > 0.01)
    renewed = store.sessions.renew(member)
    assert (renewed.name, renewed.last_step, renewed.lease_ms) == ("run", 0, 60_000)
    store.sessions.close(member)


def test_rank_that_never_joins_is_named(twin):
    plan = Plan(("a",), ranks=3)
    (step,) = steps_of(1, 3)
    plan.open(twin.store, rank_timeout_ms=50)
    members = [twin.store.sessions.join("run", rank).member for rank in (0, 2)]
    for member, rank in zip(members, (0, 2), strict=True):
        twin.store.sessions.announce(member, {1: step.keys[rank]})
    with pytest.raises(RankFailedError, match="rank 1"):
        twin.store.sessions.lookup_step(members[0], 1, timeout_s=PATIENCE_S)
    with pytest.raises(RankFailedError, match="rank 1"):
        twin.store.sessions.lookup_step(members[1], 1, timeout_s=PATIENCE_S)


def test_operator_ends_any_session(twin):
    """Whoever opened it: its ranks are told, its tables are free, its place stays."""
    store, steps = twin.store, steps_of(6)
    trained(twin, steps[:2])
    _, member = opened(store)
    store.sessions.announce(member, {3: steps[2].keys[0]})
    await_planned(store, 3)
    store.sessions.end("run")
    with pytest.raises(SessionExpiredError, match="EndSession"):
        store.sessions.lookup_step(member, 3, timeout_s=PATIENCE_S)
    with pytest.raises(SessionExpiredError, match="no session 'run'"):
        store.sessions.end("run")
    assert_nothing_pinned(store, "a")
    twin.on("a", "update", [1], np.ones((1, 30), np.float32))
    trained(twin, steps[2:])


def test_session_that_nobody_joins_ends_in_seconds(twin):
    """Whatever its lease is."""
    store = twin.store
    PLAN.open(store, lease_ms=LEASE_MS_MAX)
    sessions = engine_of(store).sessions
    with sessions._planner.changed:
        sessions._registry.sessions["run"].opened -= JOIN_S
        sessions._planner.notify()
    until(lambda: not sessions._registry.sessions)
    twin.on("a", "update", [1], np.ones((1, 30), np.float32))
    with pytest.raises(SessionExpiredError):
        store.sessions.join("run", 0)


@pytest.mark.parametrize("how", ["stalls", "dies"])
def test_rank_that_does_not_send_is_named_to_the_others(twin, how):
    """Rank 1 announces and is not heard of again: it is too late, or its lease runs out."""
    store, plan, steps = twin.store, Plan(("a",), ranks=2), steps_of(6, 2)
    trained(twin, steps[:3], plan)
    plan.open(store, rank_timeout_ms=100 if how == "stalls" else 60_000)
    members = [store.sessions.join("run", rank).member for rank in (0, 1)]
    for step in steps[3:5]:
        for member, keys in zip(members, step.keys, strict=True):
            store.sessions.announce(member, {step.number: keys})
    outcome = send(store, "update", members[0], 4, steps[3].gradients[0], **steps[3].options)
    if how == "dies":
        assert outcome.poll() is None
        expire(store, rank=1)
    with pytest.raises(RankFailedError, match="rank 1"):
        until(outcome.poll)
    with pytest.raises((RankFailedError, SessionExpiredError)):
        store.sessions.lookup_step(members[0], 5, timeout_s=PATIENCE_S)
    for member in members:
        store.sessions.close(member)
    assert digests(store) == digests(twin.reference)
    assert plan.open(store).last_step == 3
    trained(twin, steps[3:], plan)


def test_steps_announced_and_not_begun_are_dropped_by_closing(twin):
    store, steps = twin.store, steps_of(64)
    rank = Rank(store, PLAN, 0)
    rank.announce(steps)
    await_planned(store, 40)
    rank.train(steps[:2], expect(twin.reference, steps[:2]))
    rank.close()
    assert_nothing_pinned(store, "a")
    other = steps_of(5, seed=603)[2:]
    train(store, PLAN, other, expect(twin.reference, other))


# What must not leak


def resident_bytes():
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.needs("process")
@pytest.mark.parametrize("is_dropped", [True, False], ids=["dropped", "closed"])
def test_a_thousand_openings_leak_nothing(twin, is_dropped):
    """Each opening announces 16 steps and finishes one; then its member is heard of no more."""
    store, steps = twin.store, steps_of(1100)

    def rounds(low, high):
        for done in range(low, high):
            place, member = opened(store)
            assert place == done
            ahead = steps[done : done + 16]
            store.sessions.announce(member, {s.number: s.keys[0] for s in ahead})
            finish(store, member, steps[done])
            apply_step(twin.reference, steps[done])
            expire(store) if is_dropped else store.sessions.close(member)

    rounds(0, 60)
    gc.collect()
    before = descriptors(), threading.active_count(), resident_bytes()
    rounds(60, 1060)
    gc.collect()
    assert descriptors() <= before[0] + 1  # a log segment may have been sealed
    assert threading.active_count() <= before[1]
    assert resident_bytes() - before[2] < 24 << 20
    until(lambda: not pinned_rows(store))
    assert_nothing_pinned(store, "a")
    assert PLAN.open(store).last_step == 1060


@pytest.mark.needs("process")
def test_closing_the_store_ends_a_session_and_its_threads(open_twin):
    before = threading.active_count(), descriptors()
    twin = open_twin(a=TABLE)
    rank = Rank(twin.store, PLAN, 0)
    steps = steps_of(30)
    rank.announce(steps)
    rank.train(steps[:4], expect(twin.reference, steps[:4]))
    twin.store.close()
    until(lambda: threading.active_count() <= before[0] and descriptors() <= before[1])
    twin.reopen()


# Places


def trained(twin, steps, plan=PLAN):
    """Train both."""
    train(twin.store, plan, steps, expect(twin.reference, steps))


@pytest.mark.parametrize("closed", ["session", "store", "store with an open session"])
def test_place_after_closing_and_opening(twin, closed):
    steps = steps_of(12)
    for low, high in ((0, 1), (1, 5), (5, 12)):
        assert PLAN.open(twin.store).last_step == low
        if closed == "store with an open session":
            rank = Rank(twin.store, PLAN, 0)
            rank.announce(steps[low:])
            rank.train(steps[low:high], expect(twin.reference, steps[low:high]))
        else:
            trained(twin, steps[low:high])
        if closed != "session":
            twin.reopen(cache_bytes=1 << 20, policy="lfu")
        if closed == "store with an open session":
            with pytest.raises(SessionExpiredError):
                twin.store.sessions.renew(rank.member)
    assert PLAN.open(twin.store).last_step == 12


@pytest.mark.parametrize("verb", ["release", "skip"])
def test_steps_that_change_no_row_move_the_place_too(twin, verb):
    rng = generator(604)
    steps = [step_of(rng, n, [{"a": [n]}], {"a": TABLE}, verb=verb) for n in (1, 2)]
    trained(twin, steps)
    twin.reopen()
    assert PLAN.open(twin.store).last_step == 2


def test_place_after_a_kill_is_that_of_the_last_commit_or_command(twin):
    """A copy of the files as they are is what a killed process leaves."""
    steps = steps_of(12)
    trained(twin, steps[:3])
    twin.checkpoint("three")
    trained(twin, steps[3:7])
    twin.crash()
    place = 7 if twin.is_logged else 3
    assert PLAN.open(twin.store).last_step == place
    trained(twin, steps[place:])
    twin.checkpoint("twelve")
    twin.crash()
    assert PLAN.open(twin.store).last_step == 12


@pytest.mark.needs("process")
def test_a_trainer_that_is_started_again_with_other_options_waits_for_its_place(twin):
    steps = steps_of(6)
    PLAN.open(twin.store)
    rank = Rank(twin.store, PLAN, 0)
    rank.announce(steps)
    rank.train(steps[:3], expect(twin.reference, steps[:3]))

    def go_on():
        opened = twin.store.session(["a"], name="run", lookahead=3, wait_s=PATIENCE_S)
        with opened as run:
            return run.last_step

    with pytest.raises(TableHeldError, match="lookahead_steps_max=64"):
        twin.store.session(["a"], name="run", lookahead=3, wait_s=0).__enter__()
    with ThreadPoolExecutor(1) as pool:
        started = pool.submit(go_on)
        expire(twin.store)
        assert started.result(PATIENCE_S) == 3


def test_restored_checkpoint_has_its_place(twin):
    steps = steps_of(12)
    twin.checkpoint("none")
    trained(twin, steps[:4])
    twin.checkpoint("four")
    trained(twin, steps[4:9])
    twin.restore("four")
    trained(twin, steps[4:6])
    twin.restore("none")
    assert PLAN.open(twin.store).last_step == 0
    trained(twin, steps[:2])


def test_forgotten_place(twin):
    store, steps = twin.store, steps_of(6)
    trained(twin, steps[:3])
    trained(twin, steps[:2], Plan(("a",), name="other"))
    PLAN.open(store)
    member = store.sessions.join("run", 0).member
    command = store.command
    store.sessions.close(member, forget=True)
    twin.reference.command_number += store.command - command  # a command of its own, or none
    assert PLAN.open(store).last_step == 0
    trained(twin, steps[:1])
    twin.reopen()
    assert PLAN.open(twin.store).last_step == 1


def test_places_of_several_sessions(open_twin):
    twin = open_twin(**dict.fromkeys("ab", TABLE))
    rng = generator(605)
    for name, count in (("a", 3), ("b", 5)):
        plan = Plan((name,), name=f"run of {name}")
        ranges = range(1, count + 1)
        trained(twin, [step_of(rng, n, [{name: [n, 9]}], {name: TABLE}) for n in ranges], plan)
    twin.checkpoint("kept")
    twin.reopen()
    for name, count in (("a", 3), ("b", 5)):
        plan = Plan((name,), name=f"run of {name}")
        assert plan.open(twin.store).last_step == count
