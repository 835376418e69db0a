"""Stores of several shards: engines of this process behind the router, each with a directory of its
own."""

from pathlib import Path
from typing import Any

import pytest

import embstore
from embstore.handles.store import Store
from embstore.sharding import PARTITIONS, ShardMap
from embstore_client.shards.router import Router
from tests.conformance.backends import Embedded, finish_merges
from tests.copies import copy_of_open


class Sharded(Embedded):
    """Stores of three shards. What a case wants of the one engine or directory, they have not."""

    offers = frozenset({"plain_keys"})
    shards = 3

    def open_store(self, name: str = "store", **options: Any) -> Any:
        """Open a store by name; options as of `embstore.open`."""
        settings = {"cache_bytes": 1 << 20, "durability": self.durability} | options
        return self._opened_store(self._open(self._root / name, settings))

    def _open(self, path: Path, options: dict[str, Any]) -> Any:
        engines = []
        path.mkdir(parents=True, exist_ok=True)
        for number in range(self.shards):
            files = self._files(path / f"shard-{number}")
            try:
                store = embstore.open(path / f"shard-{number}", files=files, **options)
            except BaseException:
                for engine in engines:
                    engine.close()
                raise
            store.executor.device.work.split_bytes = 0
            engines.append(store.executor)
        names = [str(number) for number in range(self.shards)]
        # runs of partitions: neighbouring ones on one shard would hide a wrong order
        owners = tuple(p * 7 % PARTITIONS % self.shards for p in range(PARTITIONS))
        return Store(Router(engines, ShardMap("case", 1, tuple(names), owners)))

    def path(self, name: str = "store") -> Path:
        """There is none that has all files."""
        pytest.skip("a cluster has several directories")

    def engine(self, store: Any) -> Any:
        """There is none that has all rows."""
        pytest.skip("a cluster has several engines")

    def copy(self, name: str) -> str:
        """Copy the files of all shards."""
        for store in self._opened:
            for log in (engine.log for engine in store.executor.shards):
                if log is not None:
                    log.files.wait(log.files.appended, written=True)
        self._copies += 1
        copy = f"copy-{self._copies}"
        for number in range(self.shards):
            shard = f"shard-{number}"
            (self._root / copy).mkdir(exist_ok=True)
            copy_of_open(self._root / name / shard, self._root / copy / shard)
        return copy

    def settle(self, store: Any) -> None:
        """Do all merges that are due, on every shard."""
        for engine in store.executor.shards:
            finish_merges(engine)


class OneShard(Sharded):
    """Stores of one shard, to which the router passes everything on."""

    shards = 1


class TwoShards(Sharded):
    """Stores of two shards, whose commands are logged."""

    shards = 2
    durability = "commands"
