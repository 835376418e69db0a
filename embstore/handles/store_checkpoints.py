"""The checkpoints of a store: how they are made, kept, restored, and copied elsewhere."""

import warnings
from collections.abc import Callable, Mapping
from typing import Any

from embstore import commands as c
from embstore.choices import Retention
from embstore.commands import Executor
from embstore.handles.waits import retry_within
from embstore.results import BackupFacts, KeptCheckpoint


class StoreCheckpoints:
    """Methods of a `Store` for checkpoints."""

    executor: Executor
    unsent: list[Callable[[], str]]
    """Functions, each of which returns a text about updates that were made elsewhere and that the
    store does not have yet; an empty text if there are no such updates."""

    def checkpoint(
        self,
        label: str,
        metadata: Mapping[str, Any] | None = None,
        *,
        timeout_s: float | None = None,
    ) -> KeptCheckpoint:
        """Make everything durable and keep it under `label`, with `metadata` (a small JSON object).

        The `checkpoints_keep` newest labels can be restored, and also the labels that
        `set_retention` protected. A label cannot be used again while it is kept. The call warns if
        a hot/cold run over this store has trained rows since the run's last exchange.

        Raises
        ------
        CheckpointExistsError, InvalidArgumentError, CapacityError : the store continues unchanged.
        StorageError : the disk failed; the store must be opened again.
        """
        for missing in filter(None, [says() for says in self.unsent]):
            warnings.warn(f"checkpoint {label!r} does not have {missing}", stacklevel=2)
        noted: Any = {} if metadata is None else metadata
        return self.executor.execute(c.Checkpoint(label, noted), timeout_s=timeout_s)

    def checkpoints(self) -> list[KeptCheckpoint]:
        """Return the kept checkpoints, oldest first: label, metadata, and state of each."""
        return list(self.executor.execute(c.ListCheckpoints()))

    def set_retention(self, label: str, retention: Retention) -> KeptCheckpoint:
        """Protect a kept checkpoint, make it routine again, or drop it.

        Return its description after the change, or before a drop. Any label can be dropped, also
        the newest: sessions, scans, backups and a finished restore do not need it. Files that only
        this checkpoint needs are deleted at once, or with the next merge.

        Parameters
        ----------
        retention : "protected": newer checkpoints do not displace it, and it cannot be dropped;
            "routine", as for a new checkpoint: from the next checkpoint in its folder on, all
            protected ones and the last `checkpoints_keep` routine ones are kept; "dropped": it is
            no longer kept

        Raises
        ------
        CheckpointNotFoundError : the label is not kept.
        CheckpointProtectedError : the checkpoint to be dropped is protected.
        CapacityError : 64 other checkpoints are protected.
        PermissionDeniedError : the store was opened read-only, or is a standby.
        """
        return self.executor.execute(c.SetRetention(label, retention))

    def restore(self, label: str, *, wait_s: float = 0.0, force: bool = False) -> int:
        """Restore a kept checkpoint; return the command number. Table handles stay valid.

        State that is newer than the checkpoint is lost, for all clients of a server.

        Parameters
        ----------
        wait_s : longest wait for open sessions to end, in seconds. The session of a trainer that
            was killed ends when its lease has run out
        force : whether to end open sessions; all their ranks get an error

        Raises
        ------
        CheckpointNotFoundError : the label is not kept. Nothing has changed.
        CheckpointProtectedError : a newer checkpoint, which would be lost, is protected. Nothing
            has changed.
        TableHeldError : a session is still open, or was opened meanwhile. Nothing has changed.
        """
        command = c.Restore(label, bool(force))
        return retry_within(lambda: self.executor.execute(command), wait_s).command

    def backup(
        self, destination: str, label: str | None = None, *, timeout_s: float | None = None
    ) -> BackupFacts:
        """Copy a kept checkpoint to a directory or URL. Other calls are executed meanwhile.

        A backup contains one label. A directory can contain several backups and stores each file
        once, so that another backup adds only new files. `embstore restore-from` makes a store from
        a backup. A server continues a backup after `timeout_s` has passed.

        Parameters
        ----------
        destination : for a server, the name of a folder below its `--backup-within`; for an
            embedded store a path, or a URL if fsspec is installed. The destination must be empty,
            or contain backups of this store. On the store's own file system, backups are hard links
            to the store's files, and take no space.
        label : a kept checkpoint; None: the store commits, and the backup is called "command-N"; no
            checkpoint is made or dropped for the backup

        Raises
        ------
        CheckpointNotFoundError : the label is not kept.
        InvalidArgumentError : the destination has other contents, which have not changed.
        PermissionDeniedError : the server does not let clients write backups to the destination.
        CapacityError, StorageError : no space, or no access; earlier backups are unchanged.
        """
        return self.executor.execute(c.Backup(destination, label), timeout_s=timeout_s)

    def flush(self) -> int:
        """Write all dirty rows to the log and return their number.

        A checkpoint or a clean close makes them durable.
        """
        return self.executor.execute(c.Flush())
