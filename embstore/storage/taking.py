"""Taking over a leader's commit: the leader's catalogue and files replace those of a standby.

    incoming/LINEAGE      identifies the leader that sent the files; files of others are removed
    incoming/log, base, ids   files that the store does not have yet; a name that ends with .part
                          marks a file that is not complete
    incoming/CATALOGUE    written last: once it exists, the commit will be taken over, even after a
                          crash

`finish` then moves all files into the store, the catalogue last. Each of its steps can be repeated,
so an interrupted `finish` is completed when the directory is opened.
"""

import json
import os
from contextlib import closing
from dataclasses import asdict, replace

from embstore.errors import CorruptTableError
from embstore.storage import catalogue as catalogues
from embstore.storage import lineage as lineages
from embstore.storage.catalogue import Catalogue
from embstore.storage.command_records import remove_segments
from embstore.storage.files import Files
from embstore.storage.format import FORMAT, ROOMS
from embstore.storage.lineage import Lineage, Promotion

DIRECTORY, _PART = "incoming", ".part"


class Incoming:
    """A commit that is being received. One thread at a time."""

    def __init__(self, files: Files, catalogue: Catalogue, leader: tuple[Promotion, ...]) -> None:
        # A standby does not have the leader's command log, and no command follows this commit here.
        self.catalogue = replace(catalogue, tail=False, commands=None)
        self._files = files
        self._lineage = Lineage(leader, catalogue.next_segment)
        self._begin()
        for room in ROOMS:
            files.make_directory(f"{DIRECTORY}/{room}")

    def _begin(self) -> None:
        """Keep the received files if the same leader has sent them, and remove them otherwise."""
        files = self._files
        mark = json.dumps([asdict(p) for p in self._lineage.promotions]).encode()
        mark = self.catalogue.store_id.encode() + mark
        path = f"{DIRECTORY}/{lineages.PATH}"
        if not files.exists(path) or files.read_all(path) != mark:
            _remove(files)
            files.make_directory(DIRECTORY)
            files.replace(path, mark)

    def missing(self, present: Lineage | None) -> dict[str, int]:
        """Return the size in bytes of each file that must be sent, by path. `present` is the
        lineage of the directory; None if the directory belongs to another store."""
        below = 0 if present is None else present.shared_below(self._lineage.promotions)
        return {
            path: size
            for path, size in catalogues.paths(self.catalogue).items()
            if not _has(self._files, f"{DIRECTORY}/{path}", size)
            and not (_number(path) < below and _has(self._files, path, size))
        }

    def receive(self, path: str, offset: int, piece: bytes, size: int) -> None:
        """Write a piece of a file of `size` bytes; the last piece completes the file.

        Raises CorruptTableError if the piece does not follow the piece before.
        """
        part = f"{DIRECTORY}/{path}{_PART}"
        file = self._files.open(part, write=True) if offset else self._files.create(part)
        with closing(file):
            if file.size != offset or offset + len(piece) > size:
                raise CorruptTableError(f"{path}: expected a piece at {file.size}, found {offset}")
            file.write(offset, piece)
            if offset + len(piece) < size:
                return
            file.sync()
        self._files.rename(part, f"{DIRECTORY}/{path}")

    def end(self) -> None:
        """Make the commit ready to be taken over. All of its files must have been received."""
        files = self._files
        for room in ROOMS:
            files.sync_directory(f"{DIRECTORY}/{room}")
        lineages.write_to(files, f"{DIRECTORY}/{lineages.PATH}", self._lineage)
        files.replace(f"{DIRECTORY}/{catalogues.PATH}", catalogues.encode(self.catalogue))


def finish(files: Files) -> None:
    """Take over a commit that was received completely. The directory must not be open.

    Raises CorruptTableError, TableMismatchError: a received file is damaged; nothing has changed.
    """
    catalogue = arrived(files)
    if catalogue is None:
        return
    remove_segments(files)
    files.replace(lineages.PATH, files.read_all(f"{DIRECTORY}/{lineages.PATH}"))
    for room in ROOMS:
        files.make_directory(room)
        for name in files.list(f"{DIRECTORY}/{room}"):
            if not name.endswith(_PART):
                files.rename(f"{DIRECTORY}/{room}/{name}", f"{room}/{name}")
        files.sync_directory(room)
    identity = {"format": FORMAT, "endianness": "little", "store_id": catalogue.store_id}
    files.replace("store.json", json.dumps(identity).encode() + b"\n")
    files.replace(catalogues.PATH, files.read_all(f"{DIRECTORY}/{catalogues.PATH}"))
    _remove(files)


class ArrivedFiles(Files):
    """A directory as it will look after the received commit has been taken over. For reading
    only."""

    def _parts(self, path: str) -> list[str]:
        here = super()._parts(f"{DIRECTORY}/{path}")
        return here if os.path.lexists(os.path.join(self._base, *here)) else super()._parts(path)


def arrived(files: Files) -> Catalogue | None:
    """Return the catalogue of a received commit that is to be taken over; None if there is none.

    Raises CorruptTableError, TableMismatchError: a file is missing, has another length, or its
    checksum does not match. Headers, rows and ids are not read.
    """
    path = f"{DIRECTORY}/{catalogues.PATH}"
    if not files.exists(path):
        return None
    try:
        catalogue = catalogues.decode(files.read_all(path), path)
        lineage = f"{DIRECTORY}/{lineages.PATH}"
        if not files.exists(lineage):
            raise CorruptTableError(f"{lineage}: missing, though {path} is there")
        lineages.decode(files.read_all(lineage), lineage)
        for name, size in catalogues.paths(catalogue).items():
            if not any(_has(files, at, size) for at in (f"{DIRECTORY}/{name}", name)):
                raise CorruptTableError(f"{DIRECTORY}/{name}: expected {size} bytes, found others")
    except CorruptTableError as exc:
        raise CorruptTableError(
            f"{exc}; remove {DIRECTORY}/, and the standby takes the commit from its leader again"
        ) from exc
    return catalogue


def _has(files: Files, path: str, size: int) -> bool:
    """Return whether a file exists and has `size` bytes."""
    if not files.exists(path):
        return False
    with closing(files.open(path)) as file:
        return file.size == size


def _remove(files: Files) -> None:
    """Remove the received files, the catalogue first: without a catalogue nothing is taken over."""
    if files.exists(DIRECTORY):
        files.remove(f"{DIRECTORY}/{catalogues.PATH}")
        files.sync_directory(DIRECTORY)
        for room in ROOMS:
            files.remove_directory(f"{DIRECTORY}/{room}")
        files.remove_directory(DIRECTORY)


def _number(path: str) -> int:
    return int(path.split("/")[1].split(".")[0].split("-")[0])
