"""Anonymous memory of a process that loads no peer and does with a store all there is to do.

The worker runs; the parent (``resident.py``) reads RssAnon of /proc/PID/status every few
milliseconds, so the peak inside a checkpoint or a digest counts too. The interpreter, NumPy,
Numba's compiler, the trace and the gradients are in the figure: the 300 MiB beside
``cache_bytes`` are for them, and for what the store holds outside its budget.
"""

import pathlib
from typing import Any

import numpy as np

from tests.bench.scale import Scale
from tests.bench.stores import CHUNK_KEYS, create_table, open_store, small_grads, update_all
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
        workload = Workload(scale, TRACE_BATCHES)
        self._train(table, workload)
        table.flush()
        store.checkpoint("measured")
        table.digest()
        self._train(table, workload)
        store.close()

    def _train(self, table: Any, workload: Workload) -> None:
        out = np.empty((self._scale.batch_keys, self._scale.dim), np.float32)
        for index, keys in enumerate(workload.batches):
            table.lookup(keys, out=out)
            table.update(keys, workload.gradients_of(index))

    def close(self) -> None:
        """Hold nothing."""


start = MemoryContender
