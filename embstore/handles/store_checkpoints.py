"""The checkpoints of a store: made, kept, restored, and copied elsewhere."""

import warnings
from collections.abc import Callable, Mapping
from typing import Any

from embstore import commands as c
from embstore.choices import Retention
from embstore.commands import Executor
from embstore.handles.waits import retry_within
from embstore.results import BackupFacts, KeptCheckpoint


class StoreCheckpoints:
    """Verbs of checkpoints, which a `Store` has."""

    executor: Executor
    unsent: list[Callable[[], str]]
    """Each returns a text about updates made elsewhere that are not here yet, or an empty one."""

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
            warnings.warn(f"checkpoint {label!r} does not have {missing}", stacklevel=2)
        noted: Any = {} if metadata is None else metadata
        return self.executor.execute(c.Checkpoint(label, noted), timeout_s=timeout_s)

    def checkpoints(self) -> list[KeptCheckpoint]:
        """Return the kept checkpoints, oldest first: label, metadata, and their state."""
        return list(self.executor.execute(c.ListCheckpoints()))

    def set_retention(self, label: str, retention: Retention) -> KeptCheckpoint:
        """Protect a kept checkpoint, make it a routine one again, or drop it; return its
        description after the change, or before a drop.

        Sessions, scans, backups and a restore that has ended need no label that is kept: any may be
        dropped, the newest too. Files that only it needs are deleted at once, or with the next
        merge.

        Parameters
        ----------
        retention : "protected": newer ones do not push it out, and it cannot be dropped; "routine",
            the retention of a new one: the last `checkpoints_keep` ones of its folder are kept, and
            all protected ones; "dropped": it is not kept any more

        Raises
        ------
        CheckpointNotFoundError : the label is not kept.
        CheckpointProtectedError : one that is protected was to be dropped.
        CapacityError : 64 others are protected.
        PermissionDeniedError : the store was opened read-only, or is a standby's.
        """
        return self.executor.execute(c.SetRetention(label, retention))

    def restore(self, label: str, *, wait_s: float = 0.0, force: bool = False) -> int:
        """Restore a kept checkpoint; return the command number. Table handles stay valid.

        State that is newer than the checkpoint is lost, for all clients of a server.

        Parameters
        ----------
        wait_s : how long to wait for open sessions to end, at most. The session of a trainer that
            was killed ends when its lease has run out
        force : end open sessions, for all their ranks, which get an error

        Raises
        ------
        CheckpointNotFoundError : the label is not kept. Nothing has changed.
        CheckpointProtectedError : a newer one, which would be lost, is protected. Nothing has
            changed.
        TableHeldError : a session is open, still or again. Nothing has changed.
        """
        command = c.Restore(label, bool(force))
        return retry_within(lambda: self.executor.execute(command), wait_s).command

    def backup(
        self, destination: str, label: str | None = None, *, timeout_s: float | None = None
    ) -> BackupFacts:
        """Copy a kept checkpoint to a directory or URL; other calls go on.

        A backup is of one label; a directory may have several, and has each file once: another
        backup adds only new files. `embstore restore-from` makes a store of it. A server continues
        a backup when `timeout_s` has passed.

        Parameters
        ----------
        destination : for a server, the name of a folder below its `--backup-within`; for an
            embedded store a path, or a URL where fsspec is installed. It is empty, or has backups
            of this store. On the store's own file system files get a second name there, and take no
            space.
        label : a kept checkpoint; None: the store commits, and the backup is called "command-N"; no
            checkpoint is made or given up for it

        Raises
        ------
        CheckpointNotFoundError : the label is not kept.
        InvalidArgumentError : the destination has other contents, which have not changed.
        PermissionDeniedError : the server does not let clients write backups there.
        CapacityError, StorageError : no space, or no access; earlier backups are as they were.
        """
        return self.executor.execute(c.Backup(destination, label), timeout_s=timeout_s)

    def flush(self) -> int:
        """Write all dirty rows to the log and return how many.

        A checkpoint or a clean close makes them durable.
        """
        return self.executor.execute(c.Flush())
