"""Where the time of calls goes: seconds and counts by stage, measured by laps.

A lap is the time since the last lap; so stages add up to the call, and a lap costs one clock
reading.
"""

from dataclasses import dataclass
from time import perf_counter_ns

from embstore.stats import counter


@dataclass
class StageStats:
    """One part of the work of calls."""

    seconds: float = counter("Time of calls spent in the stage.")
    laps: int = counter("How often the stage was passed.")


class Stages:
    """Seconds and laps by stage, since the store was opened. Engine thread only."""

    def __init__(self) -> None:
        self.by_name: dict[str, StageStats] = {}
        self.of_call: dict[str, float] = {}
        """Seconds by stage of the work at hand: whoever begins one puts a new dict here."""
        self._last = 0

    def start(self) -> None:
        """Begin: the next lap counts from here."""
        self._last = perf_counter_ns()

    def lap(self, stage: str) -> None:
        """Account the time since the last lap to `stage`."""
        now = perf_counter_ns()
        stats = self.by_name.get(stage)
        if stats is None:
            stats = self.by_name[stage] = StageStats()
        seconds = (now - self._last) * 1e-9
        stats.seconds += seconds
        stats.laps += 1
        self.of_call[stage] = self.of_call.get(stage, 0.0) + seconds
        self._last = now

    def seconds(self) -> dict[str, float]:
        """Return {stage: seconds}."""
        return {name: stats.seconds for name, stats in self.by_name.items()}
