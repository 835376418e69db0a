"""Clusters that the benchmark starts: each shard is a real process, on loopback."""

import pathlib
from contextlib import ExitStack
from dataclasses import replace

from embstore.handles.store import Store
from embstore.sharding import ShardMap
from embstore_client import connect
from embstore_client.connecting import connect_one
from embstore_server.setup.launch import ServerProcess
from tests.bench.serving import Verbs, verbs_of
from tests.bench.shards.scale import Scale
from tests.bench.stores import filled
from tests.serving import free_addresses

TABLE = "ads"
_NOT_OF_STEPS = ("GetStats", "RenewLease")
"""The benchmark's own question, and what time brings."""


class Cluster:
    """Shards that run, each with its part of a table, all of whose rows are written and cached.

    `store` is a connection to the cluster. Commands are not logged by default: what that costs
    is measured by itself, and is the same with and without a router. Not thread-safe.
    """

    def __init__(
        self, folder: pathlib.Path, shards: int, scale: Scale, durability: str = "checkpoint"
    ) -> None:
        folder.mkdir(parents=True)
        self.map = ShardMap.even("bench", free_addresses(shards))
        self._folder = folder
        self._usual = ("--device", "cpu", "--cache-bytes", str(scale.cache_bytes))
        self._usual += ("--policy", "lru", "--durability", durability)
        self._processes: list[ServerProcess] = []
        with ExitStack() as running:
            self._running = running
            for shard in range(shards):
                self._start(shard, self.map)
            self.store = running.enter_context(connect(self.map.shards[0], transport="grpc"))
            filled(self.store, scale.rows, scale.dim)
            self._running = running.pop_all()

    def _start(self, shard: int, shard_map: ShardMap) -> None:
        file = self._folder / f"map-{shard}.json"
        file.write_text(shard_map.to_json())
        own = ("--shard-map", str(file), "--shard", str(shard))
        listen = ("--listen", shard_map.shards[shard])
        process = ServerProcess(self._folder / f"shard-{shard}", *self._usual, *own, *listen)
        process.start()
        self._running.callback(process.kill)  # a commit would write every row to disk
        self._processes.append(process)

    def begin_one_more(self) -> str:
        """Start a shard that has nothing yet; return its address."""
        (address,) = free_addresses(1)
        self._start(len(self._processes), replace(self.map.joined_by([address]), version=1))
        return address

    def close(self) -> None:
        self._running.close()

    def alone(self) -> Store:
        """Return a connection to the first shard without a router; close it."""
        return connect_one(self.map.shards[0], transport="grpc")

    def counts(self) -> Verbs:
        """Return what calls of the shards cost so far, all together."""
        found: Verbs = {}
        for process in self._processes:
            for verb, told in verbs_of(process.admin).items():
                if verb not in _NOT_OF_STEPS:
                    sums = found.setdefault(verb, dict.fromkeys(told, 0))
                    found[verb] = {name: sums[name] + told[name] for name in told}
        return found
