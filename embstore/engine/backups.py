"""Backups of a running store. A backup runs in the calling thread, concurrently with all other
calls.

A backup needs the engine only for two short parts. A backup without a label begins with a commit,
which is made in pieces like the store's own commits (commits.py). Then the files get second names
(hard links) while the backup has the engine, so that no file can be replaced in between. The long
part, copying, does not need the engine (`embstore.storage.backup`). A server starts without the
modules that copy: the first backup imports them.
"""

import threading
from collections.abc import Callable
from contextlib import ExitStack, closing
from functools import partial

from embstore.commands import Progress
from embstore.engine.commits import OwnCommits
from embstore.errors import EmbstoreError, PermissionDeniedError, StoreClosedError
from embstore.results import BackupFacts
from embstore.storage import shard as shards
from embstore.tables.slices import Slices
from embstore.tables.tables import Tables

ANYWHERE = ""


class Backups:
    """Makes backups, one at a time. Any thread."""

    def __init__(self, tables: Tables, commits: OwnCommits) -> None:
        self.within: str | None = ANYWHERE
        """The path or URL below which backups are written; a destination is a name below it.
        ANYWHERE: destinations are paths or URLs. None: backups are forbidden."""
        self.count = 0
        self.is_running = False
        self.bytes = self.of_bytes = 0
        self.label: str | None = None
        self.error: str | None = None
        self._tables = tables
        self._commits = commits
        self._lock = threading.Lock()
        self._stopping = threading.Event()

    def back_up(
        self, destination: str, label: str | None, progress: Progress | None = None
    ) -> BackupFacts:
        """Back up a kept checkpoint, or, if no label is given, the current state.

        Raises
        ------
        CheckpointNotFoundError, InvalidArgumentError, PermissionDeniedError : nothing has changed.
        CapacityError, StorageError : there is no space, or no access; earlier backups are
            unchanged.
        StoreClosedError : the store was closed during the backup; earlier backups are unchanged.
        Exception : an error of `progress`, which is called with the bytes done; earlier backups are
            unchanged.
        """
        place, below = self._place_of(destination)
        with Slices(self._tables.frame, progress).after_others(self._lock):
            self.is_running, self.error = True, None
            try:
                found = self._back_up(place, below, label, progress)
            except EmbstoreError as exc:
                self.error = str(exc)
                raise
            finally:
                self.is_running = False
            self.count, self.label = self.count + 1, found.label
            return found

    def _back_up(
        self, place: str, below: str, label: str | None, progress: Progress | None
    ) -> BackupFacts:
        from embstore.storage.backup import back_up, catalogue_of, linked, make_room
        from embstore.storage.destinations import open_destination

        storage = self._tables.storage
        if label is not None:
            with self._tables.reading():
                found = storage.kept(label)  # an unknown label raises before any file is written
                if (shard := shards.read(storage.files)) is not None:
                    shard.check_label(label, found.state.commit)
        store_id = storage.catalogue.store_id
        with (
            closing(open_destination(place, below, store_id=store_id)) as to,
            ExitStack() as links,
        ):
            if label is None and not storage.read_only:
                self._commits.commit(progress)
            if not storage.read_only:
                make_room(storage.files)
            with self._tables.background():
                kept = None if label is None else storage.kept(label)
                catalogue = catalogue_of(storage.catalogue, kept)
                name: Callable[[str], str] = str
                if not storage.read_only:  # else no file is replaced
                    name = links.enter_context(linked(storage.files, catalogue))
            made = label if label is not None else f"command-{catalogue.head.command}"
            noted = partial(self._note, progress)
            return back_up(storage.files, name, catalogue, made, to, noted)

    def _note(self, progress: Progress | None, done: int, of: int) -> None:
        if self._stopping.is_set():
            raise StoreClosedError("the store was closed while a backup was made")
        self.bytes, self.of_bytes = done, of
        if progress is not None:
            progress(done, of)

    def _place_of(self, destination: str) -> tuple[str, str]:
        """Check that a destination is allowed. Return the path or URL to open, and the name of the
        destination's folder below it; the name is "" if the opened path is the destination."""
        if self.within is None:
            raise PermissionDeniedError(
                "this server writes no backups for clients: start it with the directory or URL "
                "below which it may write them (backup_within, --backup-within)"
            )
        if self.within == ANYWHERE:
            return destination, ""
        from embstore.storage.destinations import name_within

        return self.within, name_within(destination, self.within)

    def stop(self) -> None:
        """Ask the running backup to end soon, and refuse further backups."""
        self._stopping.set()

    def join_threads(self) -> None:
        """Wait for the end of the running backup. The caller must not have the engine."""
        with self._lock:
            pass
