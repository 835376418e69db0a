"""The time of a loop by its parts: its own work, and its waits.

The loop's thread is in one of four places at any time. The time outside the other three is its own
work; so there is a clock for the whole, and one for each of the others.
"""

from time import perf_counter
from typing import NamedTuple


class RunStats(NamedTuple):
    """How many steps a run's loop has taken, and the seconds of its thread by part."""

    steps: int
    """Steps that the loop has taken."""
    batch_s: float
    """It waited for the next batch to be read and announced: the loader is too slow, or `keys`."""
    lookup_s: float
    """It waited for rows: for steps before, the cache, the network."""
    send_s: float
    """It finished steps: gradients were sent, and applied with the other ranks'."""
    compute_s: float
    """All else in the loop."""
    skipped: int = 0
    """Batches of earlier finished steps, which `resume` has left out."""


class Times:
    """Counts, for one loop after the other. The loop's thread only."""

    def __init__(self) -> None:
        self.steps = self.skipped = 0
        self._whole = _Clock()
        self._parts = {name: _Clock() for name in ("batch", "lookup", "send")}

    def begin(self) -> None:
        """Count the time of a loop from now on."""
        self._whole.start()

    def end(self) -> None:
        """Stop counting."""
        self._whole.stop()

    def part(self, name: str) -> "_Clock":
        """Return the clock of a part; no part is within another."""
        return self._parts[name]

    def stats(self) -> RunStats:
        """Return the counts until now."""
        parts = {f"{name}_s": clock.seconds for name, clock in self._parts.items()}
        compute_s = max(self._whole.seconds - sum(parts.values()), 0.0)
        return RunStats(self.steps, **parts, compute_s=compute_s, skipped=self.skipped)


class _Clock:
    """Counts the seconds between starts and stops, or of with blocks."""

    def __init__(self) -> None:
        self._seconds = 0.0
        self._began: float | None = None

    @property
    def seconds(self) -> float:
        """The seconds that were counted until now."""
        now = 0.0 if self._began is None else perf_counter() - self._began
        return self._seconds + now

    def start(self) -> None:
        """Count from now on."""
        self._began = perf_counter()

    def stop(self) -> None:
        """Stop counting. Stopping twice is harmless."""
        self._seconds, self._began = self.seconds, None

    def __enter__(self) -> None:
        self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()
