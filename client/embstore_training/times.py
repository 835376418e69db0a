"""The time of a loop, divided into the loop's own work and its waits.

At any time the loop's thread waits for a batch, waits for rows, finishes a step, or does its own
work. One clock measures the whole loop, and three clocks measure the first three parts. The
remaining time is the loop's own work.
"""

from time import perf_counter
from typing import NamedTuple


class RunStats(NamedTuple):
    """The number of steps that a run's loop has taken, and the seconds that the loop's thread has
    spent in each part."""

    steps: int
    """The number of steps that the loop has taken."""
    batch_s: float
    """Seconds of waiting until the next batch is read and announced. If they are many, the loader
    or `keys` is slow."""
    lookup_s: float
    """Seconds of waiting for rows: for earlier steps, for the cache, or for the network."""
    send_s: float
    """Seconds of finishing steps: gradients are sent, and applied together with the gradients of
    other ranks."""
    compute_s: float
    """Seconds of everything else in the loop."""
    skipped: int = 0
    """The number of batches of finished steps that `resume` has left out."""


class Times:
    """Measures the loops of a run, one loop after the other. Only the loop's thread uses it."""

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
        """Return the clock of a part. Parts are never nested."""
        return self._parts[name]

    def stats(self) -> RunStats:
        """Return the counts until now."""
        parts = {f"{name}_s": clock.seconds for name, clock in self._parts.items()}
        compute_s = max(self._whole.seconds - sum(parts.values()), 0.0)
        return RunStats(self.steps, **parts, compute_s=compute_s, skipped=self.skipped)


class _Clock:
    """Sums the seconds between starts and stops, or inside with blocks."""

    def __init__(self) -> None:
        self._seconds = 0.0
        self._began: float | None = None

    @property
    def seconds(self) -> float:
        """The seconds counted until now."""
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
