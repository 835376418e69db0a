"""The mark up to which enough standbys have the leader's command log on their disks.

A **mark** is the number of records that this process had appended to the log at some time. Standbys
acknowledge positions in the log, but answers wait for marks. Therefore each sync is noted with its
position and its mark, newest last. The part of the log that an earlier process of the leader wrote
counts as well: no write is acknowledged until enough standbys have that part.

Event loop only.
"""

from bisect import bisect_right
from collections.abc import Callable

from embstore.storage.command_records import Place

_SYNCS_MAX = 4096
"""The largest number of noted syncs. With a smaller number, a standby's mark would be found later,
but never too early."""
_NOTHING = -1
_ALL = 1 << 62


class Quorum:
    """The marks of standbys.

    `needed` is the number of standbys that must have a write; `grown` is called when the mark has
    grown.
    """

    def __init__(self, needed: int, grown: Callable[[], None]) -> None:
        self.mark = _NOTHING if needed else _ALL
        """The mark up to which enough standbys have the log."""
        self._needed = needed
        self._grown = grown
        self._places: list[Place] = []
        self._marks_at: list[int] = []
        self._marks: dict[object, int] = {}

    def synced(self, mark: int, place: Place) -> None:
        """Note that the log is synced up to the position `place`, and contains, up to there, every
        write up to `mark`."""
        if not self._needed or (self._places and self._places[-1] >= place):
            return
        self._places.append(place)
        self._marks_at.append(mark)
        if len(self._places) > _SYNCS_MAX:
            del self._places[1], self._marks_at[1]

    def acknowledged(self, standby: object, place: Place) -> None:
        """Note that a standby has the log up to the position `place` on its disk."""
        at = bisect_right(self._places, place)
        if not self._needed or not at:
            return
        self._marks[standby] = self._marks_at[at - 1]
        marks = sorted(self._marks.values(), reverse=True)
        if len(marks) < self._needed or marks[self._needed - 1] <= self.mark:
            return
        self.mark = marks[self._needed - 1]
        least = max(bisect_right(self._marks_at, min(marks)) - 1, 0)
        del self._places[:least], self._marks_at[:least]
        self._grown()

    def left(self, standby: object) -> None:
        """Forget a standby that is no longer connected; the mark does not fall."""
        self._marks.pop(standby, None)
