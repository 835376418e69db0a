"""The retry policy for a shard that cannot accept a command yet: repeat the command until a
deadline.

A shard refuses commands that write while its writes are paused (`barrier`). A shard that refuses
has not executed its part of the command, but another shard may have executed another part. So only
the refused part is sent again, and each part is applied once. A client that pauses writes searches
for a barrier at which no command is half executed. So a command that some shards have executed
reaches the other shards before partitions move.

Shard and router can also have different maps, which gives two cases. The shard may have the older
map; then it gets the newer map in a moment. Or the router has the older map; then the whole command
is split again by the newer map (`following`). In the second case no shard has executed its part if
partitions have moved, because such maps change at a barrier. If a shard has only another address,
its standby has replaced it, and `following` and `halves` say what becomes of the command.
"""

from collections.abc import Callable
from random import uniform
from time import monotonic, sleep
from typing import TypeVar

from embstore.errors import MovedError, WritesPausedError
from embstore.results import ServerInfo
from embstore.sharding import ShardMap

T = TypeVar("T")

TIMEOUT_S = 60.0
"""Seconds for which a command without a timeout is repeated: the default timeout of a
connection."""
_PAUSE_FIRST_S, _PAUSE_MAX_S = 1e-3, 0.1


def retry_while_paused(send: Callable[[], T], check: Callable[[], None], timeout_s: float) -> T:
    """Call `send` until it returns a shard's answer, and return the answer.

    `check` is called after each refusal; it raises the error that ends the repetition: MovedError,
    if there is a newer map.

    Raises
    ------
    WritesPausedError, MovedError : the shard refused the command for `timeout_s` seconds.
    """
    until, pause = monotonic() + timeout_s, _PAUSE_FIRST_S
    while True:
        try:
            return send()
        except (WritesPausedError, MovedError):
            check()
            if monotonic() + pause > until:
                raise
        sleep(uniform(0.5, 1.0) * pause)
        pause = min(2 * pause, _PAUSE_MAX_S)


def check_newest(info: ServerInfo, shard_map: ShardMap) -> None:
    """Raise MovedError if a shard has a newer map than `shard_map`."""
    found = info.shard_map
    if found is not None and found.version > shard_map.version:
        raise MovedError(
            f"shard {info.shard} of cluster {found.cluster!r} has version {found.version} of the "
            f"map, found {shard_map.version} here: connect again"
        )
