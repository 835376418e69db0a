"""Where the time of calls goes: seconds and counts by stage, measured by laps.

A lap is the time since the lap before; so stages add up to the call, and a lap costs one clock
reading.
"""

from time import perf_counter_ns


class Stages:
    """Seconds and laps by stage, since the store was opened. Engine thread only."""

    def __init__(self) -> None:
        self._nanoseconds: dict[str, int] = {}
        self._laps: dict[str, int] = {}
        self._last = 0

    def start(self) -> None:
        """Begin: the next lap counts from here."""
        self._last = perf_counter_ns()

    def lap(self, stage: str) -> None:
        """Account the time since the last lap to `stage`."""
        now = perf_counter_ns()
        self._nanoseconds[stage] = self._nanoseconds.get(stage, 0) + now - self._last
        self._laps[stage] = self._laps.get(stage, 0) + 1
        self._last = now

    def totals(self) -> dict[str, dict[str, float]]:
        """Return {stage: {"seconds", "laps"}}."""
        return {
            stage: {"seconds": ns * 1e-9, "laps": self._laps[stage]}
            for stage, ns in self._nanoseconds.items()
        }

    def seconds(self) -> dict[str, float]:
        """Return {stage: seconds}."""
        return {stage: ns * 1e-9 for stage, ns in self._nanoseconds.items()}
