"""Makes an open store the shard of a cluster that the settings name, or an unsharded store if they
name no shard."""

from embstore.engine.engine import Engine
from embstore.engine.sharding import be
from embstore.errors import InvalidArgumentError
from embstore.sharding import ShardMap
from embstore.storage import shard as shards
from embstore.storage.shard import ShardPlace
from embstore_server.setup.settings import Settings


def apply_shard_map(settings: Settings, engine: Engine) -> None:
    """Make an open store the shard that the settings name, or an unsharded store if they name no
    shard. Record this in the store's directory.

    Raises InvalidArgumentError if the store is another shard, or if the file of the map is not a
    map.
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
