"""Trainers of one process that meet, as ranks do."""

import threading
from typing import Any

WAIT_S = 60


class Meeting:
    """An all-gather of threads."""

    def __init__(self, ranks: int) -> None:
        self._given: list[Any] = [None] * ranks
        self._barrier = threading.Barrier(ranks, timeout=WAIT_S)

    def of(self, rank: int) -> Any:
        def all_gather(given: Any) -> list[Any]:
            self._given[rank] = given
            self._barrier.wait()
            found = list(self._given)
            self._barrier.wait()
            return found

        return all_gather
