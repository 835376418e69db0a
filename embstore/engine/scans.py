"""Scans of a running store. A scan reads a table's written rows by ascending key, all as of one
command.

A scan is a snapshot of a commit (`embstore.storage.snapshot`). The commit is that of a kept
checkpoint, or, if no label is given, a commit that is made for the scan, in pieces like the store's
own commits (commits.py). Later commands, merges and drops do not change the scan, and the scan
delays no call. A page of the scan is read in the caller's thread, without the engine.

Rejected: a copy-on-write snapshot of the head, as a digest uses (row_snapshot.py). Each page would
need the engine, and the copies would grow until the client has read all pages. The rows would
belong to no commit, so that they could not be read again.

**The end.** A client closes its scan. A scan that is not read for IDLE_S is ended by the next
command that writes, or by the next scan. Until a scan ends, it can occupy the space of files that
merges have replaced. A restore ends all scans, because the commands that they show have been
undone.
"""

import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from time import monotonic
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embstore import commands as c
from embstore.arrays import KEY_MASK, Keys, Rows
from embstore.commands import Progress
from embstore.config import TableConfig
from embstore.engine.commits import OwnCommits
from embstore.engine.scan_places import ScanPlace, ScanPlaces
from embstore.errors import (
    CheckpointNotFoundError,
    InvalidArgumentError,
    SessionExpiredError,
    StoreClosedError,
    TableNotFoundError,
)
from embstore.layout import VALUE, VALUE_BYTES
from embstore.results import ScanFacts, ScannedRows, State, TableDescription, TableEntry
from embstore.storage.snapshot import Snapshot
from embstore.tables.slices import Slices
from embstore.tables.tables import Tables

IDLE_S = 600.0
"""Seconds without a read after which a scan is ended. A client needs far less time for a page."""
_KEY_BYTES = 8

Out = Callable[[Sequence[str], Sequence[tuple[int, int]], Sequence[Any]], Sequence[Rows]]
"""A function that makes arrays for rows of the given shapes, in a message that also contains other
arrays."""


@dataclass
class _Scan:
    table: str
    config: TableConfig
    snapshot: Snapshot
    count: int
    deleted: int
    read_at: float
    opening: int
    place: ScanPlace


