"""The marker of a folder of backups: the file EMBSTORE-BACKUPS, which is written before the first
backup.

A backup replaces some files of its folder and removes others. Therefore a backup is written only
into an empty folder, or into a folder whose marker contains the store's id. Every other folder is
refused, and stays as it is. A store and its continuations (a promoted standby, a restored directory
without a new id) have the same id; if two such stores have diverged, the files themselves show this
(`embstore.storage.backup`).

The marker never changes. It contains the store id after a line with format and hash
(`format.seal`). If the first backup is interrupted, it leaves no file, or an empty LOCK, or the
marker; the next backup continues from there. At a URL an interrupted backup can also leave a part
of the marker. A folder that contains only such a part counts as empty.
"""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from embstore.errors import (
    CorruptTableError,
    InvalidArgumentError,
    StorageError,
    TableMismatchError,
)
from embstore.storage.contents import IDENTITY, LOCK, read_identity
from embstore.storage.files import Files
from embstore.storage.format import BACKUP_FORMAT, seal, unseal

PATH = "EMBSTORE-BACKUPS"
NOTHING = {LOCK, f"{PATH}.new", "lost+found"}
"""Names of files that a folder may contain and still count as empty."""
_TITLE = "BACKUPS"
_SHOWN = 3
_MEND = "give an empty directory, or one that does not exist yet"


class Marked(Protocol):
    """A folder that can contain a marker."""

    def list(self, folder: str) -> list[str]:
        """Return the names in a folder; empty if it does not exist."""

    def read_all(self, path: str) -> bytes:
        """Return a whole small file."""


def encode(store_id: str) -> bytes:
    """Return the marker of a store's backups."""
    return seal(_TITLE, BACKUP_FORMAT, f"{store_id}\n".encode())


def decode(content: bytes) -> str:
    """Return the store id of a marker.

    Raises CorruptTableError if the marker is damaged, and TableMismatchError if it has another
    format.
    """
    return unseal(_TITLE, BACKUP_FORMAT, content, PATH).decode().strip()


def has_backups(folder: Marked, store_id: str, place: str) -> bool:
    """Return whether a folder has the marker of a store; False if the folder counts as empty.

    Parameters
    ----------
    place : name of the folder, for errors

    Raises
    ------
    InvalidArgumentError : the folder contains other files. Nothing has changed.
    """
    names = set(folder.list(""))
    if IDENTITY in names:
        raise _refusal(place, f"a store ({IDENTITY})")
    others = sorted(names - NOTHING - {PATH})
    if PATH in names:
        try:
            found = decode(folder.read_all(PATH))
        except (CorruptTableError, TableMismatchError) as exc:
            if others or isinstance(exc, TableMismatchError):
                raise _refusal(place, f"a marker that cannot be read ({exc})") from exc
            return False
        if found != store_id:
            raise InvalidArgumentError(
                f"{place}: expected no backup or those of store {store_id}, found those of store "
                f"{found}; {_MEND}"
            )
        return True
    if others:
        shown = ", ".join(map(repr, others[:_SHOWN])) + (", ..." if len(others) > _SHOWN else "")
        raise _refusal(place, f"other files: {shown}")
    return False


def check_outside(root: Path) -> None:
    """Raise InvalidArgumentError if a folder is within a store, or within a folder of backups."""
    for parent in Path(os.path.realpath(root)).parents:
        kind = _kind_of(Files(parent))
        if kind:
            raise _refusal(str(root), f"that it is within {parent}, which has {kind}")


def _kind_of(files: Files) -> str:
    """Return the kind of an embstore directory; "" if it is not a store and contains no backups."""
    readers: dict[str, Callable[[], object]] = {
        "a store": lambda: read_identity(files),
        "backups": lambda: decode(files.read_all(PATH)),
    }
    for kind, read in readers.items():
        try:
            read()
        except TableMismatchError:
            return kind
        except (StorageError, CorruptTableError):
            continue
        return kind
    return ""


def _refusal(place: str, found: str) -> InvalidArgumentError:
    return InvalidArgumentError(
        f"{place}: expected an empty directory, or backups of this store, found {found}; {_MEND}"
    )
