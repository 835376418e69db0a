"""Waits that are precise to a tenth of a millisecond and leave the core free, and slow files.

The system wakes a sleeper late, by its timer's slack and by whatever else runs: so a wait sleeps
until shortly before its end, and asks for the time from there on. Between two questions it gives
the interpreter's lock away, or the threads that work ahead would stand still meanwhile.
"""

import os
import threading
import time

from embstore.storage.files import Files

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
