"""A cluster that grows under a session: a step is on its way to a shard as the map changes."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from operator import index
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest

import embstore
from embstore import commands as c
from embstore.config import Adagrad
from embstore.handles.store import Store
from embstore.profiles.hotset import HotSet
from embstore_training.hotcold import HotColdRun
from tests.clusters import Cluster, table
from tests.conformance.meeting import Meeting
from tests.service.faults.served import PATIENCE_S

ROWS, KEYS, STEPS, SEED = 2000, 60, 12, 20_261_127
TABLE = table(Adagrad(0.5), ROWS)


class Grows:
    """A router; as it has split one step, and before that is at a shard, the cluster grows."""

    def __init__(self, router: Any, at: int, grow: Callable[[], None]) -> None:
        self._router, self._at, self._grow = router, at, grow
        self._lock = threading.Lock()
        self.has_grown = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._router, name)

    def execute(self, command: Any, **how: Any) -> Any:
        is_step = isinstance(command, c.UpdateStep)
        if is_step and command.rows_checksum is not None and len(self._router.shards) == 1:
            index(command.rows_checksum)  # as the wire asks for it, on which the step is
        with self._lock:
            grows = is_step and command.step == self._at and not self.has_grown
            self.has_grown |= grows
        if grows:
            self._grow()
        return self._router.execute(command, **how)


def keys_of(step: int, rank: int = 0) -> dict[str, Any]:
    """Return a rank's keys of a step, many of them those of the step before, and some repeated."""
    return {"a": np.random.default_rng([SEED, step // 2, rank]).integers(0, ROWS, KEYS)}


def train_rank(store: Store, rank: int, **options: Any) -> None:
    with store.session(["a"], name="run", rank=rank, **options) as run:
        for step in run.steps(range(1, STEPS + 1), keys=lambda step: keys_of(step, rank)):
            step.update({"a": step.lookup()["a"] + np.float32(step.number)})


def train(stores: list[Store], waits: Any) -> None:
    """Train one rank with each store."""
    ranks = len(stores)
    meeting = Meeting(ranks)

    def of(rank: int) -> None:
        more = {"all_gather": meeting.of(rank)} if waits == "none" and ranks > 1 else {}
        train_rank(stores[rank], rank, world_size=ranks, waits=waits, **more)

    with ThreadPoolExecutor(ranks) as pool:
        for future in [pool.submit(of, rank) for rank in range(ranks)]:
            future.result(PATIENCE_S)


def train_hot_and_cold(stores: list[Store]) -> None:
    """Train batches of hot rows at the trainer, others at the store."""
    rng = np.random.default_rng(SEED)
    chunks = [{"id": rng.integers(0, 20 if n % 2 else ROWS, 64)} for n in range(10)]
    hot_set = HotSet({"a": np.arange(20)})
    with HotColdRun(stores[0], hot_set, {"id": "a"}, batch_size=8, window_batches=8) as run:
        for step in run.steps(chunks):
            step.update({"a": step.lookup()["a"] + np.float32(1)})


KINDS: dict[str, tuple[int, Callable[[list[Store]], None]]] = {
    "late": (1, lambda stores: train(stores, "late")),
    "late_ranks": (2, lambda stores: train(stores, "late")),
    "none": (1, lambda stores: train(stores, "none")),
    "none_ranks": (2, lambda stores: train(stores, "none")),
    "hot_and_cold": (1, train_hot_and_cold),
}


@cache
def undisturbed(kind: str) -> tuple[str, int]:
    """Return digest and t after the same steps at one store."""
    ranks, train_all = KINDS[kind]
    with TemporaryDirectory() as path, embstore.open(path, device="cpu") as one:
        one.create_table("a", **TABLE)
        train_all([one] * ranks)
        return one.table("a").digest(), one.table("a").t


@pytest.mark.parametrize("counts", [(1, 2), (1, 3), (2, 3)], ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_a_step_on_its_way_is_applied_once_as_the_cluster_grows(tmp_path, kind, counts):
    before, after = counts
    ranks, train_all = KINDS[kind]
    wanted = undisturbed(kind)
    cluster = Cluster(tmp_path / "cluster", before)

    def grow() -> None:
        cluster.add(after - before)
        cluster.even(after)

    stores = [cluster.store() for _ in range(ranks)]
    following: Any = stores[0].executor
    following.router = grows = Grows(following.router, STEPS // 2, grow)
    cluster.store().create_table("a", **TABLE)
    train_all(stores)
    assert grows.has_grown
    assert (stores[0].table("a").digest(), stores[0].table("a").t) == wanted
    assert {engine.execute(c.GetTable("a")).t for engine in cluster.shards()} == {wanted[1]}
    cluster.close()
