"""A shard that cannot take a command yet is given it again, until it does or the time is over.

A shard refuses what writes while its writes are held (`boundary`): it has done nothing then, but
another shard may have its part of the same command. So only the part that was refused is sent
again, and the command is applied once by each. Whoever holds writes looks for a boundary at which
no command is half done, so what was sent to some shards gets to the others before partitions move.
"""

from collections.abc import Callable
from random import uniform
from time import monotonic, sleep
from typing import TypeVar

from embstore.errors import WritesHeldError

T = TypeVar("T")

TIMEOUT_S = 60.0
"""As a connection's, where nobody says."""
_PAUSE_FIRST_S, _PAUSE_MAX_S = 1e-3, 0.1


def until_taken(send: Callable[[], T], timeout_s: float) -> T:
    """Return what a shard answers to a command that is sent by `send`.

    Raises
    ------
    WritesHeldError : its writes have been held for that long.
    """
    until, pause = monotonic() + timeout_s, _PAUSE_FIRST_S
    while True:
        try:
            return send()
        except WritesHeldError:
            if monotonic() + pause > until:
                raise
        sleep(uniform(0.5, 1.0) * pause)
        pause = min(2 * pause, _PAUSE_MAX_S)
