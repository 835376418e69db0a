"""When each stage of a call was; seconds by stage alone are enough where no traces are made."""

from typing import NamedTuple

from embstore.stages import StageSeconds

LAPS_MAX = 64
"""Laps of a call, at most; a call with more rows than the cache has laps for each part."""


class Lap(NamedTuple):
    """A stretch of a call's time; of monotonic seconds."""

    stage: str
    began: float
    ended: float
    parts: "tuple[Lap, ...]" = ()


class LapTimes(StageSeconds):
    """Seconds by stage, to be added to; and its laps, the first LAPS_MAX of them.

    One at a time may add to it, and others may look.
    """

    def __init__(self) -> None:
        super().__init__()
        self.laps: list[Lap] = []

    def add(self, stage: str, began: int, ended: int) -> None:
        """Add a lap."""
        super().add(stage, began, ended)
        if len(self.laps) < LAPS_MAX:
            self.laps.append(Lap(stage, began * 1e-9, ended * 1e-9))
