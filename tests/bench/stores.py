"""Stores for the benchmarks, with one optimizer and one initializer, whole tables that are written
once, and copies of such stores.

While a copy is measured, nothing in it is merged or sealed, because a merge would delay whichever
contender has its turn at that moment. So the files with rows stay the same in all copies, and the
copies are links: a sealed segment of the log never changes, and only a merge would replace the
base.
"""

import contextlib
import itertools
import os
import pathlib
import shutil
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

import embstore
from embstore.cache.sizes import Sizes, least_bytes
from embstore.config import Limits
from embstore.device.choice import open_device
from embstore.layout import Layout
from tests.bench.workload import Keys, Rows

CHUNK_KEYS = 80_000
NO_MERGES = Limits(segment_bytes=1 << 30, fold_bytes=1 << 40, fold_segments=1 << 20)


def open_store(path: pathlib.Path, cache_bytes: int, **options: Any) -> Any:
    return embstore.open(path, device="cpu", cache_bytes=cache_bytes, **options)


def create_table(store: Any, name: str, rows: int | None, dim: int) -> Any:
    """Create the table, or return the one that is there: row-wise Adagrad, uniform rows. Without
    `rows` its keys are sparse."""
    return store.create_table(
        name,
        dim=dim,
        rows=rows,
        key_space="sparse" if rows is None else "dense",
        optimizer=embstore.RowWiseAdagrad(learning_rate=0.01),
        initializer=embstore.Uniform(-0.01, 0.01),
    )


def small_grads(dim: int) -> Rows:
    """Return gradients for a chunk of keys, all different."""
    rng = np.random.default_rng(dim)
    return rng.standard_normal((CHUNK_KEYS, dim), dtype=np.float32) * np.float32(0.01)


def update_all(table: Any, keys: Keys, grads: Rows) -> None:
    """Update `keys` chunk by chunk with `grads` from `small_grads`."""
    for first in range(0, len(keys), CHUNK_KEYS):
        chunk = keys[first : first + CHUNK_KEYS]
        table.update(chunk, grads[: len(chunk)])


def filled(store: Any, rows: int, dim: int, name: str = "ads") -> Any:
    """Return a table that is there, or made now, with all of its rows written."""
    table = create_table(store, name, rows, dim)
    update_all(table, np.arange(rows, dtype=np.int64), small_grads(dim))
    return table


def trainer(table: Any, batches: Sequence[Keys], gradients: Sequence[Rows]) -> Callable[[], None]:
    """Return what takes a step: a lookup and an update of the next batch, again and again."""
    numbers = itertools.count()

    def step() -> None:
        number = next(numbers)
        keys = batches[number % len(batches)]
        table.lookup(keys)
        table.update(keys, gradients[number % len(gradients)])

    return step


def wait_for_folds(store: Any, log_bytes: int, seconds: float) -> bool:
    """Wait for folds, which are installed and started between calls; any call will do.

    Return whether the log came down to so many bytes.
    """
    deadline = time.monotonic() + seconds
    while store.stats()["storage"]["log_bytes"] > log_bytes:
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def copy_store(written: pathlib.Path, path: pathlib.Path) -> pathlib.Path:
    """Make `path` a fresh copy of a written store and return it; open it with NO_MERGES."""
    if path.exists():
        shutil.rmtree(path)
    shutil.copytree(written, path, copy_function=_link_or_copy)
    return path


def _link_or_copy(source: str, target: str) -> None:
    if source.endswith((".log", ".rows")):
        os.link(source, target)
    else:
        shutil.copyfile(source, target)


def cache_bytes_for(slots: int, dim: int) -> int:
    """Return a budget in which a pool of row-wise Adagrad has so many slots, or up to 3 % more."""
    layout = Layout(dim, 1, "rowwise_adagrad")
    with contextlib.closing(open_device("cpu", 1)) as device:
        slot_bytes = Sizes.of(layout, slots, device).slot_bytes
        sizes = Sizes.of(layout, slots * slot_bytes, device)
        # One slab more than the slots fill, because with all of it slabs are a little larger; and
        # the index is made for the slots that there may be, of which the last slab is not granted.
        count = (-(-slots // sizes.slab_slots) + 1) * sizes.slab_slots
        index_bytes = device.memory.index_bytes(count + sizes.slab_slots)
        needed = count * sizes.slot_bytes + index_bytes + sizes.staging_bytes
        least = least_bytes([sizes])
        return max(needed, least + least // 8)
