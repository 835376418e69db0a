"""Makes an open store the shard of a cluster that the settings name, or an unsharded store if they
name no shard. Before a store is opened, checks that it has all commands that it has acknowledged as
a shard."""

from pathlib import Path

from embstore.engine.engine import Engine
from embstore.engine.sharding import be
from embstore.errors import InvalidArgumentError
from embstore.sharding import ShardMap
from embstore.storage import catalogue as catalogues
from embstore.storage import shard as shards
from embstore.storage.catalogue import Catalogue
from embstore.storage.contents import LOCK
from embstore.storage.files import Files
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


def check_has_all(settings: Settings) -> None:
    """Refuse a shard's directory whose commands after the last commit are lost: the other shards
    have executed them, so lookups would mix rows of different commands. Call it before the store
    is opened. (The coordinator of `embstore cluster start` takes all shards back before this.)

    Raises
    ------
    InvalidArgumentError : commands are lost.
    StoreInUseError : another server uses the directory.
    """
    place = shards.read(Files(str(settings.data)))
    if place is None or len(place.shard_map.shards) == 1:
        return
    kept = committed(settings.data)
    if kept is not None and kept.tail:
        raise InvalidArgumentError(
            f"{settings.data}: expected all commands that {place.name} has acknowledged, found "
            "those after its last commit lost, because its durability was not commands. The other "
            "shards have them: stop all shards, restore one checkpoint of the cluster in every "
            "shard's directory by embstore.open(DIRECTORY).restore(LABEL, force=True), and start "
            "the shards again, with --durability commands"
        )


def committed(directory: Path) -> Catalogue | None:
    """Return the catalogue of the last commit in a directory, or None if the directory is new.

    Raises StoreInUseError if another server uses the directory.
    """
    files = Files(str(directory))
    if not files.exists(catalogues.PATH):
        return None
    lock = files.lock(LOCK, shared=False)
    try:
        return catalogues.decode(files.read_all(catalogues.PATH))
    finally:
        lock.close()


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
