"""What would leave the shards of a cluster apart: tables made anew, interrupts, half a step."""

import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from embstore import commands as c
from embstore.config import Adagrad, TableConfig
from embstore.errors import (
    DeadlineError,
    InvalidArgumentError,
    SessionExpiredError,
    StoreClosedError,
    TableHeldError,
    TableNotFoundError,
)
from embstore.handles.store import Store
from embstore_client.shards.router import Router
from tests.clusters import Watched, table
from tests.conformance.sharded import Sharded

DIM, ROWS = 4, 40_000
TABLE = table(Adagrad(0.5), ROWS)
KEYS = np.arange(0, ROWS, 100)
ONES = np.ones((len(KEYS), DIM), np.float32)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    backend = Sharded(tmp_path)
    store = backend.open_store()
    store.create_table("a", **TABLE)
    yield store
    backend.close()


def other_client(store: Store) -> Store:
    """Return another store of the same shards."""
    router: Any = store.executor
    return Store(Router(router.shards, router.shard_map))


def shards_of(store: Store) -> list[Any]:
    router: Any = store.executor
    return list(router.shards)


def counts(store: Store) -> list[int]:
    """Return t of the table on each shard."""
    return [shard.execute(c.GetTable("a")).t for shard in shards_of(store)]


def made_anew(store: Store) -> None:
    store.drop_table("a")
    store.create_table("a", **TABLE, seed=2)


def update_by_name(store: Store) -> None:
    store.update({"a": (KEYS, ONES)})


def assign_by_name(store: Store) -> None:
    store.executor.execute(c.Assign(c.TableKeys("a", None, KEYS), ONES))


def train_a_step(store: Store) -> None:
    with store.session(["a"]) as run:
        for step in run.steps([1], keys=lambda _: {"a": KEYS}):
            step.update({"a": np.ones_like(step.lookup()["a"])})


@pytest.mark.parametrize("write", [update_by_name, assign_by_name, train_a_step])
def test_a_table_made_anew_with_another_seed_is_split_anew(store, write):
    """By another client than the one that writes, and by a restore."""
    other = other_client(store)
    write(other)
    store.checkpoint("first")
    made_anew(store)
    write(other)
    assert store.table("a").digest() == other.table("a").digest()
    store.restore("first")
    write(store)
    assert store.table("a").digest() == other.table("a").digest()


def test_growth_that_not_every_shard_has_heard_of_is_none(store):
    grown = np.arange(ROWS, ROWS + 5000, 100)
    shards_of(store)[0].execute(c.GrowTable("a", None, 2 * ROWS))
    with pytest.raises(InvalidArgumentError, match="expected keys in"):
        store.table("a").update(grown, np.ones((len(grown), DIM), np.float32))
    assert counts(store) == [0, 0, 0]


def test_a_table_that_one_shard_lacks_is_written_at_most_once(store):
    checked = TableConfig.checked("b", **TABLE)
    shards_of(store)[0].execute(c.CreateTable(checked))
    with pytest.raises(TableNotFoundError):
        store.update({"b": (KEYS, ONES)})
    assert shards_of(store)[0].execute(c.GetTable("b")).t <= 1


def test_an_interrupt_lets_nothing_overtake_what_is_out(store):
    router: Any = store.executor
    has_come, goes = threading.Event(), threading.Event()

    def wait(command: Any) -> None:
        if isinstance(command, c.Update):
            has_come.set()
            goes.wait()

    router.shards = (router.shards[0], Watched(router.shards[1], wait), router.shards[2])

    def interrupt() -> None:
        has_come.wait()
        signal.raise_signal(signal.SIGINT)
        goes.set()

    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        store.table("a").update(KEYS, ONES)
    thread.join()
    assert counts(store) == [1, 1, 1]


def test_the_rest_of_a_step_is_its_senders(store):
    """Another trainer would skip on one shard what another has applied."""
    sessions, shards = store.sessions, shards_of(store)
    sessions.open("s", ["a"])
    member = sessions.join("s", 0).member
    sessions.announce(member, {1: {"a": KEYS}})
    for shard in shards[1:]:
        shard.execute(c.SkipStep(member, 1))
    for shard in shards:
        shard.execute(c.CloseSession(member))
    other = other_client(store).sessions
    other.open("s", ["a"])
    again = other.join("s", 0)
    assert again.last_step == 0
    other.announce(again.member, {1: {"a": KEYS}})
    for send in (other.skip_step, other.release_step, other.lookup_step):
        with pytest.raises(SessionExpiredError, match="restore a checkpoint of the cluster"):
            send(again.member, 1)
        again = other.join("s", 0) if send is other.lookup_step else rejoined(other)


class StartedAgain:
    """A shard that is started again, as far as its clients can tell, before a call of each of some
    kinds, one after the other."""

    def __init__(self, shard: Any, before: list[type]) -> None:
        self._shard, self._before, self._starts = shard, before, 1

    def __getattr__(self, name: str) -> Any:
        return getattr(self._shard, name)

    def execute(self, command: Any, **how: Any) -> Any:
        if self._before and isinstance(command, self._before[0]):
            del self._before[0]
            self._starts += 1
            self._shard.execute(c.EndSession("run"))
        found = self._shard.execute(command, **how)
        is_info = isinstance(command, c.GetServerInfo)
        return replace(found, process=str(self._starts)) if is_info else found


