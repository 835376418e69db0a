"""Profiles and the hot set as a store's directory keeps them.

    frequency/ID.imported   the profile that ranks the rows of table ID, as it was given
    frequency/ID.counted    the counts of table ID until the store was closed
    frequency/HOTSET        the hot set that is pinned, its tables by id

Files are by table id, which is never used again: a profile belongs to its table, is gone with it,
and is never taken for another table's of the same name. They are no part of a commit: which rows
are frequent is no content, and no bit of any row depends on it. Each is replaced whole. One that
cannot be read counts as absent; the store's stats show it.

Files are written without the engine's lock, one after the other. Closing the store waits for the
running write, and none follows it: the directory may be another store's then.

A profile of many rows stays on the disk; in memory are only levels, two bytes a row (levels.py).
"""

import threading
from collections.abc import Callable, Iterable, Mapping
from typing import TypeVar

from embstore.errors import EmbstoreError, StoreClosedError
from embstore.profiles.hotset import HotSet
from embstore.profiles.profile import Profile, TableProfile
from embstore.storage.files import Files
from embstore.storage.own_names import is_own

_DIRECTORY = "frequency"
_HOT_SET = f"{_DIRECTORY}/HOTSET"

Kept = TypeVar("Kept")


class KeptProfiles:
    """The access frequencies in a store's directory. Any thread."""

    def __init__(self, files: Files, *, read_only: bool) -> None:
        self.read_only = read_only
        self.unreadable: set[str] = set()
        """Files that are there and cannot be read."""
        self._files = files
        # One thread may take it twice: a signal handler may close the store while a file is
        # written, and could not wait for the write that it has interrupted.
        self._changing = threading.RLock()
        self._is_closed = False

    def keep(self, kind: str, table_id: int, table: TableProfile, rate: float) -> None:
        """Write a table's profile; `kind` is "imported" or "counted".

        Raises
        ------
        CapacityError, StorageError : the disk is full, or failed; the previous file stays.
        StoreClosedError : nothing was written.
        """
        content = Profile({table.name: table}, rate=rate).to_bytes()
        self._change({f"{_DIRECTORY}/{table_id}.{kind}": content})

    def profile(self, kind: str, table_id: int) -> tuple[TableProfile, float] | None:
        """Return a table's profile and the share of accesses that it counted, if it has one."""
        return self._read(f"{_DIRECTORY}/{table_id}.{kind}", _one_table)

    def keep_hot_set(self, hot_set: HotSet | None) -> None:
        """Write the hot set; None: there is none any more.

        Raises
        ------
        CapacityError, StorageError, StoreClosedError : as `keep`.
        """
        self._change({_HOT_SET: None if hot_set is None else hot_set.to_bytes()})

    def forget_counted(self) -> None:
        """Remove the counts of every table."""
        names = self._files.list(_DIRECTORY)
        self._change({f"{_DIRECTORY}/{name}": None for name in names if name.endswith(".counted")})

    def close(self) -> None:
        """Wait for the running write, and write nothing more."""
        with self._changing:
            self._is_closed = True

    def hot_set(self) -> HotSet | None:
        """Return the hot set, if one is kept."""
        return self._read(_HOT_SET, HotSet.from_bytes)

    def forget_others(self, table_ids: Iterable[int]) -> None:
        """Remove the profiles of tables that no kept state of the store has."""
        if self.read_only or not self._files.is_directory(_DIRECTORY):
            return
        kept = {str(table_id) for table_id in table_ids}
        for name in self._files.list(_DIRECTORY):
            path = f"{_DIRECTORY}/{name}"
            if name.partition(".")[0] not in kept and path != _HOT_SET and is_own(path):
                self._files.discard(path)

    def _change(self, contents: Mapping[str, bytes | None]) -> None:
        """Write files, or remove those without a content."""
        if self.read_only:
            return
        with self._changing:
            if self._is_closed:
                raise StoreClosedError("the store is closed; open it again")
            for path, content in contents.items():
                if content is None:
                    self._files.discard(path)
                else:
                    if not self._files.is_directory(_DIRECTORY):
                        self._files.make_directory(_DIRECTORY)
                    self._files.replace(path, content)
                self.unreadable.discard(path)

    def _read(self, path: str, value_of: Callable[[bytes], Kept]) -> Kept | None:
        if not self._files.exists(path):
            return None
        try:
            return value_of(self._files.read_all(path))
        except (EmbstoreError, ValueError):
            self.unreadable.add(path)
            return None


def _one_table(content: bytes) -> tuple[TableProfile, float]:
    profile = Profile.from_bytes(content)
    (table,) = profile.tables.values()
    return table, profile.rate
