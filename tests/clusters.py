"""A cluster of engines of this process: each a shard, with a directory of its own."""

from pathlib import Path
from typing import Any

import embstore
from embstore.engine.engine import Engine
from embstore.engine.sharding import be
from embstore.handles.store import Store
from embstore.sharding import ShardMap
from embstore.storage import shard as shards
from embstore.storage.files import Files
from embstore.storage.shard import ShardPlace
from embstore_client.shards.router import Router


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
        try:
            be(
                engine,
                shards.take(files, ShardPlace(number, shard_map or self.map), is_used=is_used),
            )
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
        return Store(Router(self.shards(), self.map, **options))

    def close(self) -> None:
        """Close every shard."""
        for engine in self.engines.values():
            engine.close()