@pytest.mark.parametrize("again_before", [c.Announce, c.RenewLease, c.JoinSession, c.OpenSession])
def test_the_rest_is_sent_also_where_coming_back_takes_several_tries(store, again_before):
    router: Any = store.executor
    shard = StartedAgain(router.shards[0], [c.UpdateStep, again_before])
    router.shards = (shard, *router.shards[1:])
    with store.session(["a"], name="run") as run:
        for step in run.steps([1, 2], keys=lambda _: {"a": KEYS}):
            step.update({"a": np.ones_like(step.lookup()["a"])})
    assert shard._before == []
    assert counts(store) == [2, 2, 2]


def test_a_step_that_one_shard_has_applied_is_not_skipped_on_the_others(store):
    """It answers no updates, and is then started again before a step is skipped."""
    sessions = store.sessions
    router: Any = store.executor
    first, restarts = router.shards[0], [None]

    def unreached(command: Any) -> None:
        if isinstance(command, c.UpdateStep):
            raise DeadlineError("it does not answer")
        if isinstance(command, c.SkipStep) and restarts:
            restarts.pop()
            first.execute(c.EndSession("s"))

    router.shards = (Watched(first, unreached), *router.shards[1:])
    sessions.open("s", ["a"])
    member = sessions.join("s", 0).member
    sessions.announce(member, {1: {"a": KEYS}})
    with pytest.raises(DeadlineError):
        sessions.update_step(member, 1, {"a": ONES})
    with pytest.raises(SessionExpiredError):
        sessions.skip_step(member, 1)
    member = rejoined(sessions).member
    with pytest.raises(SessionExpiredError, match="restore a checkpoint of the cluster"):
        sessions.skip_step(member, 1)
    assert counts(store) == [0, 1, 1]


def test_a_lookup_by_a_name_that_was_given_up_is_told_so(store):
    """So it is repeated by the next name; that nothing was announced would end the run."""
    sessions = store.sessions
    sessions.open("s", ["a"])
    member = sessions.join("s", 0).member
    sessions.announce(member, {1: {"a": KEYS}})
    shards_of(store)[1].execute(c.CloseSession(member))
    with pytest.raises(SessionExpiredError):
        sessions.announce(member, {2: {"a": KEYS}})
    for _ in range(2):
        with pytest.raises(SessionExpiredError, match="joins again"):
            sessions.lookup_step(member, 1)


def rejoined(sessions: Any) -> Any:
    """Join again, as a trainer does whose member has left."""
    sessions.open("s", ["a"])
    again = sessions.join("s", 0)
    sessions.announce(again.member, {1: {"a": KEYS}})
    return again


def test_a_join_that_one_shard_refuses_leaves_the_others_free(store):
    sessions, shards = store.sessions, shards_of(store)
    sessions.open("s", ["a"])
    shards[1].execute(c.JoinSession("s", 0, "another client's"))
    router = store.executor
    with pytest.raises(TableHeldError):
        router.execute(c.JoinSession("s", 0))
    shards[1].execute(c.CloseSession("another client's"))
    sessions.open("s", ["a"])
    assert router.execute(c.JoinSession("s", 0)).last_step == 0


def test_a_member_that_joined_elsewhere_is_judged_by_its_ranks(store):
    sessions, other = store.sessions, other_client(store).sessions
    sessions.open("s", ["a"])
    member = sessions.join("s", 0).member
    other.announce(member, {1: {"a": KEYS}})
    with pytest.raises(InvalidArgumentError, match="finite"):
        other.update_step(member, 1, {"a": 1e9 * ONES}, gradient_scale=1e30)
    assert counts(store) == [0, 0, 0]
    assert other.update_step(member, 1, {"a": 1e15 * ONES}).t == {"a": 1}


def test_a_step_that_others_announced_is_not_waited_for(store):
    sessions, other = store.sessions, other_client(store).sessions
    sessions.open("s", ["a"])
    member = sessions.join("s", 0).member
    sessions.announce(member, {1: {"a": KEYS}, 2: {"a": KEYS}})
    assert other.prefetch_step(member, 2) is None


def test_more_ranks_than_any_pool_has_threads_wait_for_one_another(store):
    ranks = 40
    sessions = store.sessions
    sessions.open("s", ["a"], world_size=ranks)
    members = [sessions.join("s", rank).member for rank in range(ranks)]
    for member in members:
        sessions.announce(member, {1: {"a": KEYS[:10]}})
    gradients = {"a": ONES[:10]}
    with ThreadPoolExecutor(ranks) as pool:
        sent = [pool.submit(sessions.update_step, member, 1, gradients) for member in members]
        assert [done.result().t for done in sent] == [{"a": 1}] * ranks


def test_an_output_that_is_wrong_leaves_the_others_as_they_were(store):
    store.create_table("b", **TABLE)
    sessions = store.sessions
    sessions.open("s", ["a", "b"])
    member = sessions.join("s", 0).member
    sessions.announce(member, {1: {"a": KEYS, "b": KEYS}})
    good, wrong = np.zeros_like(ONES), np.zeros((1, DIM), np.float32)
    with pytest.raises(InvalidArgumentError):
        sessions.lookup_step(member, 1, out={"a": good, "b": wrong})
    assert not good.any()


def test_a_cluster_that_closes_says_so_to_calls(store):
    table = store.table("a")
    store.close()
    with pytest.raises(StoreClosedError):
        table.update(KEYS, ONES)
