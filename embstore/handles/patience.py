"""Waiting for what others hold: a call that is refused with TableHeldError is made again.

A session that holds a table ends with its trainer, or with the lease of one that was killed. Nobody
says when, so it is asked, a little less often each time.
"""

from collections.abc import Callable
from time import monotonic, sleep
from typing import TypeVar

from embstore.errors import InvalidArgumentError, TableHeldError

T = TypeVar("T")

_PAUSE_FIRST_S, _PAUSE_MAX_S = 0.05, 0.5


def check_wait_s(value: object) -> None:
    """Raise InvalidArgumentError unless it is a number of seconds to wait."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not value >= 0:
        raise InvalidArgumentError(f"expected wait_s to be seconds >= 0, found {value!r}")


def patiently(call: Callable[[], T], wait_s: float) -> T:
    """Return what a call returns, made again for `wait_s` seconds as long as a table is held.

    Raises
    ------
    InvalidArgumentError : `wait_s` is no number, or below 0.
    TableHeldError : a table is held still.
    """
    check_wait_s(wait_s)
    until, pause = monotonic() + wait_s, _PAUSE_FIRST_S
    while True:
        try:
            return call()
        except TableHeldError:
            left = until - monotonic()
            if left <= 0:
                raise
        sleep(min(pause, left))
        pause = min(2 * pause, _PAUSE_MAX_S)
