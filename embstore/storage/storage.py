"""Storage: log, bases, catalogue and merges together, behind the few verbs that the cache needs.

    read      rows that are not in the cache: from the log, else the base, else not found
    reserve   room for every row that a command may push out of the cache, before it changes one
    append    dirty rows that leave the cache
    commit    all of it durable, by one rename; optionally kept under a label
    restore   the head is a kept checkpoint again

The base is immutable while a commit stands, the log only grows, and the catalogue is replaced
whole; so the store opens at its last commit after a crash at any instant, without a repair
(design.md, section 4).

**Failure.** What can be refused is refused before anything changes: room is reserved first. If the
disk fails after that point, memory and disk may disagree, so the storage is *failed*: every verb
but `close` raises StoreClosedError, nothing more is committed, and opening the directory again
finds the last commit.

One thread at a time calls any of this (the engine's). A merge has a thread of its own, and touches
only sealed segments and files that nothing names yet (merge.py).
"""

import json
import threading
import uuid
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embstore.arrays import KEY_BITS, KEY_MASK, Keys, Rows, row_stride
from embstore.config import Limits
from embstore.errors import (
    CapacityError,
    CheckpointExistsError,
    CheckpointNotFoundError,
    CorruptTableError,
    EmbstoreError,
    InvalidArgumentError,
    PermissionDeniedError,
    StorageError,
    StoreClosedError,
    TableMismatchError,
)
from embstore.kernels.cold import ask_for_cold_pages
from embstore.kernels.records import pack, unpack
from embstore.storage import catalogue as catalogues
from embstore.storage.base import Base
from embstore.storage.catalogue import (
    Catalogue,
    Checkpoint,
    SegmentEntry,
    State,
    TableEntry,
)
from embstore.storage.files import Files
from embstore.storage.format import FORMAT, BaseGeometry, record_bytes
from embstore.storage.log import Log, Write
from embstore.storage.merge import Merge, newest
from embstore.storage.segment import Segment, capacity_for

_IDENTITY = "store.json"
_APPEND_BYTES = 4 << 20
"""Dirty rows are packed and written in pieces of this size, so that the piece stays in the cache.
"""


_NEVER = 1 << 62


class _StoppedError(Exception):
    """A merge was told to stop: its work is thrown away."""


