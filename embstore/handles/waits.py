"""Waiting for a table that another session has: a call refused with TableHeldError is repeated.

A session that has a table ends with its trainer, or with the lease of a trainer that was killed. No
message announces the end, so the call is repeated, a little less often each time.
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


def retry_within(call: Callable[[], T], wait_s: float) -> T:
    """Return a call's result; repeat the call for `wait_s` seconds while a table is held.

    Raises
    ------
    InvalidArgumentError : `wait_s` is no number, or below 0.
    TableHeldError : a table is still held.
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
