"""The router: what it splits and joins, and what it does where shards part."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from embstore import arithmetic
from embstore.arithmetic import partitions
from embstore.config import Sgd
from embstore.engine import digests
from embstore.engine.stats import CacheStats, PoolStats, StoreStats, TableStats
from embstore.errors import (
    CheckpointNotFoundError,
    EmbstoreError,
    InvalidArgumentError,
    OutcomeUnknownError,
)
from embstore.handles.store import Store
from embstore.sharding import PARTITIONS, ShardMap
from embstore.stages import StageStats
from embstore.stats import declared
from embstore.storage.stats import StorageStats
from embstore_client.shards import stats as merged_stats
from embstore_client.shards.split import Owners
from tests.clusters import table
from tests.conformance.sharded import Sharded

DIM, ROWS, SEED = 4, 40_000, 20_261_126
TABLE = table(Sgd(0.5), ROWS)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    backend = Sharded(tmp_path)
    store = backend.open_store()
    store.create_table("a", **TABLE)
    yield store
    backend.close()


def shards_of(store: Store) -> list[Store]:
    """Return the store of each shard."""
    return [Store(engine) for engine in store.executor.shards]  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", ["numpy", "compiled"])
@pytest.mark.parametrize("count", [1, 3, 1024])
@pytest.mark.parametrize("key_space", ["dense", "sparse"])
def test_every_key_is_at_the_owner_of_its_partition(name, count, key_space):
    shard_map = ShardMap.even("c", [f"host:{n + 1}" for n in range(count)])
    low, high = (0, 1 << 40) if key_space == "dense" else (-(1 << 63), 1 << 63)
    keys = np.random.default_rng(SEED).integers(low, high, 5000)
    with arithmetic.force(name):
        split = Owners(shard_map).split(7, keys, key_space)
    found = np.full(len(keys), -1)
    for shard in range(count):
        assert (np.diff(split.of(shard)) > 0).all()
        assert len(split.of(shard)) == split.count(shard)
        found[split.of(shard)] = shard
    assert found.tolist() == [shard_map.owners[p] for p in partitions(7, keys, key_space)]


def test_a_map_is_about_even_and_a_table_too():
    shard_map = ShardMap.even("c", [str(n) for n in range(7)])
    assert max(map(shard_map.owners.count, range(7))) <= PARTITIONS // 7 + 1
    split = Owners(shard_map).split(7, np.arange(1 << 20), "dense")
    shares = np.array([split.count(shard) for shard in range(7)]) / (1 << 20)
    assert shares.min() > 0.12 < 0.17 > shares.max()


def test_leaves_go_on_behind_a_block_that_is_not_the_shard_s_own(store):
    """Of a partition that comes or went: a page of which nothing was left was taken for the end."""
    router, named = store.executor, store.table("a")
    first_keys = np.arange(0, ROWS, 256)
    owners = router.owners.of(partitions(named.seed, first_keys, "dense"))
    low, high = first_keys[owners == owners[5]][[0, -1]]
    named.assign([high], np.ones((1, DIM), np.float32))
    other = shards_of(store)[(owners[5] + 1) % 3]
    other.table("a").assign([low], np.ones((1, DIM), np.float32))
    assert [block for block, _ in named.leaves()] == [high // 256]


def test_a_map_is_what_its_text_says():
    shard_map = ShardMap.even("c", ["one:1", "two:2"])
    assert ShardMap.from_json(shard_map.to_json()) == shard_map
    for text in ("", "[]", "{}", shard_map.to_json().replace('"version": 1', '"version": 0')):
        with pytest.raises(InvalidArgumentError, match=r"shard map|JSON"):
            ShardMap.from_json(text)
    with pytest.raises(InvalidArgumentError, match="1 to 1024 shards"):
        ShardMap.even("c", [])


def test_a_digest_is_made_of_pages(store, monkeypatch):
    keys = np.random.default_rng(SEED).permutation(ROWS)[: ROWS // 8]
    table = store.table("a")
    table.update(keys, np.ones((len(keys), DIM), np.float32))
    whole, leaves = table.digest(), list(table.leaves())
    assert len(leaves) > 100
    monkeypatch.setattr(digests, "LEAVES_MAX", 7)
    assert table.digest() == whole
    assert list(table.leaves()) == leaves


def test_a_digest_that_is_overtaken_begins_again(store, monkeypatch):
    table = store.table("a")
    table.update(np.arange(ROWS), np.ones((ROWS, DIM), np.float32))
    monkeypatch.setattr(digests, "LEAVES_MAX", 7)
    first, writes = store.executor.shards[0], 0  # type: ignore[attr-defined]
    execute = first.execute

    def overtaken(command: Any, **how: Any) -> Any:
        nonlocal writes
        if type(command).__name__ == "GetLeaves" and command.low and writes:
            writes -= 1
            table.update([0], np.ones((1, DIM), np.float32))
        return execute(command, **how)

    monkeypatch.setattr(first, "execute", overtaken)
    writes = 2
    found = table.digest()
    assert (writes, found) == (0, table.digest())
    writes = 1000
    with pytest.raises(OutcomeUnknownError, match="call again when nothing trains it"):
        table.digest()


def test_leaves_and_scans_are_of_one_t(store, monkeypatch):
    """One shard has heard an update that the others have not."""
    table = store.table("a")
    table.update(np.arange(ROWS), np.ones((ROWS, DIM), np.float32))
    leaves, rows = list(table.leaves()), sum(len(keys) for keys, _ in table.scan())
    assert rows == ROWS
    alone = shards_of(store)
    alone[2].table("a").update([], np.empty((0, DIM), np.float32))
    with pytest.raises(OutcomeUnknownError, match="a scan is opened over shards: call again"):
        table.scan()
    assert [one.stats()["scans"]["scans_open"] for one in alone] == [0, 0, 0]
    with pytest.raises(OutcomeUnknownError, match="call again when nothing trains it"):
        list(table.leaves())
    for shard in alone[:2]:
        shard.table("a").update([], np.empty((0, DIM), np.float32))
    assert len(list(table.leaves())) == len(leaves)


def test_stats_of_a_cluster_are_sums_and_rates_of_sums(store):
    table, keys = store.table("a"), np.arange(0, ROWS, 2)
    table.update(keys, np.ones((len(keys), DIM), np.float32))
    table.lookup(keys)
    table.lookup(keys + 1)
    found = store.stats()
    shards = found["shards"]
    assert len(shards) == 3
    of_table = found["tables"]["a"]
    assert of_table["resident_rows"] == 2 * len(keys)
    assert of_table["lookup_keys"] == 2 * len(keys)
    assert of_table["hit_rate"] == 0.5
    assert of_table["row_bytes"] == shards[0]["tables"]["a"]["row_bytes"]
    assert table.stats() == of_table
    assert found["cache"]["memory_bytes"] == sum(one["cache"]["memory_bytes"] for one in shards)
    assert found["cache"]["access_hit_rate"] == found["cache"]["unique_hit_rate"] == 0.5
    (pool,) = found["cache"]["pools"]
    assert (pool["unique_keys"], pool["unique_hits"]) == (2 * len(keys), len(keys))
    assert pool["slots"] == sum(one["cache"]["pools"][0]["slots"] for one in shards)
    assert pool["occupancy"] == pool["resident_rows"] / pool["slots"]
    assert found["command"] == shards[0]["command"]


def test_a_table_may_be_called_as_a_stat_is(store):
    names = "hit_rate", "split", "seconds"
    for name in names:
        store.create_table(name, **table(Sgd(0.1), ROWS)).lookup(np.arange(ROWS))
    found = store.stats()["tables"]
    assert [found[name]["lookup_keys"] for name in names] == [ROWS] * len(names)


def test_what_adds_is_declared_so():
    """Counters add, and amounts do; what is of one row, one file or one moment does not, nor an
    update, which all shards skip or none."""
    parts = (TableStats, PoolStats, CacheStats, StorageStats, StageStats)
    names: dict[str, set[str]] = {}
    for stat in (stat for part in parts for stat in declared(part)):
        names.setdefault(stat.kind, set()).add(stat.name)
    assert names["counter"] & merged_stats.ALIKE == {"skipped_updates"}
    rest = {"rows", "dim", "learning_rate", "t", "row_bytes", "commit"}
    assert names["gauge"] & merged_stats.ALIKE == rest
    assert names["counter"] | names["gauge"] >= merged_stats.ALIKE
    assert names["ratio"] == merged_stats.RATES.keys()
    assert {*merged_stats.PARTS} <= {stat.name for stat in declared(StoreStats)}


def test_rows_that_are_not_their_shards_count_for_nothing(store):
    alone = shards_of(store)
    table, router = store.table("a"), store.executor
    table.update(np.arange(ROWS), np.ones((ROWS, DIM), np.float32))
    mine = router.split_keys("a", None, np.arange(ROWS)).of(0)  # type: ignore[attr-defined]
    before = table.digest()
    alone[1].table("a").assign(mine[:1], np.ones((1, DIM), np.float32))
    assert table.digest() == before


def test_a_label_that_not_all_shards_have_is_none(store):
    table, (first, *others) = store.table("a"), shards_of(store)
    store.checkpoint("whole")
    for shard in others:
        shard.checkpoint("part")
    assert [one.label for one in store.checkpoints()] == ["whole"]
    table.update([1], np.ones((1, DIM), np.float32))
    with pytest.raises(CheckpointNotFoundError, match="'part'"):
        store.restore("part")
    assert (table.t, [shard.table("a").t for shard in others]) == (1, [1, 1])
    first.table("a").update([], np.empty((0, DIM), np.float32))
    with pytest.raises(EmbstoreError, match="the cluster has no such checkpoint"):
        store.checkpoint("apart")
    assert [one.label for one in store.checkpoints()] == ["whole"]
    with pytest.raises(CheckpointNotFoundError, match="no checkpoint 'apart'"):
        store.restore("apart")
    store.restore("whole")
    assert [shard.table("a").t for shard in shards_of(store)] == [0, 0, 0]


def test_gradients_of_a_key_are_added_in_the_order_of_the_call(store):
    table = store.table("a")
    before = table.lookup([5])
    gradients = np.array([1e8, 1.0, -1e8, 3.0], np.float32)  # 1e8 + 1.0 is 1e8
    table.update([5] * 4, np.repeat(gradients[:, None], DIM, axis=1))
    assert np.array_equal(table.lookup([5]), before - np.float32(0.5 * 3.0))


@pytest.mark.parametrize("value", [3e19, np.nan])
@pytest.mark.parametrize("world_size", [1, 2])
def test_a_share_that_rule_9_refuses_at_one_shard_skips_the_step_at_all(store, world_size, value):
    sessions, keys = store.sessions, np.arange(2000)
    sessions.open("s", ["a"], world_size=world_size)
    members = [sessions.join("s", rank).member for rank in range(world_size)]
    for member in members:
        sessions.announce(member, {1: {"a": keys}, 2: {"a": keys}})
    good = np.ones((2000, DIM), np.float32)
    bad = good.copy()
    bad[5, 1] = value
    given = [good, bad][-world_size:]
    before = store.table("a").digest()
    with pytest.raises(InvalidArgumentError, match="key 5;"):
        sessions.update_step(members[-1], 1, {"a": bad})

    def send(rank: int) -> Any:
        part = {"a": given[rank]}
        return sessions.update_step(members[rank], 1, part, on_nonfinite="skip")

    with ThreadPoolExecutor(world_size) as pool:
        assert [done.skipped for done in pool.map(send, range(world_size))] == [True] * world_size
    assert store.table("a").digest() == before
    assert [shard.table("a").t for shard in shards_of(store)] == [0, 0, 0]