class Storage:
    """The rows of a store on its disk."""

    def __init__(
        self, files: Files, *, read_only: bool, checkpoints_keep: int, limits: Limits
    ) -> None:
        self.read_only = read_only
        self.segment_bytes = limits.segment_bytes
        self.bytes_read = 0
        self.bytes_written = 0
        self.merges = {"folds": 0, "compactions": 0, "failures": 0}
        self.merge_error: str | None = None
        self._files = files
        self._keep = checkpoints_keep
        self._limits = limits
        self._failure: EmbstoreError | None = None
        self._merge: Merge | None = None
        self._merge_thread: threading.Thread | None = None
        self._merge_outcome: BaseException | None = None
        self._merge_stop = threading.Event()
        self._merge_not_before = 0
        self._lock = self._open_directory()
        try:
            self._load()
        except BaseException:
            self._lock.close()
            raise

    # Opening and closing

    def _open_directory(self) -> Any:
        files = self._files
        if not files.exists(_IDENTITY):
            if self.read_only:
                raise StorageError(2, f"expected a store to read, found none in {files.root}")
            if set(files.list("")) - {"LOCK", "store.json.new", "lost+found"}:
                raise InvalidArgumentError(
                    f"expected an empty directory or a store, found other files in {files.root}"
                )
            files.make_directory("")
        lock = files.lock("LOCK", shared=self.read_only)
        if not files.exists(_IDENTITY):
            identity = {
                "format": FORMAT,
                "endianness": "little",
                "store_id": uuid.uuid4().hex,
            }
            files.replace(_IDENTITY, json.dumps(identity).encode() + b"\n")
        return lock

    def _read_identity(self) -> str:
        try:
            identity = json.loads(self._files.read_all(_IDENTITY))
            found = (identity["format"], identity["endianness"])
            store_id = bytes.fromhex(identity["store_id"]).hex()
        except (ValueError, TypeError, KeyError) as exc:
            raise CorruptTableError(f"{_IDENTITY}: unreadable") from exc
        if found != (FORMAT, "little") or len(store_id) != 32:
            raise TableMismatchError(
                f"{_IDENTITY}: expected format {FORMAT}, little-endian, found format "
                f"{found[0]}, {found[1]}"
            )
        return store_id

    def _load(self) -> None:
        files = self._files
        store_id = self._read_identity()
        if files.exists(catalogues.PATH):
            catalogue = catalogues.decode(files.read_all(catalogues.PATH))
        elif files.exists("log") or files.exists("base") or self.read_only:
            raise CorruptTableError(f"{catalogues.PATH}: missing from {files.root}")
        else:
            catalogue = Catalogue(store_id)
            files.replace(catalogues.PATH, catalogues.encode(catalogue))
        if catalogue.store_id != store_id:
            raise CorruptTableError(
                f"{catalogues.PATH}: belongs to another store, {catalogue.store_id}"
            )
        self._store_id = bytes.fromhex(store_id)
        self._use(catalogue)

    def _use(self, catalogue: Catalogue) -> None:
        """Make a catalogue the current one: open what it names, remove what it does not."""
        self.catalogue = catalogue
        self._bases: dict[int, Base] = {}
        for state in (catalogue.head, *(c.state for c in catalogue.checkpoints)):
            for table in state.tables:
                if table.table_id not in self._bases:
                    self._bases[table.table_id] = self._open_base(table)
        self.log = Log(
            self._files,
            self._store_id,
            segment_bytes=self._limits.segment_bytes,
            rows_max=self._limits.log_rows_max,
        )
        interval = 0
        for entry in catalogue.segments:
            if catalogue.interval(entry.commit) != interval:
                interval = catalogue.interval(entry.commit)
                self.log.freeze()
            self.log.load(entry)
        if any(c.state.commit == catalogue.head.commit for c in catalogue.checkpoints):
            self.log.freeze()
        alive = {t.table_id for t in catalogue.head.tables}
        for table_id in self._bases.keys() - alive:
            self.log.forget_table(table_id << KEY_BITS, (table_id + 1) << KEY_BITS)
        self._number_on(self._remove_unnamed())

    def _open_base(self, table: TableEntry) -> Base:
        config = table.config()
        geometry = BaseGeometry(
            record_bytes(row_stride(config.dim + config.state_dim)),
            self._limits.base_segment_bytes,
        )
        base = Base(self._files, self._store_id, table.table_id, geometry)
        path = self.catalogue.written.get(str(table.table_id))
        if path:
            base.load(path)
        return base

    def _remove_unnamed(self) -> tuple[int, int]:
        """Remove what no commit names; return the highest segment number and table id seen."""
        files, number, table_id = self._files, 0, -1
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
                files.remove(name)
            for directory in files.list("base"):
                if not directory.isdigit() or int(directory) not in self._bases:
                    files.remove_directory(f"base/{directory}")
        return number, table_id

    def _number_on(self, seen: tuple[int, int]) -> None:
        number, table_id = seen
        self.log.next_number = max(self.catalogue.next_segment, number + 1)
        self.next_table_id = max(self.catalogue.next_table_id, table_id + 1)

    def close(self) -> None:
        """Stop a merge and give the directory free. Nothing is committed."""
        self._stop_merge()
        self.log.close()
        self._lock.close()

    @property
    def failure(self) -> EmbstoreError | None:
        """What made the storage fail, or None."""
        return self._failure

    def check_usable(self, *, write: bool = False) -> None:
        """Raise StoreClosedError after a failure, PermissionDeniedError for a write to a read-only
        store.
        """
        if self._failure is not None:
            raise StoreClosedError(
                "the store failed and must be opened again; it will be at its last checkpoint "
                f"({self._failure})"
            ) from self._failure
        if write and self.read_only:
            raise PermissionDeniedError(f"{self._files.root} was opened with read_only=True")

    def fail(self, cause: EmbstoreError) -> None:
        """Refuse everything from now on: memory and disk may disagree."""
        self._failure = self._failure or cause

    @contextmanager
    def no_way_back(self) -> Iterator[None]:
        """Hold the part of a command in which an error can no longer be refused whole."""
        try:
            yield
        except BaseException as exc:
            self.fail(
                exc if isinstance(exc, EmbstoreError) else StorageError(5, str(exc) or repr(exc))
            )
            raise

    # Tables

    def create_table(self, table: TableEntry) -> None:
        """Make the base of a new table.

        Raises
        ------
        CapacityError : the file system cannot hold it. Nothing has changed.
        """
        try:
            base = self._open_base(table)
            base.create(table.rows)
        except EmbstoreError as exc:
            self._files.remove_directory(f"base/{table.table_id}")
            raise type(exc)(f"table {table.identity['name']!r}: {exc}") from exc
        self._bases[table.table_id] = base
        self.next_table_id = max(self.next_table_id, table.table_id + 1)

    def drop_table(self, table_id: int) -> None:
        """Forget a table's rows. Its files stay as long as a kept checkpoint names them."""
        self._stop_merge()
        self.log.forget_table(table_id << KEY_BITS, (table_id + 1) << KEY_BITS)

    # Rows

    def read(self, keys: Keys, rows: Rows, found: NDArray[np.uint8]) -> None:
        """Copy the stored rows of unique row keys.

        rows : (n, stride) float32, written where found
        found : (n,) uint8, set to 0 nowhere, 1 log, 2 base

        Raises
        ------
        CorruptTableError : a record is not what was written.
        """
        positions = np.empty(len(keys), np.int64)
        addresses = np.empty(len(keys), np.uint64)
        in_log = self.log.locate(keys, positions, addresses)
        np.not_equal(addresses, 0, out=found.view(bool))
        if in_log < len(keys):
            self._locate_in_bases(keys, np.flatnonzero(addresses == 0), addresses)
            found[(found == 0) & (addresses != 0)] = 2
        size = record_bytes(rows.shape[1])
        ask_for_cold_pages(addresses, size)
        wrong = unpack(addresses, keys, rows.view(np.uint64), 0, len(keys))
        if wrong >= 0:
            key = int(keys[wrong])
            where = "log" if found[wrong] == 1 else "base"
            raise CorruptTableError(
                f"the {where}'s record of table {key >> KEY_BITS}, key {key & KEY_MASK} fails "
                "its checksum"
            )
        self.bytes_read += int(np.count_nonzero(found)) * size

    def has(self, keys: Keys) -> NDArray[np.bool_]:
        """Say which row keys have a stored row. Reads no row."""
        positions = np.empty(len(keys), np.int64)
        addresses = np.empty(len(keys), np.uint64)
        if self.log.locate(keys, positions, addresses) < len(keys):
            self._locate_in_bases(keys, np.flatnonzero(addresses == 0), addresses)
        stored: NDArray[np.bool_] = addresses != 0
        return stored

    def _locate_in_bases(
        self, keys: Keys, missing: NDArray[np.int64], addresses: NDArray[np.uint64]
    ) -> None:
        tables = keys[missing] >> KEY_BITS
        if len(tables) and tables[0] == tables[-1] and (tables == tables[0]).all():
            self._bases[int(tables[0])].locate(keys, missing, addresses)
            return
        for table_id in np.unique(tables).tolist():
            self._bases[table_id].locate(keys, missing[tables == table_id], addresses)

    def stored_blocks(self, table_id: int, block_keys: int) -> Keys:
        """Return the blocks (of `block_keys` keys, a divisor of 32,768) of a table with a stored
        row.
        """
        first = table_id << KEY_BITS
        logged = self.log.index.keys_between(first, first + KEY_MASK + 1) - first
        return np.union1d(self._bases[table_id].written.blocks(block_keys), logged // block_keys)

    def reserve(self, records: int, stride: int) -> None:
        """Make room in the log for so many rows of at most `stride` fp32.

        Raises
        ------
        CapacityError : the disk or the log index is full. Nothing has changed.
        """
        if records:
            self.log.reserve(records, record_bytes(stride))

    def expect(self, records: int) -> None:
        """Prepare the log index for so many more rows: growing once is cheaper than again and
        again.
        """
        self.log.index.make_room(records)

    def append(self, keys: Keys, rows: Rows, slots: NDArray[np.int64]) -> None:
        """Log rows[slots] under unique row keys. Room has been reserved."""
        words = rows.view(np.uint64)
        step = max(1, _APPEND_BYTES // record_bytes(rows.shape[1]))
        shape = (min(step, len(keys)), 2 + words.shape[1])
        with self.no_way_back():
            if len(keys) <= step:
                self._append_piece(keys, words, slots, np.empty(shape, np.uint64), _write_now)
                return
            # One piece is packed and indexed while the one before is written.
            buffers = [np.empty(shape, np.uint64), np.empty(shape, np.uint64)]
            with WriteBehind() as behind:
                for number, low in enumerate(range(0, len(keys), step)):
                    part = slice(low, low + step)
                    self._append_piece(
                        keys[part], words, slots[part], buffers[number % 2], behind.write
                    )

    def _append_piece(
        self,
        keys: Keys,
        words: NDArray[np.uint64],
        slots: NDArray[np.int64],
        buffer: NDArray[np.uint64],
        write: Write,
    ) -> None:
        records = buffer[: len(keys)]
        pack(words, slots, keys, records, 0, len(keys))
        self.log.append(keys, records, write)
        self.bytes_written += records.nbytes

    # Commit, restore

    def commit(
        self,
        tables: Sequence[TableEntry],
        command: int,
        *,
        label: str | None = None,
        metadata: dict[str, Any] | None = None,
    ) -> None:
        """Make everything appended so far durable, with the tables as given.

        Raises
        ------
        CheckpointExistsError : the label is taken. Nothing has changed.
        CapacityError : no room for the catalogue. Nothing is committed; the store goes on.
        StorageError : the disk failed; so has the store.
        """
        if label is not None and self.catalogue.checkpoint(label) is not None:
            raise CheckpointExistsError(
                f"a checkpoint {label!r} is kept already; a label is used once"
            )
        new = self._next_catalogue(tables, command, label, metadata or {})
        self._files.reached("commit:synced")
        self._replace_catalogue(new)
        self._files.reached("commit:renamed")
        self._remove_dropped()
        self.tend()  # Before the freeze: now, and only now, the index tells what this commit needs.
        if label is not None:
            self.log.freeze()

    def _next_catalogue(
        self,
        tables: Sequence[TableEntry],
        command: int,
        label: str | None,
        metadata: dict[str, Any],
    ) -> Catalogue:
        old = self.catalogue
        head = State(old.head.commit + 1, command, tuple(tables))
        with self.no_way_back():
            self.log.seal()
            uncommitted = self.log.uncommitted
            for segment in uncommitted:
                assert segment.file is not None
                segment.file.sync()
            if uncommitted:
                self._files.sync_directory("log")
        checkpoints = old.checkpoints
        if label is not None:
            checkpoints = (*checkpoints, Checkpoint(label, metadata, head))[-self._keep :]
        entries = [SegmentEntry(s.number, head.commit, s.bytes, s.checksum) for s in uncommitted]
        return replace(
            old,
            head=head,
            checkpoints=checkpoints,
            next_table_id=self.next_table_id,
            next_segment=self.log.next_number,
            segments=(*old.segments, *entries),
        )

    def _replace_catalogue(self, new: Catalogue) -> None:
        try:
            self._files.replace(catalogues.PATH, catalogues.encode(new))
        except StorageError as exc:
            self.fail(exc)
            raise
        self.catalogue = new
        for segment in self.log.uncommitted:
            segment.commit = new.head.commit
            if segment.file is not None:
                segment.file.close()
                segment.file = None

    def _remove_dropped(self) -> None:
        named = self.catalogue.table_ids()
        for table_id in [i for i in self._bases if i not in named]:
            del self._bases[table_id]
            self._files.remove_directory(f"base/{table_id}")

    def restore(self, label: str, command: int) -> State:
        """Make a kept checkpoint the head again; what is newer is gone, under a new epoch.

        Raises
        ------
        CheckpointNotFoundError : the label is not kept. Nothing has changed.
        """
        checkpoint = self.catalogue.checkpoint(label)
        if checkpoint is None:
            kept = ", ".join(repr(c.label) for c in self.catalogue.checkpoints) or "none"
            raise CheckpointNotFoundError(f"no checkpoint {label!r} is kept; kept are: {kept}")
        self._stop_merge()
        restored = replace(
            self.catalogue.restored(checkpoint, command),
            next_table_id=self.next_table_id,
            next_segment=self.log.next_number,
        )
        try:
            self._files.replace(catalogues.PATH, catalogues.encode(restored))
        except StorageError as exc:
            self.fail(exc)
            raise
        with self.no_way_back():
            self.log.close()
            self._use(restored)
        return restored.head

    # Looking

    def stats(self) -> dict[str, Any]:
        """Return figures of log, base and merges."""
        segments = self.log.segments
        return {
            "commit": self.catalogue.head.commit,
            "checkpoints": [c.label for c in self.catalogue.checkpoints],
            "log_bytes": self.log.bytes,
            "log_segments": len(segments),
            "log_rows": self.log.index.size,
            "log_index_bytes": self.log.index.memory_bytes,
            "log_records": sum(s.records for s in segments),
            "bytes_read": self.bytes_read,
            "bytes_written": self.bytes_written,
            "merge_running": self._merge_thread is not None,
            "merge_error": self.merge_error,
        } | self.merges

    def check_integrity(self) -> None:
        """Raise AssertionError if the log's counts do not agree with its index."""
        self.log.check_integrity()

    # Merges

    def tend(self) -> None:
        """Install a finished merge; start one that is due. Between commands; never waits."""
        if self.read_only or self._failure is not None:
            return
        if self._merge_thread is not None:
            if self._merge_thread.is_alive():
                return
            self._finish_merge()
        plan = self._plan()
        if plan is not None:
            self._start(plan)

    def settle(self) -> None:
        """Do all merges that are due, and wait for them. For tests, and before a measurement."""
        while True:
            self.tend()
            if self._merge_thread is None:
                return
            self._merge_thread.join()

    def _plan(self) -> Merge | None:
        if self.catalogue.head.commit < self._merge_not_before:
            return None
        return self._plan_fold() or self._plan_compaction()

    def _plan_fold(self) -> Merge | None:
        horizon = self.catalogue.fold_horizon
        foldable = [s for s in self.log.segments if 0 < s.commit <= horizon]
        due = sum(s.bytes for s in foldable) >= self._limits.fold_bytes
        if not foldable or not (due or len(foldable) >= self._limits.fold_segments):
            return None
        chosen = _first(foldable, self._limits.segment_bytes)
        return Merge(chosen, *newest(chosen), bases=dict(self._bases))

    def _plan_compaction(self) -> Merge | None:
        """Choose segments whose live records are known: the index tells of memory, not of the last
        commit.

        Directly after a commit the two are the same; otherwise only uncommitted segments qualify.
        """
        pure = not self.log.uncommitted and not self.log.appending
        sealed = [s for s in self.log.segments if not self.log.is_frozen(s)]
        candidates = sealed if pure else [s for s in sealed if not s.commit]
        dead = [s for s in candidates if 2 * self.log.live[s.place] < s.records]
        small = [s for s in candidates if 8 * s.bytes < self._limits.segment_bytes]
        chosen = dead if dead else small if len(small) >= self._limits.fold_segments else []
        chosen = _first(chosen, 2 * self._limits.segment_bytes)
        if not chosen or (chosen[0].commit == 0) != (chosen[-1].commit == 0):
            return None
        keys, positions = newest(chosen)
        live = self.log.index.positions_of(keys) == positions
        keys, positions = keys[live], positions[live]
        size = max((run[2] for s in chosen for run in s.runs), default=record_bytes(4))
        writer = self.log.new_writer(capacity_for(len(keys) + 1, size, 4096))
        writer.segment.commit = chosen[-1].commit
        return Merge(chosen, keys, positions, writer=writer)

    def _start(self, merge: Merge) -> None:
        self._merge_stop.clear()
        self._merge, self._merge_outcome = merge, None
        self._merge_thread = threading.Thread(target=self._run_merge, args=(merge,), daemon=True)
        self._merge_thread.start()

    def _run_merge(self, merge: Merge) -> None:
        def reached(point: str) -> None:
            self._files.reached(point)
            if self._merge_stop.is_set():
                raise _StoppedError

        try:
            merge.run(reached)
        except BaseException as exc:  # handed to the engine thread, which decides
            self._merge_outcome = exc

    def _stop_merge(self) -> None:
        if self._merge_thread is not None:
            self._merge_stop.set()
            self._merge_thread.join()
            self._finish_merge()

    def _finish_merge(self) -> None:
        merge, outcome = self._merge, self._merge_outcome
        assert merge is not None
        self._merge = self._merge_thread = None
        if outcome is not None:
            self._discard(merge)
            if not isinstance(outcome, _StoppedError):
                self._merge_failed(outcome)
        elif merge.is_fold:
            self._install_fold(merge)
        else:
            self._install_compaction(merge)

    def _discard(self, merge: Merge) -> None:
        """Forget a merge that did not finish; what it wrote has no name."""
        if merge.writer is not None:
            self.log.abandon(merge.writer)

    def _install_fold(self, merge: Merge) -> None:
        folded = {s.number for s in merge.segments}
        written = {str(table_id): path for table_id, (_, path) in merge.written.items()}
        new = replace(
            self.catalogue,
            segments=tuple(s for s in self.catalogue.segments if s.number not in folded),
            written=self.catalogue.written | written,
        )
        if not self._replaced_by_merge(new):
            return
        for table_id, (bitmap, path) in merge.written.items():
            base = self._bases[table_id]
            before = base.written_path
            base.use(bitmap, path)
            self._files.remove(before) if before else None
        self.log.replace(merge.segments, None, merge.keys, merge.positions)
        self.merges["folds"] += 1

    def _install_compaction(self, merge: Merge) -> None:
        result = merge.result
        assert result is not None
        result.commit = merge.segments[-1].commit
        if result.commit:
            if result.file is not None:
                result.file.close()
                result.file = None
            merged = {s.number for s in merge.segments}
            at = max(i for i, s in enumerate(self.catalogue.segments) if s.number in merged)
            entries = list(self.catalogue.segments)
            entries.insert(
                at + 1,
                SegmentEntry(result.number, result.commit, result.bytes, result.checksum),
            )
            new = replace(
                self.catalogue,
                next_segment=max(self.catalogue.next_segment, result.number + 1),
                segments=tuple(s for s in entries if s.number not in merged),
            )
            if not self._replaced_by_merge(new):
                self._discard(merge)
                return
        self.log.replace(merge.segments, result, merge.keys, merge.positions)
        self.merges["compactions"] += 1

    def _replaced_by_merge(self, new: Catalogue) -> bool:
        """Commit what a merge changed; where there is no room, say so and leave the merge for
        later.
        """
        self._files.sync_directory("log")
        try:
            self._files.replace(catalogues.PATH, catalogues.encode(new))
        except CapacityError as exc:
            self._merge_failed(exc)
            return False
        except StorageError as exc:
            self.fail(exc)
            raise
        self.catalogue = new
        self._files.reached("merge:renamed")
        return True

    def _merge_failed(self, outcome: BaseException) -> None:
        """Keep the reason.

        Lack of room may pass by the next commit; anything else needs an operator.
        """
        self.merges["failures"] += 1
        self.merge_error = str(outcome)
        passing = isinstance(outcome, CapacityError)
        self._merge_not_before = self.catalogue.head.commit + 1 if passing else _NEVER


def _write_now(
    write: Callable[[int, NDArray[np.uint64]], None], offset: int, records: NDArray[np.uint64]
) -> None:
    write(offset, records)


class WriteBehind:
    """Writes on a thread of its own, one at a time: the next is accepted when the last is done."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1)
        self._pending: Future[None] | None = None

    def __enter__(self) -> "WriteBehind":
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self._wait()
        finally:
            self._thread.shutdown()

    def write(
        self,
        write: Callable[[int, NDArray[np.uint64]], None],
        offset: int,
        records: NDArray[np.uint64],
    ) -> None:
        """Accept a write; an error of the one before is raised here."""
        self._wait()
        self._pending = self._thread.submit(write, offset, records)

    def _wait(self) -> None:
        pending, self._pending = self._pending, None
        if pending is not None:
            pending.result()


def _first(segments: list[Segment], size: int) -> list[Segment]:
    """Return the first segments, one at least, of together no more than `size` bytes."""
    total = 0
    chosen: list[Segment] = []
    for segment in segments:
        total += segment.bytes
        if chosen and total > size:
            break
        chosen.append(segment)
    return chosen
