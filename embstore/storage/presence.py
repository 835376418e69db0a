"""Checks that the files of an open store still exist, and were not replaced by other files.

To check the names alone is not sufficient: a folder may have been replaced by an older copy of
itself that has files of all these names, of which one may be incomplete. The store would then write
its next files into that copy. Files that a commit names never change, so each file is identified by
the inode number that it had when the store first saw it. CATALOGUE is replaced at each commit, and
is identified by its content.

Listing a folder yields all inode numbers at once. Some file systems (FUSE) list other numbers than
the files themselves report. Therefore, if a listed number differs, `stat` of the file itself
decides whether it is another file.
"""

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from hashlib import blake2b

from embstore.errors import StorageError
from embstore.storage.catalogue import PATH
from embstore.storage.files import Files
from embstore.storage.format import ROOMS


class Presence:
    """The files that the store has seen. Any thread."""

    def __init__(self, files: Files) -> None:
        self._files = files
        self._seen: dict[str, tuple[int, tuple[int, int]]] = {}
        """For each file: the inode number in its folder's list, and the device and inode that the
        file itself reports."""
        self._catalogues: tuple[bytes, ...] = ()
        """Hashes of the contents that CATALOGUE may have: one hash, or several during its
        replacement."""

    def gone(self, paths: Collection[str]) -> str:
        """Return the path of a file that is missing or was replaced by another file; "" if there is
        none. `paths` are files that never change; recorded inode numbers of all other files are
        forgotten."""
        here = dict(self._files.inodes(""))
        for room in ROOMS:
            here |= {f"{room}/{name}": found for name, found in self._files.inodes(room).items()}
        found = next((path for path in paths if not self._is_own(path, here.get(path))), "")
        self._seen = {path: seen for path, seen in self._seen.copy().items() if path in paths}
        return found or ("" if PATH in here else PATH)

    def _is_own(self, path: str, listed: int | None) -> bool:
        seen = self._seen.get(path)
        if listed is None or (seen is not None and seen[0] == listed):
            return listed is not None
        try:
            itself = self._files.identity(path)
        except StorageError:
            return False
        is_own = seen is None or itself == seen[1]
        if is_own:
            self._seen[path] = listed, itself
        return is_own

    def begin(self, paths: Collection[str]) -> None:
        """Record the present files as the files of the store."""
        self._catalogues = (_hash(self._files.read_all(PATH)),)
        self.gone(paths)

    @contextmanager
    def replacing(self, content: bytes) -> Iterator[None]:
        """During the block, allow CATALOGUE to have this content as well. After the block only this
        content is allowed, unless the block raised an error."""
        new = _hash(content)
        self._catalogues = (*self._catalogues, new)
        yield
        self._catalogues = (new,)

    def has_catalogue(self) -> bool:
        """Return whether CATALOGUE has the content that was last written there."""
        before, found = self._catalogues, _hash(self._files.read_all(PATH))
        return found in (*before, *self._catalogues)


def _hash(content: bytes) -> bytes:
    return blake2b(content, digest_size=16).digest()
