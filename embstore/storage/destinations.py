"""The destination of a backup: a directory, or a URL that fsspec knows (s3://, gs://, file://).

Directories and URLs have the same few operations, on paths with '/' between their parts. A
directory stores a file as a hard link if that is possible, and otherwise as a copy; a URL always
stores a copy. fsspec is needed only for URLs, and is imported only when a URL is used.

**Does a file exist already?** Files that a catalogue names never change, and the header page of
each file contains a random file id (format.py). Therefore a file of the same name, size and header
page is the same file, even if a copy of the store has continued independently and uses the same
names. Samples of the other bytes are compared as well, because they can show damage. A restore
verifies every row.

**Permission.** Before a folder is changed, its marker (markers.py) shows whether it may be changed.
In a directory no link is followed (files.py).
"""

import errno
import re
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

from embstore.errors import EmbstoreError, InvalidArgumentError, PermissionDeniedError, StorageError
from embstore.storage import markers
from embstore.storage.contents import LOCK
from embstore.storage.files import Files
from embstore.storage.format import ROOMS
from embstore.version import pip_install

PIECE_BYTES = 8 << 20
_SAMPLE_BYTES = 64 << 10
_LINKED_ELSEWHERE = {errno.EXDEV, errno.EPERM, errno.EOPNOTSUPP, errno.EMLINK, errno.EACCES}
"""Error numbers of a failed hard link after which the file is copied instead."""
_PLAIN = re.compile(r"\w[\w.+=@-]*")
_PART_BYTES_MAX = 255
_LOCAL = re.compile(r"(file|local)://")

Look = Callable[[], None]
"""A function that is called between pieces; an exception that it raises ends the work."""


class Destination(Protocol):
    """A place that contains backups. One thread."""

    def list(self, folder: str) -> list[str]:
        """Return the sorted names in a folder; empty if it does not exist."""

    def read_all(self, path: str) -> bytes:
        """Return a whole small file."""

    def replace(self, path: str, content: bytes) -> None:
        """Replace the content of a small file. The new content becomes durable only after all files
        that `put` has stored before."""

    def has_same(self, path: str, source: Files, name: str) -> bool:
        """Return whether `path` is equal to the file `name` of `source`, by size and samples."""

    def put(self, path: str, source: Files, name: str, look: Look) -> None:
        """Store the file `name` of `source` as `path`. A file of which only a part was stored never
        has the full size."""

    def fetch(self, path: str, target: Files, page: bytes | None, look: Look) -> None:
        """Create the file `path` in `target`, as a copy of the file `path` of the destination. If
        `page` is given, it replaces the first bytes of the copy."""

    def remove(self, path: str) -> None:
        """Remove a file."""

    def close(self) -> None:
        """Close the destination."""


def is_url(destination: str) -> bool:
    """Return whether a destination is a URL rather than a path."""
    return "://" in destination


def name_within(destination: str, within: str) -> str:
    """Return the name of a destination below a path or URL, as `a` or `a/b`.

    The destination can be given as such a name, or in full.

    Raises
    ------
    PermissionDeniedError : the destination is given in any other form. Links are not resolved here,
        because no link is followed when the destination is opened.
    InvalidArgumentError : the name of a folder is longer than file systems allow.
    """
    full = within if is_url(within) else str(Path(within).absolute())
    name = destination.removeprefix(f"{full.rstrip('/')}/").rstrip("/")
    parts = name.split("/")
    if not all(map(_PLAIN.fullmatch, parts)):
        raise PermissionDeniedError(
            f"expected the name of a folder below {within} (backup_within), of letters, digits and "
            f"any of -_.+=@ but no dot at its beginning, found {destination!r}"
        )
    longest = max(len(part.encode()) for part in parts)
    if longest > _PART_BYTES_MAX:
        raise InvalidArgumentError(
            f"expected a destination whose folders have names of at most {_PART_BYTES_MAX} bytes, "
            f"found one of {longest}"
        )
    return name


