"""Profiles and the hot set as a store's directory keeps them.

    frequency/ID.imported   the profile that ranks the rows of table ID, as it was given
    frequency/ID.counted    what was counted of table ID until the store was closed
    frequency/HOTSET        the hot set that is pinned, its tables by id

Files are by table id, which is never used again: a profile belongs to its table, is gone with it,
and is never taken for that of another table of the same name. They are no part of a commit: which
rows are frequent is no content, and no bit of any row depends on it. Each is replaced whole. One
that cannot be read is as good as none; that it is so can be seen in the store's figures.

Files are written beside the engine's lock, one after the other. Closing the store waits for the one
that is being written, and none is written after it: the directory may be another store's then.

A profile of many rows stays on the disk; in memory are only levels, two bytes a row (levels.py).
"""

import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Protocol

from embstore.errors import EmbstoreError, InvalidArgumentError, StoreClosedError
from embstore.frequency.hotset import HotSet
from embstore.frequency.profile import Profile, TableProfile

_DIRECTORY = "frequency"
_HOT_SET = f"{_DIRECTORY}/HOTSET"


class KeptFiles(Protocol):
    """The file operations of a store's directory that are needed here."""

    def exists(self, path: str) -> bool:
        """Say whether there is such a file."""

    def is_directory(self, path: str) -> bool:
        """Say whether there is such a directory."""

    def list(self, path: str) -> list[str]:
        """Return the names in a directory."""

    def read_all(self, path: str) -> bytes:
        """Return a file's content."""

    def replace(self, path: str, content: bytes) -> None:
        """Write a file whole, or not at all."""

    def make_directory(self, path: str) -> None:
        """Make a directory."""

    def discard(self, path: str) -> None:
        """Remove a file, if it can be."""


class KeptProfiles:
    """What is known of access frequencies, in a store's directory. Any thread."""

    def __init__(self, files: KeptFiles, *, read_only: bool) -> None:
        self.read_only = read_only
        self.unreadable: set[str] = set()
        """Files that are there and are not what they should be."""
        self._files = files
        # One thread may take it twice: a signal handler may close the store while a file is
        # written, and could not wait for what it has interrupted.
        self._changing = threading.RLock()
        self._is_closed = False

    def keep(self, kind: str, table_id: int, table: TableProfile, rate: float) -> None:
        """Write a table's profile; `kind` is "imported" or "counted".

        Raises
        ------
        CapacityError, StorageError : the disk is full, or failed; what was kept before still is.
        StoreClosedError : nothing was written.
        """
        content = Profile({table.name: table}, rate=rate).to_bytes()
        self._write(f"{_DIRECTORY}/{table_id}.{kind}", content)

    def profile(self, kind: str, table_id: int) -> tuple[TableProfile, float] | None:
        """Return a table's profile and the share of accesses that it counted, if it has one."""
        path = f"{_DIRECTORY}/{table_id}.{kind}"
        content = self._read(path)
        if content is None:
            return None
        try:
            profile = Profile.from_bytes(content, what=path)
            (table,) = profile.tables.values()
        except (InvalidArgumentError, ValueError):
            self.unreadable.add(path)
            return None
        return table, profile.rate

    def keep_hot_set(self, hot_set: HotSet | None) -> None:
        """Write the hot set; None: there is none any more.

        Raises
        ------
        CapacityError, StorageError, StoreClosedError : as `keep`.
        """
        if hot_set is not None:
            self._write(_HOT_SET, hot_set.to_bytes())
        else:
            self._discard([_HOT_SET])

    def forget_counted(self) -> None:
        """Remove what was counted of every table.

        Raises
        ------
        StoreClosedError
        """
        names = self._files.list(_DIRECTORY)
        self._discard(f"{_DIRECTORY}/{name}" for name in names if name.endswith(".counted"))

    def close(self) -> None:
        """Wait for what is being written, and write nothing more."""
        with self._changing:
            self._is_closed = True

    def hot_set(self) -> HotSet | None:
        """Return the hot set, if one is kept."""
        content = self._read(_HOT_SET)
        if content is None:
            return None
        try:
            return HotSet.from_bytes(content, what=_HOT_SET)
        except InvalidArgumentError:
            self.unreadable.add(_HOT_SET)
            return None

    def forget_others(self, table_ids: Iterable[int]) -> None:
        """Remove the profiles of tables that no kept state of the store has."""
        if self.read_only or not self._files.is_directory(_DIRECTORY):
            return
        kept = {str(table_id) for table_id in table_ids}
        for name in self._files.list(_DIRECTORY):
            if name.partition(".")[0] not in kept and f"{_DIRECTORY}/{name}" != _HOT_SET:
                self._files.discard(f"{_DIRECTORY}/{name}")

    def _write(self, path: str, content: bytes) -> None:
        if self.read_only:
            return
        with self._open():
            if not self._files.is_directory(_DIRECTORY):
                self._files.make_directory(_DIRECTORY)
            self._files.replace(path, content)
            self.unreadable.discard(path)

    def _discard(self, paths: Iterable[str]) -> None:
        if self.read_only:
            return
        with self._open():
            for path in paths:
                self._files.discard(path)
                self.unreadable.discard(path)

    @contextmanager
    def _open(self) -> Iterator[None]:
        with self._changing:
            if self._is_closed:
                raise StoreClosedError("the store is closed; open it again")
            yield

    def _read(self, path: str) -> bytes | None:
        if not self._files.exists(path):
            return None
        try:
            return self._files.read_all(path)
        except EmbstoreError:
            self.unreadable.add(path)
            return None
