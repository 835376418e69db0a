"""Growing and shrinking a cluster while a client writes: the speed at which rows move, and the
longest wait of a write.

All rows of the table are written, and a third of them moves. The writer updates some keys again and
again. Its longest call is the one that waited while writes were paused.
"""

import pathlib
import statistics
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from time import perf_counter
from typing import Any

from embstore.commands import Executor
from embstore.sharding import ShardMap
from embstore_client import moving
from embstore_client.connecting import connect_one
from tests.bench.shards.clusters import TABLE, Cluster
from tests.bench.shards.scale import Scale

_BY = "the benchmark, which moves partitions"


def measure(scale: Scale, folder: pathlib.Path) -> dict[str, Any]:
    """Return seconds and rows of each way, and the writer's calls meanwhile, in seconds."""
    cluster = Cluster(folder / "growth", 2, scale, durability="commands")
    try:
        joined = cluster.map.joined_by([cluster.begin_one_more()])
        with _executors(joined) as shards:
            with _written(cluster, scale) as join_s:
                moving.join(shards[:2], shards[2:], joined, _record, by=_BY)
            grown = joined.evened(3)
            return {
                "join": {"rows": 0} | join_s,
                "2 to 3": _moved(cluster, scale, shards, joined, grown),
                "3 to 2": _moved(cluster, scale, shards, grown, grown.evened(2)),
            }
    finally:
        cluster.close()


def _record(_: ShardMap) -> None:
    """Nobody comes after the benchmark."""


def _moved(
    cluster: Cluster, scale: Scale, shards: list[Executor], before: ShardMap, after: ShardMap
) -> dict[str, Any]:
    with _written(cluster, scale) as seconds:
        rows = moving.move(shards, before, after, _record, by=_BY)
    return {"rows": rows} | seconds


@contextmanager
def _executors(shard_map: ShardMap) -> Iterator[list[Executor]]:
    with ExitStack() as stack:
        yield [
            stack.enter_context(connect_one(address, transport="grpc")).executor
            for address in shard_map.shards
        ]


@contextmanager
def _written(cluster: Cluster, scale: Scale) -> Iterator[dict[str, float]]:
    """Have a client write meanwhile; at the end the dict has how long all took, and its calls."""
    table, (keys,), ends = cluster.store.table(TABLE), scale.batches(1), threading.Event()
    keys, gradients = keys[: scale.written_keys], scale.gradients()[: scale.written_keys]
    found: dict[str, float] = {}

    def write() -> list[float]:
        spent = []
        while not ends.is_set():
            begun = perf_counter()
            table.update(keys, gradients)
            spent.append(perf_counter() - begun)
        return spent

    with ThreadPoolExecutor(1) as pool:
        writing, begun = pool.submit(write), perf_counter()
        try:
            yield found
            found["seconds"] = perf_counter() - begun
        finally:
            ends.set()
    spent = writing.result()
    found |= {"write_s": statistics.median(spent), "longest_write_s": max(spent)}