def open_destination(place: str, below: str = "", *, store_id: str | None = None) -> Destination:
    """Return the destination at a path or URL.

    Parameters
    ----------
    below : a folder in `place`; no link is followed from `place` on
    store_id : id of the store whose backup will be written; None: backups are read

    Raises
    ------
    StoreInUseError : another backup is being written there.
    InvalidArgumentError : `place` is a URL, and fsspec is not installed or does not know its kind;
        or the destination contains anything but backups of this store. Nothing has changed there.
    """
    place = _LOCAL.sub("", place, count=1) if _LOCAL.match(place) else place
    if is_url(place):
        return UrlDestination(f"{place.rstrip('/')}/{below}" if below else place, store_id)
    return DirectoryDestination(Files(place, below), store_id)


class DirectoryDestination:
    """A directory of this machine."""

    def __init__(self, files: Files, store_id: str | None = None) -> None:
        self.files = files
        self._lock = None
        if store_id is None:
            return
        markers.check_outside(files.root)
        markers.has_backups(self, store_id, str(files.root))  # before the lock makes a file
        files.make_directory("")
        self._lock = files.lock(LOCK, shared=False)
        try:
            if not markers.has_backups(self, store_id, str(files.root)):
                files.replace(markers.PATH, markers.encode(store_id))
        except BaseException:
            self.close()
            raise

    def list(self, folder: str) -> list[str]:
        """Return the sorted names in a folder."""
        return self.files.list(folder)

    def read_all(self, path: str) -> bytes:
        """Return a whole small file."""
        return self.files.read_all(path)

    def replace(self, path: str, content: bytes) -> None:
        """Replace a small file by a rename, after all files that were put are durable."""
        for folder in ROOMS:
            if self.files.exists(folder):
                self.files.sync_directory(folder)
        self.files.make_directory(path.rpartition("/")[0])
        self.files.replace(path, content)

    def has_same(self, path: str, source: Files, name: str) -> bool:
        """Compare the sizes and sixteen samples of the contents."""
        if not self.files.exists(path):
            return False
        with closing(source.open(name)) as one, closing(self.files.open(path)) as other:
            return one.size == other.size and all(
                one.read(at, _SAMPLE_BYTES) == other.read(at, _SAMPLE_BYTES)
                for at in _samples(one.size, 16)
            )

    def put(self, path: str, source: Files, name: str, look: Look) -> None:
        """Link the file, or copy it and rename the copy."""
        self.files.make_directory(path.rpartition("/")[0])
        _link_or_copy(source, name, self.files, path, look)

    def fetch(self, path: str, target: Files, page: bytes | None, look: Look) -> None:
        """Link the file, or copy it. If the file gets another first page, it is always copied."""
        target.make_directory(path.rpartition("/")[0])
        if page is None:
            _link_or_copy(self.files, path, target, path, look)
        else:
            _copy(self.files, path, target, path, look, page)

    def remove(self, path: str) -> None:
        """Remove a regular file."""
        if self.files.is_file(path):
            self.files.remove(path)

    def close(self) -> None:
        """Release the lock."""
        if self._lock is not None:
            self._lock.close()


def _link_or_copy(source: Files, name: str, target: Files, path: str, look: Look) -> None:
    if target.exists(path):
        target.remove(path)  # a leftover with other content
    try:
        target.link(source, name, path)
    except StorageError as exc:
        if exc.errno not in _LINKED_ELSEWHERE:
            raise
        _copy(source, name, target, path, look, b"")


def _copy(source: Files, name: str, target: Files, path: str, look: Look, page: bytes) -> None:
    new = f"{path}.new"
    with closing(source.open(name)) as file, closing(target.create(new)) as copy:
        for at, piece in _pieces(file.read, file.size, look):
            copy.write(at, page + piece[len(page) :] if at == 0 else piece)
        copy.sync()
    target.rename(new, path)


def _pieces(
    read: Callable[[int, int], bytes], size: int, look: Look
) -> Iterator[tuple[int, bytes]]:
    for at in range(0, size, PIECE_BYTES):
        look()
        yield at, read(at, min(PIECE_BYTES, size - at))


