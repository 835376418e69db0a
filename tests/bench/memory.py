"""Anonymous memory of a process that loads no peer and does with a store all there is to do.

The worker runs; the parent (``resident.py``) reads RssAnon of /proc/PID/status every few
milliseconds, so the peak inside a checkpoint or a digest counts too. The interpreter, NumPy,
Numba's compiler, the trace and the gradients are in the figure: the 300 MiB beside
``cache_bytes`` are for them, and for what the store holds outside its budget.
"""

import pathlib

import numpy as np

from tests.bench.scale import Scale
from tests.bench.stores import (
    CHUNK_KEYS,
    create_table,
    open_store,
    small_grads,
    trainer,
    update_all,
)
from tests.bench.workload import Workload

TRACE_BATCHES = 8


class MemoryContender:
    """Runs one store at a time."""

    def __init__(self, scale: Scale) -> None:
        self._scale = scale

    def work(self, name: str, cache_bytes: int) -> None:
        """Write the whole table, train, flush, checkpoint, digest, train again."""
        scale = self._scale
        store = open_store(pathlib.Path(scale.data_dir) / name, cache_bytes)
        table = create_table(store, "ads", scale.rows, scale.dim)
        grads = small_grads(scale.dim)
        for first in range(0, scale.rows, CHUNK_KEYS):
            update_all(table, np.arange(first, min(first + CHUNK_KEYS, scale.rows)), grads)
        del grads
        step = trainer(table, Workload(scale, TRACE_BATCHES))
        for _ in range(TRACE_BATCHES):
            step()
        table.flush()
        store.checkpoint("measured")
        table.digest()
        for _ in range(TRACE_BATCHES):
            step()
        store.close()

    def close(self) -> None:
        """Hold nothing."""


start = MemoryContender
