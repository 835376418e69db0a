"""Streams of an emulated device: queues of work, done as late as allowed.

Nothing of a stream is done before the host waits for a mark behind it, or for one of another stream
that follows it; and then no more than that needs. So whoever forgets to wait reads garbage, and
whoever forgets to have a stream follow another finds its work not done.
"""

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

Work = Callable[[], None]


class Mark(NamedTuple):
    """Behind the first `position` works of a stream."""

    stream: int
    position: int


@dataclass
class _Stream:
    work: deque[tuple[Work, list[Any]]] = field(default_factory=deque)
    given: int = 0
    done: int = 0


class Streams:
    """All streams of a device, by number. Work comes with the memory that it names."""

    def __init__(self, numbers: Iterable[int]) -> None:
        self._streams = {number: _Stream() for number in numbers}
        self._touched: set[Any] = set()  # named for work that was done since the last look

    def __getitem__(self, number: int) -> _Stream:
        return self._streams[number]

    def give(self, work: Work, stream: int, named: list[Any]) -> None:
        """Queue work."""
        self[stream].work.append((work, named))
        self[stream].given += 1

    def given(self) -> list[int]:
        """Return how much work each stream was given."""
        return [stream.given for stream in self._streams.values()]

    def are_done(self, given: list[int]) -> bool:
        """Return whether each stream has done so much."""
        pairs = zip(self._streams.values(), given, strict=True)
        return all(stream.done >= count for stream, count in pairs)

    def mark(self, stream: int) -> Mark:
        """Return the mark behind all that a stream was given."""
        return Mark(stream, self[stream].given)

    def is_reached(self, mark: Mark) -> bool:
        return self[mark.stream].done >= mark.position

    def run_until(self, mark: Mark) -> None:
        """Do the work before a mark."""
        while not self.is_reached(mark):
            self.take(mark.stream)()

    def run_all(self) -> None:
        """Do all that is left."""
        for number in self._streams:
            self.run_until(self.mark(number))

    def take(self, stream: int) -> Work:
        """Return the next work of a stream, which the caller does."""
        self[stream].done += 1
        work, named = self[stream].work.popleft()
        self._touched.update(named)
        return work

    def take_touched(self) -> set[Any]:
        """Return the memory that was named for work done since the last such call."""
        touched, self._touched = self._touched, set()
        return touched

    def drop_all(self) -> None:
        """Forget the work that is not done, as of a device that is lost."""
        for stream in self._streams.values():
            stream.work.clear()
            stream.done = stream.given
