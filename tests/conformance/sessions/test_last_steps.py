"""Ranks with unequal numbers of steps: one that has no more is waited for no more."""

import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from embstore.errors import InvalidArgumentError, RankFailedError, TableHeldError
from tests.conformance.cases import config, generator, refused
from tests.conformance.sessions.training import (
    PATIENCE_S,
    Plan,
    Rank,
    await_planned,
    facts_of,
    step_of,
    until,
)

TABLE = config(dim=6, rows=300)
PLAN = Plan(("a",), ranks=2, lookahead=16)
LONG = 600_000


@pytest.fixture
def twin(open_twin):
    return open_twin(a=TABLE)


@pytest.fixture
def ranks(twin):
    PLAN.open(twin.store)
    return [Rank(twin.store, PLAN, rank) for rank in range(2)]


def steps_of(counts, seed=641):
    """Return the keys and gradients of each rank: {step: (keys, gradients)}."""
    rng = generator(seed)
    return [
        {
            n: (rng.permutation(300)[:20], rng.standard_normal((20, 6)).astype(np.float32))
            for n in range(1, count + 1)
        }
        for count in counts
    ]


def announce(store, rank, steps, **options):
    keys = {number: {"a": of[0]} for number, of in steps.items()}
    return store.sessions.announce(rank.member, keys, **options)


def update(store, rank, number, steps):
    gradients = {"a": steps[number][1]}
    return store.sessions.update_step(rank.member, number, gradients, timeout_s=PATIENCE_S)


def apply(twin, number, *steps):
    twin.reference.update_ranks([{"a": of[number]} for of in steps])


def test_a_rank_goes_on_alone(twin, ranks):
    store, (first, second) = twin.store, ranks
    mine, others = steps_of([2, 6])
    assert announce(store, second, others).ranks_at_work == 2
    assert announce(store, first, mine, is_last=True).ranks_at_work == 1
    with ThreadPoolExecutor(2) as pool:
        for number in (1, 2):
            both = [
                pool.submit(update, store, rank, number, of)
                for rank, of in ((first, mine), (second, others))
            ]
            assert both[0].result().command == both[1].result().command
            apply(twin, number, mine, others)
    await_planned(store, 6)
    for number in (3, 4, 5, 6):
        rows = store.sessions.lookup_step(second.member, number)["a"]
        np.testing.assert_array_equal(rows, twin.reference.lookup({"a": others[number][0]})["a"])
        update(store, second, number, others)
        apply(twin, number, others)
    facts = facts_of(store)
    assert facts["lookup_hits"] == facts["lookup_keys"]
    assert announce(store, second, {}, is_last=True).ranks_at_work == 0
    for rank in ranks:
        rank.close()
    assert PLAN.open(store).last_step == 6


@pytest.mark.parametrize("has_left", [False, True])
def test_a_step_that_waited_for_the_rank_is_finished(twin, ranks, has_left):
    """The other has sent its share before."""
    store, (first, second) = twin.store, ranks
    _, others = steps_of([0, 1])
    announce(store, second, others)
    with ThreadPoolExecutor(1) as pool:
        sent = pool.submit(update, store, second, 1, others)
        if has_left:
            announce(store, first, {}, is_last=True)
            first.close()
        else:
            until(lambda: sent.running())
            announce(store, first, {}, is_last=True)
        assert sent.result(PATIENCE_S).t == {"a": 1}
    apply(twin, 1, others)


def test_nothing_comes_after_the_last_step(twin, ranks):
    store, (first, second) = twin.store, ranks
    mine, others = steps_of([3, 3])
    announce(store, first, {1: mine[1]}, is_last=True)
    with refused(store, InvalidArgumentError, "rank 0", "step 1 as its last"):
        announce(store, first, {2: mine[2]})
    announce(store, first, {1: mine[1]}, is_last=True)  # sent again
    announce(store, first, {1: mine[1]})
    store.sessions.join("run", 0, member=first.member)
    with refused(store, InvalidArgumentError, "step 1 as its last"):
        announce(store, first, {2: mine[2]})
    announce(store, second, others)
    for rank in ranks:
        store.sessions.close(rank.member)
    PLAN.open(store)
    again = Rank(store, PLAN, 0)
    assert announce(store, again, {1: mine[1]}).announced_step == 1


