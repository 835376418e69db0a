"""A store as the shard that the settings name, or as none: how it is opened, and what REST may do.

REST is of one server. What all shards have to hear, or none, is refused there: a table that one
shard alone makes, or a label that it alone keeps, would leave the cluster apart. gRPC cannot tell
so: the router of a cluster calls each shard as any client calls a server.
"""

from collections.abc import Callable
from typing import Any

from embstore.commands import Checkpoint, Command, Effect, EndSession, SetRetention
from embstore.engine.engine import Engine
from embstore.engine.sharding import be
from embstore.errors import InvalidArgumentError
from embstore.sharding import ShardMap
from embstore.storage import shard as shards
from embstore.storage.shard import ShardPlace
from embstore_server.settings import Settings

_OF_ALL = (Checkpoint, SetRetention, EndSession)
"""Beside all that writes: what a cluster has alike on all shards."""


def check_alone(command: Command[Any], place_of: Callable[[], ShardPlace | None]) -> None:
    """Refuse, of a shard, a command that all of its cluster have to hear.

    Raises InvalidArgumentError: nothing has changed.
    """
    if command.effect is not Effect.WRITES and not isinstance(command, _OF_ALL):
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


def take_place(settings: Settings, engine: Engine) -> None:
    """Have an open store be what the settings say it is, and note it in its directory.

    Raises InvalidArgumentError: it is something else, or the file of the map is none.
    """
    is_used = engine.tables.frame.command_number > 0
    commit, files = engine.storage.catalogue.head.commit, engine.storage.files
    be(engine, shards.take(files, _given(settings), is_used=is_used, commit=commit))


def _given(settings: Settings) -> ShardPlace | None:
    path = settings.shard_map
    if path is None or settings.shard is None:
        return None
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, ValueError) as exc:
        raise InvalidArgumentError(f"{path}: expected the file of a shard map: {exc}") from None
    try:
        return ShardPlace(settings.shard, ShardMap.from_json(text))
    except InvalidArgumentError as exc:
        raise InvalidArgumentError(f"{path}: {exc}") from None
