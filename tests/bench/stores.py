"""Stores for the benchmark: one optimizer, one initializer, and a whole table written once."""

import pathlib
from typing import Any

import numpy as np

import embstore
from tests.bench.workload import Keys, Rows

CHUNK_KEYS = 80_000


def open_store(
    path: pathlib.Path, cache_bytes: int, checkpoints_keep: int = 3, *, read_only: bool = False
) -> Any:
    """Open or create the store at `path` on the CPU."""
    return embstore.open(
        str(path),
        device="cpu",
        cache_bytes=cache_bytes,
        policy="lru",
        checkpoints_keep=checkpoints_keep,
        read_only=read_only,
    )


def create_table(store: Any, name: str, rows: int, dim: int) -> Any:
    """Create the table, or return the one that is there: row-wise Adagrad over uniform rows."""
    return store.create_table(
        name,
        dim=dim,
        rows=rows,
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
