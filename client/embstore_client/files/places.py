"""The place of a file: a path, or a URL that fsspec knows.

**A file has its name when it is whole.** It is written as NAME.embstore-part, synced, and then
renamed. An export that was killed leaves that part, which the next one removes; while one is
written, another one to the same name is refused. A part is always a new file: one that is there may
be a second name (a hard link) of a file elsewhere, which writing would change.

**At a URL** a file cannot be written in the middle, and hardly be read there. A file is copied,
whole, by way of one in the directory for temporary files (TMPDIR).
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
    """Yield the path of a file to write; it gets its place when the block ends without an error.

    Raises
    ------
    StoreInUseError : another export writes there.
    InvalidArgumentError : a URL, and fsspec is not installed or does not know it.
    StorageError : it cannot be written there. A file that was there is unchanged.
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
    """Yield the path of a file to read. Raises InvalidArgumentError, StorageError."""
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
    """Return a new file of this name, locked: as long as it is open, no export takes it for one
    that was left."""
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
        file.close()  # another export took it for one that was left, before it was locked


def _remove_left(part: Path) -> None:
    """Remove the file of an export that was killed; where it has other names too, that one."""
    if not stat.S_ISREG(os.lstat(part).st_mode):
        raise FileExistsError(errno.EEXIST, "expected none, or a regular file", str(part))
    with _opened(part, 0) as file:
        if _has_name(file, part):  # else it was finished meanwhile, and has its own name
            part.unlink()


def _opened(part: Path, flags: int) -> FileIO:
    """Return the file of this name, opened and locked. A link is not followed, a pipe not waited
    for."""
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
    """Return the file system of a URL, and the file's name there."""
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
    """Turn errors of a file system into a StorageError, which says what was tried; file systems of
    URLs have their own classes."""
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
