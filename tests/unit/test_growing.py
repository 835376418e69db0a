"""A cluster that grows and shrinks while clients read and write: one digest, nothing lost."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import embstore
from embstore import commands as c
from embstore.commands import PartOf
from embstore.config import Adam, Sgd
from embstore.errors import (
    CheckpointNotFoundError,
    DeadlineError,
    EmbstoreError,
    InvalidArgumentError,
    MovedError,
    SessionExpiredError,
    WritesPausedError,
)
from embstore.handles.store import Store
from embstore.sharding import PARTITIONS, ShardMap
from embstore_client.moving import move, resolve
from embstore_client.shards.router import Router
from tests.clusters import Cluster, Watched, table
from tests.service.faults.served import PATIENCE_S

DIM, ROWS, SEED = 4, 40_000, 20_261_126
TABLE = table(Adam(0.5), ROWS)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    made = Cluster(tmp_path / "cluster", 2)
    yield made
    made.close()


def batch(number: int) -> tuple[Any, Any]:
    rng = np.random.default_rng(SEED + number)
    return rng.integers(0, ROWS, 500), rng.normal(size=(500, DIM)).astype(np.float32)


@pytest.mark.parametrize("counts", [(2, 3), (3, 2), (1, 7), (7, 1), (5, 5)])
def test_as_few_partitions_move_as_can_be(counts):
    first, then = counts
    before = ShardMap.even("c", [str(n) for n in range(first)])
    if then > first:
        before = before.joined_by([str(n) for n in range(first, then)])
    after = before.evened(then)
    sizes = [after.owners.count(shard) for shard in range(then)]
    assert sum(sizes) == PARTITIONS and max(sizes) - min(sizes) <= 1
    moved = sum(a != b for a, b in zip(before.owners, after.owners, strict=True))
    has = [before.owners.count(shard) for shard in range(len(before.shards))]
    assert moved == sum(max(h - a, 0) for h, a in zip(has, [*sizes, *[0] * 9], strict=False))
    assert after.version == before.version + 1
    if then < first:
        assert len(after.left_by(first - then).shards) == then
        with pytest.raises(InvalidArgumentError, match="owners in"):
            before.left_by(first - then)


def test_readers_go_on_while_partitions_move(cluster):
    still = cluster.store().create_table("still", **{**TABLE, "optimizer": Sgd(1.0)})
    keys, rows = np.arange(0, ROWS, 7), np.random.default_rng(SEED).normal(size=(5715, DIM))
    still.assign(keys, rows.astype(np.float32))
    counts, ended = [0], threading.Event()

    def read() -> None:
        table = cluster.store().table("still")
        while not ended.is_set():
            assert (table.lookup(keys) == rows.astype(np.float32)).all()
            counts[0] += 1

    with ThreadPoolExecutor(1) as pool:
        reader = pool.submit(read)
        for _ in range(2):
            for change in (
                lambda: cluster.add(1),
                lambda: cluster.even(3, few_rows=0),
                lambda: cluster.even(2),
                lambda: cluster.remove(1),
            ):
                before = counts[0]
                change()
                while counts[0] < before + 2 and not reader.done():
                    pass
        ended.set()
        reader.result()
    for engine in cluster.shards():
        assert engine.execute(c.CheckIntegrity()) == ""


# What fails


class StopError(Exception):
    """Whoever moves partitions ends here."""


def fill(store: Store) -> Any:
    """Make a table with rows; return its digest."""
    table = store.create_table("a", **TABLE)
    for number in range(4):
        table.update(*batch(number))
    return table.digest()


def goes_on(store: Store) -> None:
    """See that an update is applied once."""
    t = store.table("a").t
    assert store.table("a").update(*batch(99)).t == t + 1


def stop(*_: Any) -> None:
    raise StopError


def stopping(what: str) -> Any:
    """Return what stops when that is told."""

    def report(done: str, rows: int) -> None:
        if what in done:
            raise StopError

    return report


@pytest.mark.parametrize("what", ["is copied", "writes are paused", "leaves are compared"])
def test_what_fails_half_way_leaves_the_map_before(cluster, what):
    store = cluster.store()
    before = fill(store)
    cluster.add(1)
    old = cluster.map
    with pytest.raises(StopError):
        cluster.even(3, report=stopping(what))
    assert cluster.map == old
    assert [engine.shard.shard_map for engine in cluster.shards() if engine.shard] == [old] * 3
    assert store.table("a").digest() == before
    assert store.checkpoints() == []
    goes_on(store)
    cluster.even(3)  # and what was copied is overwritten
    goes_on(cluster.store(timeout_s=1))
    one_digest(cluster, [0, 1, 2, 3, 99, 99])


def one_digest(cluster: Cluster, batches: list[int]) -> None:
    """See that the digest is that of one store with these updates."""
    with embstore.open(cluster.root / "alone", device="cpu") as alone:
        table = alone.create_table("a", **TABLE)
        for number in batches:
            table.update(*batch(number))
        assert cluster.store().table("a").digest() == table.digest()


def test_a_join_that_fails_leaves_the_map_before(cluster):
    store = cluster.store()
    fill(store)
    old = cluster.map
    record = cluster.record
    cluster.record = stop  # type: ignore[method-assign, assignment]
    with pytest.raises(StopError):
        cluster.add(1)
    assert cluster.map == old
    with pytest.raises(WritesPausedError):
        cluster.store(timeout_s=0.01).table("a").update(*batch(4))
    resolve(cluster.shards(), cluster.map)  # whoever comes next finds the old map recorded
    goes_on(store)
    cluster.engines.pop(2).close()
    cluster.record = record  # type: ignore[method-assign]
    cluster.add(1)  # into the same directory
    cluster.even(3)
    goes_on(store)
    one_digest(cluster, [0, 1, 2, 3, 99, 99])


@pytest.mark.parametrize("is_recorded", [False, True])
@pytest.mark.parametrize("killed", [(), (0,), (1, 2), (0, 1, 2)])
def test_what_is_recorded_is_resolved(cluster, is_recorded, killed):
    """The mover is killed as it records the map, before or after, and so are shards."""
    store = cluster.store()
    fill(store)
    cluster.add(1)
    record = cluster.record

    def recorded(shard_map: ShardMap) -> None:
        if is_recorded:
            record(shard_map)
        raise StopError

    cluster.record = recorded  # type: ignore[method-assign]
    with pytest.raises(StopError):
        cluster.even(3)
    for number in killed:
        cluster.kill(number)
        cluster.open(number)  # with the map that is recorded
    resolve(cluster.shards(), cluster.map)
    resolve(cluster.shards(), cluster.map)
    goes_on(cluster.store())
    one_digest(cluster, [0, 1, 2, 3, 99])
    maps = {engine.shard.shard_map for engine in cluster.shards() if engine.shard}
    assert maps == {cluster.map}
    assert cluster.map.version == 2 + is_recorded


def test_shards_that_are_behind_are_waited_for(cluster):
    """The map is recorded, one shard has it, and a client sends an update by it."""
    store = cluster.store()
    fill(store)
    cluster.add(1)
    record = cluster.record

    def recorded(shard_map: ShardMap) -> None:
        record(shard_map)
        cluster.engines[0].execute(c.SetShardMap(shard_map))
        raise StopError

    cluster.record = recorded  # type: ignore[method-assign]
    with pytest.raises(StopError):
        cluster.even(3)
    with ThreadPoolExecutor(1) as pool:
        update = pool.submit(lambda: store.table("a").update(*batch(99)))
        while store.executor.shard_map != cluster.map:  # type: ignore[attr-defined]
            assert not update.done()
        resolve(cluster.shards(), cluster.map)
        assert update.result().t == 5
    one_digest(cluster, [0, 1, 2, 3, 99])


def test_rows_that_differ_are_not_moved(cluster):
    """A row that only the stale copy has, as nothing of this project makes it."""
    store = cluster.store()
    fill(store)
    cluster.add(1)
    after, key = cluster.map.evened(3), 17
    router: Any = store.executor
    seed = store.table("a").config.seed
    used = {int(k) for number in range(4) for k in batch(number)[0]}
    key = next(
        k
        for k in range(ROWS)
        if k not in used
        and after.owners[int(embstore.arithmetic.partitions(seed, np.array([k]), "dense")[0])] == 2
    )
    rows = np.ones((1, DIM), np.float32)
    part = c.TableKeys("a", None, np.array([key]))
    put = c.PutRows(part, rows, np.zeros((1, 2 * DIM), np.float32), 0, moved=True)
    before = store.table("a").digest()

    def report(what: str, rows: int) -> None:
        if what == "leaves are computed":
            cluster.engines[2].execute(put)

    with pytest.raises(EmbstoreError, match="the same digest at its new owner"):
        cluster.even(3, report=report)
    assert store.table("a").digest() == before
    goes_on(store)
    assert router.shard_map == cluster.map


def test_rows_that_are_deleted_while_partitions_move(cluster):
    """In each round, and while the partitions were at another shard than now."""
    store = cluster.store()
    fill(store)
    cluster.add(1)
    told = []

    def report(what: str, rows: int) -> None:
        if what == "leaves are computed":
            told.append(store.table("a").delete(np.arange(0, ROWS, 3)).rows)

    cluster.even(3, report=report)
    told.append(store.table("a").delete(np.arange(1, ROWS, 3)).rows)
    cluster.even(2)
    with embstore.open(cluster.root / "alone", device="cpu") as alone:
        table = alone.create_table("a", **TABLE)
        for number in range(4):
            table.update(*batch(number))
        assert told == [table.delete(np.arange(first, ROWS, 3)).rows for first in (0, 1)]
        assert cluster.store().table("a").digest() == table.digest()
        assert told[0] > 0


def test_rows_of_a_shards_own_partitions_are_not_moved_there(cluster):
    store = cluster.store()
    before = fill(store)
    keys, rows = np.arange(3000), np.ones((3000, DIM), np.float32)
    state = np.zeros((3000, 2 * DIM), np.float32)
    put = c.PutRows(c.TableKeys("a", None, keys), rows, state, 0, moved=True)
    delete = c.DeleteRows(c.TableKeys("a", None, keys), moved=True)
    for executor in (*cluster.shards(), store.executor):
        for command in (put, delete):
            with pytest.raises(InvalidArgumentError):
                executor.execute(command)
    assert store.table("a").digest() == before


def test_labels_of_before_are_not_restored_nor_backed_up(cluster, tmp_path):
    store = cluster.store()
    before = fill(store)
    store.checkpoint("before")
    cluster.add(1)
    with pytest.raises(CheckpointNotFoundError):
        store.restore("before")
    cluster.even(3)
    cluster.even(2)
    cluster.remove(1)
    with pytest.raises(CheckpointNotFoundError, match="before partitions were moved"):
        store.restore("before")
    with pytest.raises(CheckpointNotFoundError, match="before partitions were moved"):
        store.backup(str(tmp_path / "backup"), label="before")
    assert store.table("a").digest() == before
    store.checkpoint("after")
    store.backup(str(tmp_path / "backup"), label="after")
    goes_on(store)
    store.restore("after")
    assert store.table("a").digest() == before
    cluster.add(1)
    cluster.even(3)
    assert store.table("a").digest() == before


def test_a_call_by_another_map_is_refused_and_has_done_nothing(cluster):
    store = cluster.store()
    fill(store)
    shard = cluster.engines[0]
    old = cluster.map.version
    addresses = replace(cluster.map, version=old + 1)
    shard.execute(c.SetShardMap(addresses))
    update = c.SetLearningRate("a", None, 0.25)
    shard.execute(update, part_of=PartOf(old))  # it is split alike
    shard.execute(update, part_of=PartOf(old + 1))
    with pytest.raises(MovedError, match="split by version 3"):
        shard.execute(update, part_of=PartOf(old + 2))
    cluster.engines[1].execute(update)
    cluster.engines[1].execute(c.SetShardMap(addresses))
    cluster.map = addresses
    cluster.add(1)
    command = Store(shard).command
    for refused in (
        update,
        c.GetTable("a"),
        c.GetLeaves("a"),
        c.OpenSession("s", ("a",)),
        c.JoinSession("s", 0),
    ):
        with pytest.raises(MovedError, match="take the newest map"):
            shard.execute(refused, part_of=PartOf(old))
    assert Store(shard).command == command


def test_sessions_end_with_their_map(cluster):
    store = cluster.store()
    fill(store)
    store.sessions.open("s", ["a"])
    member = store.sessions.join("s", 0).member
    store.sessions.announce(member, {1: {"a": np.arange(9)}})
    cluster.add(1)
    with pytest.raises(SessionExpiredError, match="another map of the cluster"):
        store.sessions.update_step(member, 1, {"a": np.ones((9, DIM), np.float32)})
    assert store.table("a").t == 4
    epoch = store.epoch
    cluster.even(3)
    assert store.epoch == epoch


def test_a_run_goes_on_behind_a_shard_that_left_while_it_computed(tmp_path):
    cluster = Cluster(tmp_path, 3)
    store = cluster.store()
    fill(store)
    following: Any = store.executor
    has_left, ends = threading.Event(), threading.Event()

    def answers(_: Any) -> None:
        if has_left.is_set():
            assert ends.wait(PATIENCE_S), "it was waited for"
            raise DeadlineError("it does not answer")

    left = Watched(cluster.engines[2], answers)
    following.router.shards = (*following.router.shards[:2], left)
    with store.session(["a"], lookahead=1) as run:
        for step in run.steps([1, 2, 3], keys=lambda number: {"a": np.arange(9) + number}):
            step.lookup()
            if step.number == 2:
                cluster.even(2)
                cluster.remove(1)
                has_left.set()
            step.update({"a": np.ones((9, DIM), np.float32)})
    assert store.table("a").t == 7
    ends.set()
    cluster.close()


def test_an_update_that_is_half_applied_is_completed_before_partitions_move(cluster):
    """Two clients write one table: each has its update on other shards when writes are paused, and
    as many updates are everywhere."""
    fill(cluster.store())
    cluster.add(1)
    goes, shards = threading.Event(), cluster.shards()

    def waits(command: Any) -> None:
        if isinstance(command, c.Update):
            goes.wait()

    def sees(command: Any) -> None:
        if isinstance(command, c.PauseWrites) and command.until is not None:
            goes.set()

    clients = [
        Store(
            Router(
                [Watched(s, waits) if n in late else s for n, s in enumerate(shards)], cluster.map
            )
        )
        for late in ({1}, {0, 2})
    ]
    tables = [client.table("a") for client in clients]
    with ThreadPoolExecutor(2) as pool:
        updates = [pool.submit(table.update, *batch(99)) for table in tables]
        try:
            while [shard.execute(c.GetTable("a")).t for shard in shards] != [5, 5, 5]:
                pass
            watched = [Watched(s, sees) for s in shards]
            move(watched, cluster.map, cluster.map.evened(3), cluster.record, by="the test")
        finally:
            goes.set()
        for update in updates:
            assert update.result().t in (5, 6)
    assert [shard.execute(c.GetTable("a")).t for shard in shards] == [6, 6, 6]
    goes_on(cluster.store())
