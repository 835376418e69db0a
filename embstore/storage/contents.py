"""An open directory: the current catalogue, and the log and bases that it names.

`use` makes a catalogue the current one, at opening and after a restore: it opens what the catalogue
names and removes what it does not, the leftovers of a crash. `replace_catalogue` is the commit: one
rename.

A directory becomes a store in this order, each step durable before the next: the lock file,
store.json, the first catalogue. So a store.json without a catalogue is a creation that was cut
short, if there is nothing else; with other files it is a store that has lost its catalogue.

**Failure.** What can be refused is refused before anything changes. If the disk fails after that
point, memory and disk may disagree, so the contents are *failed*: everything but closing is
refused, nothing more is committed, and opening the directory again finds the last commit.
"""

import errno
import json
import uuid
from contextlib import AbstractContextManager

import numpy as np
from numpy.typing import NDArray

from embstore.arrays import KEY_BITS
from embstore.config import Limits
from embstore.errors import (
    CapacityError,
    CorruptTableError,
    EmbstoreError,
    InvalidArgumentError,
    PermissionDeniedError,
    StorageError,
    StoreClosedError,
    TableMismatchError,
)
from embstore.results import TableEntry
from embstore.storage import catalogue as catalogues
from embstore.storage.base import Base
from embstore.storage.catalogue import Catalogue
from embstore.storage.files import File, Files
from embstore.storage.format import FORMAT, BaseGeometry
from embstore.storage.log import Log

_IDENTITY = "store.json"
_UNFINISHED = {"LOCK", f"{_IDENTITY}.new", "lost+found"}


class Contents:
    """Catalogue, log and bases of one directory. Engine thread only."""

    log: Log
    catalogue: Catalogue

    def __init__(self, files: Files, *, read_only: bool, limits: Limits) -> None:
        self.files = files
        self.read_only = read_only
        self.limits = limits
        self.bases: dict[int, Base] = {}
        self.names: dict[int, str] = {}  # for messages: of every table opened so far
        self.next_table_id = 0
        self.failure: EmbstoreError | None = None
        self._lock = _lock_directory(files, read_only=read_only)
        try:
            self.use(_read_catalogue(files, read_only=read_only, limits=limits))
        except BaseException:
            self._lock.close()
            raise

    @property
    def store_id(self) -> bytes:
        """The id that every file of the store carries."""
        return bytes.fromhex(self.catalogue.store_id)

    def use(self, catalogue: Catalogue) -> None:
        """Make a catalogue the current one: open what it names, remove what it does not."""
        self.catalogue = catalogue
        self.bases = {}
        for state in (catalogue.head, *(c.state for c in catalogue.checkpoints)):
            for table in state.tables:
                if table.table_id not in self.bases:
                    self.bases[table.table_id] = self.open_base(table)
        self._load_log(catalogue)
        for table_id in self.bases.keys() - {t.table_id for t in catalogue.head.tables}:
            self.log.forget_table(table_id << KEY_BITS, (table_id + 1) << KEY_BITS)
        self.log.forgetful = False  # what was forgotten is not in the head
        number, table_id = self._remove_unnamed()
        self.log.next_number = max(catalogue.next_segment, number + 1)
        self.next_table_id = max(catalogue.next_table_id, table_id + 1)

    def _load_log(self, catalogue: Catalogue) -> None:
        self.log = Log(
            self.files,
            self.store_id,
            segment_bytes=self.limits.segment_bytes,
            rows_max=self.limits.log_rows_max,
        )
        interval = 0
        for entry in catalogue.segments:
            if catalogue.interval(entry.commit) != interval:
                interval = catalogue.interval(entry.commit)
                self.log.freeze()
            self.log.load(entry)
        if interval != len(catalogue.checkpoints):
            self.log.freeze()  # nothing is newer than the newest checkpoint

    def open_base(self, table: TableEntry) -> Base:
        """Return a table's base with the bitmap that the catalogue names, if it names one."""
        config = table.config()
        self.names[table.table_id] = config.name
        geometry = BaseGeometry(config.layout.record_bytes, self.catalogue.base_segment_bytes)
        if not geometry.rows_per_segment:
            raise CapacityError(
                f"limits.base_segment_bytes is {geometry.segment_bytes}, too little for one row of "
                f"{geometry.record_bytes} bytes and a header"
            )
        base = Base(self.files, self.store_id, table.table_id, geometry)
        path = self.catalogue.written.get(str(table.table_id))
        if path:
            base.load(path)
        return base

    def _remove_unnamed(self) -> tuple[int, int]:
        """Remove what no commit names; return the highest segment number and table id seen."""
        files, number, table_id = self.files, 0, -1
        names = [f"log/{name}" for name in files.list("log")]
        for directory in files.list("base"):
            names += [f"base/{directory}/{name}" for name in files.list(f"base/{directory}")]
            if directory.isdigit():
                table_id = max(table_id, int(directory))
        for name in names:
            if name.startswith("log/") and name[4:-4].isdigit():
                number = max(number, int(name[4:-4]))
        if not self.read_only:
            for name in catalogues.unnamed(self.catalogue, names):
                files.discard(name)
            for directory in files.list("base"):
                if not directory.isdigit() or int(directory) not in self.bases:
                    files.discard(f"base/{directory}", directory=True)
        return number, table_id

    def replace_catalogue(self, new: Catalogue) -> None:
        """Commit: put the new catalogue in the old one's place. A CapacityError commits nothing."""
        self.check_usable()  # a sync may have failed meanwhile, in a thread of its own
        try:
            self.files.replace(catalogues.PATH, catalogues.encode(new))
        except StorageError as exc:
            self.fail(exc)
            raise
        self.catalogue = new

    def maps(self) -> tuple[NDArray[np.uint8], ...]:
        """Return the maps of all rows that can be located now; while referred to, they stay."""
        bases = (m for base in self.bases.values() for m in base.maps)
        return (*self.log.maps, *bases)

    def dropped(self) -> set[int]:
        """Return the ids of tables that have a base and that no kept state names any more."""
        return self.bases.keys() - self.catalogue.table_ids()

    def remove_dropped(self) -> None:
        """Remove the bases that no kept state names any more."""
        for table_id in self.dropped():
            del self.bases[table_id]
            self.files.discard(f"base/{table_id}", directory=True)

    def close(self) -> None:
        """Remove what was never committed, and release the lock."""
        self.log.close()
        try:
            if self.failure is None and not self.read_only:
                self._remove_unnamed()
        finally:
            self._lock.close()

    # Failure

    def check_usable(self, *, write: bool = False) -> None:
        """Raise if a failure, or for a write read_only, forbids a call."""
        if self.failure is not None:
            raise StoreClosedError(
                "the store failed and must be opened again; it will be at its last commit, or the "
                "last command that was logged "
                f"({self.failure})"
            ) from self.failure
        if write and self.read_only:
            raise PermissionDeniedError(f"{self.files.root} was opened with read_only=True")

    def fail(self, cause: EmbstoreError) -> None:
        """Refuse everything from now on."""
        self.failure = self.failure or cause

    def irreversible(self) -> AbstractContextManager[None]:
        """Enter the part of a command in which an error cannot be refused: it fails the store."""
        return _Irreversible(self)


