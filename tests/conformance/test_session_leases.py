"""Leases, failed ranks, and the place of a session over closing, killing and restoring a store.

A member that stays away loses its pins, and its session keeps its place. A short lease is waited
for; how short it is changes no result.
"""

import gc
import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from embstore.errors import RankFailedError, SessionExpiredError, TableHeldError
from tests.conformance.cases import config, generator, normal
from tests.conformance.sessions import (
    PATIENCE_S,
    Plan,
    Rank,
    Step,
    apply_step,
    assert_nothing_pinned,
    await_planned,
    expect,
    facts_of,
    finish,
    pinned_rows,
    step_of,
    train,
    until,
)
from tests.conformance.twin import digests

Open = Callable[..., Any]
TABLE = config(dim=30, rows=4000)
PLAN = Plan(("a",), lookahead=64)
SHORT_MS = 150
"""A lease that runs out while a test waits."""


@pytest.fixture
def twin(open_twin: Open) -> Any:
    made, rng = open_twin(cache_bytes=256 << 10), generator(601)
    made.create_table("a", **TABLE)
    for part in np.split(np.arange(4000), 4):
        made.on("a", "assign", part, normal(rng, 1000, 30))
    return made


def steps_of(count: int, ranks: int = 1, seed: int = 602) -> list[Step]:
    """Return steps of twenty random keys for each rank."""
    rng = np.random.default_rng(seed)
    tables = {"a": TABLE}
    return [
        step_of(rng, n, [{"a": rng.permutation(4000)[:20]} for _ in range(ranks)], tables)
        for n in range(1, count + 1)
    ]


def join_again(store: Any, plan: Plan, rank: int = 0, **options: Any) -> Any:
    """Open and join as soon as the lease of whoever was there has run out."""

    def joined() -> Any:
        try:
            facts = plan.open(store, **options)
            return facts, store.sessions.join(plan.name, rank).member
        except (TableHeldError, SessionExpiredError):
            return None

    return until(joined)


def test_member_that_stays_away_loses_its_pins_and_keeps_its_place(twin: Any) -> None:
    store, steps = twin.store, steps_of(80)
    PLAN.open(store, lease_ms=SHORT_MS)
    member = store.sessions.join("run", 0).member
    store.sessions.announce(member, {s.number: s.keys[0] for s in steps[:40]})
    done = 0
    for step in steps[:3]:
        try:
            finish(store, member, step)
        except SessionExpiredError:  # on a slow machine, before its first step
            break
        apply_step(twin.reference, step)
        done += 1
    until(lambda: not store.sessions.facts() and not pinned_rows(store))
    with pytest.raises(SessionExpiredError):
        store.sessions.renew(member)
    assert_nothing_pinned(store, "a")
    facts, member = join_again(store, PLAN)
    assert facts.last_step == done
    answers = expect(twin.reference, steps[done:])
    store.sessions.close(member)
    train(store, PLAN, steps[done:], answers)


def test_renewed_lease_goes_on(twin: Any) -> None:
    """Every call of a member renews; the oldest lease is the time since."""
    store = twin.store
    PLAN.open(store, lease_ms=60_000)
    member = store.sessions.join("run", 0).member
    until(lambda: facts_of(store)["oldest_lease_s"] > 0.01)
    renewed = store.sessions.renew(member)
    assert (renewed.name, renewed.last_step, renewed.lease_ms) == ("run", 0, 60_000)
    store.sessions.close(member)


def test_rank_that_never_joins_is_named(twin: Any) -> None:
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


@pytest.mark.parametrize("how", ["stalls", "dies"])
def test_rank_that_does_not_send_is_named_to_the_others(twin: Any, how: str) -> None:
    """Rank 1 looks its rows up and is not heard of again."""
    store, plan = twin.store, Plan(("a",), ranks=2)
    steps = steps_of(6, 2)
    for step in steps[:3]:
        apply_step(twin.reference, step)
    times = {"rank_timeout_ms": 100} if how == "stalls" else {"rank_timeout_ms": 60_000}
    lease = {"lease_ms": 60_000 if how == "stalls" else 300}
    plan.open(store, **times, **lease)
    ranks = [_Joined(store, rank) for rank in (0, 1)]
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda rank: rank.train(steps[:3]), ranks))
    for step in steps[3:5]:
        for rank in ranks:
            rank.announce(step)
    stop = threading.Event()

    def renew() -> None:
        while not stop.wait(0.03):
            try:
                store.sessions.renew(ranks[0].member)
            except (RankFailedError, SessionExpiredError):
                return

    with ThreadPoolExecutor(1) as pool:
        renewing = pool.submit(renew)
        try:
            with pytest.raises(RankFailedError, match="rank 1"):
                finish(store, ranks[0].member, steps[3], 0)
        finally:
            stop.set()
        renewing.result()
    with pytest.raises((RankFailedError, SessionExpiredError)):
        store.sessions.lookup_step(ranks[0].member, 5, timeout_s=PATIENCE_S)
    for rank in ranks:
        store.sessions.close(rank.member)
    assert digests(store) == digests(twin.reference)
    assert plan.open(store).last_step == 3
    train(store, plan, steps[3:], expect(twin.reference, steps[3:]))


