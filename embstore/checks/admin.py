"""Checks of commands on the process, tables, durability and access frequencies."""

import json
from typing import Any

from embstore import commands as c
from embstore.arrays import fp32_scalar
from embstore.checks.arguments import UINT64_MAX, Checks, expect, integer, number, text
from embstore.checks.parts import table_name
from embstore.config import check_rows
from embstore.errors import CapacityError, InvalidArgumentError

_PATH_CHARACTERS_MAX = 4096
_METADATA_DEPTH_MAX = 32
"""Maximum depth of the metadata of a checkpoint. It is limited because another process may read the
catalogue, with a lower recursion limit."""

_MEMBERS_MAX = 4096
"""Maximum number of session members that a command can name; a client has far fewer."""


def _resize_cache(command: c.ResizeCache) -> c.ResizeCache:
    if isinstance(command.cache_bytes, int) and command.cache_bytes > UINT64_MAX:
        raise CapacityError(f"cache_bytes {command.cache_bytes} is more than systems can address")
    return c.ResizeCache(integer(command.cache_bytes, "cache_bytes", 1))


def _set_policy(command: c.SetPolicy) -> c.SetPolicy:
    expect(isinstance(command.policy, str), "the name of a policy", command.policy)
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
    expected = f"a destination, a path or URL of 1 to {_PATH_CHARACTERS_MAX} printable characters"
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
        json.dumps(value, ensure_ascii=False).encode()  # fails for half a surrogate pair
    except (TypeError, ValueError, RecursionError) as exc:
        raise InvalidArgumentError(f"expected metadata that JSON can hold: {exc}") from exc
    copy: dict[str, Any] = json.loads(document)
    return copy


def _is_shallow(value: Any, depth: int) -> bool:
    if not isinstance(value, dict | list | tuple):
        return True
    parts = value.values() if isinstance(value, dict) else value
    return depth > 0 and all(_is_shallow(part, depth - 1) for part in parts)


def _warm_cache(command: c.WarmCache) -> c.WarmCache:
    share = number(command.share, "share", 0, 1)
    expect(share > 0, "share to be above 0 and at most 1", command.share)
    return c.WarmCache(share)


ADMIN: Checks = {
    c.ResizeCache: _resize_cache,
    c.SetPolicy: _set_policy,
    c.GrowTable: _grow_table,
    c.SetLearningRate: _set_learning_rate,
    c.Checkpoint: _checkpoint,
    c.Backup: _backup,
    c.WarmCache: _warm_cache,
}