class _Irreversible(AbstractContextManager[None]):
    """What `Contents.irreversible` enters. No generator: calls of few keys would notice it."""

    def __init__(self, contents: Contents) -> None:
        self._contents = contents

    def __enter__(self) -> None:
        pass

    def __exit__(self, _: object, exc: BaseException | None, __: object) -> None:
        match exc:
            case None:
                return
            case CapacityError():
                # Too late to be refused: not a lack of room that making some would mend.
                text = f"no room in the middle of a command: {exc}"
                self._contents.fail(StorageError(errno.ENOSPC, text))
                assert self._contents.failure is not None
                raise self._contents.failure from exc
            case EmbstoreError():
                self._contents.fail(exc)
            case _:
                self._contents.fail(StorageError(errno.EIO, str(exc) or repr(exc)))


def _lock_directory(files: Files, *, read_only: bool) -> File:
    """Make the directory a store if it is empty, and lock it until the returned file is closed.

    Raises
    ------
    StoreInUseError : another process has it open.
    StorageError : read-only, and there is no store.
    InvalidArgumentError : the directory has other files.
    """
    if files.exists("") and not files.is_directory(""):
        raise InvalidArgumentError(f"expected a directory, found a file: {files.root}")
    if not files.exists(_IDENTITY):
        if read_only:
            raise StorageError(2, f"expected a store to read, found none in {files.root}")
        # In this order: another process may be making the store, store.json before the rest.
        if set(files.list("")) - _UNFINISHED and not files.exists(_IDENTITY):
            raise InvalidArgumentError(
                f"expected an empty directory or a store, found other files in {files.root}"
            )
        files.make_directory("")
    lock = files.lock("LOCK", shared=read_only)
    try:
        if not files.exists(_IDENTITY):
            identity = {"format": FORMAT, "endianness": "little", "store_id": uuid.uuid4().hex}
            files.replace(_IDENTITY, json.dumps(identity).encode() + b"\n")
    except BaseException:
        lock.close()
        raise
    return lock


def _read_catalogue(files: Files, *, read_only: bool, limits: Limits) -> Catalogue:
    """Return what was last committed; write the first catalogue of a new store."""
    store_id = _read_store_id(files)
    if files.exists(catalogues.PATH):
        catalogue = catalogues.decode(files.read_all(catalogues.PATH))
    elif files.exists("log") or files.exists("base") or read_only:
        raise CorruptTableError(f"{catalogues.PATH}: missing from {files.root}")
    else:
        catalogue = Catalogue(store_id, base_segment_bytes=limits.base_segment_bytes)
        files.replace(catalogues.PATH, catalogues.encode(catalogue))
    if catalogue.store_id != store_id:
        raise CorruptTableError(
            f"{catalogues.PATH}: belongs to store {catalogue.store_id}, not to {store_id}"
        )
    return catalogues.reopened(catalogue)


def _read_store_id(files: Files) -> str:
    try:
        identity = json.loads(files.read_all(_IDENTITY))
        found = (identity["format"], identity["endianness"])
        store_id = bytes.fromhex(identity["store_id"]).hex()
    except (ValueError, TypeError, KeyError, RecursionError) as exc:
        raise CorruptTableError(f"{_IDENTITY}: unreadable") from exc
    if found != (FORMAT, "little"):
        raise TableMismatchError(
            f"{_IDENTITY}: expected format {FORMAT}, little-endian, "
            f"found format {found[0]}, {found[1]}"
        )
    if len(store_id) != 32:
        raise CorruptTableError(
            f"{_IDENTITY}: expected a store id of 32 digits, found {store_id!r}"
        )
    return store_id
