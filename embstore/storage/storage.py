"""Storage: log, bases, catalogue and merges together, behind the few verbs that the cache needs.

    read      rows that are not in the cache: from the log, else the base, else not found
    reserve   room for every row that a command may push out of the cache, before it changes one
    append    dirty rows that leave the cache
    commit    all of it durable, by one rename; optionally kept under a label
    restore   the head is a kept checkpoint again

The base is immutable while a commit stands, the log only grows, and the catalogue is replaced
whole; so the store opens at its last commit after a crash at any instant, without a repair
(design.md, section 4). contents.py says what happens when the disk fails; merges.py what goes on in
the background.

One thread at a time calls any of this (the engine's), but for `collect`: rows that have been
located are read by any thread, whatever the engine does meanwhile. What was located stays mapped as
long as the `Located` lives; a fold writes to the base only rows that the log has, and a key that is
located in the base is in the log only once a newer row of it has left the cache.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embstore.arrays import KEY_BITS, KEY_MASK, Keys, Rows
from embstore.config import Limits
from embstore.device.workers import Range, Workers, equal_ranges
from embstore.errors import (
    CheckpointExistsError,
    CheckpointNotFoundError,
    CorruptTableError,
    EmbstoreError,
)
from embstore.kernels.cold import ask_for_cold_pages
from embstore.kernels.records import pack, unpack
from embstore.results import Checkpoint, State, TableEntry
from embstore.storage.catalogue import Catalogue, SegmentEntry
from embstore.storage.contents import Contents
from embstore.storage.files import Files
from embstore.storage.format import record_bytes
from embstore.storage.log import Log
from embstore.storage.merges import Merges
from embstore.storage.write_behind import Write, WriteBehind, write_now

_APPEND_BYTES = 4 << 20
"""Dirty rows are packed and written in pieces of this size: a piece stays in the processor's cache.
"""
_SPLIT_BYTES = 1 << 20
"""Bytes of records that are copied and summed before a second thread pays."""


@dataclass(frozen=True)
class Located:
    """Where the stored rows of some row keys are, until they are copied."""

    keys: Keys  # (n,) unique
    addresses: NDArray[np.uint64]  # (n,), 0: nowhere
    found: NDArray[np.uint8]  # (n,) 0 nowhere, 1 log, 2 base
    maps: tuple[NDArray[np.uint8], ...]  # what the addresses point into


class Storage:
    """The rows of a store on its disk."""

    def __init__(
        self,
        files: Files,
        *,
        read_only: bool,
        checkpoints_keep: int,
        limits: Limits,
        threads: int = 1,
    ) -> None:
        self.read_only = read_only
        self.segment_bytes = limits.segment_bytes
        self.bytes_read = 0
        self.bytes_written = 0
        self._files = files
        self._keep = checkpoints_keep
        self._workers = Workers(threads)
        self._contents = Contents(files, read_only=read_only, limits=limits)
        self.merges = Merges(self._contents)

    @property
    def catalogue(self) -> Catalogue:
        """What is committed."""
        return self._contents.catalogue

    @property
    def files(self) -> Files:
        """The directory."""
        return self._files

    @property
    def log(self) -> Log:
        """The log; another one after a restore."""
        return self._contents.log

    @property
    def failure(self) -> EmbstoreError | None:
        """What made the storage fail, or None."""
        return self._contents.failure

    @property
    def next_table_id(self) -> int:
        """The id that the next table gets."""
        return self._contents.next_table_id

    def check_usable(self, *, write: bool = False) -> None:
        """Raise StoreClosedError after a failure, PermissionDeniedError for a forbidden write."""
        self._contents.check_usable(write=write)

    def fail(self, cause: EmbstoreError) -> None:
        """Refuse everything from now on."""
        self._contents.fail(cause)

    def no_way_back(self) -> AbstractContextManager[None]:
        """Hold the part of a command in which an error can no longer be refused whole."""
        return self._contents.no_way_back()

    def tend(self) -> None:
        """Look after merges, between commands."""
        self.merges.tend()

    def begin_tail(self) -> None:
        """Record that commands follow the last commit, so that losing them begins a new epoch.

        Raises
        ------
        CapacityError : no room for the catalogue. Nothing has changed.
        """
        if not self.catalogue.tail:
            self._contents.replace_catalogue(replace(self.catalogue, tail=True))

    def settle(self) -> None:
        """Do all merges that are due, and wait for them."""
        self.merges.settle()

    def close(self) -> None:
        """Stop a merge and give the directory free. Nothing is committed."""
        try:
            self.merges.stop()
        finally:
            self._workers.close()
            self._contents.close()

    # Tables

    def create_table(self, table: TableEntry) -> None:
        """Make the base of a new table.

        Raises
        ------
        CapacityError : the file system cannot hold it. Nothing has changed.
        """
        try:
            base = self._contents.open_base(table)
            base.create(table.rows)
        except EmbstoreError as exc:
            self._files.remove_directory(f"base/{table.table_id}")
            raise type(exc)(f"table {table.identity['name']!r}: {exc}") from exc
        self._contents.bases[table.table_id] = base
        self._contents.next_table_id = max(self.next_table_id, table.table_id + 1)

    def drop_table(self, table_id: int) -> None:
        """Forget a table's rows. Its files stay as long as a kept checkpoint names them."""
        self.merges.stop()
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
        located = self.locate(keys)
        np.copyto(found, located.found)
        size = record_bytes(rows.shape[1])
        self._copy(located, rows, partial(self._workers.run, ranges=self._ranges(len(keys), size)))
        self.note_read(located, rows.shape[1])

    def locate(self, keys: Keys) -> Located:
        """Return where the stored rows of unique row keys are."""
        addresses = np.empty(len(keys), np.uint64)
        in_log = self._locate(keys, addresses)
        found = 2 * (addresses != 0).view(np.uint8) - in_log.view(np.uint8)
        return Located(keys, addresses, found, self._contents.maps())

    def collect(self, located: Located, rows: Rows) -> None:
        """Copy located rows to `rows`, (n, stride) float32, written where found. Any thread.

        Raises
        ------
        CorruptTableError : a record is not what was written.
        """
        self._copy(located, rows, lambda work: [work(0, len(located.keys))])

    def note_read(self, located: Located, stride: int) -> None:
        """Count what was copied."""
        self.bytes_read += int(np.count_nonzero(located.found)) * record_bytes(stride)

    def _copy(
        self,
        located: Located,
        rows: Rows,
        run: Callable[[Callable[[int, int], int]], Sequence[int]],
    ) -> None:
        if not located.found.any():
            return
        self._files.reached("read")
        ask_for_cold_pages(located.addresses, record_bytes(rows.shape[1]))
        words = rows.view(np.uint64)

        def work(low: int, high: int) -> int:
            return unpack(located.addresses, located.keys, words, low, high)

        wrong = next((i for i in run(work) if i >= 0), -1)
        if wrong >= 0:
            key = int(located.keys[wrong])
            where = "log" if located.found[wrong] == 1 else "base"
            raise CorruptTableError(
                f"table {self._contents.names[key >> KEY_BITS]!r}: the {where}'s record of key "
                f"{key & KEY_MASK} fails its checksum"
            )

    def reached(self, point: str) -> None:
        """Tell the files that a point was reached; tests stop there."""
        self._files.reached(point)

    def ask_for(self, keys: Keys, stride: int) -> None:
        """Have the disk begin to bring the rows of a large call, which will be read in pieces."""
        addresses = np.empty(len(keys), np.uint64)
        self._locate(keys, addresses)
        ask_for_cold_pages(addresses, record_bytes(stride))

    def has(self, keys: Keys) -> NDArray[np.bool_]:
        """Say which row keys have a stored row. Reads no row."""
        addresses = np.empty(len(keys), np.uint64)
        self._locate(keys, addresses)
        stored: NDArray[np.bool_] = addresses != 0
        return stored

    def _locate(self, keys: Keys, addresses: NDArray[np.uint64]) -> NDArray[np.bool_]:
        """Write each record's address, 0 for none; return which are in the log."""
        found = self.log.locate(keys, np.empty(len(keys), np.int64), addresses)
        in_log: NDArray[np.bool_] = addresses != 0
        if found < len(keys):
            self._locate_in_bases(keys, np.flatnonzero(~in_log), addresses)
        return in_log

    def _locate_in_bases(
        self, keys: Keys, missing: NDArray[np.int64], addresses: NDArray[np.uint64]
    ) -> None:
        tables = keys[missing] >> KEY_BITS
        if len(tables) and tables[0] == tables[-1] and (tables == tables[0]).all():
            self._contents.bases[int(tables[0])].locate(keys, missing, addresses)
            return
        for table_id in np.unique(tables).tolist():
            self._contents.bases[table_id].locate(keys, missing[tables == table_id], addresses)

    def stored_blocks(self, table_id: int, block_keys: int) -> Keys:
        """Return a table's blocks (of `block_keys` keys, dividing 32,768) with a stored row."""
        first = table_id << KEY_BITS
        logged = self.log.index.keys_between(first, first + KEY_MASK + 1) - first
        return np.union1d(
            self._contents.bases[table_id].written.blocks(block_keys), logged // block_keys
        )

    def reserve(self, records: int, stride: int, *, bounded: bool = True) -> None:
        """Make room in the log for so many rows of at most `stride` fp32.

        A checkpoint is not `bounded` by the limit on the log's rows: it makes room for more.

        Raises
        ------
        CapacityError : the disk or the log index is full. Nothing has changed.
        """
        if records:
            self.log.reserve(records, record_bytes(stride), bounded=bounded)

    def expect(self, records: int) -> None:
        """Grow the log index once for so many more rows, rather than again and again."""
        self.log.index.make_room(records)

    def append(self, keys: Keys, rows: Rows, slots: NDArray[np.int64]) -> None:
        """Log rows[slots] under unique row keys. Room has been reserved."""
        words = rows.view(np.uint64)
        step = max(1, _APPEND_BYTES // record_bytes(rows.shape[1]))
        shape = (min(step, len(keys)), 2 + words.shape[1])
        with self.no_way_back():
            if len(keys) <= step:
                self._append_piece(keys, words, slots, np.empty(shape, np.uint64), write_now)
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

        def work(low: int, high: int) -> None:
            pack(words, slots, keys, records, low, high)

        self._workers.run(work, self._ranges(len(keys), records[:1].nbytes))
        self.log.append(keys, records, write)
        self.bytes_written += records.nbytes

    def _ranges(self, count: int, item_bytes: int) -> list[Range]:
        worth_it = count * item_bytes >= _SPLIT_BYTES
        return equal_ranges(count, self._workers.threads if worth_it else 1)

    # Commit, restore

    def commit(
        self,
        tables: Sequence[TableEntry],
        command: int,
        *,
        places: Mapping[str, int] | None = None,
        label: str | None = None,
        metadata: dict[str, Any] | None = None,
    ) -> None:
        """Make everything appended so far durable, with the tables and sessions' places as given.

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
        head = State(self.catalogue.head.commit + 1, command, tuple(tables), dict(places or {}))
        new = self._next_catalogue(head, label, metadata or {})
        self._files.reached("commit:synced")
        self._contents.replace_catalogue(new)
        self._files.reached("commit:renamed")
        self.log.mark_committed(new.head.commit)
        if self._contents.dropped():
            self.merges.stop()  # it may be writing to a base that is about to go
            self._contents.remove_dropped()
        self.tend()  # Before the freeze: now, and only now, the index tells what this commit needs.
        if label is not None:
            self.log.freeze()

    def _next_catalogue(
        self, head: State, label: str | None, metadata: dict[str, Any]
    ) -> Catalogue:
        old = self.catalogue
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
        new = replace(old, head=head, checkpoints=checkpoints, tail=False)
        alive = {str(table_id) for table_id in new.table_ids()}
        return replace(
            new,
            written={i: path for i, path in old.written.items() if i in alive},
            next_table_id=self.next_table_id,
            next_segment=self.log.next_number,
            segments=(*old.segments, *entries),
        )

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
        self.merges.stop()
        restored = replace(
            self.catalogue.restored(checkpoint, command),
            next_table_id=self.next_table_id,
            next_segment=self.log.next_number,
        )
        self._contents.replace_catalogue(restored)
        with self.no_way_back():
            self.log.close()
            self._contents.use(restored)
            self.merges.try_again()
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
            "folds": self.merges.folds,
            "compactions": self.merges.compactions,
            "merge_running": self.merges.running,
            "merge_failures": self.merges.failures,
            "merge_error": self.merges.error,
        }

    def check_integrity(self) -> None:
        """Raise AssertionError if the log's counts do not agree with its index."""
        self.log.check_integrity()