class Scans:
    """The scans of one store. Any thread."""

    def __init__(self, tables: Tables, commits: OwnCommits) -> None:
        self.rows = 0
        self._tables = tables
        self._commits = commits
        self._lock = threading.Lock()
        self._open: dict[str, _Scan] = {}
        self.places = ScanPlaces(tables.limits.scan_bytes_max)
        self.owns: Callable[[TableConfig, Keys], NDArray[np.bool_]] | None = None
        """On a shard: the function that selects the keys of a table that are in the shard's
        partitions.

        Rows of other keys were moved away, or are being moved to this shard; a scan leaves these
        rows out.
        """
        self._openings = 0  # openings so far; an opening gets its number together with its snapshot
        self._ended_at = 0  # all scans up to the opening of this number have ended

    def __len__(self) -> int:
        return len(self._open)

    def open(self, command: c.OpenScan, progress: Progress | None = None) -> ScanFacts:
        """Open a scan. An open scan of the same name is ended.

        Raises
        ------
        TableNotFoundError : the table does not exist, or did not exist at one of the checkpoints.
        CheckpointNotFoundError : no checkpoint is kept under `label` or under `since`.
        InvalidArgumentError : `since` is newer than the scanned state.
        CapacityError : too many scans are open, or the scans need too much memory, or there is no
            space for a commit.
        StoreClosedError : the store was closed meanwhile.
        Exception : an error of `progress`.
        """
        storage = self._tables.storage
        self.expire()
        with self._tables.reading():
            self._tables.find(command.table, command.table_id)
            for label in filter(None, (command.label, command.since)):
                if storage.catalogue.checkpoint(label) is None:  # checked before any write
                    raise CheckpointNotFoundError(f"no checkpoint {label!r} is kept")
        before = self._open.get(command.scan)
        replaced = None if before is None else before.place
        place = self.places.take(command.scan, replaced)
        try:
            return self._opened(
                command, place, partial(self.places.reserve, place, replaced), progress
            )
        except BaseException:
            self.places.leave([place])
            raise

    def _opened(
        self,
        command: c.OpenScan,
        place: ScanPlace,
        reserve: Callable[[int], None],
        progress: Progress | None,
    ) -> ScanFacts:
        if command.label is None and not self._tables.storage.read_only:
            self._commits.commit(progress)
        slices = Slices(self._tables.frame, progress)
        with slices.one():
            if self._commits.is_stopping:
                raise StoreClosedError("the store was closed while a scan was opened")
            facts, snapshot = self._taken(command)
            self._openings += 1
            opening = self._openings
        count, deleted = snapshot.prepare(slices.wanted, reserve)
        config = facts.table.config
        scan = _Scan(command.table, config, snapshot, count, deleted, monotonic(), opening, place)
        with self._lock:
            before = self._open.get(command.scan)
            if opening <= self._ended_at or (before is not None and before.opening > opening):
                raise SessionExpiredError(
                    f"table {command.table!r}: the store was restored, or the scan opened a "
                    "second time, while it was opened: open another one"
                )
            self._open[command.scan] = scan
        if before is not None:
            self.places.leave([before.place])
        return replace(facts, rows=count, deleted=deleted)

    def _taken(self, command: c.OpenScan) -> tuple[ScanFacts, Snapshot]:
        """Return the facts and snapshot of a scan. The caller has the engine."""
        storage, since = self._tables.storage, State()
        table_id = self._tables.find(command.table, command.table_id).table_id
        state = storage.catalogue.head
        if command.label is not None:
            state = storage.kept(command.label).state
        entry, since_t = _entry(state, table_id, command.table, command.label), 0
        if command.since is not None:
            since = storage.kept(command.since).state
            since_t = _entry(since, table_id, command.table, command.since).t
            if since.commit > state.commit:
                raise InvalidArgumentError(
                    f"expected since to be a checkpoint before {command.label!r}, found "
                    f"{command.since!r}, which is newer"
                )
        described = TableDescription(entry.config(), table_id, entry.t, entry.update_ids)
        facts = ScanFacts(described, state.command, 0, since.command, since_t)
        wanted = self._wanted(described.config, moved=command.moved)
        return facts, storage.snapshot(table_id, state.commit, since.commit, wanted)

    def _wanted(
        self, config: TableConfig, *, moved: bool
    ) -> Callable[[Keys], NDArray[np.bool_]] | None:
        """Return the function that selects the keys that a scan of a table reads; None: the scan
        reads all keys."""
        owns = self.owns
        if moved:
            return lambda keys: ~owns(config, keys) if owns else np.zeros(len(keys), np.bool_)
        return None if owns is None else partial(owns, config)

    def read(self, command: c.ReadScan, out: Out | None = None) -> ScannedRows:
        """Return a page of a scan.

        Raises
        ------
        SessionExpiredError : the scan does not exist, or has ended.
        InvalidArgumentError : the page is too large.
        CorruptTableError : a record is damaged.
        """
        scan = self._found(command)
        self._tables.frame.check_open()
        self._check_size(scan, command)
        row_keys, parts = self._page(scan, command)
        keys = scan.snapshot.keys_of(row_keys)
        after = int(row_keys[-1] & KEY_MASK) + 1 if len(row_keys) else command.low
        if out is None:
            found = [np.ascontiguousarray(part) for part in parts]
        else:
            found = list(out([scan.table], [part.shape for part in parts], [keys]))
            for to, part in zip(found, parts, strict=True):
                to[:] = part
        with self._lock:
            scan.read_at = monotonic()
            self.rows += 0 if command.deleted else len(keys)
        return ScannedRows(keys, found[0], found[1] if len(found) > 1 else None, after)

    def _page(self, scan: _Scan, command: c.ReadScan) -> tuple[Keys, list[Rows]]:
        """Return the row keys of a page, the rows' weights, and, if it was requested, the rows'
        state."""
        config, snapshot = scan.config, scan.snapshot
        if command.deleted:
            row_keys = snapshot.deleted_from(command.low, command.rows)
            return row_keys, [np.empty((len(row_keys), 0), VALUE)]
        located = snapshot.rows_from(command.low, command.rows)
        whole = np.empty((len(located.keys), config.layout.stride), config.layout.element)
        self._tables.storage.rows.collect(located, whole)
        ends = [0, config.dim, config.dim + config.state_dim][: 3 if command.with_state else 2]
        return located.keys, [whole[:, low:high] for low, high in pairwise(ends)]

    def reply_bytes(self, command: c.ReadScan) -> int:
        """Return an upper bound for the bytes of a page. Raises the errors of `read`."""
        scan = self._found(command)
        if command.deleted:
            return min(command.rows, scan.deleted) * _KEY_BYTES
        return min(command.rows, scan.count) * _row_bytes(scan.config, command)

    def _found(self, command: c.ReadScan) -> _Scan:
        scan = self._open.get(command.scan)
        if scan is None or scan.table != command.table:
            raise SessionExpiredError(
                f"table {command.table!r}: expected an open scan; it was closed, or not read for "
                f"{IDLE_S:g} s, or the store was restored or opened again: open another one"
            )
        return scan

    def _check_size(self, scan: _Scan, command: c.ReadScan) -> None:
        most, limit = self._tables.limits.call_bytes_max, "limits.call_bytes_max"
        size = self.reply_bytes(command)
        if size > most:
            raise InvalidArgumentError(
                f"table {scan.table!r}: expected a page of at most {most} bytes ({limit}), found "
                f"{size}; ask for fewer rows"
            )

    def close(self, command: c.CloseScan) -> None:
        """End a scan."""
        with self._lock:
            scan = self._open.get(command.scan)
            if scan is not None and scan.table == command.table:
                del self._open[command.scan]
                self.places.leave([scan.place])

    def expire(self) -> None:
        """End scans that were not read for IDLE_S."""
        if self._open:
            before = monotonic() - IDLE_S
            self._end({name for name, scan in self._open.copy().items() if scan.read_at < before})

    def end_all(self) -> None:
        """End every scan, even scans that are being opened. The caller has the engine."""
        with self._lock:
            self._ended_at = self._openings
        self._end(set(self._open.copy()))

    def _end(self, names: set[str]) -> None:
        with self._lock:
            ended = [self._open.pop(name) for name in names if name in self._open]
            self.places.leave(scan.place for scan in ended)
        if ended:  # unmapping files takes long
            with suppress(RuntimeError):  # the system starts no more threads: unmap here
                threading.Thread(target=ended.clear, name="scans", daemon=True).start()


def _row_bytes(config: TableConfig, command: c.ReadScan) -> int:
    elements = config.dim + (config.state_dim if command.with_state else 0)
    return _KEY_BYTES + VALUE_BYTES * elements


def _entry(state: State, table_id: int, name: str, label: str | None) -> TableEntry:
    """Return a table's entry in a state."""
    found = next((entry for entry in state.tables if entry.table_id == table_id), None)
    if found is None:
        where = "the last commit" if label is None else f"the checkpoint {label!r}"
        raise TableNotFoundError(
            f"expected {where} to have the present table {name!r}, found that the table was "
            "created later: give a later checkpoint"
        )
    return found


HANDLERS: dict[Any, Callable[[Any, Any, Any], Any]] = {
    c.OpenScan: lambda engine, command, progress: engine.scans.open(command, progress),
    c.ReadScan: lambda engine, command, out: engine.scans.read(command, out),
    c.CloseScan: lambda engine, command, _: engine.scans.close(command),
}
