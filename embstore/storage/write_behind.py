"""Writing behind: one piece goes to the disk while the next is packed and indexed.

An error of a write surfaces at the next write, or at the end; so whoever writes behind holds the
storage's `no_way_back` around all of it.
"""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np
from numpy.typing import NDArray

Records = NDArray[np.uint64]
Write = Callable[[Callable[[int, Records], None], int, Records], object]
"""Carries a write of records at an offset out, now or later."""


def write_now(write: Callable[[int, Records], None], offset: int, records: Records) -> None:
    write(offset, records)


class WriteBehind:
    """Writes on a thread of its own, one at a time: the next is accepted when the last is done."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1)
        self._pending: Future[None] | None = None

    def __enter__(self) -> "WriteBehind":
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self._wait()
        finally:
            self._thread.shutdown()

    def write(
        self,
        write: Callable[[int, Records], None],
        offset: int,
        records: Records,
    ) -> None:
        """Accept a write; an error of the one before is raised here."""
        self._wait()
        self._pending = self._thread.submit(write, offset, records)

    def _wait(self) -> None:
        pending, self._pending = self._pending, None
        if pending is not None:
            pending.result()
