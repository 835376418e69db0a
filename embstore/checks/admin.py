"""Commands on the process, tables, durability and access frequencies."""

import json
from collections.abc import Mapping
from typing import Any, get_args

from embstore import commands as c
from embstore.arrays import fp32_scalar
from embstore.checks.arguments import UINT64_MAX, Checks, expect, integer, number, one_of, text
from embstore.checks.parts import table_name
from embstore.config import TableConfig, check_rows
from embstore.durability import Retention
from embstore.errors import CapacityError, CheckpointNotFoundError, InvalidArgumentError
from embstore.profiles.hotset import HotSet
from embstore.profiles.profile import Profile
from embstore.results import Boundary
from embstore.sharding import ShardMap

_PATH_CHARACTERS_MAX = 4096
_METADATA_DEPTH_MAX = 32
"""The catalogue is read with whatever recursion limit a process has."""

_MEMBERS_MAX = 4096
"""Of one client's sessions: far more than it has."""


def _resize_cache(command: c.ResizeCache) -> c.ResizeCache:
    if isinstance(command.cache_bytes, int) and command.cache_bytes > UINT64_MAX:
        raise CapacityError(f"cache_bytes {command.cache_bytes} is more than systems can address")
    return c.ResizeCache(integer(command.cache_bytes, "cache_bytes", 1))


def _set_policy(command: c.SetPolicy) -> c.SetPolicy:
    expect(isinstance(command.policy, str), "the name of a policy", command.policy)
    return command


def _create_table(command: c.CreateTable) -> c.CreateTable:
    config = command.config
    expect(isinstance(config, TableConfig), "a TableConfig", config)
    return command


def _grow_table(command: c.GrowTable) -> c.GrowTable:
    name = table_name(command.table)
    rows = check_rows(command.rows, name)
    return c.GrowTable(name, command.table_id, rows, _members(command.members))


def _set_learning_rate(command: c.SetLearningRate) -> c.SetLearningRate:
    name = table_name(command.table)
    rate = fp32_scalar(command.learning_rate, f"table {name!r}: learning_rate")
    return c.SetLearningRate(name, command.table_id, rate, _members(command.members))


def _members(members: Any) -> tuple[str, ...]:
    if len(members) > _MEMBERS_MAX:
        raise InvalidArgumentError(f"expected at most {_MEMBERS_MAX} members, found {len(members)}")
    return tuple(text(member, "a member") for member in members)


def _checkpoint(command: c.Checkpoint) -> c.Checkpoint:
    return c.Checkpoint(text(command.label, "a label"), _metadata(command.metadata))


def _backup(command: c.Backup) -> c.Backup:
    destination = command.destination
    is_text = isinstance(destination, str) and 0 < len(destination) <= _PATH_CHARACTERS_MAX
    expected = "a destination, a path or URL of printable characters"
    expect(is_text and destination.isprintable(), expected, destination)
    label = command.label
    return c.Backup(destination, None if label is None else text(label, "a label"))


def _metadata(value: Any) -> dict[str, Any]:
    """Return a copy of a JSON object."""
    is_object = isinstance(value, dict) and all(isinstance(key, str) for key in value)
    expect(is_object, "metadata to be a dict with string keys", value)
    if not _is_shallow(value, _METADATA_DEPTH_MAX):
        raise InvalidArgumentError(f"expected metadata nested at most {_METADATA_DEPTH_MAX} deep")
    try:
        document = json.dumps(value, allow_nan=False)
        json.dumps(value, ensure_ascii=False).encode()  # half a surrogate pair is no text
    except (TypeError, ValueError, RecursionError) as exc:
        raise InvalidArgumentError(f"expected metadata that JSON can hold: {exc}") from exc
    copy: dict[str, Any] = json.loads(document)
    return copy


def _is_shallow(value: Any, depth: int) -> bool:
    if not isinstance(value, dict | list | tuple):
        return True
    parts = value.values() if isinstance(value, dict) else value
    return depth > 0 and all(_is_shallow(part, depth - 1) for part in parts)


def _restore(command: c.Restore) -> c.Restore:
    _check_may_be_kept(command.label)
    return command


def _set_shard_map(command: c.SetShardMap) -> c.SetShardMap:
    expect(isinstance(command.shard_map, ShardMap), "a ShardMap", command.shard_map)
    boundary = command.boundary
    expect(boundary is None or isinstance(boundary, Boundary), "a Boundary", boundary)
    return command


def _pause_writes(command: c.PauseWrites) -> c.PauseWrites:
    text(command.by, "by")
    expect(
        command.until is None or isinstance(command.until, Boundary), "a Boundary", command.until
    )
    return command


def _set_retention(command: c.SetRetention) -> c.SetRetention:
    _check_may_be_kept(command.label)
    one_of(command.retention, "retention", get_args(Retention))
    return command


def _check_may_be_kept(label: Any) -> None:
    if not isinstance(label, str) or not label.isprintable():
        raise CheckpointNotFoundError(f"no checkpoint {label!r} is kept")


def _export_profile(command: c.ExportProfile) -> c.ExportProfile:
    one_of(command.source, "source", ("counted", "imported"))
    return command


def _import_profile(command: c.ImportProfile) -> c.ImportProfile:
    if not isinstance(command.profile, Profile):
        raise InvalidArgumentError(f"expected a Profile, found {type(command.profile).__name__}")
    rename = command.rename
    is_so = isinstance(rename, Mapping) and all(
        isinstance(name, str) and name.isprintable() for pair in rename.items() for name in pair
    )
    expect(is_so, "rename to be a mapping of names to names", rename)
    return command


def _pin_hot_set(command: c.PinHotSet) -> c.PinHotSet:
    if not isinstance(command.hot_set, HotSet):
        raise InvalidArgumentError(f"expected a HotSet, found {type(command.hot_set).__name__}")
    return command


def _warm_cache(command: c.WarmCache) -> c.WarmCache:
    share = number(command.share, "share", 0, 1)
    expect(share > 0, "share to be above 0 and at most 1", command.share)
    return c.WarmCache(share)


ADMIN: Checks = {
    c.ResizeCache: _resize_cache,
    c.SetPolicy: _set_policy,
    c.CreateTable: _create_table,
    c.GrowTable: _grow_table,
    c.SetLearningRate: _set_learning_rate,
    c.Checkpoint: _checkpoint,
    c.Backup: _backup,
    c.SetRetention: _set_retention,
    c.Restore: _restore,
    c.SetShardMap: _set_shard_map,
    c.PauseWrites: _pause_writes,
    c.ExportProfile: _export_profile,
    c.ImportProfile: _import_profile,
    c.PinHotSet: _pin_hot_set,
    c.WarmCache: _warm_cache,
}
