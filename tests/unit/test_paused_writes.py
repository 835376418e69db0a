"""Writes that are paused: nothing is applied after the answer, over restarts, until it is over."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from embstore import commands as c
from embstore.config import Adagrad
from embstore.errors import DeadlineError, InvalidArgumentError, WritesPausedError
from embstore.handles.store import Store
from embstore_client.barrier import pause_all
from tests.clusters import Cluster, table

DIM, ROWS = 4, 20_000
TABLE = table(Adagrad(0.5), ROWS)
KEYS = np.arange(0, ROWS, 100)
ONES = np.ones((len(KEYS), DIM), np.float32)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    made = Cluster(tmp_path, 2)
    made.store().create_table("a", **TABLE)
    yield made
    made.close()


def alone(cluster: Cluster, number: int = 0) -> Store:
    return Store(cluster.engines[number])


def t_of(cluster: Cluster) -> list[int]:
    return [engine.execute(c.GetTable("a")).t for engine in cluster.shards()]


WRITES = {
    "update": lambda s: s.table("a").update(KEYS, ONES),
    "assign": lambda s: s.table("a").assign(KEYS, ONES),
    "create": lambda s: s.create_table("b", **TABLE),
    "drop": lambda s: s.drop_table("a"),
    "grow": lambda s: s.table("a").grow(2 * ROWS),
    "rate": lambda s: setattr(s.table("a"), "learning_rate", 0.25),
    "restore": lambda s: s.restore("kept"),
}


@pytest.mark.parametrize("write", WRITES)
def test_what_writes_is_refused_and_the_rest_goes_on(cluster, write):
    shard = alone(cluster)
    shard.table("a").update(KEYS, ONES)
    shard.checkpoint("kept")
    before = shard.table("a").digest(), shard.command
    boundary = shard.pause_writes("mover")
    assert [(one.config.name, one.t) for one in boundary.tables] == [("a", 1)]
    assert (boundary.command, boundary.next_table_id, boundary.places) == (shard.command, 1, ())
    with pytest.raises(WritesPausedError, match="mover has paused them; send the call again"):
        WRITES[write](shard)
    assert (shard.table("a").digest(), shard.command) == before
    assert shard.lookup({"a": KEYS})["a"].shape == ONES.shape
    shard.checkpoint("meanwhile")
    assert shard.pause_writes("mover") == boundary
    shard.resume_writes("mover")
    WRITES[write](shard)
    assert shard.command == before[1] + 1


def test_nothing_is_applied_after_the_answer(cluster):
    shard, ended = alone(cluster), threading.Event()

    def write() -> int:
        count = 0
        while not ended.is_set():
            try:
                alone(cluster).table("a").update(KEYS, ONES)
            except WritesPausedError:
                continue
            count += 1
        return count

    with ThreadPoolExecutor(2) as pool:
        writers = [pool.submit(write) for _ in range(2)]
        for _ in range(20):
            found = shard.pause_writes("mover")
            assert [shard.command for _ in range(20)] == [found.command] * 20
            shard.resume_writes("mover")
            while shard.command == found.command:
                pass
        ended.set()
        assert sum(one.result() for one in writers) == shard.table("a").t


@pytest.mark.parametrize("is_killed", [True, False])
def test_a_pause_outlives_the_process(cluster, is_killed):
    alone(cluster).table("a").update(KEYS, ONES)
    alone(cluster).pause_writes("mover")
    if is_killed:
        cluster.kill(0)
    else:
        cluster.engines.pop(0).close()
    cluster.open(0)
    assert alone(cluster).table("a").t == 1
    with pytest.raises(WritesPausedError, match="mover"):
        alone(cluster).table("a").update(KEYS, ONES)
    cluster.kill(0)
    cluster.open(0, replace(cluster.map, version=2))  # what was decided meanwhile
    alone(cluster).table("a").update(KEYS, ONES)


def test_only_a_paused_shard_takes_a_map_that_moves_partitions(cluster):
    shard, owners = alone(cluster), cluster.map.owners
    moved = replace(cluster.map, version=2, owners=(1 - owners[0], *owners[1:]))
    with pytest.raises(InvalidArgumentError, match="only addresses may change"):
        shard.set_shard_map(moved)
    shard.pause_writes("mover")
    shard.set_shard_map(moved)
    shard.table("a").update(KEYS, ONES)
    assert shard.server_info().shard_map == moved


def test_a_step_that_waits_for_ranks_is_not_applied(cluster):
    """It is refused to all who have sent it, and stays open for another try."""
    shard = alone(cluster)
    sessions = shard.sessions
    sessions.open("s", ["a"], world_size=2)
    members = [sessions.join("s", rank).member for rank in range(2)]
    for member in members:
        sessions.announce(member, {1: {"a": KEYS}})

    def send(member: str) -> Any:
        return sessions.update_step(member, 1, {"a": ONES})

    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(send, members[0])
        engine: Any = cluster.engines[0]
        while not engine.sessions._registry.sessions["s"].steps[1].sent:
            pass
        boundary = shard.pause_writes("mover")
        with pytest.raises(WritesPausedError):
            send(members[1])
        with pytest.raises(WritesPausedError):
            first.result()
        assert (t_of(cluster)[0], boundary.places) == (0, ())
        shard.resume_writes("mover")
        done = list(pool.map(send, members))
    assert [one.t for one in done] == [{"a": 1}] * 2
    assert [(p.session, p.step) for p in shard.pause_writes("mover").places] == [("s", 1)]


def test_clients_wait_until_writes_are_taken(cluster):
    """Shard 0 has its part of the update, which is not sent to it again."""
    store = cluster.store()
    alone(cluster, 1).pause_writes("mover")
    with ThreadPoolExecutor(1) as pool:
        update = pool.submit(store.table("a").update, KEYS, ONES)
        while t_of(cluster) != [1, 0]:
            assert not update.done()
        alone(cluster, 1).resume_writes("mover")
        assert update.result().t == 1
    assert t_of(cluster) == [1, 1]


def test_shards_that_stay_apart_are_let_go_on(cluster):
    alone(cluster).table("a").update(KEYS, ONES)
    pauses: list[float] = []
    with pytest.raises(DeadlineError, match="between them in all 3 tries"):
        pause_all(cluster.shards(), "mover", tries=3, wait=pauses.append)
    assert len(pauses) > 3  # some of them for the one that is behind
    assert [engine.shard.paused_by for engine in cluster.shards() if engine.shard] == ["", ""]


def test_a_store_of_all_shards_pauses_all(cluster):
    store = cluster.store(timeout_s=0.05)
    store.table("a").update(KEYS, ONES)
    assert store.pause_writes("operator").tables[0].t == 1
    with pytest.raises(WritesPausedError, match="operator"):
        store.table("a").update(KEYS, ONES)
    store.resume_writes()
    store.table("a").update(KEYS, ONES)
    assert t_of(cluster) == [2, 2]
