"""Waiting for a table that another session uses: a call refused with TableHeldError is repeated.

A session that uses a table ends with its trainer, or when the lease of a killed trainer runs out.
No message announces the end, so the call is repeated, with growing pauses.
"""

from collections.abc import Callable
from time import monotonic, sleep
from typing import TypeVar

from embstore.errors import InvalidArgumentError, TableHeldError

T = TypeVar("T")

_PAUSE_FIRST_S, _PAUSE_MAX_S = 0.05, 0.5


def check_wait_s(value: object) -> None:
    """Raise InvalidArgumentError unless `value` is a number of seconds to wait."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not value >= 0:
        raise InvalidArgumentError(f"expected wait_s to be seconds >= 0, found {value!r}")


def retry_within(call: Callable[[], T], wait_s: float) -> T:
    """Return a call's result; repeat the call for `wait_s` seconds while a session uses a table.

    Raises
    ------
    InvalidArgumentError : `wait_s` is no number, or is below 0.
    TableHeldError : a session still uses a table after that time.
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
