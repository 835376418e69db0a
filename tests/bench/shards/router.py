"""The router's own time for the keys of a step, in milliseconds of CPU.

Its shards answer at once, with rows that are already in memory, so only the router's time remains:
it finds the shard of each key, takes the parts of keys and gradients for each shard, and puts rows
into the caller's order. The time is that of the calling thread, which does all of this work.
"""

import pathlib
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from embstore import commands as c
from embstore.config import Limits, RowWiseAdagrad, TableConfig, Uniform
from embstore.handles.store import Store
from embstore.results import (
    AcknowledgedUpdate,
    Context,
    RowsRead,
    ServerInfo,
    TableDescription,
    TableRows,
)
from embstore.sharding import ShardMap
from embstore_client.shards.router import Router
from embstore_client.shards.split import Owners, taken
from tests.bench.shards.clusters import TABLE
from tests.bench.shards.scale import Scale

_INFO = ServerInfo(Context("bench", 1, 0), "", "cpu", {}, "lru", 0, False, Limits())


class Ready:
    """A shard whose answers are there before it is asked."""

    rounds_rows = False

    def __init__(self, scale: Scale) -> None:
        config = TableConfig.checked(
            TABLE,
            dim=scale.dim,
            rows=scale.rows,
            optimizer=RowWiseAdagrad(0.01),
            initializer=Uniform(-0.01, 0.01),
        )
        self._described = TableDescription(config, 0, 0)
        self._rows = np.ones((scale.keys, scale.dim), np.float32)

    def execute(self, command: Any, **_: Any) -> Any:
        match command:
            case c.Lookup(tables):
                (part,) = tables
                rows = self._rows[: len(part.keys)]
                return RowsRead((TableRows(TABLE, rows, None, 0),))
            case c.Update():
                return AcknowledgedUpdate(1, {TABLE: 1})
            case c.GetTable():
                return self._described
            case c.GetServerInfo():
                return _INFO
        raise AssertionError(f"no answer to {command}")

    def close(self) -> None:
        """Nothing is open."""


def measure(scale: Scale, _: pathlib.Path) -> dict[str, Any]:
    """Return, for each number of shards, the medians of CPU time by what is done."""
    return {str(shards): _of(scale, shards) for shards in scale.shards if shards > 1}


def _of(scale: Scale, shards: int) -> dict[str, float]:
    shard_map = ShardMap.even("bench", [f"127.0.0.1:{n + 1}" for n in range(shards)])
    executors: Any = [Ready(scale) for _ in range(shards)]
    keys, gradients = scale.batches(1)[0], scale.gradients()
    out = np.empty((scale.keys, scale.dim), np.float32)
    owners = Owners(shard_map)
    split = owners.split(0, keys, "dense")
    parts = [split.of(shard) for shard in range(shards)]
    with Store(Router(executors, shard_map)) as store:
        table = store.table(TABLE)
        calls: dict[str, Callable[[], Any]] = {
            "split": lambda: owners.split(0, keys, "dense"),
            "lookup": lambda: table.lookup(keys, out=out),
            "update": lambda: table.update(keys, gradients),
            "copy": lambda: [taken(gradients, part) for part in parts],
        }
        found: dict[str, list[float]] = {name: [] for name in calls}
        for call in calls.values():
            call()
        for _ in range(scale.router_calls):
            for name, call in calls.items():
                began = time.thread_time()
                call()
                found[name].append(1e3 * (time.thread_time() - began))
    return {f"{name}_ms": statistics.median(spent) for name, spent in found.items()}
