"""The written store and its copies, and budgets that come to a number of slots.

The table is written once; each contestant has a copy of the directory. Nothing is merged while
steps are measured, and nothing is sealed: a merge would fall on whoever's block it happens to meet.
So the files of rows are the same in all copies, and are linked: a sealed segment of the log never
changes, and only a merge would change a base.
"""

import contextlib
import os
import pathlib
import shutil
from typing import Any

import numpy as np

import embstore
from embstore.cache.sizes import Layout, Sizes
from embstore.config import Limits
from embstore.device.choice import open_device
from tests.bench.lookahead.scale import Scale
from tests.bench.lookahead.waits import SlowFiles
from tests.bench.stores import create_table, small_grads, update_all

TABLE = "ads"
_OPTIMIZER = "rowwise_adagrad"
_LIMITS = Limits(segment_bytes=1 << 30, fold_bytes=1 << 40, fold_segments=1 << 20)


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
            limits=_LIMITS,
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
        self._folder = folder
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
        path = self._folder / name
        if path.exists():
            shutil.rmtree(path)
        shutil.copytree(self._first, path, copy_function=_link_or_copy)
        return Opened(path, self._scale, slots, policy)


def _link_or_copy(source: str, target: str) -> None:
    if source.endswith((".log", ".rows")):
        os.link(source, target)
    else:
        shutil.copyfile(source, target)


def cache_bytes_for(slots: int, dim: int) -> int:
    """Return a budget in which a pool of row-wise Adagrad has so many slots, or up to 3 % more."""
    layout = Layout(dim, 1, _OPTIMIZER)
    with contextlib.closing(open_device("cpu", 1)) as device:
        slot_bytes = Sizes.of(layout, slots, device).slot_bytes
        sizes = Sizes.of(layout, slots * slot_bytes, device)
        # One slab more than the slots fill, because with all of it slabs are a little larger; and
        # the index is made for the slots that there may be, of which the last slab is not granted.
        count = (-(-slots // sizes.slab_slots) + 1) * sizes.slab_slots
        index_bytes = device.index_bytes(count + sizes.slab_slots)
        needed = count * sizes.slot_bytes + index_bytes + sizes.staging_bytes
        return max(needed, sizes.least_bytes + sizes.least_bytes // 8)
