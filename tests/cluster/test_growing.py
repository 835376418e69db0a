"""A cluster on a real Ray that grows and shrinks while trainers train."""

import os
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from time import monotonic
from typing import Any

import numpy as np
import pytest

import embstore
from embstore.config import Adam, Uniform
from embstore.errors import EmbstoreError
from embstore.handles.store import Store
from embstore.sharding import PARTITIONS
from embstore_client import connect

ray = pytest.importorskip("ray", reason="needs the extra 'ray': make test-cluster")

from embstore_cluster import clusters, growing, local  # noqa: E402
from embstore_cluster.plan import NAMESPACE, coordinator_of  # noqa: E402
from tests.cluster.running import (  # noqa: E402
    Trainers,
    embstore_command,
    kill_process,
    plan_of,
    running,
)
from tests.cluster.training import RANKS, assert_done_once, make_tables  # noqa: E402

PATIENCE_S = 300.0
DIM, ROWS = 4, 50_000
TABLE: dict[str, Any] = {
    "dim": DIM,
    "rows": ROWS,
    "optimizer": Adam(0.1),
    "initializer": Uniform(-1, 1),
    "seed": 5,
}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    path = tmp_path_factory.mktemp("cluster") / "data"
    with running(path, "--shards", "2", "--cpus", "0.1") as data:
        yield data


def keys_of(number: int) -> dict[str, Any]:
    return {"t": np.random.default_rng(number).choice(ROWS, 300, replace=False)}


class Trainer:
    """Trains steps until it is told to end."""

    def __init__(self) -> None:
        self.finished = 0
        self.ended = threading.Event()

    def train(self, store: Store, last: int | None = None) -> None:
        def numbers() -> Iterator[int]:
            number = 0
            while number != last and not self.ended.is_set():
                number += 1
                yield number

        with store.session(["t"], name="run") as run:
            for step in run.steps(numbers(), keys=keys_of):
                step.update({"t": 0.5 * step.lookup()["t"]})
                self.finished = step.number

    def some_steps(self) -> None:
        """Wait for a few more."""
        wanted = self.finished + 3
        while self.finished < wanted:
            assert not self.ended.wait(0.01)


def test_a_cluster_grows_and_shrinks_under_a_trainer(data: Path, tmp_path: Path) -> None:
    plan = plan_of(data)
    trainer = Trainer()
    address = plan.shard_map.shards[0]
    with (
        connect(address, timeout_s=PATIENCE_S, connect_timeout_s=PATIENCE_S) as store,
        ThreadPoolExecutor(1) as pool,
    ):
        store.create_table("t", **TABLE)
        run = pool.submit(trainer.train, store)
        run.add_done_callback(lambda _: trainer.ended.set())
        trainer.some_steps()
        found = embstore_command("grow", "--shards", "3", "--data", str(data))
        assert (len(found["shards"]), found["map_version"]) == (3, 3)
        trainer.some_steps()
        shards = clusters.status(data=data)["shards"]
        assert [shard["ready"] for shard in shards] == [True] * 3
        assert sorted(s["partitions"] for s in shards) == [341, 341, 342]
        assert sum(s["partitions"] for s in shards) == PARTITIONS
        os.kill(shards[2]["pid"], signal.SIGKILL)  # the new one comes back as any other
        trainer.some_steps()
        kept = {one.label for one in store.checkpoints()}
        assert kept == {"embstore-map/3"}
        coordinator = ray.get_actor(coordinator_of("embstore"), namespace=NAMESPACE)
        ray.kill(coordinator, no_restart=False)
        trainer.some_steps()
        found = growing.drain(shards=2, data=data)
        assert len(found.shard_map.shards) == 2
        trainer.some_steps()
        trainer.ended.set()
        run.result(PATIENCE_S)
        shards = clusters.status(data=data)["shards"]
        assert [shard["partitions"] for shard in shards] == [512, 512]
        digest = store.table("t").digest()
    with embstore.open(tmp_path / "one", device="cpu") as one:
        one.create_table("t", **TABLE)
        Trainer().train(one, last=trainer.finished)
        assert one.table("t").digest() == digest


SEED, COUNTS, STEPS_EACH = 20_261_126, (3, 2, 3, 2), 40


def changed(data: Path, count: int) -> None:
    """Have so many shards, asked for until there are."""
    until = monotonic() + PATIENCE_S
    while True:
        plan = plan_of(data)
        change = growing.grow if count >= len(plan.shard_map.shards) else growing.drain
        try:
            change(shards=count, data=data)
            return
        except EmbstoreError:  # the coordinator was killed, or is at work since
            if monotonic() > until:
                raise
        threading.Event().wait(0.1)


def test_two_ranks_go_on_while_the_coordinator_is_killed_as_partitions_move(tmp_path: Path) -> None:
    """At any moment of a change; the map is the one before or the next."""
    rng = np.random.default_rng(SEED)
    steps = STEPS_EACH * (len(COUNTS) + 1)
    with running(tmp_path / "data", "--shards", "2", "--cpus", "0.1") as data:
        plan = plan_of(data)
        local.attach(data, address=None, cpus=None)
        coordinator = ray.get_actor(plan.coordinator, namespace=NAMESPACE)
        address = plan.shard_map.shards[0]
        patience = {"timeout_s": PATIENCE_S, "connect_timeout_s": PATIENCE_S}
        with connect(address, **patience) as store:
            make_tables(store)
            store.create_table("t", **TABLE).update(*_all_rows())
            trainers = Trainers(address, steps, RANKS, tmp_path / "trainers.log")
            try:
                for number, count in enumerate(COUNTS):
                    assert trainers.wait_for(number * STEPS_EACH + 5)
                    pid = ray.get(coordinator.pid.remote(), timeout=PATIENCE_S)
                    with ThreadPoolExecutor(1) as pool:
                        change = pool.submit(changed, data, count)
                        while not ray.get(coordinator.progress.remote(), timeout=PATIENCE_S)[0]:
                            assert not change.done(), change.result()
                        threading.Event().wait(rng.uniform(0, 1))
                        kill_process(pid)
                        change.result(PATIENCE_S)
                    found = clusters.status(data=data)["shards"]
                    assert len(found) == count
                statuses = trainers.wait()
            finally:
                trainers.end()
            assert statuses == [0] * RANKS, (tmp_path / "trainers.log").read_text()
            assert_done_once(store, tmp_path / "one", steps)


def _all_rows() -> tuple[Any, Any]:
    return np.arange(ROWS), np.ones((ROWS, DIM), np.float32)
