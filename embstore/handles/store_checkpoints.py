"""The checkpoints of a store: made, kept, gone back to, and copied elsewhere."""

import warnings
from collections.abc import Callable, Mapping
from typing import Any

from embstore import commands as c
from embstore.commands import Executor
from embstore.durability import Retention
from embstore.handles.patience import patiently
from embstore.results import BackupFacts, KeptCheckpoint


class StoreCheckpoints:
    """Verbs of checkpoints, which a `Store` has."""

    executor: Executor
    unsent: list[Callable[[], str]]
    """Each returns what was trained elsewhere and is not here yet, or an empty text."""

    def checkpoint(
        self,
        label: str,
        metadata: Mapping[str, Any] | None = None,
        *,
        timeout_s: float | None = None,
    ) -> KeptCheckpoint:
        """Make everything durable and keep it under `label`, with `metadata` (a small JSON object).

        The `checkpoints_keep` newest labels can be restored, and those that `set_retention` has
        protected. A label is used once while it is kept.
        Warns if a hot/cold run over this store has trained rows since its last exchange.

        Raises
        ------
        CheckpointExistsError, InvalidArgumentError, CapacityError : the store goes on as it was.
        StorageError : the disk failed; the store must be opened again.
        """
        for missing in filter(None, [says() for says in self.unsent]):
            warnings.warn(f"checkpoint {label!r} is without {missing}", stacklevel=2)
        noted: Any = {} if metadata is None else metadata
        return self.executor.execute(c.Checkpoint(label, noted), timeout_s=timeout_s)

    def checkpoints(self) -> list[KeptCheckpoint]:
        """Return the kept checkpoints, oldest first: label, metadata, and the state they hold."""
        return list(self.executor.execute(c.ListCheckpoints()))

    def set_retention(self, label: str, retention: Retention) -> KeptCheckpoint:
        """Protect a kept checkpoint, have it be a routine one again, or drop it; return it as it is
        then, or was.

        Sessions, scans, backups and a restore that has ended need no label that is kept: any may be
        dropped, the newest too. What files only it needs goes at once, or with the next merge.

        Parameters
        ----------
        retention : "protected": newer ones do not push it out, and it cannot be dropped; "routine",
            as it was made: the last `checkpoints_keep` ones of its folder are kept, beside those
            that are protected; "dropped": it is not kept any more

        Raises
        ------
        CheckpointNotFoundError : the label is not kept.
        CheckpointProtectedError : one that is protected was to be dropped.
        CapacityError : 64 others are protected.
        PermissionDeniedError : the store was opened read-only, or is a standby's.
        """
        return self.executor.execute(c.SetRetention(label, retention))

    def restore(self, label: str, *, wait_s: float = 0.0, force: bool = False) -> int:
        """Go back to a kept checkpoint; return the command number. Table handles stay valid.

        What is newer than the checkpoint is gone, for all clients of a server.

        Parameters
        ----------
        wait_s : how long to wait for open sessions to end, at most. That of a trainer that was
            killed ends when its lease has run out
        force : end open sessions, for all their ranks, who are told so

        Raises
        ------
        CheckpointNotFoundError : the label is not kept. Nothing has changed.
        CheckpointProtectedError : a newer one, which would be gone, is protected. Nothing has
            changed.
        TableHeldError : a session is open, still or again. Nothing has changed.
        """
        command = c.Restore(label, bool(force))
        return patiently(lambda: self.executor.execute(command), wait_s).command

    def backup(
        self, destination: str, label: str | None = None, *, timeout_s: float | None = None
    ) -> BackupFacts:
        """Copy a kept checkpoint to a directory or URL; other calls go on.

        A backup is of one label; several may be in one directory, which has each file once: another
        backup takes what is new. `embstore restore-from` makes a store of it. A server goes on when
        `timeout_s` has passed.

        Parameters
        ----------
        destination : of a server, the name of a folder below its `--backup-within`; of an embedded
            store a path, or a URL where fsspec is installed. It has nothing yet, or backups of this
            store. On the store's own file system files get a second name there, and take no space.
        label : a kept checkpoint; None: the store commits, and the backup is called "command-N"; no
            checkpoint is made or given up for it

        Raises
        ------
        CheckpointNotFoundError : the label is not kept.
        InvalidArgumentError : there is something else, which has not changed.
        PermissionDeniedError : the server lets no client have backups written there.
        CapacityError, StorageError : no room, or no access; earlier backups are as they were.
        """
        return self.executor.execute(c.Backup(destination, label), timeout_s=timeout_s)

    def flush(self) -> int:
        """Write all dirty rows to the log and return how many.

        A checkpoint or a clean close makes them durable.
        """
        return self.executor.execute(c.Flush())
