"""What a conformance case runs against: a place that stores are opened in, and what can be seen of
it.

A backend opens stores and says in `offers` what else a case may ask of it. Every case may use the
public verbs of Store and Table, limits, the files of a store and `settle`. What not every backend
has is named by `needs`:

    process     the process is the store's own: its descriptors, threads, memory, its end
    memory      the host's memory is not the device's
    one_store   there is one cache, one set of counts, and one directory: it is no cluster
    plain_keys  tables are what the case says: their rows, growth, the order of keys, blocks of 256,
                keys outside, pools that tables share, and the row keys of pools and files mean
                something; or some of them are sparse

Each backend also has a variant of sparse tables, where a case's dense tables are sparse, with keys
all over 64 bits (`spread.py`). Every case runs there that does not need `plain_keys`.

`Embedded` opens them here, `Emulated` likewise with an emulated GPU (`emulated.py`). `Served` puts
a server and a client in between (`served.py`).
"""

from pathlib import Path
from typing import Any

import embstore
from embstore.choices import Durability
from embstore.config import Limits
from embstore.engine.engine import Engine
from embstore.storage.files import File, Files
from tests.conformance.spread import SpreadStore, spread_keys
from tests.copies import copy_of_open
from tests.reference import ReferenceStore

TINY = Limits(segment_bytes=8192, fold_bytes=4096, fold_segments=4, base_segment_bytes=65536)
"""Bounds that a test's few rows reach: segments are sealed, folded and compacted."""

LEVEL_TWO_BYTES, LARGE_LEVEL_TWO_BYTES = 340_000, 64 << 20
"""Of backends that have a level two: one slab of the widest rows, which a test's rows leave, and
room for all of them, where level one has room for what is known of them."""


def finish_merges(engine: Engine) -> None:
    """Do all merges that are due. A commit of level two goes on behind calls, so this is one."""
    with engine.tables.frame.turn():
        engine.storage.merges.finish()


class UnsyncedFiles(Files):
    """Leaves fsync out: a crash of these tests is a killed process, which keeps the page cache."""

    def _sync(self, file: File) -> None:
        pass

    def _sync_directory(self, path: str) -> None:
        pass


class Embedded:
    """Stores of this process, each in a directory below `root`."""

    offers = frozenset({"process", "memory", "one_store", "plain_keys"})
    device = "cpu"
    host_cache_bytes = 0
    """Of level two; 0: there is none."""
    is_remote = False
    shards = 1
    durability: Durability = "checkpoint"
    """Of stores whose case does not say: each level is that of some backend."""

    def __init__(self, root: Path, key_space: str = "dense") -> None:
        self._root = root
        self.key_space = key_space
        """Of all tables, but those whose case says sparse."""
        self._copies = 0
        self._opened: list[Any] = []

    def path(self, name: str = "store") -> Path:
        """Return the directory of a store."""
        return self._root / name

    def open_store(self, name: str = "store", **options: Any) -> Any:
        """Open a store by name; options as of `embstore.open`."""
        options.setdefault("cache_bytes", 1 << 20)
        options.setdefault("durability", self.durability)
        return self._opened_store(self._open(self.path(name), options))

    def _opened_store(self, store: Any) -> Any:
        self._opened.append(store)
        if self.key_space == "sparse":
            spread_keys(store.executor)
        return store

    def reference(self) -> ReferenceStore:
        """Return the reference of a store."""
        return SpreadStore() if self.key_space == "sparse" else ReferenceStore()

    def _open(self, path: Path, options: dict[str, Any]) -> Any:
        store = embstore.open(path, files=self._files(path), **options)
        store.executor.device.work.split_bytes = 0  # small calls too are shared
        return store

    def _files(self, path: Path) -> Files:
        return UnsyncedFiles(path)

    def engine(self, store: Any) -> Engine:
        """Return the engine of a store, for the few cases that look into it."""
        return store.executor

    def copy(self, name: str) -> str:
        """Copy a store's files as they are now, as a killed process leaves them; return the name.

        Do `settle` first where a merge may be running: its thread would go on writing.
        """
        for log in (self.engine(store).log for store in self._opened):
            if log is not None:  # of "interval": what is acknowledged is soon written
                log.files.wait(log.files.appended, written=True)
        self._copies += 1
        copy = f"copy-{self._copies}"
        copy_of_open(self.path(name), self.path(copy))
        return copy

    def settle(self, store: Any) -> None:
        """Do all merges that are due."""
        finish_merges(self.engine(store))

    def close(self) -> None:
        """Close what the case left open."""
        for store in self._opened:
            store.close()
