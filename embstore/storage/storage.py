"""Storage: log, base, catalogue and merges of a store's directory.

    rows       reads rows that are not in the cache                            stored_rows.py
    appender   logs dirty rows that leave the cache                            appender.py
    commit     makes everything durable by one rename, with or without a label
    restore    makes a kept checkpoint the head again
    merges     folds, base merges and compactions in the background            merges.py

Between commits the base does not change, and the log only grows; the catalogue is replaced as a
whole. Therefore the store opens at its last commit after a crash at any instant, without a repair.
contents.py describes failures of the disk.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from time import monotonic, time
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embstore.arrays import KEY_BITS, Keys
from embstore.config import Limits
from embstore.errors import (
    CheckpointExistsError,
    CheckpointNotFoundError,
    EmbstoreError,
    WritesPausedError,
)
from embstore.host.workers import Workers
from embstore.results import Place, State, TableEntry
from embstore.row_keys import RowKeys
from embstore.stats import document
from embstore.storage import command_records
from embstore.storage.appender import Appender
from embstore.storage.base import Base
from embstore.storage.catalogue import Catalogue, SegmentEntry
from embstore.storage.contents import Contents
from embstore.storage.file_errors import removed
from embstore.storage.files import Files
from embstore.storage.id_files import Ids
from embstore.storage.labels import kept_after
from embstore.storage.lives import Lives
from embstore.storage.log import Log
from embstore.storage.merges import Merges
from embstore.storage.snapshot import Snapshot
from embstore.storage.sparse import SparseStorage
from embstore.storage.states import KeptState
from embstore.storage.stats import StorageStats
from embstore.storage.stored_rows import StoredRows

_RANGES_PER_THREAD = 2


class Storage:
    """The rows of a store on its disk."""

    def __init__(
        self,
        files: Files,
        *,
        read_only: bool,
        checkpoints_keep: int,
        limits: Limits,
        threads: int = 1,
    ) -> None:
        self.read_only = read_only
        self.committed_at = monotonic()
        """The time of the last commit, or, if there was none, the time at which the store was
        opened; a `monotonic` time."""
        self.segment_bytes = limits.segment_bytes
        self.log_rows_max = limits.log_rows_max
        self.files = files
        self.keep = checkpoints_keep
        """Number of routine labels that each folder of labels keeps; older labels are dropped."""
        self.is_check = False
        """Whether the running call only checks its command (`embstore.engine.sharding`)."""
        self.is_changing = False
        """Whether the running call has begun a change that must not be left incomplete."""
        self._workers = Workers(threads, _RANGES_PER_THREAD)
        self._contents = Contents(files, read_only=read_only, limits=limits)
        self.check_usable = self._contents.check_usable
        self.fail = self._contents.fail
        self.irreversible = self._contents.irreversible
        self.missing = self._contents.missing
        self.rows = StoredRows(self._contents, self._workers)
        self.merges = Merges(self._contents)
        self.appender = Appender(self._contents, self._workers, self.merges.slow_down)

    @property
    def catalogue(self) -> Catalogue:
        """The committed state."""
        return self._contents.catalogue

    @property
    def log(self) -> Log:
        """The log; a new object after a restore."""
        return self._contents.log

    @property
    def base(self) -> Base:
        """The base; a new object after a restore."""
        return self._contents.base

    @property
    def ids(self) -> Ids:
        """The row numbers of sparse tables; a new object after a restore."""
        return self._contents.ids

    @property
    def failure(self) -> EmbstoreError | None:
        """The error that failed the storage, or None."""
        return self._contents.failure

    @property
    def next_table_id(self) -> int:
        """The id of the next table that is created."""
        return self._contents.next_table_id

    @next_table_id.setter
    def next_table_id(self, table_id: int) -> None:
        self._contents.next_table_id = table_id

    def begin_change(self) -> None:
        """Record that the running call can no longer be refused: if memory runs out from now on,
        the store fails."""
        if self.is_check:
            self.end_check()
        self.is_changing = True

    def end_check(self) -> None:
        """Raise WritesPausedError if the running call was to be checked only. The checks have
        passed, and nothing has changed."""
        if self.is_check:
            raise WritesPausedError("the command would be executed; it was sent to be checked only")

    def begin_tail(self) -> None:
        """Record that commands follow the last commit: if they are lost, a new epoch begins."""
        if not self.catalogue.tail:
            self._contents.reserve_table_ids(self.next_table_id)

    def end_tail(self) -> None:
        """Record that all commands after the last commit are durable in the command log."""
        if self.catalogue.tail:
            self._contents.replace_catalogue(replace(self.catalogue, tail=False))

    def begin_epoch(self, epoch: int) -> None:
        """Begin an epoch: a new epoch of this store, or the epoch that the leader has begun."""
        self._contents.replace_catalogue(replace(self.catalogue, epoch=epoch))

    def name_commands(self, place: command_records.Place | None) -> None:
        """Record up to which position the command log is durable; None: there is no log."""
        if self.catalogue.commands != place:
            self._contents.replace_catalogue(replace(self.catalogue, commands=place))

    def close(self) -> None:
        """Stop a running merge and release the directory. Nothing is committed."""
        try:
            self.merges.stop()
        finally:
            self._workers.close()
            self._contents.close()

    # Tables

    def create_table(self, table: TableEntry) -> None:
        """Begin to create a table. The table has no rows yet, so none is written."""
        self.end_check()
        if self.catalogue.tail and table.table_id >= self.catalogue.next_table_id:
            self._contents.reserve_table_ids(table.table_id)
        self.begin_change()
        self._contents.name(table)
        self.ids.create(table)
        self._contents.next_table_id = table.table_id + 1

    def drop_table(self, table_id: int) -> None:
        """Forget a table's rows. The files of these rows stay as long as a kept checkpoint names
        them."""
        self.log.forget_table(table_id << KEY_BITS, (table_id + 1) << KEY_BITS)
        self.ids.drop(table_id)

    def of_pool(self, row_keys: RowKeys) -> "PoolStorage":
        """Return the storage as a pool uses it; for a sparse table its methods take ids as keys."""
        if row_keys.sparse_id is None:
            return self
        return SparseStorage(self, self._contents, self._workers, row_keys.sparse_id)

    # Commit, restore

    def commit(
        self,
        tables: Sequence[TableEntry],
        command: int,
        *,
        lives: Lives = (),
        places: Mapping[str, Place] | None = None,
        commands: command_records.Place | None = None,
        label: str | None = None,
        metadata: dict[str, Any] | None = None,
    ) -> None:
        """Make all records appended so far durable, with the given tables, and with `places`, the
        resume positions of sessions. With a label, the commit is kept as a checkpoint.

        `lives` are the processes that gave the commands up to `command` their numbers (lives.py).
        `commands` is the position at which the command log continues; the log is durable up to that
        position. None: the position in the catalogue stays as it was.

        Raises
        ------
        CheckpointExistsError : the label is in use. Nothing has changed.
        CapacityError : there is no space for the catalogue. Nothing is committed; the store stays
            usable.
        StorageError : the disk failed, and so the store has failed.
        """
        if label is not None and self.catalogue.checkpoint(label) is not None:
            raise CheckpointExistsError(
                f"a checkpoint {label!r} is kept already; choose another label"
            )
        self.merges.complete()  # an installation may remove files that are not committed yet
        head = State(self.catalogue.head.commit + 1, command, tuple(tables), dict(places or {}))
        following = partial(self._next_catalogue, head, lives, label, metadata or {}, commands)
        new = following()
        drops = new.runs != self.catalogue.runs
        if drops:
            self.merges.stop()  # a merge may be reading files that are about to be removed
            new = following()
        self.files.reached("commit:synced")
        self.begin_change()
        self._contents.replace_catalogue(new)
        self.files.reached("commit:renamed")
        self.log.mark_committed(new.head.commit)
        self.ids.mark_committed(new)
        self.committed_at = monotonic()
        if drops:
            self._contents.use_runs(self.base.open(new.runs))
        # Poll before the freeze: at this moment the index shows which records this commit needs.
        self.merges.poll()
        if label is not None:
            self.merges.complete()
            self.log.freeze()

    def _next_catalogue(
        self,
        head: State,
        lives: Lives,
        label: str | None,
        metadata: dict[str, Any],
        commands: command_records.Place | None,
    ) -> Catalogue:
        old = self.catalogue
        checkpoints = old.checkpoints
        if label is not None:
            made = KeptState(label, metadata, head, made_at=time())
            checkpoints = kept_after(checkpoints, made, self.keep, is_shard=self._contents.is_shard)
        new = replace(
            old, head=head, lives=lives, checkpoints=checkpoints, tail=False
        ).without_dropped()
        ids = self.ids.entries(new)
        with self.irreversible:
            self.ids.sync()
            self.log.seal()
            uncommitted = self.log.uncommitted
            for segment in uncommitted:
                assert segment.file is not None
                segment.file.sync()
                if not self.files.is_named(segment.file):
                    raise removed(segment.path)
            if uncommitted:
                self.files.sync_directory("log")
        entries = [SegmentEntry(s.number, head.commit, s.bytes, s.checksum) for s in uncommitted]
        return replace(
            new,
            next_table_id=self.next_table_id,
            next_segment=self.log.next_number,
            segments=(*old.segments, *entries),
            ids=ids,
            commands=commands or old.commands,
        )

    def kept(self, label: str) -> KeptState:
        """Return the kept checkpoint of a label, or raise CheckpointNotFoundError."""
        checkpoint = self.catalogue.checkpoint(label)
        if checkpoint is None:
            kept = ", ".join(repr(c.label) for c in self.catalogue.checkpoints) or "none"
            raise CheckpointNotFoundError(f"no checkpoint {label!r} is kept; kept are: {kept}")
        return checkpoint

    def keep_only(self, checkpoints: tuple[KeptState, ...]) -> None:
        """Keep only the given checkpoints, by one rename. Files that no state needs any more are
        removed at once or with the next merge.

        Raises
        ------
        CapacityError : there is no space for the catalogue. Nothing has changed.
        StorageError : the disk failed, and so the store has failed.
        """
        self.end_check()
        new = replace(self.catalogue, checkpoints=checkpoints).without_dropped()
        drops = new.runs != self.catalogue.runs
        if drops:
            self.merges.stop()  # a merge may be reading files that are about to be removed
            new = replace(self.catalogue, checkpoints=checkpoints).without_dropped()
        self.files.reached("retention:decided")
        self.begin_change()
        self._contents.replace_catalogue(new)
        self.files.reached("retention:renamed")
        if drops:
            self._contents.use_runs(self.base.open(new.runs))
        self.merges.look_again()
        self.merges.poll()

    def snapshot(
        self,
        table_id: int,
        commit: int,
        since: int = 0,
        wanted: Callable[[Keys], NDArray[np.bool_]] | None = None,
    ) -> Snapshot:
        """Return a snapshot of a table as of `commit`, which must be the commit of a kept
        checkpoint or of the head. The snapshot has the rows that were logged after commit `since`
        and that `wanted` selects."""
        numbers = self.ids.tables.get(table_id)
        runs, segments = self.base.runs, self.log.segments
        return Snapshot(table_id, runs, segments, commit, since, wanted, numbers)

    def restore(self, label: str, command: int, lives: Lives = (), update_id: int = 0) -> State:
        """Make a kept checkpoint the head again. Newer changes are lost, and a new epoch begins."""
        checkpoint = self.kept(label)
        self.end_check()
        self.merges.stop()
        restored = replace(
            self.catalogue.restored(checkpoint, command, lives, update_id),
            next_table_id=self.next_table_id,
            next_segment=self.log.next_number,
        )
        self.begin_change()
        self._contents.replace_catalogue(restored)
        with self.irreversible:
            self.log.close()
            self._contents.use(restored)
            self.merges.try_again()
        return restored.head

    # Looking

    def check_integrity(self) -> None:
        """Raise AssertionError if an invariant of the log or of row numbers does not hold."""
        self.merges.complete()
        self.log.check_integrity()
        self.ids.check_integrity()

    def stats(self) -> dict[str, Any]:
        """Return the stats of log, base and merges, by name."""
        return document(StorageStats, self)


PoolStorage = Storage | SparseStorage
"""The storage as a pool of the cache uses it."""
