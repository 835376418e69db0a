"""A rank that has gone through its batches: it waits beside its program, and may go."""

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import embstore
from embstore.errors import LeaseExpiredError, RankFailedError, SessionExpiredError
from embstore.handles.store import Store
from embstore_client.frameworks.steps import Announced, Ranks, Steps
from tests.conformance.sessions.training import engine_of

TABLE: dict[str, Any] = {
    "dim": 2,
    "rows": 9,
    "optimizer": embstore.Sgd(0.5),
    "initializer": embstore.Constant(1.0),
}
KEYS = np.array([1, 2])
PATIENCE_S = 60.0


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with embstore.open(tmp_path, device="cpu") as opened:
        opened.create_table("a", **TABLE)
        yield opened


def train(
    steps: Steps, store: Store, rank: int, count: int, between: Callable[[int], object]
) -> None:
    """Train on so many batches, as a framework's module of two ranks does."""
    batches = (Announced(number, {"a": KEYS}) for number in range(1, count + 1))
    for step, announced in steps.ahead(store, ["a"], batches, ranks=Ranks(rank, 2), name="run"):
        between(announced.batch)
        step.rows({"a": KEYS})
        step.update({"a": (KEYS, np.ones((2, 2), np.float32))})


def test_a_loop_ends_before_those_of_other_ranks_and_its_place_is_that_of_all(store):
    first, second = Steps("forget"), Steps("forget")
    has_left = threading.Event()

    def wait_for_the_first(number: int) -> None:
        if number == 4:
            assert has_left.wait(PATIENCE_S)

    other = threading.Thread(target=train, args=(second, store, 1, 5, wait_for_the_first))
    other.start()
    train(first, store, 0, 3, lambda number: None)
    assert first.last_step == 3
    has_left.set()
    first.synchronize()
    assert first.last_step == store.table("a").t == 5
    second.wait_for_ranks()
    other.join(PATIENCE_S)
    assert second.last_step == 5
    np.testing.assert_array_equal(
        store.table("a").lookup([1])[0], np.full(2, 1 - 0.5 * (3 * 2 + 2), np.float32)
    )
    assert store.sessions.stats() == []


def test_what_became_of_the_other_ranks_is_told_where_they_are_waited_for(store):
    steps = Steps("forget")
    never = {"ranks": Ranks(0, 2), "name": "run", "rank_timeout_ms": 100}
    assert list(steps.ahead(store, ["a"], [], **never)) == []
    with pytest.raises(RankFailedError, match="rank 1 is missing"):
        steps.wait_for_ranks()
    steps.wait_for_ranks()  # it is told once


# At the store


@pytest.fixture
def members(store: Store) -> list[str]:
    """Return two ranks, of which the first has no more steps."""
    store.sessions.open("run", ["a"], world_size=2)
    members = [store.sessions.join("run", rank).member for rank in range(2)]
    store.sessions.announce(members[0], {}, is_last=True)
    return members


def finish_alone(store: Store, member: str) -> None:
    store.sessions.announce(member, {1: {"a": KEYS}})
    done = store.sessions.update_step(member, 1, {"a": np.ones((2, 2), np.float32)})
    assert done.t == {"a": 1}


def test_a_rank_without_more_steps_may_fall_silent(store, members):
    sessions = engine_of(store).sessions
    with sessions._planner.changed:
        sessions._registry.sessions["run"].ranks[0].deadline = 0.0
    sessions.expire()
    finish_alone(store, members[1])
    with pytest.raises(LeaseExpiredError, match="rank 0 has left it"):
        store.sessions.renew(members[0])
    store.sessions.join("run", 0, member=members[0])  # as its loop does then
    assert store.sessions.renew(members[0]).last_step == 1
    for member in members:
        store.sessions.close(member)
    assert store.sessions.stats() == []


def test_the_process_of_a_rank_without_more_steps_may_end(store, members):
    sessions = engine_of(store).sessions
    for rank, process in ((0, 10), (1, 11)):
        for _ in range(2):
            sessions.used_by(members[rank], process)
    sessions.process_ended(10)
    finish_alone(store, members[1])
    store.sessions.announce(members[1], {2: {"a": KEYS}})
    sessions.process_ended(11)
    with pytest.raises(RankFailedError, match="rank 1 is lost: its process, 11, has ended"):
        store.sessions.renew(members[1])


def test_the_silence_of_the_last_rank_ends_the_session(store, members):
    store.sessions.announce(members[1], {}, is_last=True)
    store.sessions.close(members[1])
    sessions = engine_of(store).sessions
    with sessions._planner.changed:
        sessions._registry.sessions["run"].ranks[0].deadline = 0.0
    sessions.expire()
    assert sessions.names() == []
    with pytest.raises(SessionExpiredError, match="was closed"):
        store.sessions.renew(members[0])


def test_who_waits_for_a_rank_that_has_left_is_told_so(store):
    store.sessions.open("run", ["a"], world_size=2, rank_timeout_ms=100)
    left, member = (store.sessions.join("run", rank).member for rank in range(2))
    store.sessions.close(left)
    store.sessions.announce(member, {1: {"a": KEYS}})
    message = r"rank 0 kept step 1 waiting for more than 0\.1 s; rank 0 has left it .*run\.join"
    with pytest.raises(RankFailedError, match=message):
        store.sessions.lookup_step(member, 1)
