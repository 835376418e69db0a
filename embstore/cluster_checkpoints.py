"""Checkpoints of a cluster: every shard keeps a checkpoint under the same label and at the same
barrier (a position between two commands).

No list records which labels belong to the cluster: the metadata of the shards' checkpoints shows
it. A client that keeps a label draws a new **mark** for each attempt. Each shard stores the mark in
the metadata of its checkpoint, so that mark and checkpoint are durable together. A label belongs to
the cluster if all shards have it with the same mark. Therefore an interrupted attempt makes no
checkpoint of the cluster, whichever shards already have the label. Two interrupted attempts under
one label make none either, because their marks differ. The checkpoint exists from the commit of the
last shard until the first shard drops the label.

A client also names its pause of writes by the mark (`pause_name`). During the pause a shard makes
no checkpoint with another mark, so the client can drop what interrupted attempts have left.

Rejected: a list of the cluster's labels in one place, written after all shards have the label. The
list would add nothing to the marks, and a client would have to reach the process that stores the
list. A listed label that a shard has lost would be worthless, too.
"""

import json
from dataclasses import replace
from typing import Any

from embstore.results import KeptCheckpoint

_KEY = "embstore.mark"
MARK_CHARACTERS = 32


def marked(metadata: dict[str, Any], mark: str) -> dict[str, Any]:
    """Return the metadata that a shard keeps: the caller's metadata and the mark."""
    return metadata | {_KEY: mark}


def is_marked(metadata: dict[str, Any]) -> bool:
    """Return whether a shard's checkpoint was made for a checkpoint of the cluster."""
    return _KEY in metadata


def mark_of(checkpoint: KeptCheckpoint) -> str | None:
    """Return the mark of a shard's checkpoint; None: it belongs to one shard alone."""
    return checkpoint.metadata.get(_KEY)


def pause_name(mark: str) -> str:
    """Return the name of the pause of writes during which a client makes the checkpoints with this
    mark."""
    return f"a checkpoint, {mark}"


def may_be_made(metadata: dict[str, Any], pause: str) -> bool:
    """Return whether a shard makes a checkpoint while its writes are paused: not one of another
    client, since the client that paused them drops interrupted checkpoints."""
    return not is_marked(metadata) or pause == pause_name(metadata[_KEY])


def given(metadata: dict[str, Any]) -> dict[str, Any]:
    """Return the caller's metadata, from the metadata that a shard keeps."""
    mark = metadata.get(_KEY)
    if not isinstance(mark, str) or len(mark) > MARK_CHARACTERS:
        return metadata  # the caller's own metadata use the name of the mark
    return {name: value for name, value in metadata.items() if name != _KEY}


def unmarked(checkpoint: KeptCheckpoint) -> KeptCheckpoint:
    """Return a shard's checkpoint without the mark, as the caller knows it."""
    return replace(checkpoint, metadata=given(checkpoint.metadata))


def identity_of(checkpoint: KeptCheckpoint) -> str | None:
    """Return a value that is equal for the checkpoints of all shards under one label if the label
    belongs to the cluster; None: the label belongs to one shard alone."""
    mark = mark_of(checkpoint)
    return None if mark is None else json.dumps([mark, checkpoint.content])
