"""Anonymous memory of a process that loads no other contender, and uses a store in every way.

The worker uses the store. Meanwhile the parent process reads RssAnon of /proc/PID/status every few
milliseconds, so the peak within a checkpoint or a digest counts, too. The figure includes the
interpreter, NumPy, Numba's compiler, the trace and the gradients. The goal allows 300 MiB in
addition to ``cache_bytes`` for them, and for everything that the store keeps outside of its budget.
"""

import pathlib
from contextlib import closing, suppress
from typing import Any

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
from tests.bench.worker import Worker
from tests.bench.workload import Workload

ALLOWANCE_BYTES = 300 << 20
SHARES = {"cache-100": 1.0, "cache-5": 0.05}
TRACE_BATCHES = 8


def status_bytes(pid: int | str) -> dict[str, int]:
    """Return the kinds of memory that a process has."""
    lines = pathlib.Path(f"/proc/{pid}/status").read_text().splitlines()
    fields = (line.partition(":") for line in lines if line.endswith(" kB"))
    return {name: int(value.split()[0]) << 10 for name, _, value in fields}


def measure(share_name: str, scale: Scale) -> dict[str, Any]:
    """Return the peaks of a fresh process whose store caches that share of the rows."""
    cache_bytes = scale.cache_bytes(scale.rows * SHARES[share_name], scale.dim)
    peaks = {"RssAnon": 0, "RssShmem": 0}

    def sample() -> None:
        with suppress(FileNotFoundError, ProcessLookupError):  # it has just ended
            found = status_bytes(worker.pid)
            peaks.update({name: max(peak, found.get(name, 0)) for name, peak in peaks.items()})

    with closing(Worker("memory", scale)) as worker:
        sample()
        at_start = peaks["RssAnon"]
        worker.ask("work", f"memory-{share_name}", cache_bytes, watch=sample)
    return {
        "cache_bytes": cache_bytes,
        "rss_anon_start_bytes": at_start,
        "rss_anon_peak_bytes": peaks["RssAnon"],
        "rss_shmem_peak_bytes": peaks["RssShmem"],
        "beyond_cache_bytes": peaks["RssAnon"] - cache_bytes,
    }


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
        step = trainer(table, workload.batches, workload.gradients)
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
