"""Durable state: commits, checkpoints, backups, standbys."""

import json
from dataclasses import replace
from typing import Any

from embstore import results
from embstore.choices import Retention
from embstore.commands import joins
from embstore.commands.base import Command, Effect, Retry, Right, Trait
from embstore.results import Acknowledged


class Flush(Command[int], effect=Effect.LONG, join=joins.total):
    """Write the dirty rows of a table, or of all tables, to the log; the result is the number of
    these rows."""

    table: str = ""
    table_id: int | None = None


class Checkpoint(
    Command[results.KeptCheckpoint],
    effect=Effect.TUNES,
    retry=Retry.WINDOW,
    right=Right.WRITE,
    traits=Trait.OF_THE_LEADER | Trait.OF_ALL_SHARDS | Trait.ON_ITS_LABEL | Trait.AUDITED,
):
    """Make all changes durable, and keep this state under a label."""

    label: str
    metadata: dict[str, Any]

    def short_answer(self, result: results.KeptCheckpoint) -> results.KeptCheckpoint:
        """Return the answer without the metadata, because each commit writes all answers that a
        client can ask for again."""
        return result.without_metadata

    def full_answer(self, short: results.KeptCheckpoint) -> results.KeptCheckpoint:
        """Return the answer with the metadata of the command."""
        return replace(short, metadata=self.metadata)


class ListCheckpoints(
    Command[tuple[results.KeptCheckpoint, ...]], effect=Effect.READS, right=Right.KNOWN
):
    """Return the kept checkpoints, oldest first; a server returns the checkpoints that the caller
    can read."""


class SetRetention(
    Command[results.KeptCheckpoint],
    effect=Effect.TUNES,
    retry=Retry.WINDOW,
    right=Right.ADMIN,
    traits=Trait.OF_THE_LEADER | Trait.OF_ALL_SHARDS | Trait.ON_ITS_LABEL,
):
    """Protect a kept checkpoint, make it a routine checkpoint again, or drop it.

    Newer checkpoints replace routine checkpoints. The result is the checkpoint as it is after the
    change, or as it was before a drop. With `mark`, a shard changes only the checkpoint of that
    attempt (`embstore.cluster_checkpoints`), and raises CheckpointNotFoundError for another one.
    """

    label: str
    retention: Retention
    mark: str = ""

    @property
    def needs(self) -> Right:
        """To drop a checkpoint, a caller needs only the right to make one: new checkpoints of its
        folder push out older ones anyway, except protected ones, which cannot be dropped."""
        return Right.WRITE if self.retention == "dropped" else self.right


class Restore(
    Command[Acknowledged], effect=Effect.WRITES, right=Right.ADMIN, traits=Trait.BEGINS_EPOCH
):
    """Restore a kept checkpoint. The command is refused if sessions are open; with `force`,
    sessions are ended first."""

    label: str
    force: bool = False


class Backup(Command[results.BackupFacts], effect=Effect.LONG):
    """Copy a kept checkpoint, or, if no label is given, the present state, to `destination`: a path
    on the server, or a URL that the server can write."""

    destination: str
    label: str | None = None


class Promote(
    Command[None],
    effect=Effect.TUNES,
    traits=Trait.OF_ANY_MAP | Trait.BEGINS_EPOCH,
    join=joins.nothing,
):
    """Make a standby the leader: it stops following its leader and accepts writes."""


def metadata_json(metadata: dict[str, Any]) -> str:
    """Return a checkpoint's metadata as JSON; the size of this text is limited."""
    return json.dumps(metadata, allow_nan=False)
