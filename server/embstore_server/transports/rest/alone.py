"""What REST may not have one shard do alone.

REST is of one server. What all shards have to hear, or none, is refused there: a table that one
shard alone makes, or a label that it alone keeps, would leave the cluster apart. gRPC cannot tell
so: the router of a cluster calls each shard as any client calls a server.
"""

from collections.abc import Callable
from typing import Any

from embstore.commands import Command, Effect, Trait
from embstore.errors import InvalidArgumentError
from embstore.storage.shard import ShardPlace


def check_alone(command: Command[Any], place_of: Callable[[], ShardPlace | None]) -> None:
    """Refuse, of a shard, a command that all of its cluster have to hear.

    Raises InvalidArgumentError: nothing has changed.
    """
    if command.effect is not Effect.WRITES and Trait.OF_ALL_SHARDS not in command.traits:
        return
    place = place_of()
    if place is None:
        return
    address = place.shard_map.shards[place.shard]
    raise InvalidArgumentError(
        f"this is {place.name}: expected {type(command).__name__} to be given to all of its shards "
        f"by a connection to the cluster, as embstore.connect({address!r}) or the commands "
        f"of embstore with --address {address} make one, found it given to this shard alone"
    )
