"""Memory that was freed, given back to the system.

glibc's malloc keeps freed memory, for each thread that allocated it. For the usual calls that is
right: the next ones reuse it. But the memory of refused calls goes back to the system.
"""

import asyncio
import ctypes
import os
from contextlib import suppress

from embstore.errors import InvalidArgumentError, PermissionDeniedError, UnauthenticatedError

_M_ARENA_MAX = -8
"""The parameter of mallopt(3)."""
_REFUSALS = UnauthenticatedError, PermissionDeniedError, InvalidArgumentError
_AFTER_S = 5.0
"""Seconds between asking and giving back; memory that is freed meanwhile goes with it."""


def share_freed_memory() -> None:
    """Have the threads share one of malloc's arenas, unless the environment says how many.

    glibc would keep freed memory by thread: with sixty clients a server grew by 7 MiB a minute, of
    which it used nothing. malloc_trim(3) keeps the end of a second arena, where after messages of
    31 MiB up to 60 MiB are free. Called before the first thread begins: an arena stays.
    """
    if "MALLOC_ARENA_MAX" not in os.environ:
        with suppress(AttributeError):  # not glibc
            ctypes.CDLL(None).mallopt(_M_ARENA_MAX, 1)


class MemoryTrim:
    """Gives memory back to the system when refused calls have freed some. Event loop only."""

    def __init__(self) -> None:
        self._giving_back: asyncio.TimerHandle | None = None

    def after(self, error: Exception) -> None:
        """Give back the memory of a call, if this is the error of a refused one."""
        if isinstance(error, _REFUSALS):
            self.release()

    def release(self) -> None:
        """Release free memory, after a moment, in a thread: it takes half a millisecond, or after
        gigabytes half a second."""
        if self._giving_back is None:
            loop = asyncio.get_running_loop()
            self._giving_back = loop.call_later(_AFTER_S, self._release, loop)

    def _release(self, loop: asyncio.AbstractEventLoop) -> None:
        self._giving_back = None
        loop.run_in_executor(None, _trim)


def _trim() -> None:
    with suppress(AttributeError):  # not glibc
        ctypes.CDLL(None).malloc_trim(0)
