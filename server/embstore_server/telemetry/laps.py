"""The begin and end of each stage of a call, for traces. A server without traces keeps only the
seconds of each stage (`embstore.stages`)."""

from typing import NamedTuple

from embstore.stages import StageSeconds

LAPS_MAX = 64
"""The largest number of laps per call. A call with more rows than fit in the cache has laps for
each part of its rows."""


class Lap(NamedTuple):
    """An interval of a call's time, in monotonic seconds; `parts` are the intervals inside it."""

    stage: str
    began: float
    ended: float
    parts: "tuple[Lap, ...]" = ()


class LapTimes(StageSeconds):
    """The sum of the seconds of each stage, and the first LAPS_MAX laps.

    One thread at a time can add laps; other threads can read.
    """

    def __init__(self) -> None:
        super().__init__()
        self.laps: list[Lap] = []

    def add(self, stage: str, began: int, ended: int) -> None:
        """Add a lap; `began` and `ended` are monotonic times in nanoseconds."""
        super().add(stage, began, ended)
        if len(self.laps) < LAPS_MAX:
            self.laps.append(Lap(stage, began * 1e-9, ended * 1e-9))
