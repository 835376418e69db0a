"""Trainers of one process that meet, as ranks do."""

import threading
from typing import Any

WAIT_S = 300


class Meeting:
    """An all-gather of threads."""

    def __init__(self, ranks: int, wait_s: float = WAIT_S) -> None:
        self._given: list[Any] = [None] * ranks
        self._barrier = threading.Barrier(ranks, timeout=wait_s)

    def leave(self) -> None:
        """Have nobody wait any more."""
        self._barrier.abort()

    def of(self, rank: int) -> Any:
        """Return the hook of a rank."""

        def all_gather(given: Any) -> list[Any]:
            self._given[rank] = given
            self._barrier.wait()
            found = list(self._given)
            self._barrier.wait()
            return found

        return all_gather
