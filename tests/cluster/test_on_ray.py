"""A cluster on a real Ray: what dies comes back, at its address, with its rows and its map.

One Ray, started by the command line, serves all: starting it takes most of the time.
"""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import embstore
from embstore.config import Adam, Uniform
from embstore.handles.store import Store
from embstore.sharding import PARTITIONS
from embstore_client import connect
from embstore_client.connecting import connect_one

ray = pytest.importorskip("ray", reason="needs the extra 'ray': make test-cluster")

from embstore_cluster import clusters  # noqa: E402
from embstore_cluster.plan import NAMESPACE, coordinator_of  # noqa: E402
from tests.cluster.running import PATIENCE_S, embstore_command, plan_of, running  # noqa: E402

KEYS = np.arange(0, 5000, 3)
GRADIENTS = np.random.default_rng(7).normal(size=(len(KEYS), 4)).astype(np.float32)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with running(tmp_path_factory.mktemp("cluster") / "data", "--shards", "2") as data:
        yield data


def shards_of(data: Path) -> list[dict[str, Any]]:
    return clusters.status(data=data)["shards"]


def connected(data: Path) -> Store:
    address = plan_of(data).shard_map.shards[1]
    return connect(address, timeout_s=PATIENCE_S, connect_timeout_s=PATIENCE_S)


def train(store: Store) -> str:
    """Make a table anew, train it, and return its digest."""
    if "t" in store.tables():
        store.drop_table("t")
    table = store.create_table(
        "t", dim=4, rows=5000, optimizer=Adam(0.1), initializer=Uniform(-1, 1), seed=5
    )
    table.update(KEYS, GRADIENTS)
    return table.digest()


def ends(pid: int) -> Callable[[], None]:
    return lambda: os.kill(pid, signal.SIGKILL)


@pytest.fixture(scope="module")
def digest(tmp_path_factory: pytest.TempPathFactory) -> str:
    """What one store has after the same commands."""
    with embstore.open(tmp_path_factory.mktemp("one"), device="cpu") as store:
        return train(store)


def test_one_command_starts_a_cluster(data: Path, digest: str) -> None:
    with connected(data) as store:
        assert train(store) == digest
    found = embstore_command("status", "--data", str(data))
    assert [shard["ready"] for shard in found["shards"]] == [True, True]
    assert sum(shard["partitions"] for shard in found["shards"]) == PARTITIONS
    assert sum(shard["rows_resident"] for shard in found["shards"]) == len(KEYS)
    assert [shard["tables"] for shard in found["shards"]] == [1, 1]


def test_a_killed_server_comes_back_with_what_it_had(data: Path, digest: str) -> None:
    with connected(data) as store:
        assert train(store) == digest
        before = shards_of(data)
        os.kill(before[0]["pid"], signal.SIGKILL)
        table = store.table("t")
        table.update(KEYS[:5], GRADIENTS[:5])  # waits, and is applied once
        assert table.t == 2
    after = shards_of(data)
    assert [a["restarts"] - b["restarts"] for a, b in zip(after, before, strict=True)] == [1, 0]
    assert [s["address"] for s in after] == [s["address"] for s in before]
    assert after[0]["pid"] != before[0]["pid"]


def test_a_killed_actor_comes_back_and_its_server_ends_with_it(data: Path, digest: str) -> None:
    with connected(data) as store:
        assert train(store) == digest
        before = shards_of(data)
        server = before[1]["pid"]
        actor = int(Path(f"/proc/{server}/stat").read_text().rpartition(")")[2].split()[1])
        os.kill(actor, signal.SIGKILL)
        assert store.table("t").digest() == digest
    after = shards_of(data)
    assert after[1]["ready"]
    assert after[1]["pid"] != server
    assert not Path(f"/proc/{server}").exists()


def test_status_tells_of_an_actor_that_does_not_answer(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = shards_of(data)[0]["pid"]
    actor = int(Path(f"/proc/{server}/stat").read_text().rpartition(")")[2].split()[1])
    monkeypatch.setattr(clusters, "_STATES_TIMEOUT_S", 0.5)
    os.kill(actor, signal.SIGSTOP)
    try:
        assert "does not answer" in shards_of(data)[0]["error"]
    finally:
        os.kill(actor, signal.SIGCONT)


def test_a_killed_coordinator_comes_back_with_its_map(data: Path) -> None:
    coordinator = ray.get_actor(coordinator_of("embstore"), namespace=NAMESPACE)
    plan, starts = ray.get([coordinator.plan.remote(), coordinator.starts.remote()])
    ray.kill(coordinator, no_restart=False)
    again = ray.get([coordinator.plan.remote(), coordinator.starts.remote()], timeout=PATIENCE_S)
    assert again == [plan, starts]
    assert plan_of(data) == plan
    with connect_one(plan.shard_map.shards[0], timeout_s=PATIENCE_S) as store:
        assert store.server_info().shard_map == plan.shard_map


def test_a_cluster_that_runs_is_not_started_again(data: Path) -> None:
    with pytest.raises(embstore.InvalidArgumentError, match="runs: see embstore cluster status"):
        clusters.start(shards=2, data=data)
    with pytest.raises(embstore.InvalidArgumentError, match="has a cluster of 2 shards"):
        clusters.start(shards=3, data=data)
    with pytest.raises(embstore.StoreClosedError, match="no cluster 'other' runs"):
        clusters.status(data=data, name="other")


def test_the_demo_trains_a_cluster_that_runs_and_leaves_nothing(data: Path) -> None:
    with connected(data) as store:
        before, labels = store.tables(), store.checkpoints()
        result = demo("--address", plan_of(data).shard_map.shards[1])
        assert result["exact"]
        assert result["session"]["hit_rate"] == 1
        assert (store.tables(), store.checkpoints()) == (before, labels)


def test_the_demo_starts_a_cluster_of_its_own(tmp_path: Path) -> None:
    result = demo("--cluster", "--keep", str(tmp_path / "kept"))
    assert result["exact"]
    assert result["network_bytes"] > 0
    assert {one.name for one in (tmp_path / "kept/store").iterdir()} >= {"shard-0", "shard-1"}


def demo(*words: str) -> Any:
    small = "--samples", "4000", "--batch", "500", "--scale", "0.002", "--json"
    done = subprocess.run(
        [sys.executable, "-m", "embstore_server", "demo", *small, *words],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)
