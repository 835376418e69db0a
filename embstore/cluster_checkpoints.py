"""Checkpoints of a cluster: one label on every shard, kept at one boundary.

Each shard keeps its own checkpoint, and nothing beside them says which labels are the cluster's: it
is in the labels themselves. Whoever keeps one draws a **mark**, anew for each try, and each shard
keeps it in the metadata of its checkpoint, which is durable with it. A label is the cluster's if
all shards have it with one mark. So a try that was cut short, on whatever shards it left the label,
has made none, and neither have two such tries that meet under one label. The last shard's commit is
the moment from which there is a checkpoint; a label that is dropped ends with the first.

Rejected: a list elsewhere, written last. It says nothing that the marks do not say, and a client
would have to reach whoever has it; a label that it names and a shard has lost is none either.
"""

import json
from dataclasses import replace
from typing import Any

from embstore.results import KeptCheckpoint

_KEY = "embstore.mark"
MARK_CHARACTERS = 32


def marked(metadata: dict[str, Any], mark: str) -> dict[str, Any]:
    """Return the metadata that a shard keeps, of what a caller gave."""
    return metadata | {_KEY: mark}


def given(metadata: dict[str, Any]) -> dict[str, Any]:
    """Return what a caller gave, of the metadata that a shard keeps."""
    mark = metadata.get(_KEY)
    if not isinstance(mark, str) or len(mark) > MARK_CHARACTERS:
        return metadata  # it is the caller's own
    return {name: value for name, value in metadata.items() if name != _KEY}


def unmarked(checkpoint: KeptCheckpoint) -> KeptCheckpoint:
    """Return a shard's checkpoint as the caller knows it."""
    return replace(checkpoint, metadata=given(checkpoint.metadata))


def identity_of(checkpoint: KeptCheckpoint) -> str | None:
    """Return what is equal on all shards if a label is the cluster's; None: it is a shard's own."""
    mark = checkpoint.metadata.get(_KEY)
    if mark is None:
        return None
    return json.dumps([mark, [(table.table_id, table.t) for table in checkpoint.state.tables]])
