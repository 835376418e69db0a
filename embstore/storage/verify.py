"""Verification of a directory: it finds damaged files, and the rows that cannot be read because of
them.

First all files that the catalogue names are read, each once and from beginning to end
(checking.py), then the command log, then LINEAGE and SHARD. If the directory has received a
leader's commit that the next opening will take over, the received commit is verified instead of the
commit before it.

Damage is collected: reading does not stop at the first error. A damaged record matters only if it
is the newest record of its row. Therefore, for the head and for each kept label, a second step
looks for the row in those files of the state that are newer than the damaged file. This step reads
only key indexes, and only if a record is damaged.

Unnamed files are no error: a crash leaves them, and the next opening removes them. Files of a
leader that a standby has begun to receive are not reported as unnamed, because the standby
continues with them.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np

from embstore.arrays import KEY_BITS, KEY_MASK, Keys
from embstore.errors import CorruptTableError, StorageError
from embstore.results import State
from embstore.storage import catalogue as catalogues
from embstore.storage import lineage as lineages
from embstore.storage import shard as shards
from embstore.storage.catalogue import Catalogue, Entry, PartEntry, SegmentEntry
from embstore.storage.checking import UNUSABLE, FileCheck, FileReport, RowsEntry, keys_in
from embstore.storage.command_records import RecordReader
from embstore.storage.contents import IDENTITY, LOCK, read_identity
from embstore.storage.files import Files
from embstore.storage.format import ROOMS
from embstore.storage.id_files import id_at
from embstore.storage.own_names import is_own
from embstore.storage.taking import DIRECTORY as INCOMING
from embstore.storage.taking import ArrivedFiles, arrived

FIRST_KEYS = 5
"""Maximum number of affected keys that are named per table."""
_NAMED = 5
"""Maximum number of folders with stores that an error names if the directory itself is no store."""
_KNOWN = {
    *(LOCK, IDENTITY, catalogues.PATH, lineages.PATH, shards.PATH, *ROOMS),
    *("commands", "frequency", INCOMING, "lost+found"),
}

Note = Callable[[str], None]
Progress = Callable[[int, int], None]


class Affected(NamedTuple):
    """Rows of one table, in one state, that cannot be read."""

    label: str
    """The label of a kept checkpoint; "" for the head."""
    table: str
    rows: int | None
    """Number of affected rows, of which at most DAMAGED_MAX are counted per file; None: unknown,
    because the index of a file is lost."""
    first_keys: tuple[int, ...]
    """The first affected keys; for a sparse table, unsigned ids; empty if the file of ids is
    damaged as well."""
    path: str

    def __str__(self) -> str:
        state = f"checkpoint {self.label!r}" if self.label else "the head"
        if self.rows is None:
            return f"table {self.table!r} of {state}: rows whose newest record is in {self.path}"
        keys = ", ".join(map(str, self.first_keys))
        more = ", ..." if self.rows > len(self.first_keys) else ""
        rows = f"{self.rows:,} rows, keys {keys}{more}" if keys else f"{self.rows:,} rows"
        return f"table {self.table!r} of {state}: {rows}: {self.path}"


@dataclass
class Verification:
    """The findings of a verification. `problems` is empty if the store is sound."""

    files: int = 0
    bytes: int = 0
    rows: int = 0
    """Number of records that were checked, including records that newer records replace."""
    commands: int = 0
    """Number of records of the command log."""
    problems: list[str] = field(default_factory=list)
    affected: list[Affected] = field(default_factory=list)
    leftovers: list[str] = field(default_factory=list)
    """Files that the catalogue does not name."""


def _below(files: Files) -> str:
    """Return a hint that names the folders of a directory that contain a store, or backups of a
    store; "" if there are none."""
    from embstore.storage import markers  # only for this hint: servers start without it

    marks = IDENTITY, markers.PATH
    found = [
        name for name in files.list("") if any(files.exists(f"{name}/{mark}") for mark in marks)
    ]
    if not found:
        return ""
    return f"; verify its folders, one by one: {', '.join(sorted(found)[:_NAMED])}"


def verify(files: Files, note: Note, progress: Progress) -> Verification:
    """Check a store's directory. No writer may have the store open.

    Parameters
    ----------
    note : called with each problem when the problem is found
    progress : called with the bytes read so far and the total

    Raises
    ------
    StoreInUseError : a writer has the store open.
    StorageError : there is no store.
    """
    if not any(map(files.exists, (IDENTITY, catalogues.PATH))):
        raise StorageError(2, f"expected a store, found none in {files.root}{_below(files)}")
    lock = files.lock(LOCK, shared=True)
    try:
        found = _Verifier(files, note, progress)
        catalogue = found.read_catalogue()
        if catalogue is not None:
            reports = found.check_files(catalogue)
            found.find_affected(catalogue, reports)
            found.check_commands(catalogue)
            found.check_places()
            found.list_leftovers(catalogue)
        return found.result
    finally:
        lock.close()


def verify_files(
    files: Files, catalogues: Mapping[str, Catalogue], note: Note, progress: Progress
) -> Verification:
    """Check the files of log, base and ids that catalogues name, in any directory.

    catalogues : the catalogues of one store, by label; affected rows are reported for the head of
        each catalogue
    """
    found = _Verifier(files, note, progress)
    reports = found.check_files(*catalogues.values())
    for label, catalogue in catalogues.items():
        alone = replace(catalogue, checkpoints=())
        affected = affected_by(files, alone, reports)
        found.result.affected += [one._replace(label=label) for one in affected]
    return found.result


def entries_of(*catalogues: Catalogue) -> list[Entry]:
    """Return one entry for each file that any of the catalogues names. All catalogues are of one
    store."""
    by_path: dict[str, Entry] = {}
    for catalogue in catalogues:
        parts = [part for run in catalogue.runs for part in run]
        entries: list[Entry] = [*parts, *catalogue.segments, *catalogue.ids]
        for entry in entries:
            by_path.setdefault(entry.path, entry)
    return list(by_path.values())


class _Verifier:
    """One pass over a directory."""

    def __init__(self, files: Files, note: Note, progress: Progress) -> None:
        self.result = Verification()
        self._files = files
        self._note = note
        self._progress = progress

    def _fail(self, problem: object) -> None:
        self.result.problems.append(str(problem))
        self._note(str(problem))

    def read_catalogue(self) -> Catalogue | None:
        """Check store.json, and the catalogue of the store or of a commit received from a leader.
        Return that catalogue if it can be read."""
        store_id = ""
        if not self._files.exists(IDENTITY):
            self._fail(f"{IDENTITY}: missing")
        try:
            if (catalogue := arrived(self._files)) is not None:
                self._files = ArrivedFiles(self._files.root)
                return catalogue
        except UNUSABLE as exc:
            self._fail(exc)
        try:
            store_id = read_identity(self._files)
        except UNUSABLE as exc:
            if self._files.exists(IDENTITY):
                self._fail(exc)
        if store_id and not any(map(self._files.exists, (catalogues.PATH, *ROOMS))):
            return Catalogue(store_id)  # the store's creation was interrupted, so it is empty
        try:
            if not self._files.exists(catalogues.PATH):
                raise CorruptTableError(f"{catalogues.PATH}: missing")
            catalogue = catalogues.decode(self._files.read_all(catalogues.PATH))
        except UNUSABLE as exc:
            self._fail(
                f"{exc}: without the catalogue nothing else can be verified; restore a backup"
            )
            return None
        if store_id and catalogue.store_id != store_id:
            self._fail(
                f"{catalogues.PATH}: belongs to store {catalogue.store_id}, not to {store_id}, as "
                f"{IDENTITY} says"
            )
        return catalogue

    def check_files(self, *catalogues: Catalogue) -> dict[str, FileReport]:
        """Check each named file; return the reports of damaged files, by path."""
        entries = entries_of(*catalogues)
        total = sum(entry.bytes for entry in entries)
        result, store_id = self.result, bytes.fromhex(catalogues[0].store_id)
        reports = {}
        done = 0
        for entry in entries:
            check = FileCheck(self._files, store_id, entry)
            at = done
            for size in check.run():
                at += size
                self._progress(at, total)
            done += entry.bytes
            self._progress(done, total)
            result.rows += check.report.rows
            for problem in check.report.problems:
                self._fail(problem)
            if check.report.problems:
                reports[check.report.path] = check.report
        result.files, result.bytes = len(entries), total
        return reports

    def find_affected(self, catalogue: Catalogue, reports: dict[str, FileReport]) -> None:
        """Find the rows that damaged files affect."""
        self.result.affected = affected_by(self._files, catalogue, reports)

    def check_commands(self, catalogue: Catalogue) -> None:
        """Read the command log to its end. Damage before the torn tail is a problem; the torn tail
        itself is not."""
        reader = RecordReader(self._files, bytes.fromhex(catalogue.store_id), catalogue.commands)
        try:
            for _ in reader:
                self.result.commands += 1
        except UNUSABLE as exc:
            self._fail(exc)
        for cut in reader.cut.values():
            self._fail(cut)

    def check_places(self) -> None:
        """Check the small files of standbys and shards, LINEAGE and SHARD."""
        for read in (lineages.read, shards.read):
            try:
                read(self._files)
            except UNUSABLE as exc:
                self._fail(exc)

    def list_leftovers(self, catalogue: Catalogue) -> None:
        """List the files that the catalogue does not name."""
        here = [f"{room}/{name}" for room in ROOMS for name in self._files.list(room)]
        others = sorted(set(self._files.list("")) - _KNOWN)
        rooms = INCOMING, *(f"{INCOMING}/{room}" for room in ROOMS)
        taken = [f"{room}/{name}" for room in rooms for name in self._files.list(room)]
        strange = [path for path in taken if path not in rooms and not is_own(path)]
        self.result.leftovers = [*others, *catalogues.unnamed(catalogue, here), *strange]


def affected_by(
    files: Files, catalogue: Catalogue, reports: dict[str, FileReport]
) -> list[Affected]:
    """Return the rows that damaged files affect in the head and in each kept checkpoint.

    reports : the reports of damaged files, by path
    """
    return [
        affected
        for label, state in _states(catalogue)
        for affected in _affected(files, catalogue, label, state, reports)
    ]


def _states(catalogue: Catalogue) -> Iterator[tuple[str, State]]:
    yield "", catalogue.head
    for kept in catalogue.checkpoints:
        yield kept.label, kept.state


def _affected(
    files: Files,
    catalogue: Catalogue,
    label: str,
    state: State,
    reports: dict[str, FileReport],
) -> Iterator[Affected]:
    """Yield the rows that damaged files affect in one state, table by table."""
    names = {table.table_id: table.config().name for table in state.tables}
    for ids in catalogue.ids:
        if ids.path in reports and ids.commit <= state.commit and ids.table_id in names:
            yield Affected(label, names[ids.table_id], ids.count, (), ids.path)
    sources = _newest_first(catalogue, state)
    for at, entry in enumerate(sources):
        report = reports.get(entry.path)
        if report is None:
            continue
        if report.is_lost:
            for table_id in _tables_within(entry, names):
                yield Affected(label, names[table_id], None, (), report.path)
        keys = _visible(files, report.damaged, entry, sources[:at])
        for table_id in np.unique(keys >> KEY_BITS).tolist():
            if table_id in names:
                own = keys[keys >> KEY_BITS == table_id]
                first = _keys_of(files, catalogue, own[:FIRST_KEYS])
                yield Affected(label, names[table_id], len(own), first, report.path)


def _keys_of(files: Files, catalogue: Catalogue, row_keys: Keys) -> tuple[int, ...]:
    """Return the keys of rows of one table; for a sparse table, the ids that can still be read."""
    own = [ids for ids in catalogue.ids if ids.table_id in row_keys >> KEY_BITS]
    if not own:
        return tuple((row_keys & KEY_MASK).tolist())
    found: list[int] = []
    for number in (row_keys & KEY_MASK).tolist():
        with suppress(*UNUSABLE):
            found += (id_at(files, ids, number) for ids in own if ids.has(number))
    return tuple(found)


def _newest_first(catalogue: Catalogue, state: State) -> list[RowsEntry]:
    segments = [s for s in catalogue.segments if s.commit <= state.commit]
    runs = [run for run in catalogue.runs if run[0].commit <= state.commit]
    return [*reversed(segments), *(part for run in reversed(runs) for part in run)]


def _tables_within(entry: RowsEntry, names: dict[int, str]) -> list[int]:
    if isinstance(entry, SegmentEntry):
        return list(names)
    low, high = entry.low >> KEY_BITS, (entry.high - 1) >> KEY_BITS
    return [table_id for table_id in names if low <= table_id <= high]


def _visible(files: Files, keys: Keys, entry: RowsEntry, newer: Sequence[RowsEntry]) -> Keys:
    """Return the keys that no newer file contains. `keys` are row keys of a file."""
    keys = _within(keys, entry)
    for other in newer:
        if not len(keys):
            break
        here = _within(keys, other)
        if len(here):
            keys = np.setdiff1d(keys, here[keys_in(files, other, here)], assume_unique=True)
    return keys


def _within(keys: Keys, entry: RowsEntry) -> Keys:
    if not isinstance(entry, PartEntry):
        return keys
    low, high = np.searchsorted(keys, [entry.low, entry.high])
    return keys[low:high]
