"""The retry policy for a shard that cannot take a command yet: repeat it until a deadline.

A shard refuses commands that write while its writes are paused (`barrier`): it has done nothing
then, but another shard may have its part of the same command. So only the part that was refused is
sent again, and the command is applied once by each. A client that pauses writes looks for a
barrier at which no command is half done, so commands that some shards got reach the others before
partitions move.

A shard that has another map than the router is either behind, and gets the map in a moment, or the
router is: then the whole command is split anew (`following`). In the latter case no shard has its
part: the maps changed at a barrier.
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
"""The time to repeat a command, if none is given; as a connection's timeout."""
_PAUSE_FIRST_S, _PAUSE_MAX_S = 1e-3, 0.1


def retry_while_paused(send: Callable[[], T], check: Callable[[], None], timeout_s: float) -> T:
    """Return a shard's answer to a command that is sent by `send`.

    `check` raises the error that ends the repetition: a newer map.

    Raises
    ------
    WritesPausedError, MovedError : the shard refused it so for that long.
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
    """Raise MovedError, if a shard has a newer map than this one."""
    found = info.shard_map
    if found is not None and found.version > shard_map.version:
        raise MovedError(
            f"shard {info.shard} of cluster {found.cluster!r} has version {found.version} of the "
            f"map, found {shard_map.version} here: connect again"
        )
