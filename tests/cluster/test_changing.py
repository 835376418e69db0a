"""A coordinator that has shards join, move partitions and leave; real servers, and no Ray."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from embstore.config import Adam, Uniform
from embstore.errors import WritesPausedError
from embstore.handles.store import Store
from embstore_client import connect
from embstore_client.barrier import pause_all
from embstore_client.connecting import connect_one
from embstore_cluster.coordinator import Coordinator, kept_plan
from embstore_cluster.plan import Plan
from tests.service.faults.served import until
from tests.service.test_shards import PATIENCE_S, Shards
from tests.serving import free_addresses

DIM, ROWS = 4, 20_000
KEYS = np.arange(0, ROWS, 3)
GRADIENTS = np.random.default_rng(7).normal(size=(len(KEYS), DIM)).astype(np.float32)
TABLE: dict[str, Any] = {
    "dim": DIM,
    "rows": ROWS,
    "optimizer": Adam(0.1),
    "initializer": Uniform(-1, 1),
}


@pytest.fixture
def shards(tmp_path: Path) -> Iterator[Shards]:
    made = Shards(tmp_path, 2)
    with made.running:
        for shard in range(2):
            made.serve(shard)
        yield made


@pytest.fixture
def plan(shards: Shards, tmp_path: Path) -> Plan:
    return Plan("a", str(tmp_path / "data"), shards.map, ("x:1", "x:2"), ("n", "n"), life="first")


@pytest.fixture
def store(shards: Shards) -> Iterator[Store]:
    with connect(shards.map.shards[0], timeout_s=PATIENCE_S, transport="grpc") as store:
        store.create_table("t", **TABLE).update(KEYS, GRADIENTS)
        yield store


def changed(coordinator: Coordinator, count: int) -> Plan:
    """Have so many shards; return the plan when that is done."""
    coordinator.change(count, {})
    return ended(coordinator)


def ended(coordinator: Coordinator) -> Plan:
    until(lambda: not coordinator.progress()[0])
    assert coordinator.progress()[1].error == ""
    return coordinator.plan()


def test_shards_join_and_leave(shards: Shards, plan: Plan, store: Store) -> None:
    coordinator, digest = Coordinator(plan), store.table("t").digest()
    more = replace(shards.map.joined_by(free_addresses(1)), version=1)
    joining = replace(plan, shard_map=more, admins=("x:1", "x:2", "x:3"), nodes=("n",) * 3)
    assert coordinator.joining(joining) == coordinator.starting(2) == joining
    assert Coordinator(plan).joining(None) == joining  # as Ray starts it again
    shards.serve(2, more)
    grown = changed(coordinator, 3)
    assert (grown.shard_map.version, grown.shard_map.shards) == (3, more.shards)
    assert [grown.shard_map.owners.count(n) for n in range(3)] == [342, 341, 341]
    assert kept_plan(plan.data) == coordinator.starting(2) == grown
    assert store.table("t").digest() == digest
    assert [one.label for one in store.checkpoints()] == ["embstore-map/3"]
    store.table("t").update(KEYS, GRADIENTS)
    digest = store.table("t").digest()
    left = changed(coordinator, 2)
    assert (left.shard_map.version, left.nodes, left.admins) == (5, plan.nodes, plan.admins)
    assert left.shard_map.shards == plan.shard_map.shards
    assert store.table("t").digest() == digest
    assert store.table("t").update(KEYS, GRADIENTS).t == 3


def test_a_coordinator_that_died_has_writes_go_on(shards: Shards, plan: Plan, store: Store) -> None:
    coordinator = Coordinator(plan)
    coordinator._kept.is_changing = True  # it dies with that in its file, and writes are paused
    coordinator._write()
    alone = [connect_one(address, transport="grpc") for address in shards.map.shards]
    pause_all([one.executor for one in alone], "the coordinator that died")
    with pytest.raises(WritesPausedError, match="the coordinator that died"):
        alone[0].table("t").update(KEYS, GRADIENTS)
    ended(Coordinator(plan))
    store.table("t").update(KEYS, GRADIENTS)
    for one in alone:
        one.close()


def test_what_fails_is_said_and_leaves_the_map(shards: Shards, plan: Plan, store: Store) -> None:
    coordinator, digest = Coordinator(plan), store.table("t").digest()
    coordinator.change(3, {})  # the third has not been started
    until(lambda: not coordinator.progress()[0])
    assert "expected 1 to 2 shards" in coordinator.progress()[1].error
    assert coordinator.plan() == kept_plan(plan.data) == plan
    store.table("t").assign(KEYS[:0], GRADIENTS[:0])
    assert store.table("t").digest() == digest
