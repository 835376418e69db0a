"""A cluster of engines of this process: each a shard, with a directory of its own."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import embstore
from embstore.config import Uniform
from embstore.engine.engine import Engine
from embstore.engine.sharding import be
from embstore.handles.store import Store
from embstore.optimizers import Optimizer
from embstore.sharding import ShardMap
from embstore.storage import shard as shards
from embstore.storage.files import Files
from embstore.storage.shard import ShardPlace
from embstore_client.moving import join, move, switch
from embstore_client.shards.following import Following
from embstore_client.shards.router import Router


def table(optimizer: Optimizer, rows: int = 20_000) -> dict[str, Any]:
    """Return the configuration of a table of four elements a row, which all shards have."""
    initializer = Uniform(-0.1, 0.1)
    return {"dim": 4, "rows": rows, "optimizer": optimizer, "initializer": initializer}


class Watched:
    """A shard, and what is done before and after each of its commands: it may wait, or raise."""

    def __init__(
        self,
        shard: Any,
        before: Callable[[Any], object] = lambda command: None,
        *,
        after: Callable[[Any], object] = lambda command: None,
    ) -> None:
        self._shard, self._before, self._after = shard, before, after

    def __getattr__(self, name: str) -> Any:
        return getattr(self._shard, name)

    def execute(self, command: Any, **how: Any) -> Any:
        """Execute a command, as an engine does."""
        self._before(command)
        result = self._shard.execute(command, **how)
        self._after(command)
        return result


class Cluster:
    """Shards below `root`, by the name that the map has of each, its number."""

    def __init__(self, root: Path, count: int, **options: Any) -> None:
        self.root = root
        self.options = {"device": "cpu", "cache_bytes": 1 << 20, "durability": "commands"} | options
        self.map = ShardMap.even("ads", [str(number) for number in range(count)])
        self.engines: dict[int, Engine] = {}
        for number in range(count):
            self.open(number)

    def files(self, number: int) -> Files:
        """Return the files of a shard."""
        path = self.root / f"shard-{number}"
        path.mkdir(parents=True, exist_ok=True)
        return Files(path)

    def open(self, number: int, shard_map: ShardMap | None = None) -> Engine:
        """Open a shard, as it is started with a map; None: with that of the cluster."""
        files = self.files(number)
        store = embstore.open(self.root / f"shard-{number}", files=files, **self.options)
        engine: Any = store.executor
        is_used = engine.tables.frame.command_number > 0
        commit = engine.storage.catalogue.head.commit
        given = ShardPlace(number, shard_map or self.map)
        try:
            be(engine, shards.take(files, given, is_used=is_used, commit=commit))
        except BaseException:
            engine.close()
            raise
        self.engines[number] = engine
        return engine

    def kill(self, number: int) -> None:
        """End a shard that commits nothing."""
        self.engines.pop(number).abandon()

    def shards(self) -> list[Engine]:
        """Return the shards of the map."""
        return [self.engines[number] for number in range(len(self.map.shards))]

    def store(self, **options: Any) -> Store:
        """Return the store of all shards, for one client; it is not closed."""
        router = Router(self.shards(), self.map, **options)
        return Store(Following(router, lambda name: self.engines[int(name)]))

    def record(self, shard_map: ShardMap) -> None:
        """Note the map of the cluster for good."""
        self.map = shard_map

    def add(self, count: int) -> None:
        """Have more shards join, which have no partition yet."""
        first = len(self.map.shards)
        numbers = range(first, first + count)
        joined = self.map.joined_by([str(number) for number in numbers])
        joining = [self.open(n, replace(joined, version=self.map.version)) for n in numbers]
        join(self.shards(), joining, joined, self.record, by="the test")

    def even(self, count: int, **how: Any) -> int:
        """Have the first shards have all partitions; return how many rows were copied."""
        after = self.map.evened(count)
        return move(self.shards(), self.map, after, self.record, by="the test", **how)

    def remove(self, count: int) -> None:
        """Have the last shards leave, which have no partition any more."""
        shards = self.shards()
        switch(shards, self.map.left_by(count), self.record, by="the test")
        for number in range(len(self.map.shards), len(shards)):
            self.engines.pop(number).close()

    def close(self) -> None:
        """Close every shard."""
        for engine in self.engines.values():
            engine.close()