def _samples(size: int, count: int) -> list[int]:
    """Return the offsets of samples of a file, evenly spaced, from its first to its last bytes."""
    last = max(size - _SAMPLE_BYTES, 0)
    return sorted({last * i // (count - 1) for i in range(count)})


class UrlDestination:
    """A URL, accessed by fsspec. A file either appears only after its last byte is written, or has
    another size until then."""

    def __init__(self, url: str, store_id: str | None) -> None:
        self._url = url
        try:
            fsspec = import_module("fsspec")
        except ImportError as exc:
            raise InvalidArgumentError(
                f"{url} is a URL, which needs fsspec: {pip_install('remote')}, and what "
                "fsspec needs for this kind"
            ) from exc
        try:
            self._files, self._root = fsspec.core.url_to_fs(url)
        except (ValueError, ImportError) as exc:
            raise InvalidArgumentError(f"{url}: {exc}") from exc
        if store_id is not None and not markers.has_backups(self, store_id, url):
            self.replace(markers.PATH, markers.encode(store_id))

    def list(self, folder: str) -> list[str]:
        """Return the sorted names in a folder."""
        with self._named(folder, "list"):
            self._files.invalidate_cache()
            try:
                found = self._files.ls(self._path(folder), detail=False)
            except FileNotFoundError:
                return []
            paths = {str(name).rstrip("/") for name in found} - {self._path(folder)}
            return sorted(path.rpartition("/")[2] for path in paths)

    def read_all(self, path: str) -> bytes:
        """Return a whole small file."""
        with self._named(path, "read"):
            return bytes(self._files.cat_file(self._path(path)))

    def replace(self, path: str, content: bytes) -> None:
        """Write a small file, and read it again, because an object store can acknowledge a write of
        which it has stored only a part. A truncated file has a wrong checksum."""
        with self._named(path, "write"):
            self._make_parent(path)
            self._files.pipe_file(self._path(path), content)
            if (found := self.read_all(path)) != content:
                raise self._differs(path, len(content), len(found))

    def has_same(self, path: str, source: Files, name: str) -> bool:
        """Compare the size and the first and last bytes. More samples would need more requests."""
        with self._named(path, "read"), closing(source.open(name)) as file:
            own = self._path(path)
            try:
                if self._size(path) != file.size:
                    return False
            except FileNotFoundError:
                return False
            return all(
                self._files.cat_file(own, start=at, end=min(at + _SAMPLE_BYTES, file.size))
                == file.read(at, _SAMPLE_BYTES)
                for at in _samples(file.size, 2)
            )

    def put(self, path: str, source: Files, name: str, look: Look) -> None:
        """Write a copy."""
        with self._named(path, "write"), closing(source.open(name)) as file:
            self._make_parent(path)
            with self._files.open(self._path(path), "wb") as copy:
                for _, piece in _pieces(file.read, file.size, look):
                    copy.write(piece)
            if (found := self._size(path)) != file.size:
                raise self._differs(path, file.size, found)

    def fetch(self, path: str, target: Files, page: bytes | None, look: Look) -> None:
        """Download the file."""
        target.make_directory(path.rpartition("/")[0])
        with self._named(path, "read"), closing(target.create(path)) as copy:
            size, head = self._size(path), page or b""
            with self._files.open(self._path(path), "rb") as file:
                for at, piece in _pieces(lambda _, length: bytes(file.read(length)), size, look):
                    if len(piece) != min(PIECE_BYTES, size - at):  # the file is shorter than `size`
                        raise self._differs(path, size, at + len(piece))
                    copy.write(at, head + piece[len(head) :] if at == 0 else piece)
            copy.sync()

    def remove(self, path: str) -> None:
        """Remove a file."""
        with self._named(path, "remove"):
            self._files.rm_file(self._path(path))

    def close(self) -> None:
        """Do nothing: no connection is kept open."""

    def _size(self, path: str) -> int:
        self._files.invalidate_cache()
        return int(self._files.info(self._path(path))["size"])

    def _differs(self, path: str, expected: int, found: int) -> StorageError:
        return StorageError(
            errno.EIO, f"expected {expected} bytes, found {found} or others: {self._url}, {path}"
        )

    def _path(self, path: str) -> str:
        return f"{self._root.rstrip('/')}/{path}".rstrip("/")

    def _make_parent(self, path: str) -> None:
        self._files.makedirs(self._path(path).rpartition("/")[0], exist_ok=True)

    @contextmanager
    def _named(self, path: str, tried: str) -> Iterator[Any]:
        """Turn any exception of a file system into a StorageError, because each file system has
        exception classes of its own."""
        try:
            yield
        except EmbstoreError:
            raise
        except Exception as exc:
            code = getattr(exc, "errno", None) or errno.EIO
            text = f"cannot {tried} {path} of {self._url}: {exc or type(exc).__name__}"
            raise StorageError(code, text) from exc
