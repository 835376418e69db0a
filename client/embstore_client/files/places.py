"""The place of a file: a path, or a URL that fsspec supports.

**A file gets its name when it is complete.** It is written as NAME.embstore-part, synced, and then
renamed. A killed export leaves its part file, which the next export removes. While one export
writes a file, a second export to the same name is refused. A part file is always a new file,
because an existing file of that name may be a hard link to another file, which writing would
change.

**At a URL** a file cannot be written at an offset, and reading at an offset is slow. Therefore the
complete file is copied through the directory for temporary files (TMPDIR).
"""

import errno
import fcntl
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from io import FileIO
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from embstore.errors import EmbstoreError, InvalidArgumentError, StorageError, StoreInUseError
from embstore.version import pip_install

PART = ".embstore-part"


def is_url(place: str) -> bool:
    """Return whether a place is a URL, and not a path."""
    return "://" in place


@contextmanager
def writing(place: str) -> Iterator[Path]:
    """Yield the path of a file to write. The file is moved to its place if the block ends without
    an error.

    Raises
    ------
    StoreInUseError : another export writes to this place.
    InvalidArgumentError : the place is a URL, and fsspec is not installed or does not support it.
    StorageError : the file cannot be written at this place. An existing file is unchanged.
    """
    if not is_url(place):
        with _named("write", place, OSError), _renamed(Path(place)) as path:
            yield path
        return
    files, name = _file_system(place)
    with TemporaryDirectory(prefix="embstore-") as folder:
        path = Path(folder, name.rpartition("/")[2])
        path.touch()
        with _named("write a temporary file for", place, OSError):
            yield path
        with _named("write", place):
            files.makedirs(name.rpartition("/")[0], exist_ok=True)
            files.put_file(str(path), name)


@contextmanager
def reading(place: str) -> Iterator[Path]:
    """Yield the path of a file to read. Raises InvalidArgumentError or StorageError if it cannot be
    read."""
    if not is_url(place):
        with _named("read", place):
            Path(place).open("rb").close()
        yield Path(place)
        return
    files, name = _file_system(place)
    with TemporaryDirectory(prefix="embstore-") as folder:
        path = Path(folder, name.rpartition("/")[2])
        with _named("read", place):
            files.get_file(name, str(path))
        yield path


@contextmanager
def _renamed(path: Path) -> Iterator[Path]:
    part = path.with_name(path.name + PART)
    with _made(part) as file:
        try:
            yield part
            os.fsync(file.fileno())
            part.replace(path)
        except BaseException:
            part.unlink(missing_ok=True)
            raise
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _made(part: Path) -> FileIO:
    """Return a new, locked file of this name. As long as the file is open, no export mistakes it
    for a leftover of a killed export."""
    while True:
        try:
            file = _opened(part, os.O_CREAT | os.O_EXCL)
        except FileExistsError:
            with suppress(FileNotFoundError):
                _remove_left(part)
            continue
        with suppress(FileNotFoundError):
            if _has_name(file, part):
                return file
        file.close()  # another export removed it as a leftover before it was locked


def _remove_left(part: Path) -> None:
    """Remove the part file of a killed export; further hard links to the file stay."""
    if not stat.S_ISREG(os.lstat(part).st_mode):
        raise FileExistsError(errno.EEXIST, "expected none, or a regular file", str(part))
    with _opened(part, 0) as file:
        if _has_name(file, part):  # otherwise its export has finished meanwhile, and has renamed it
            part.unlink()


def _opened(part: Path, flags: int) -> FileIO:
    """Return the file of this name, opened and locked. Links are not followed, and a pipe does not
    block."""
    flags |= os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK
    file = FileIO(os.open(part, flags, 0o666), "r+")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as exc:
        file.close()
        raise StoreInUseError(
            f"{part}: another export is being written there; wait for its end, or give another file"
        ) from exc
    except OSError:
        file.close()
        raise
    return file


def _has_name(file: FileIO, part: Path) -> bool:
    return os.path.samestat(os.fstat(file.fileno()), os.lstat(part))


def _file_system(url: str) -> tuple[Any, str]:
    """Return the file system of a URL, and the file's name in it."""
    try:
        fsspec = import_module("fsspec")
    except ImportError as exc:
        raise InvalidArgumentError(
            f"{url} is a URL, which needs fsspec: {pip_install('remote')}, and what fsspec "
            "needs for this kind"
        ) from exc
    try:
        found: tuple[Any, str] = fsspec.core.url_to_fs(url)
    except (ValueError, ImportError) as exc:
        raise InvalidArgumentError(f"{url}: {exc}") from exc
    return found


@contextmanager
def _named(tried: str, place: str, kind: type[Exception] = Exception) -> Iterator[None]:
    """Turn errors of a file system into a StorageError that names the failed operation. `kind` is
    the class of the errors; for URLs it is Exception, because their file systems have error classes
    of their own."""
    try:
        yield
    except EmbstoreError:
        raise
    except kind as exc:
        code = getattr(exc, "errno", None) or errno.EIO
        text = getattr(exc, "strerror", None) or str(exc)
        name = getattr(exc, "filename", None)
        text += f": {name}" if name and str(name) != place else ""
        raise StorageError(code, f"cannot {tried} {place}: {text}") from exc