ROUNDS = [[(0, 5)], [(5, 0)], [(3, 7), (4, 4), (0, 2)], [(2, 2), (2, 2), (3, 1)]]


@pytest.mark.parametrize("rounds", ROUNDS)
def test_runs_end_together(twin, rounds):
    """Each rank goes through its own batches, then joins; and does so again, by the same name. The
    sums are those of who took part."""
    steps = [steps_of(counts, seed=sum(counts)) for counts in rounds]
    ends = [[], []]

    def train(rank):
        for of_round in steps:
            opened = twin.store.session(
                ["a"],
                name="run",
                rank=rank,
                world_size=2,
                rank_timeout_ms=LONG,
                lease_ms=LONG,
                resume=False,
            )
            with opened as run:
                for step in run.steps(of_round[rank].values(), keys=lambda of: {"a": of[0]}):
                    step.lookup()
                    step.update({"a": step.batch[1]})
                run.join()
                ends[rank].append(run.last_step)

    threads = [threading.Thread(target=train, args=(rank,)) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
    lasts = np.cumsum([max(counts) for counts in rounds]).tolist()
    assert ends == [lasts, lasts]
    for of_round in steps:
        for number in range(1, max(map(len, of_round)) + 1):
            apply(twin, number, *(of for of in of_round if number in of))


@pytest.mark.parametrize("has_joined", [False, True])
def test_waiting_for_a_rank_that_does_not_come_ends(twin, has_joined):
    """It has never joined, or has left with steps to come."""
    how = {"name": "run", "world_size": 2, "lease_ms": LONG}
    with (
        pytest.raises(RankFailedError, match="rank 1 is missing"),
        twin.store.session(["a"], rank=0, rank_timeout_ms=200, **how) as run,
    ):
        if has_joined:
            twin.store.sessions.close(twin.store.sessions.join("run", 1).member)
        run.join()


def test_a_rank_that_has_ended_is_nobody_elses(twin, ranks):
    announce(twin.store, ranks[0], {}, is_last=True)
    with refused(twin.store, TableHeldError, "rank 0 has ended its steps"):
        twin.store.sessions.join("run", 0)
    assert announce(twin.store, ranks[0], {}, is_last=True).ranks_at_work == 1


def test_a_rank_that_has_ended_comes_back_as_such_while_others_are_at_work(twin, ranks):
    """As where one of several shards was started again."""
    announce(twin.store, ranks[0], {}, is_last=True)
    ranks[0].close()
    again = twin.store.sessions.join("run", 0).member
    assert twin.store.sessions.announce(again, {}, is_last=True).ranks_at_work == 1
    with refused(twin.store, InvalidArgumentError, "step 0 as its last"):
        twin.store.sessions.announce(again, {1: {"a": [1]}})
    announce(twin.store, ranks[1], {}, is_last=True)
    twin.store.sessions.close(again)
    with refused(twin.store, TableHeldError, "rank 0 has ended its steps"):
        twin.store.sessions.join("run", 0)


def test_a_rank_cannot_join_within_its_loop(twin):
    with twin.store.session(["a"]) as run:
        for _ in run.steps([[1], [2]], keys=lambda keys: {"a": keys}):
            with pytest.raises(InvalidArgumentError, match="finished all its steps"):
                run.join()
        run.join()
    twin.reference.command_number += 2


def test_step_of_nobody(twin, ranks):
    """The rank that is left skips and releases as it likes."""
    store, (first, second) = twin.store, ranks
    rng = generator(642)
    step = step_of(rng, 1, [{"a": [1, 2]}], {"a": TABLE})
    store.sessions.announce(second.member, {1: step.keys[0], 2: step.keys[0]})
    announce(store, first, {}, is_last=True)
    assert store.sessions.skip_step(second.member, 1).skipped
    store.sessions.release_step(second.member, 2)
    twin.reference.command_number += 2
