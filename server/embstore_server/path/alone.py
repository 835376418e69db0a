"""Commands that are refused on a single shard of a cluster.

REST and `embstore call` reach one server only. Therefore they refuse commands that must be executed
either by all shards or by none: a table or a label on one shard alone would make the cluster
inconsistent. The server cannot refuse such commands over gRPC, because the router of a cluster
calls each shard like any other client.
"""

from collections.abc import Callable
from typing import Any

from embstore.commands import Command, Effect, Trait
from embstore.errors import InvalidArgumentError
from embstore.storage.shard import ShardPlace


def check_alone(kind: type[Command[Any]], place_of: Callable[[], ShardPlace | None]) -> None:
    """Refuse a command to a shard if all shards of its cluster must execute the command.

    Raises InvalidArgumentError; nothing has changed.
    """
    if kind.effect is not Effect.WRITES and Trait.OF_ALL_SHARDS not in kind.traits:
        return
    place = place_of()
    if place is None:
        return
    address = place.shard_map.shards[place.shard]
    raise InvalidArgumentError(
        f"this is {place.name}: expected {kind.__name__} to be given to all of its "
        f"shards by a connection to the cluster, by embstore.connect({address!r}) or a command of "
        f"embstore with --address {address}, found it given to this shard alone"
    )
