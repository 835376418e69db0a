"""Profiles and the hot set in a store's directory.

    frequency/ID.imported   the profile that ranks the rows of table ID, as it was imported
    frequency/ID.counted    the counts of table ID when the store was closed
    frequency/HOTSET        the hot set that is pinned, with table ids in place of names

The names of files contain table ids, and a table id is never used again. Therefore a profile
belongs to one table, is removed with that table, and is never applied to another table of the same
name. The files are not part of a commit: how frequently rows are accessed is not content, and no
bit of any row depends on it. Each file is replaced as a whole. A file that cannot be read counts as
missing, and the store's stats show it.

Files are written without the engine's lock, one after the other. Closing the store waits for the
running write. No write begins afterwards, because the directory may then belong to another open
store.

A profile stays on the disk; memory contains only the levels of its rows, two bytes per row
(levels.py).
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
        """Paths of files that exist and cannot be read."""
        self._files = files
        # Reentrant: a signal handler can close the store while the same thread writes a file, and
        # could not wait for the write that it has interrupted.
        self._changing = threading.RLock()
        self._is_closed = False

    def keep(self, kind: str, table_id: int, table: TableProfile, rate: float) -> None:
        """Write a table's profile; `kind` is "imported" or "counted".

        Raises
        ------
        CapacityError, StorageError : the disk is full or has failed; the previous file stays.
        StoreClosedError : the store was closed, so nothing was written.
        """
        content = Profile({table.name: table}, rate=rate).to_bytes()
        self._change({f"{_DIRECTORY}/{table_id}.{kind}": content})

    def profile(self, kind: str, table_id: int) -> tuple[TableProfile, float] | None:
        """Return a table's profile, and the share of accesses that were counted for it; None: the
        table has no such profile."""
        return self._read(f"{_DIRECTORY}/{table_id}.{kind}", _one_table)

    def keep_hot_set(self, hot_set: HotSet | None) -> None:
        """Write the hot set; None removes it.

        Raises
        ------
        CapacityError, StorageError, StoreClosedError : as for `keep`.
        """
        self._change({_HOT_SET: None if hot_set is None else hot_set.to_bytes()})

    def forget_counted(self) -> None:
        """Remove the counts of every table."""
        names = self._files.list(_DIRECTORY)
        self._change({f"{_DIRECTORY}/{name}": None for name in names if name.endswith(".counted")})

    def close(self) -> None:
        """Wait for the running write, and refuse all further writes."""
        with self._changing:
            self._is_closed = True

    def hot_set(self) -> HotSet | None:
        """Return the hot set of the directory; None if the directory has no hot set."""
        return self._read(_HOT_SET, HotSet.from_bytes)

    def forget_others(self, table_ids: Iterable[int]) -> None:
        """Remove the profiles of all tables except those in `table_ids`, which are the tables of
        all kept states."""
        if self.read_only or not self._files.is_directory(_DIRECTORY):
            return
        kept = {str(table_id) for table_id in table_ids}
        for name in self._files.list(_DIRECTORY):
            path = f"{_DIRECTORY}/{name}"
            if name.partition(".")[0] not in kept and path != _HOT_SET and is_own(path):
                self._files.discard(path)

    def _change(self, contents: Mapping[str, bytes | None]) -> None:
        """Write files; remove files whose content is None."""
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
