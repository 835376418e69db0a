"""Backends whose stages are delayed by a seed: they wait at every point that the planner names
between its stages (`Files.reached`), and before rows are read from storage.
"""

import threading
from pathlib import Path

import numpy as np

from tests.conformance.backends import Embedded, UnsyncedFiles
from tests.conformance.emulated import Emulated
from tests.conformance.sessions.training import DELAYS_S, pause


class DelayedFiles(UnsyncedFiles):
    """Waits at the boundaries of the planner's stages, as long as a seed says."""

    def __init__(self, root: Path, seed: int) -> None:
        super().__init__(root)
        self._rng = np.random.default_rng(seed)
        self._lock = threading.Lock()
        self.points: set[str] = set()

    def reached(self, point: str) -> None:
        if point != "read" and not point.startswith("lookahead:"):
            return
        with self._lock:
            self.points.add(point)
            delay_s = float(self._rng.choice(DELAYS_S))
        pause(delay_s)


class Delayed(Embedded):
    """Embedded stores whose stages are delayed."""

    seed = 0
    delays: DelayedFiles

    def _files(self, path: Path) -> DelayedFiles:
        self.delays = DelayedFiles(path, self.seed)
        return self.delays


class DelayedEmulated(Delayed, Emulated):
    """The same on an emulated GPU."""
