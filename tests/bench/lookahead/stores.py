"""The written store and its copies: the table is written once, and each contestant has a copy."""

import contextlib
import pathlib
from typing import Any

import numpy as np

import embstore
from tests.bench.lookahead.scale import Scale
from tests.bench.lookahead.waits import SlowFiles
from tests.bench.stores import (
    NO_MERGES,
    cache_bytes_for,
    copy_store,
    create_table,
    small_grads,
    update_all,
)

TABLE = "ads"


class Opened:
    """An open store with its one table and its files."""

    def __init__(self, path: pathlib.Path, scale: Scale, slots: int, policy: str) -> None:
        self.files = SlowFiles(path)
        self.slots = slots
        self.store: Any = embstore.open(
            path,
            device="cpu",
            cache_bytes=cache_bytes_for(slots, scale.dim),
            policy=policy,
            threads=scale.threads,
            limits=NO_MERGES,
            files=self.files,
        )
        self.table: Any = self.store.table(TABLE)

    def pool(self) -> dict[str, Any]:
        """Return the figures of the one pool."""
        found: dict[str, Any] = self.store.stats()["cache"]["pools"][0]
        return found

    def close(self) -> None:
        """Close the store."""
        self.store.close()


class Written:
    """A directory with every row written, and the copies made of it."""

    def __init__(self, folder: pathlib.Path, scale: Scale) -> None:
        self._folder = self.folder = folder
        self._scale = scale
        self._first = folder / "written"
        gradients = small_grads(scale.dim)
        cache_bytes = cache_bytes_for(scale.rows // 4, scale.dim)
        opened: Any = embstore.open(
            self._first, device="cpu", cache_bytes=cache_bytes, threads=scale.threads
        )
        with contextlib.closing(opened) as store:
            table = create_table(store, TABLE, scale.rows, scale.dim)
            update_all(table, np.arange(scale.rows, dtype=np.int64), gradients)
            store.checkpoint("written")

    def open(self, name: str, slots: int, policy: str = "lru") -> Opened:
        """Return a fresh copy of the store, open, with about so many slots."""
        path = copy_store(self._first, self._folder / name)
        return Opened(path, self._scale, slots, policy)
