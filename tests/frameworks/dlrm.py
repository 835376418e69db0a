"""A DLRM on the demo's data: what its tests in each framework share."""

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from embstore.handles.store import Store
from embstore_tools.demo import criteo, synthetic
from embstore_tools.demo.columns import keys_by_table
from embstore_tools.demo.dlrm import dense_features

SAMPLES, BATCH_SIZE, DIM, COLUMNS, ROWS = 2000, 250, 8, 26, 60
RATE, EPSILON = 0.05, 1e-8


class Batch(NamedTuple):
    """Features (n, 13), ids by table (n,), and labels (n,)."""

    x: Any
    ids: dict[str, Any]
    labels: Any


def batches_in(directory: Path) -> list[Batch]:
    """Write a small Criteo file there, and read it."""
    path, rows = directory / "train.txt", (ROWS,) * COLUMNS
    synthetic.write(path, samples=SAMPLES, rows=rows, advance=lambda count: None)
    return [
        Batch(
            dense_features(block.integers),
            keys_by_table(block.categories, rows),
            np.asarray(block.labels, np.float32),
        )
        for block in criteo.read(path, limit=SAMPLES, block=BATCH_SIZE)
    ]


def collection_of(collection: Any, bag: Any, store: Store, names: Any, optimizer: Any) -> Any:
    """Return a framework's collection of a table for each column."""
    tables = [bag(n, dim=DIM, rows=ROWS, features=[n], optimizer=optimizer) for n in names]
    return collection(store, tables)


def rows_of(store: Store, name: str) -> Any:
    return store.table(name).lookup(np.arange(ROWS))


def assert_as_in_memory(store: Store, found: Any, wanted: Any, tables: dict[str, Any]) -> None:
    """Compare losses, and rows in the end, with those of tables in memory."""
    np.testing.assert_allclose(found, wanted, rtol=2e-5)
    assert np.mean(wanted[-3:]) < wanted[0]
    for name, rows in tables.items():
        np.testing.assert_allclose(rows_of(store, name), rows, rtol=1e-3, atol=2e-4)
