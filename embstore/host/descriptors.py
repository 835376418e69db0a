"""File descriptors: the process gets as many as the system grants, and reserves some for storage.

A server process has a descriptor per connection, so a client that connects often enough uses all
descriptors up. The store must still be able to open files: an interrupted commit would fail the
store, and all commands acknowledged since the last commit would be lost. Therefore some descriptors
are kept open without a use. When the store needs a descriptor and there is no other, one of the
reserved descriptors is closed.
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
    """Descriptors that are reserved for files. Any thread."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._users = 0
        self._kept: list[int] = []
        self._lock = threading.Lock()
        os.register_at_fork(after_in_child=self._forked)

    def _forked(self) -> None:
        self._lock = threading.Lock()  # another thread may have held the lock

    def begin(self) -> None:
        """Reserve descriptors until each user that has called `begin` has also called `end`."""
        with self._lock:
            self._users += 1
        self.fill()

    def end(self) -> None:
        """Release the reserved descriptors, unless another user needs them."""
        with self._lock:
            self._users -= 1
            while not self._users and self._kept:
                os.close(self._kept.pop())

    def fill(self) -> None:
        """Reserve descriptors until `count` are reserved, as far as the system grants them."""
        with self._lock, suppress(OSError):
            while self._users and len(self._kept) < self._count:
                self._kept.append(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))

    def having(self, work: Callable[[], T]) -> T:
        """Return the result of `work`, which opens one file.

        If the process has no other descriptor, a reserved descriptor is released for `work`. If
        there is no reserved descriptor either, `work` raises OSError.
        """
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
"""The reserved descriptors of this process. A commit, a merge and a segment of each log open a
dozen files."""


def raise_limit() -> int:
    """Raise this process's limit of descriptors as far as the system allows; return the limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _MOST if hard == resource.RLIM_INFINITY else min(hard, _MOST)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with suppress(OSError, ValueError):  # the limit stays as it was
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]
