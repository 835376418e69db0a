"""Errors of the disk as users see them: the file, what was tried, and what the system said.

An operation that the system refuses raises CapacityError where room was lacking (disk, quota, file
size, descriptors), with the advice what to free, and StorageError otherwise.
"""

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from embstore.errors import CapacityError, EmbstoreError, StorageError

_NO_ROOM = {
    errno.ENOSPC: "disk space",
    errno.EDQUOT: "quota",
    errno.EFBIG: "disk space, or raise the limit of file sizes",
    errno.ENOMEM: "memory",
    errno.EMFILE: "connections, or raise the limit of open files",
    errno.ENFILE: "connections, or raise the system's limit of open files",
}
"""The advice about space, by the system's error number."""
IS_LINK = "found a symbolic link, which is not followed"


@contextmanager
def named_errors(root: Path, path: str, tried: str, *, final: bool = False) -> Iterator[None]:
    """Turn an OSError into the embstore error that names the file, what was tried and the remedy.

    The directory itself is named where it is what cannot be reached. `final` for a sync: its data
    may be lost, so it is no mere lack of room.
    """
    try:
        yield
    except EmbstoreError:
        raise
    except OSError as exc:
        shown = path if path and _is_there(root) else f"{root / path}"
        if exc.errno in _NO_ROOM and not final:
            raise CapacityError(
                f"no room for {shown}: {exc.strerror}; free {_NO_ROOM[exc.errno]}"
            ) from exc
        text = IS_LINK if exc.errno == errno.ELOOP else exc.strerror
        raise StorageError(exc.errno, f"cannot {tried} {shown}: {text}") from exc


def _is_there(root: Path) -> bool:
    try:
        return stat.S_ISDIR(os.stat(root).st_mode)
    except OSError:
        return False


def removed(path: str) -> StorageError:
    """Return the error of a file that somebody has removed, or put another one in its place, while
    the store was open."""
    return StorageError(errno.ENOENT, f"{path} was removed while the store was open, or replaced")
