"""Freed memory, and its return to the system.

glibc's malloc keeps freed memory for the thread that allocated it. After usual calls this is
useful, because the next calls reuse the memory. But the memory of refused calls is returned to the
system.
"""

import asyncio
import ctypes
import os
from contextlib import suppress

from embstore.errors import InvalidArgumentError, PermissionDeniedError, UnauthenticatedError

_M_ARENA_MAX = -8
"""The parameter M_ARENA_MAX of mallopt(3)."""
_REFUSALS = UnauthenticatedError, PermissionDeniedError, InvalidArgumentError
_AFTER_S = 5.0
"""Seconds from the request to the release; memory that is freed meanwhile is released, too."""


def share_freed_memory() -> None:
    """Make all threads share one arena of malloc, unless the environment sets the number of arenas.

    Otherwise glibc keeps freed memory per thread: with sixty clients a server grew by 7 MiB a
    minute, all of it unused. malloc_trim(3) does not trim the end of a second arena, where up to 60
    MiB are free after messages of 31 MiB. Call this function before the first thread begins,
    because an arena is never removed.
    """
    if "MALLOC_ARENA_MAX" not in os.environ:
        with suppress(AttributeError):  # not glibc
            ctypes.CDLL(None).mallopt(_M_ARENA_MAX, 1)


class MemoryTrim:
    """Returns memory to the system when refused calls have freed some. Event loop only."""

    def __init__(self) -> None:
        self._giving_back: asyncio.TimerHandle | None = None

    def after(self, error: Exception) -> None:
        """Return free memory to the system soon, if this error shows that its call was refused."""
        if isinstance(error, _REFUSALS):
            self.release()

    def release(self) -> None:
        """Return free memory to the system after some seconds, in a thread.

        The release takes half a millisecond, or half a second if gigabytes are free.
        """
        if self._giving_back is None:
            loop = asyncio.get_running_loop()
            self._giving_back = loop.call_later(_AFTER_S, self._release, loop)

    def _release(self, loop: asyncio.AbstractEventLoop) -> None:
        self._giving_back = None
        loop.run_in_executor(None, _trim)


def _trim() -> None:
    with suppress(AttributeError):  # not glibc
        ctypes.CDLL(None).malloc_trim(0)
