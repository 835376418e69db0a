"""A check that a store's directory is writable and has free space.

The check asks the operating system, and writes nothing. Therefore it can be repeated often. It is
also made when a store is opened, before anything changes. Other causes of a failed write (a quota,
a broken disk) show only at a commit.
"""

import errno

from embstore.errors import StorageError
from embstore.storage.command_records import DIRECTORY
from embstore.storage.files import Files
from embstore.storage.format import ROOMS

LEAST_BYTES = 16 << 20
"""Free space that must remain in addition to the bytes that a commit needs. The log allocates up to
8 MiB at a time. A new segment of the command log is as long as the command log, up to 64 MiB."""
_DIRECTORIES = ("", *ROOMS, DIRECTORY)


def check_writable(files: Files) -> None:
    """Raise StorageError if files cannot be made in one of the store's existing directories."""
    for path in _DIRECTORIES:
        if files.is_directory(path) and not files.is_writable(path):
            code = errno.EROFS if files.is_read_only else errno.EACCES
            why = "it is on a read-only file system" if files.is_read_only else "permission denied"
            raise StorageError(
                code,
                f"cannot write to {files.path(path)}: {why}; make it writable, or open the store "
                "read-only (read_only=True, --read-only)",
            )


def lack_of(files: Files, more_bytes: int) -> str:
    """Return the reason why `more_bytes` and LEAST_BYTES together may not fit; "" if they fit."""
    try:
        check_writable(files)
        left = files.room_bytes()
    except OSError as exc:
        return exc.strerror or str(exc)
    needed = LEAST_BYTES + more_bytes
    if left < needed:
        return (
            f"no room: {left} bytes are left for {files.root}, a commit may need {needed}; free "
            "disk space"
        )
    return ""
