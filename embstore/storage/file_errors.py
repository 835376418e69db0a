"""Errors of the disk as users see them: the file, the operation, and the system's message.

If the system refuses an operation for lack of space (disk, quota, file size, descriptors), the
operation raises CapacityError, with advice on what to free. If the system refuses an operation for
another reason, the operation raises StorageError.
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
"""What the user is advised to free, by the system's error number."""
IS_LINK = "found a symbolic link, which is not followed"


@contextmanager
def named_errors(root: Path, path: str, tried: str, *, final: bool = False) -> Iterator[None]:
    """Turn an OSError into the embstore error that names the file, the operation and the remedy.

    If the store's directory itself cannot be reached, the error shows the full path. `final` is
    true for a sync: after a failed sync the data may be lost, so freeing space would not help.
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
    """Return the error for a file that was removed, or replaced by another file, while the store
    was open."""
    return StorageError(errno.ENOENT, f"{path} was removed while the store was open, or replaced")
