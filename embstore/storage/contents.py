"""An open directory: the current catalogue, and the log, base and ids that it names.

At opening and after a restore, `use` makes a catalogue the current one: `use` opens the files that
the catalogue names, and removes all other files of the store as leftovers of a crash.
`replace_catalogue` is the commit, which is one rename.

A directory becomes a store in three steps, each durable before the next: the lock file, store.json,
the first catalogue. Therefore a directory with store.json, without a catalogue and without other
files shows an interrupted creation. If it has other files, the store has lost its catalogue.

**Failure.** Commands are refused before anything changes. If the disk fails after that point,
memory and disk may disagree, so the contents are *failed*: every operation except closing is
refused, and nothing more is committed. Opening the directory again finds the last commit.
"""

import errno
import json
import uuid
import warnings
from collections.abc import Iterable
from dataclasses import replace
from itertools import groupby

from embstore.arrays import KEY_BITS, KEY_MASK, TABLE_IDS_MAX
from embstore.config import Limits
from embstore.errors import (
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
from embstore.storage import shard
from embstore.storage.base import Base
from embstore.storage.catalogue import Catalogue
from embstore.storage.disk_space import check_writable
from embstore.storage.file_errors import removed
from embstore.storage.files import Files, Lock
from embstore.storage.format import FORMAT, ROOMS
from embstore.storage.id_files import Ids
from embstore.storage.irreversible import Irreversible
from embstore.storage.log import Log
from embstore.storage.own_names import is_own
from embstore.storage.presence import Presence
from embstore.storage.removal import Removal
from embstore.storage.run import Run, RunWriter
from embstore.storage.taking import finish
from embstore.storage.tiers import arranged

IDENTITY = "store.json"
LOCK = "LOCK"
LINKS = "backup"
"""Directory for the second names of files that are being backed up (backup.py); after a crash it is
a leftover."""
_UNFINISHED = {LOCK, f"{IDENTITY}.new", "lost+found"}
_IDS_RESERVED = 256
"""The number of tables that can be created between two writes of the catalogue."""
_SHOWN = 3
"""Maximum number of other files that an error message names."""


class Contents:
    """Catalogue, log, base and ids of one directory. Engine thread only."""

    log: Log
    base: Base
    ids: Ids
    catalogue: Catalogue

    def __init__(self, files: Files, *, read_only: bool, limits: Limits) -> None:
        self.files = files
        self.read_only = read_only
        self.limits = limits
        self.names: dict[int, str] = {}  # for messages: names of all tables opened so far, by id
        self._sparse: set[int] = set()  # for messages: ids of the tables with sparse keys
        self.next_table_id = 0
        self.failure: EmbstoreError | None = None
        self.irreversible = Irreversible(self)
        self.removal = Removal(files)
        self._encoder = catalogues.Encoder()
        self._presence = Presence(files)
        self._lock = _lock_directory(files, read_only=read_only)
        try:
            if not read_only:
                finish(files)
            self.use(_read_catalogue(files, read_only=read_only))
            self._presence.begin(self._fixed(self.catalogue))
            if not read_only and files.exists(LINKS):
                files.discard(LINKS, directory=True)
        except BaseException:
            self._lock.close()
            raise

    @property
    def store_id(self) -> bytes:
        """The store's id, which every file of the store contains."""
        return bytes.fromhex(self.catalogue.store_id)

    def use(self, catalogue: Catalogue) -> None:
        """Make a catalogue the current catalogue: open its files, and remove the store's other
        files."""
        self.catalogue = catalogue
        for state in (catalogue.head, *(c.state for c in catalogue.checkpoints)):
            for table in state.tables:
                self.name(table)
        self.base = Base(self.files, self.store_id)
        self.base.use(self.base.open(catalogue.runs))
        self._load_log(catalogue)
        for table_id in catalogue.table_ids() - catalogue.head.table_ids:
            self.log.forget_table(table_id << KEY_BITS, (table_id + 1) << KEY_BITS)
        self.log.forgetful = False  # the head does not name these tables
        self.ids = Ids(self.files, self.store_id, self._new_number)
        self.ids.load(catalogue)
        number = self._remove_unnamed()
        self.log.next_number = max(catalogue.next_segment, number + 1)
        self.next_table_id = catalogue.next_table_id

    def _load_log(self, catalogue: Catalogue) -> None:
        self.log = Log(
            self.files,
            self.store_id,
            segment_bytes=self.limits.segment_bytes,
            rows_max=self.limits.log_rows_max,
            irreversible=self.irreversible,
        )
        interval = 0
        for entry in catalogue.segments:
            if catalogue.interval(entry.commit) != interval:
                interval = catalogue.interval(entry.commit)
                self.log.freeze()
            self.log.load(entry)
        if interval != len(catalogue.checkpoints):
            self.log.freeze()  # no segment is newer than the newest checkpoint

    def name(self, table: TableEntry) -> None:
        """Remember a table's name, and whether its keys are sparse, for messages."""
        self.names[table.table_id] = str(table.identity["name"])
        if table.identity["key_space"] == "sparse":
            self._sparse.add(table.table_id)

    def wrong_record(self, row_key: int, which: str) -> CorruptTableError:
        """Return the error for a damaged record of a row. `which` names the record: "log's",
        "base's" or "stored".

        The error names the row's key; in a sparse table, if the id of the row is no longer known,
        it names the row number.
        """
        table_id, key = row_key >> KEY_BITS, row_key & KEY_MASK
        row, named = f"key {key}", self.ids.id_of(row_key)
        if table_id in self._sparse:
            row = f"row number {key}" if named is None else f"key {named}"
        return CorruptTableError(
            f"table {self.names[table_id]!r}: the {which} record of {row} fails its checksum"
        )

    def new_run(self, commit: int, part_bytes: int) -> RunWriter:
        """Start a run of the base, which no catalogue names yet."""
        return RunWriter(self.files, self.store_id, self._new_number(), commit, part_bytes)

    def _new_number(self) -> int:
        number, self.log.next_number = self.log.next_number, self.log.next_number + 1
        return number

    def grouped(self, runs: Iterable[Run]) -> list[list[Run]]:
        """Return runs in groups. The runs of one group may be merged, because they lie between the
        same two kept checkpoints."""
        groups = groupby(runs, lambda run: self.catalogue.interval(run[0].entry.commit))
        return [list(group) for _, group in groups]

    def arranged(self, runs: Iterable[Run]) -> tuple[Run, ...]:
        """Return the runs after moving parts to other runs where this is possible without reading a
        file."""
        groups = self.grouped(filter(None, runs))
        return tuple(r for g in groups for r in arranged(g, self.limits.base_segment_bytes))

    def with_runs(self, runs: tuple[Run, ...]) -> Catalogue:
        """Return the current catalogue with `runs` in place of its runs."""
        return replace(
            self.catalogue,
            next_segment=max(self.catalogue.next_segment, self.log.next_number),
            runs=tuple(tuple(part.entry for part in run) for run in runs),
        )

    def use_runs(self, runs: tuple[Run, ...]) -> None:
        """Make opened runs the current runs, and remove all other runs. The catalogue names the
        opened runs."""
        before = {part.entry.path: part.file.map for run in self.base.runs for part in run}
        self.base.use(runs)
        gone = before.keys() - {part.entry.path for run in runs for part in run}
        self.removal.remove(gone, [before[path] for path in gone])

    def _paths(self) -> list[str]:
        """Return the paths of the existing files of log, base and ids."""
        return [f"{room}/{name}" for room in ROOMS for name in self.files.list(room)]

    def _remove_unnamed(self) -> int:
        """Remove files that no commit names; return the highest number in a file name."""
        names = list(filter(is_own, self._paths()))
        digits = (name.split("/")[1].split(".")[0].split("-")[0] for name in names)
        if not self.read_only:
            for name in catalogues.unnamed(self.catalogue, names):
                self.files.discard(name)
        return max((int(number) for number in digits if number.isdigit()), default=0)

    def missing(self) -> str:
        """Check whether the directory, or a file that the store needs, was removed or replaced by a
        copy. Return the path of what is missing; "" if nothing is. Any thread."""
        catalogue = self.catalogue
        gone = self._gone(catalogue)
        if not gone and not self._presence.has_catalogue():
            gone = catalogues.PATH
        return gone if catalogue is self.catalogue else ""  # a new catalogue may not name the file

    def _gone(self, catalogue: Catalogue) -> str:
        if not self._lock.is_of(self.files.root):
            return str(self.files.root)
        return self._presence.gone(self._fixed(catalogue))

    def _fixed(self, catalogue: Catalogue) -> set[str]:
        """Return the paths of the files that a catalogue names and that never change."""
        return {IDENTITY, *catalogues.paths(catalogue)}

    @property
    def is_shard(self) -> bool:
        """Whether the store is a shard of a cluster, or a standby of a shard."""
        return self.files.exists(shard.PATH)

    def reserve_table_ids(self, first: int) -> None:
        """Set the catalogue's tail, and make its next table id larger than the ids of the next
        tables, from the id `first` on. If their creation is lost in a crash, their ids are not used
        again, and old handles do not stand for other tables.

        A shard reserves none: ids are equal on all shards, of which only some may lose commands.
        """
        following = min(first + _IDS_RESERVED * (not self.is_shard), TABLE_IDS_MAX)
        self.replace_catalogue(replace(self.catalogue, tail=True, next_table_id=following))

    def replace_catalogue(self, new: Catalogue) -> None:
        """Commit, by replacing the catalogue. If CapacityError is raised, nothing is committed."""
        self.check_usable()  # a sync may have failed meanwhile, in another thread
        if missing := self._gone(new):
            self.fail(gone := removed(missing))
            raise gone
        content = self._encoder.encode(new)
        with self._presence.replacing(content):
            try:
                self.files.replace(catalogues.PATH, content)
            except StorageError as exc:
                self.fail(exc)
                raise
            except MemoryError as exc:  # it is unknown whether the file was renamed
                self.fail(StorageError(errno.ENOMEM, f"no memory during a commit: {exc}"))
                raise
            replaced = {entry.path for entry in self.catalogue.ids} - {e.path for e in new.ids}
            self.catalogue = new
        if replaced:
            self.removal.remove(replaced, None)

    def maps(self) -> tuple[object, ...]:
        """Return the memory maps of the files whose rows can be located now. The maps stay valid as
        long as the caller refers to them."""
        return (self.log.maps, self.base.maps)

    def close(self) -> None:
        """Remove uncommitted files, and release the lock."""
        self.log.close()
        self.removal.finish()
        try:
            if self.failure is None and not self.read_only:
                self._remove_unnamed()
        finally:
            self._lock.close()

    # Failure

    def check_usable(self, *, write: bool = False) -> None:
        """Raise an error if the store has failed, or, if `write` is true, if the store is
        read-only."""
        if self.failure is not None:
            raise StoreClosedError(
                "the store failed; open it again: it will be at its last commit, or at the last "
                f"command of the command log ({self.failure})"
            ) from self.failure
        if write and self.read_only:
            raise PermissionDeniedError(f"{self.files.root} was opened with read_only=True")

    def fail(self, cause: EmbstoreError) -> None:
        """Refuse every further operation."""
        self.failure = self.failure or cause


def _lock_directory(files: Files, *, read_only: bool) -> Lock:
    """Make the directory a store if it is empty, and lock it until the returned lock is closed.

    Raises
    ------
    StoreInUseError : another process has the store open.
    StorageError : the directory is to be opened read-only, and contains no store.
    CorruptTableError : the directory has the files of a store, but not store.json.
    InvalidArgumentError : the directory contains other files.
    """
    if files.exists("") and not files.is_directory(""):
        raise InvalidArgumentError(f"expected a directory, found a file: {files.root}")
    if not read_only:
        check_writable(files)
    if not files.exists(IDENTITY):
        if files.exists(catalogues.PATH) and not files.exists(IDENTITY):
            raise CorruptTableError(
                f"{IDENTITY}: missing from {files.root}, which has the other files of a store; put "
                "it back, every copy of this directory has the same; where a restore was "
                "interrupted, restore again"
            )
        if read_only:
            raise StorageError(2, f"expected a store to read, found none in {files.root}")
        # List before looking for store.json, which a process that makes the store writes first.
        others = sorted(set(files.list("")) - _UNFINISHED)
        if others and not files.exists(IDENTITY):
            shown = ", ".join(others[:_SHOWN]) + (", ..." if len(others) > _SHOWN else "")
            raise InvalidArgumentError(
                f"expected an empty directory or a store, found other files in {files.root}: "
                f"{shown}"
            )
        files.make_directory("")
    if files.is_open_to_others:
        warnings.warn(
            f"{files.root}: other accounts can change the files of this store; give the directory "
            "to its own account alone (chown, chmod go-w)",
            stacklevel=2,
        )
    lock = files.lock(LOCK, shared=read_only)
    try:
        if not files.exists(IDENTITY):
            write_identity(files, uuid.uuid4().hex)
    except BaseException:
        lock.close()
        raise
    return lock


def _read_catalogue(files: Files, *, read_only: bool) -> Catalogue:
    """Return the last committed catalogue; write the first one of a new store."""
    store_id = read_identity(files)
    if files.exists(catalogues.PATH):
        catalogue = catalogues.decode(files.read_all(catalogues.PATH))
    elif any(map(files.exists, ROOMS)) or read_only:
        raise CorruptTableError(f"{catalogues.PATH}: missing from {files.root}")
    else:
        catalogue = Catalogue(store_id)
        files.replace(catalogues.PATH, catalogues.encode(catalogue))
    if catalogue.store_id != store_id:
        raise CorruptTableError(
            f"{catalogues.PATH}: belongs to store {catalogue.store_id}, not to {store_id}, as "
            f"{IDENTITY} says"
        )
    return catalogues.reopened(catalogue)


def write_identity(files: Files, store_id: str) -> None:
    """Write store.json, which makes the directory a store."""
    identity = {"format": FORMAT, "endianness": "little", "store_id": store_id}
    files.replace(IDENTITY, json.dumps(identity).encode() + b"\n")


def read_identity(files: Files) -> str:
    """Return the store id."""
    try:
        identity = json.loads(files.read_all(IDENTITY))
        found = (identity["format"], identity["endianness"])
        store_id = bytes.fromhex(identity["store_id"]).hex()
    except (ValueError, TypeError, KeyError, RecursionError) as exc:
        raise CorruptTableError(f"{IDENTITY}: unreadable") from exc
    if found != (FORMAT, "little"):
        raise TableMismatchError(
            f"{IDENTITY}: expected format {FORMAT}, little-endian, "
            f"found format {found[0]}, {found[1]}"
        )
    if len(store_id) != 32:
        raise CorruptTableError(f"{IDENTITY}: expected a store id of 32 digits, found {store_id!r}")
    return store_id