class _Joined:
    """A rank of a session that somebody has opened."""

    def __init__(self, store: Any, rank: int) -> None:
        self.store, self.rank = store, rank
        self.member = store.sessions.join("run", rank).member

    def announce(self, step: Step) -> None:
        self.store.sessions.announce(self.member, {step.number: step.keys[self.rank]})

    def train(self, steps: list[Step]) -> None:
        for step in steps:
            self.announce(step)
            self.store.sessions.lookup_step(self.member, step.number, timeout_s=PATIENCE_S)
            finish(self.store, self.member, step, self.rank)


def test_steps_announced_and_not_begun_are_dropped_by_closing(twin: Any) -> None:
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


def resident_bytes() -> int:
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


@pytest.mark.slow
@pytest.mark.needs("process")
@pytest.mark.parametrize("is_dropped", [True, False], ids=["dropped", "closed"])
def test_a_thousand_openings_leak_nothing(twin: Any, is_dropped: bool) -> None:
    """Each opening announces 16 steps and finishes one; then its member is heard of no more."""
    store, steps = twin.store, steps_of(1100)
    lease = {"lease_ms": 3 if is_dropped else 10_000}

    def rounds(low: int, high: int) -> None:
        done = low
        while done < high:
            facts, member = join_again(store, PLAN, **lease)
            assert facts.last_step == done
            try:
                ahead = steps[done : done + 16]
                store.sessions.announce(member, {s.number: s.keys[0] for s in ahead})
                finish(store, member, steps[done])
            except SessionExpiredError:  # the lease ran out before the step was sent
                continue
            apply_step(twin.reference, steps[done])
            done += 1
            if not is_dropped:
                store.sessions.close(member)

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
    facts, member = join_again(store, PLAN)
    assert facts.last_step == 1060
    store.sessions.close(member)


@pytest.mark.needs("process")
def test_closing_the_store_ends_a_session_and_its_threads(open_twin: Open) -> None:
    before = threading.active_count(), descriptors()
    twin = open_twin()
    twin.create_table("a", **TABLE)
    rank = Rank(twin.store, PLAN, 0)
    steps = steps_of(30)
    rank.announce(steps)
    rank.train(steps[:4], expect(twin.reference, steps[:4]))
    twin.store.close()
    assert (threading.active_count(), descriptors()) == before
    twin.reopen()


# Places


def trained(twin: Any, steps: list[Step], plan: Plan = PLAN) -> None:
    """Train both."""
    train(twin.store, plan, steps, expect(twin.reference, steps))


def test_place_after_closing_and_opening_the_session(twin: Any) -> None:
    steps = steps_of(12)
    for low, high in ((0, 1), (1, 5), (5, 12)):
        assert PLAN.open(twin.store).last_step == low
        trained(twin, steps[low:high])
    assert PLAN.open(twin.store).last_step == 12


def test_place_after_closing_and_opening_the_store(twin: Any) -> None:
    steps = steps_of(12)
    trained(twin, steps[:5])
    twin.reopen()
    assert PLAN.open(twin.store).last_step == 5
    trained(twin, steps[5:])
    twin.reopen(cache_bytes=1 << 20, policy="lfu")
    assert PLAN.open(twin.store).last_step == 12


def test_place_of_a_session_that_was_open_when_the_store_was_closed(twin: Any) -> None:
    steps = steps_of(9)
    rank = Rank(twin.store, PLAN, 0)
    rank.announce(steps)
    rank.train(steps[:4], expect(twin.reference, steps[:4]))
    twin.reopen()
    with pytest.raises(SessionExpiredError):
        twin.store.sessions.renew(rank.member)
    trained(twin, steps[4:])


@pytest.mark.parametrize("verb", ["release", "skip"])
def test_steps_that_change_no_row_move_the_place_too(twin: Any, verb: str) -> None:
    rng = generator(604)
    steps = [step_of(rng, n, [{"a": [n]}], {"a": TABLE}, verb=verb) for n in (1, 2)]
    trained(twin, steps)
    twin.reopen()
    assert PLAN.open(twin.store).last_step == 2


@pytest.mark.needs("directory", "merges")
def test_place_after_a_kill_is_that_of_the_last_commit(twin: Any) -> None:
    """A copy of the files as they are is what a killed process leaves."""
    steps = steps_of(12)
    trained(twin, steps[:3])
    twin.checkpoint("three")
    trained(twin, steps[3:7])
    twin.crash()
    assert PLAN.open(twin.store).last_step == 3
    trained(twin, steps[3:])
    twin.checkpoint("twelve")
    twin.crash()
    assert PLAN.open(twin.store).last_step == 12


def test_restored_checkpoint_has_its_place(twin: Any) -> None:
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


def test_forgotten_place(twin: Any) -> None:
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


def test_places_of_several_sessions(open_twin: Open) -> None:
    twin = open_twin()
    for name in "ab":
        twin.create_table(name, **TABLE)
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
