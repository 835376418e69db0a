"""Time of calls by stage, measured by laps.

A lap is the time since the previous lap ended, so the stages of a call add up to the whole call.
Each stage of a call appends its name and the time at its end:

    stages.laps += "gather", now()

This line calls no Python function, because a function call would measurably slow down calls of few
keys. Laps are added up when the totals are read, or when there are many laps.
"""

from dataclasses import dataclass
from time import monotonic_ns as now

from embstore.stats import counter

LAPS_MAX = 1000
"""The most laps that wait to be added up."""
__all__ = ["LAPS_MAX", "StageSeconds", "StageStats", "Stages", "now"]


@dataclass
class StageStats:
    """The time of one stage of the work on calls."""

    seconds: float = counter("Time of calls spent in the stage.")
    laps: int = counter("How often the stage was passed.")


class StageSeconds(dict[str, float]):
    """The seconds that some calls have spent in each stage."""

    def add(self, stage: str, began: int, ended: int) -> None:
        """Add a lap, given its start and end in nanoseconds of the monotonic clock."""
        self[stage] = self.get(stage, 0.0) + (ended - began) * 1e-9


class Stages:
    """Seconds and laps by stage, since the store was opened. Engine thread only."""

    def __init__(self) -> None:
        self.laps: list[str | int] = []
        """Laps that are not yet added up. Each call appends "" and its start, then the name and the
        end of each stage."""
        self.of_work = StageSeconds()
        """The times of the current task: a server assigns a new object before each task."""
        self._by_name: dict[str, StageStats] = {}

    def add_up(self) -> None:
        """Add the waiting laps to the totals."""
        laps, self.laps, began = self.laps, [], 0
        for place in range(0, len(laps), 2):
            stage, ended = laps[place], laps[place + 1]
            assert isinstance(stage, str) and isinstance(ended, int)
            if stage:
                stats = self._by_name.get(stage)
                if stats is None:
                    stats = self._by_name[stage] = StageStats()
                stats.seconds += (ended - began) * 1e-9
                stats.laps += 1
                self.of_work.add(stage, began, ended)
            began = ended

    @property
    def by_name(self) -> dict[str, StageStats]:
        """The totals of all stages so far."""
        self.add_up()
        return self._by_name

    def seconds(self) -> dict[str, float]:
        """Return the total seconds of each stage, {stage: seconds}."""
        return {name: stats.seconds for name, stats in self.by_name.items()}
