"""File descriptors: as many as the system grants, and some that only storage may use.

A process that serves has a descriptor for each connection, and whoever connects often enough takes
them all. What then cannot open a file must not be the store: half a commit fails it, and what was
acknowledged since the last one is lost. So some descriptors are kept open for nothing, and given up
when a file of the store finds none.
"""

import errno
import os
import resource
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

T = TypeVar("T")

_NONE_LEFT = {errno.EMFILE, errno.ENFILE}
_MOST = 1 << 20


class Spare:
    """Descriptors that are kept for files. Any thread."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._users = 0
        self._kept: list[int] = []
        self._lock = threading.Lock()
        os.register_at_fork(after_in_child=self._forked)

    def _forked(self) -> None:
        self._lock = threading.Lock()  # another thread may have had it

    def begin(self) -> None:
        """Keep descriptors from now on, until each who has begun has called `end`."""
        with self._lock:
            self._users += 1
        self.fill()

    def end(self) -> None:
        """Keep none any more, if nobody else needs them."""
        with self._lock:
            self._users -= 1
            while not self._users and self._kept:
                os.close(self._kept.pop())

    def fill(self) -> None:
        """Keep as many as there should be, or as many as there are."""
        with self._lock, suppress(OSError):
            while self._users and len(self._kept) < self._count:
                self._kept.append(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))

    def having(self, work: Callable[[], T]) -> T:
        """Return what work returns that opens one file, with a descriptor that was kept if there is
        no other; else OSError."""
        while True:
            try:
                return work()
            except OSError as exc:
                if exc.errno not in _NONE_LEFT or not self._give_up_one():
                    raise

    def _give_up_one(self) -> bool:
        with self._lock:
            if self._kept:
                os.close(self._kept.pop())
                return True
            return False


SPARE = Spare(32)
"""Of this process. A commit, a merge and a segment of each log open a dozen files."""


def raise_limit() -> int:
    """Let this process have as many descriptors as it may, and return how many that are."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _MOST if hard == resource.RLIM_INFINITY else min(hard, _MOST)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with suppress(OSError, ValueError):  # it stays as it was
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]
