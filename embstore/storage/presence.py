"""Whether the files of an open store are still there, and still its own.

Names alone say little: a folder may have been replaced by an older copy of itself that has all the
names, and what the store writes next would go there, beside a file that ends too early. Files that
a commit names never change, so that each is known by its number in the file system (inode), as it
was when it was first seen. CATALOGUE is replaced with each commit, and is known by its content.

Listing a folder gives all numbers at once. Some file systems (FUSE) list others than they have
numbered; therefore the file itself is asked before it is said to be another one.
"""

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from hashlib import blake2b

from embstore.errors import StorageError
from embstore.storage.catalogue import PATH
from embstore.storage.files import Files
from embstore.storage.format import ROOMS


class Presence:
    """The files that a store was seen to have. Any thread."""

    def __init__(self, files: Files) -> None:
        self._files = files
        self._seen: dict[str, tuple[int, tuple[int, int]]] = {}
        """Of each file the number that its folder lists, and device and number of its own."""
        self._catalogues: tuple[bytes, ...] = ()
        """Hashes of what CATALOGUE may have now: one, more while it is replaced."""

    def gone(self, paths: Collection[str]) -> str:
        """Return one of some files that never change which is not there any more, or is another
        one; "": all are. Those that are not among them are forgotten."""
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
        """Take what is there now for the store's own."""
        self._catalogues = (_hash(self._files.read_all(PATH)),)
        self.gone(paths)

    @contextmanager
    def replacing(self, content: bytes) -> Iterator[None]:
        """Within, CATALOGUE may have this content, too; after it, unless there was an error, no
        other."""
        new = _hash(content)
        self._catalogues = (*self._catalogues, new)
        yield
        self._catalogues = (new,)

    def has_catalogue(self) -> bool:
        """Return whether CATALOGUE has what was written there last."""
        before, found = self._catalogues, _hash(self._files.read_all(PATH))
        return found in (*before, *self._catalogues)


def _hash(content: bytes) -> bytes:
    return blake2b(content, digest_size=16).digest()
