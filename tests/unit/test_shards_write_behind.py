"""`waits="none"` over shards: what the trainer has is compared by each shard, and rows that come
from shards at different steps are each as of its own."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from embstore import commands as c
from embstore.config import Adagrad
from embstore.errors import ReplicaMismatchError, SessionExpiredError
from embstore.handles.store import Store
from tests.clusters import table
from tests.conformance.backends import Embedded
from tests.conformance.meeting import Meeting
from tests.conformance.sharded import Sharded
from tests.unit.test_shards_parting import counts, shards_of

DIM, ROWS, STEPS, WRONG_STEP = 4, 40_000, 9, 6
TABLE = table(Adagrad(0.5), ROWS)
WAIT_S = 60


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    backend = Sharded(tmp_path / "cluster")
    store = backend.open_store()
    store.create_table("a", **TABLE)
    yield store
    backend.close()


@pytest.fixture
def single(tmp_path: Path) -> Iterator[Store]:
    """Return one store, to compare with."""
    backend = Embedded(tmp_path / "single")
    store = backend.open_store()
    store.create_table("a", **TABLE)
    yield store
    backend.close()


def keys_of(step: int, rank: int = 0) -> Any:
    """Return a step's keys: half of them are those of the step before."""
    return np.arange(0, ROWS - 1000, 200) + 50 * (step // 2) + 7 * rank


def train(store: Store, *, wrong_at: int | None = None) -> None:
    """Train on; at one step a row that this shard has is wrong at the trainer."""
    router: Any = store.executor
    with store.session(["a"], waits="none", name="run") as run:
        steps = range(run.last_step + 1, STEPS + 1)
        for step in run.steps(steps, keys=lambda step: {"a": keys_of(step)}):
            rows = step.lookup()["a"]
            if wrong_at is not None and step.number == WRONG_STEP:
                seed = store.table("a").config.seed
                (place, *_) = router.owners.split(seed, keys_of(WRONG_STEP), "dense").of(wrong_at)
                flight = run._exchange._rows._tables["a"].rows
                flight._weights[step._entry.flight.placed["a"].slots[place], 1] += np.float32(1e-3)
            step.update({"a": rows + np.float32(step.number)})


@pytest.mark.parametrize("wrong_at", [0, 1, 2])
def test_a_wrong_row_is_found_by_its_shard_and_a_checkpoint_mends_it(store, single, wrong_at):
    train(single)
    store.checkpoint("begin")
    with pytest.raises(ReplicaMismatchError, match="restore a checkpoint of the cluster"):
        train(store, wrong_at=wrong_at)
    found = counts(store)
    assert found.pop(wrong_at) == WRONG_STEP - 1, "its gradients are not applied"
    assert min(found) >= WRONG_STEP, "the others have nothing to refuse"
    with pytest.raises(SessionExpiredError, match="restore a checkpoint of the cluster"):
        train(store)
    store.restore("begin")
    train(store)
    assert store.table("a").digest() == single.table("a").digest()


def test_the_sum_of_all_rows_alone_is_compared_by_nobody(store):
    """Which part of it is whose no shard can tell."""
    sessions = store.sessions
    sessions.open("s", ["a"], waits="none")
    member = sessions.join("s", 0).member
    sessions.announce(member, {1: {"a": keys_of(1)}})
    ones = np.ones((len(keys_of(1)), DIM), np.float32)
    assert sessions.update_step(member, 1, {"a": ones}, rows_checksum=1).t == {"a": 1}


def test_rows_are_as_of_the_step_that_their_shard_is_at(store):
    sessions, keys = store.sessions, keys_of(1)
    sessions.open("s", ["a"], world_size=2, waits="none")
    members = [sessions.join("s", rank).member for rank in range(2)]
    for member in members:
        sessions.announce(member, {1: {"a": keys}, 2: {"a": keys}})
    router: Any = store.executor
    split = router.owners.split(store.table("a").config.seed, keys, "dense")
    ahead = shards_of(store)[1]
    ones = np.ones((split.count(1), DIM), np.float32)
    with ThreadPoolExecutor(2) as pool:
        command = [c.UpdateStep(member, 1, (c.StepGradients("a", ones),)) for member in members]
        assert [done.t for done in pool.map(ahead.execute, command)] == [{"a": 1}] * 2
    positions = np.arange(len(keys))
    records = sessions.read_step(members[0], 2, {"a": positions})
    found = {step: own["a"] for step, own in records.by_last_step()}
    np.testing.assert_array_equal(found[1], split.of(1))
    np.testing.assert_array_equal(np.sort(np.concatenate([found[0], found[1]])), positions)
    assert records.last_step == 0


def train_ranks(store: Store, ranks: int, largest: float) -> None:
    meeting = Meeting(ranks)

    def of(rank: int) -> None:
        with store.session(
            ["a"],
            waits="none",
            name="ranks",
            rank=rank,
            world_size=ranks,
            all_gather=meeting.of(rank),
        ) as run:
            loader = range(1, STEPS + 1)
            for step in run.steps(loader, keys=lambda step: {"a": keys_of(step, rank)}):
                gradients = step.lookup()["a"] + np.float32(1)
                if step.number == WRONG_STEP:
                    gradients[3, 1] = largest
                step.update({"a": gradients}, on_nonfinite="skip")

    with ThreadPoolExecutor(ranks) as pool:
        for future in [pool.submit(of, rank) for rank in range(ranks)]:
            future.result(WAIT_S)


@pytest.mark.parametrize("largest", [1e17, 6e18, 3e19, np.inf])
def test_ranks_that_have_met_know_what_is_finite(store, single, largest):
    """Also where no shard could tell: a step is applied on all of them, or on none."""
    for one in (single, store):
        train_ranks(one, 2, largest)
    t = single.table("a").t
    assert counts(store) == [t] * 3
    assert t == STEPS - (largest > 1e19)
    assert store.table("a").digest() == single.table("a").digest()
