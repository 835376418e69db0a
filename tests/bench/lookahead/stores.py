"""The written store and its copies: the table is written once, and each contestant has a copy.

Its files are made slow on purpose, by waits that are precise to a tenth of a millisecond and leave
the core free. The system wakes a sleeping thread late, because of its timer's slack and of other
running threads. So a wait sleeps until shortly before its end, and then polls the clock. Between
two polls it releases the interpreter's lock; otherwise the threads that work ahead would stand
still meanwhile.
"""

import os
import pathlib
import threading
import time
from typing import Any

from embstore.storage.files import Files
from tests.bench.lookahead.scale import Scale
from tests.bench.stores import NO_MERGES, cache_bytes_for, copy_store, filled, open_store

_AWAKE_S = 200e-6


def wait_until(moment: float) -> None:
    """Return when `time.perf_counter()` has come to `moment`."""
    left = moment - time.perf_counter() - _AWAKE_S
    if left > 0:
        time.sleep(left)
    while time.perf_counter() < moment:
        time.sleep(0)


class SlowFiles(Files):
    """Files whose cold rows come `latency_s` late, once for each batch of them.

    A thread that makes calls says before each that a batch begins, and waits at its first read
    only: the store reads a call's rows in pieces, but has asked the disk for all. Other threads,
    which read ahead, wait at every read.
    """

    def __init__(self, root: str | os.PathLike[str]) -> None:
        super().__init__(root)
        self.latency_s = 0.0
        self.reads = 0
        """Batches of cold rows so far. Threads may miscount each other's by a few."""
        self._call = threading.local()

    def begin_call(self) -> None:
        """Say that what this thread reads from now on is one batch."""
        self._call.has_waited = False

    def reached(self, point: str) -> None:
        """Wait where rows are about to be read."""
        # Only a thread that makes calls has the mark.
        if point != "read" or getattr(self._call, "has_waited", False):
            return
        if hasattr(self._call, "has_waited"):
            self._call.has_waited = True
        self.reads += 1
        if self.latency_s:
            wait_until(time.perf_counter() + self.latency_s)


TABLE = "ads"


class Opened:
    """An open store with its one table and its files."""

    def __init__(self, path: pathlib.Path, scale: Scale, slots: int, policy: str) -> None:
        self.files = SlowFiles(path)
        self.slots = slots
        self.store: Any = open_store(
            path,
            cache_bytes_for(slots, scale.dim),
            policy=policy,
            threads=scale.threads,
            limits=NO_MERGES,
            files=self.files,
        )
        self.table: Any = self.store.table(TABLE)

    def pool(self) -> dict[str, Any]:
        found: dict[str, Any] = self.store.stats()["cache"]["pools"][0]
        return found

    def close(self) -> None:
        self.store.close()


class Written:
    """A directory with every row written, and the copies made of it."""

    def __init__(self, folder: pathlib.Path, scale: Scale) -> None:
        self._folder = self.folder = folder
        self._scale = scale
        self._first = folder / "written"
        cache_bytes = cache_bytes_for(scale.rows // 4, scale.dim)
        with open_store(self._first, cache_bytes, threads=scale.threads) as store:
            filled(store, scale.rows, scale.dim)
            store.checkpoint("written")

    def open(self, name: str, slots: int, policy: str = "lru") -> Opened:
        """Return a fresh copy of the store, open, with about so many slots."""
        path = copy_store(self._first, self._folder / name)
        return Opened(path, self._scale, slots, policy)
