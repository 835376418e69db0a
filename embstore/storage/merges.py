"""Merges: the newest records of some segments, written to the base or to one segment.

- A **fold** takes the oldest committed segments, none newer than the oldest kept checkpoint, and
  writes the newest record of each key into the base. It is due when these segments have grown to
  `fold_bytes`, or are many.
- A **compaction** takes segments of which less than half is live, or many small ones, and writes
  the live records to one new segment. Liveness is what the index says, and the index is of the
  state in memory; so committed segments are judged only directly after a commit, when memory and
  commit agree, and frozen ones never. At other times uncommitted segments qualify: a cache that
  thrashes between two checkpoints must not fill the disk.

One merge at a time. `poll` is called between commands: it installs a merge that has finished, and
starts one that is due; it never waits. The merge runs on a thread of its own in between. It was
given segments and, for a compaction, records (live by the index at that moment). `run` reads sealed
segments, which never change, and writes files that nothing names yet. Installing makes the result
current: the catalogue's rename if committed segments are replaced, then index entries *that still
point to the old records*, so whatever happened meanwhile is newer and stays. A crash at any point
leaves either the old files or the new ones named; what is not named is removed at the next opening,
and the merge is done again.

A merge that fails has changed nothing. For lack of room it is tried again after the next commit;
any other failure is reported in the stats, and stops merging until the store is opened again.
"""

import threading
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from embstore.arrays import KEY_BITS, KEY_MASK, Keys
from embstore.errors import CapacityError, CorruptTableError, EmbstoreError
from embstore.layout import RECORD_HEADER_BYTES, ROW_ALIGNMENT_BYTES
from embstore.storage.base import Base
from embstore.storage.catalogue import Catalogue, SegmentEntry
from embstore.storage.cold import prefetch_cold_pages
from embstore.storage.contents import Contents
from embstore.storage.log import Log
from embstore.storage.records import copy_records
from embstore.storage.row_index import OFFSET_MASK, PLACE_BITS
from embstore.storage.segment import Segment, SegmentWriter, capacity_for, record_sizes
from embstore.storage.written import Written

_CHUNK_BYTES = 8 << 20
_NEVER = 1 << 62


@dataclass
class Merge:
    """One merge: what was chosen, and, once it has run, what came of it."""

    segments: list[Segment]  # oldest first
    keys: Keys  # the records to keep, ascending by key
    positions: NDArray[np.int64]
    bases: dict[int, Base] = field(default_factory=dict)  # fold: by table id
    writer: SegmentWriter | None = None  # compaction
    written: dict[int, tuple[Written, str]] = field(default_factory=dict)
    result: Segment | None = None

    @property
    def is_fold(self) -> bool:
        """A fold writes to the base; else it is a compaction."""
        return self.writer is None

    def run(self, reached: Callable[[str], None]) -> None:
        """Write the kept records durably where they go. Any thread; nothing current changes.

        `reached` is called at each stage; what it raises stops the merge.

        Raises
        ------
        CapacityError, StorageError : nothing is lost; the merge may be tried again.
        CorruptTableError : a record is not what was written.
        """
        if self.writer is None:
            self._fold(reached)
        else:
            self._compact(self.writer, reached)

    def _fold(self, reached: Callable[[str], None]) -> None:
        tables = self.keys >> KEY_BITS
        name = f"{self.segments[-1].number:012d}.written"
        for table_id in np.unique(tables).tolist():
            base = self.bases.get(table_id)
            if base is None:
                continue  # Dropped, and no kept checkpoint names it.
            low, high = np.searchsorted(tables, [table_id, table_id + 1]).tolist()
            for keys, records in self._records(low, high):
                base.write(keys & KEY_MASK, records)
                reached("fold:rows")
            keys = self.keys[low:high] & KEY_MASK
            base.sync(int(keys[0]), int(keys[-1]))
            reached("fold:synced")
            self.written[table_id] = base.save_written(keys, f"{base.directory}/{name}")
        reached("fold:written")

    def _compact(self, writer: SegmentWriter, reached: Callable[[str], None]) -> None:
        for keys, records in self._records(0, len(self.keys)):
            writer.reserve(len(keys), records.nbytes // len(keys))
            writer.append(keys, records)
            reached("compaction:records")
        self.result = writer.seal()
        assert self.result.file is not None
        self.result.file.sync()
        reached("compaction:synced")

    def _records(self, low: int, high: int) -> Iterator[tuple[Keys, NDArray[np.uint64]]]:
        """Yield the kept records in [low, high) by pieces of one record size, checked."""
        keys, positions = self.keys[low:high], self.positions[low:high]
        sizes, addresses = self._places(positions)
        cuts = [0, *(np.flatnonzero(np.diff(sizes)) + 1).tolist(), len(keys)]
        for first, end in pairwise(cuts):
            step = max(1, _CHUNK_BYTES // int(sizes[first])) if first < end else 1
            for at in range(first, end, step):
                stop = min(at + step, end)
                yield (
                    keys[at:stop],
                    self._copy(keys[at:stop], addresses[at:stop], int(sizes[first])),
                )

    def _places(self, positions: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.uint64]]:
        sizes = np.empty(len(positions), np.int64)
        addresses = np.empty(len(positions), np.uint64)
        places = positions >> PLACE_BITS
        for segment in self.segments:
            here = np.flatnonzero(places == segment.place)
            sizes[here] = record_sizes(segment, positions[here])
            offsets = (positions[here] & OFFSET_MASK).astype(np.uint64)
            addresses[here] = np.uint64(segment.map.ctypes.data) + offsets
        return sizes, addresses

    def _copy(self, keys: Keys, addresses: NDArray[np.uint64], size: int) -> NDArray[np.uint64]:
        prefetch_cold_pages(addresses, size)
        records = np.empty((len(keys), size // 8), np.uint64)
        wrong = copy_records(addresses, keys, records)
        if wrong >= 0:
            key = int(keys[wrong])
            raise CorruptTableError(
                f"the log's record of table {key >> KEY_BITS}, key {key & KEY_MASK} fails its "
                "checksum"
            )
        return records


def newest(segments: list[Segment]) -> tuple[Keys, NDArray[np.int64]]:
    """Return the keys of some segments, ascending, and where the newest record of each is."""
    parts = [segment.keys_and_positions() for segment in segments]
    keys = np.concatenate([k for k, _ in parts])
    positions = np.concatenate([p for _, p in parts])
    order = np.argsort(keys, kind="stable")
    keys = keys[order]
    last = np.append(keys[1:] != keys[:-1], True) if len(keys) else np.empty(0, bool)
    return keys[last], positions[order[last]]


class _StoppedError(Exception):
    """A merge was stopped: its work is thrown away."""


class Merges:
    """The merges of one store. Engine thread only, but `_run`."""

    def __init__(self, contents: Contents) -> None:
        self.folds = 0
        self.compactions = 0
        self.failures = 0
        self.error: str | None = None
        self._contents = contents
        self._merge: Merge | None = None
        self._thread: threading.Thread | None = None
        self._outcome: BaseException | None = None
        self._stop = threading.Event()
        self._looked_at: tuple[Log, int] | None = None  # when a merge was last looked for
        self._threads: list[threading.Thread] = []  # the one above; shared with the finalizer
        # A thread that the interpreter's end cuts off inside a kernel takes the process with it.
        weakref.finalize(self, _end, self._stop, self._threads)
        self._not_before = 0  # the commit number from which merging may go on after a failure

    @property
    def running(self) -> bool:
        """Whether a merge has been started and not yet installed."""
        return self._thread is not None

    def poll(self) -> None:
        """Install a finished merge; start one that is due. Between commands; never waits."""
        if self._contents.read_only or self._contents.failure is not None:
            return
        if self._thread is not None:
            if self._thread.is_alive():
                return
            self._finish()
        seen = (self._contents.log, self._contents.log.changes)
        if seen == self._looked_at:
            return  # nothing is due that was not before
        self._looked_at = seen
        if self._contents.catalogue.head.commit < self._not_before:
            return
        try:
            plan = self._plan_fold() or self._plan_compaction()
        except EmbstoreError as exc:  # no room for a compaction's file, say
            self._failed(exc)
            return
        if plan is not None:
            self._start(plan)

    def finish(self) -> None:
        """Run all merges that are due, and wait for them. For tests, and before a measurement."""
        while True:
            self.poll()
            if self._thread is None:
                return
            self._thread.join()

    def stop(self) -> None:
        """End a running merge: its result is installed if it is there, else thrown away."""
        if self._thread is not None:
            self._stop.set()
            self._thread.join()
            self._finish()

    def try_again(self) -> None:
        """Forget that a merge had no room: a restore has changed what there is."""
        self._not_before = 0 if self._not_before < _NEVER else _NEVER

    # Choosing

    def _plan_fold(self) -> Merge | None:
        contents, limits = self._contents, self._contents.limits
        horizon = contents.catalogue.fold_horizon
        foldable = [s for s in contents.log.segments if 0 < s.commit <= horizon]
        due = sum(s.bytes for s in foldable) >= limits.fold_bytes
        if not foldable or not (due or len(foldable) >= limits.fold_segments):
            return None
        chosen = _first(foldable, limits.segment_bytes)
        return Merge(chosen, *newest(chosen), bases=dict(contents.bases))

    def _plan_compaction(self) -> Merge | None:
        log, limits = self._contents.log, self._contents.limits
        sealed = [s for s in log.segments if not log.is_frozen(s)]
        agreeing = not (log.uncommitted or log.appending or log.forgetful)
        candidates = sealed if agreeing else [s for s in sealed if not s.commit]
        dead = [s for s in candidates if 2 * log.live[s.place] < s.records]
        small = [s for s in candidates if 8 * s.bytes < limits.segment_bytes]
        chosen = dead if dead else small if len(small) >= limits.fold_segments else []
        chosen = _first(chosen, 2 * limits.segment_bytes)
        if not chosen:
            return None
        keys, positions = newest(chosen)
        live = log.index.positions_of(keys) == positions
        keys, positions = keys[live], positions[live]
        smallest = RECORD_HEADER_BYTES + ROW_ALIGNMENT_BYTES
        size = max((run[2] for s in chosen for run in s.runs), default=smallest)
        runs = len(np.unique(keys >> KEY_BITS))  # a run takes less than a record does
        writer = log.new_writer(capacity_for(len(keys) + runs + 1, size, 4096))
        return Merge(chosen, keys, positions, writer=writer)

    # Running

    def _start(self, merge: Merge) -> None:
        self._stop.clear()
        self._merge, self._outcome = merge, None
        self._thread = threading.Thread(target=self._run, args=(merge,), daemon=True)
        self._threads[:] = [self._thread]
        self._thread.start()

    def _run(self, merge: Merge) -> None:
        def reached(point: str) -> None:
            self._contents.files.reached(point)
            if self._stop.is_set():
                raise _StoppedError

        try:
            merge.run(reached)
        except BaseException as exc:  # handed to the engine thread, which decides
            self._outcome = exc

    def _finish(self) -> None:
        merge, outcome = self._merge, self._outcome
        assert merge is not None
        self._merge = self._thread = None
        if self._contents.failure is not None:
            return  # nothing is committed any more; what the merge wrote has no name
        if outcome is not None:
            self._discard(merge)
            self._looked_at = None  # what was due still is
            if not isinstance(outcome, _StoppedError):
                self._failed(outcome)
            return
        # From here on files, catalogue and index change together.
        with self._contents.irreversible():
            if merge.is_fold:
                self._install_fold(merge)
            else:
                self._install_compaction(merge)

    def _failed(self, outcome: BaseException) -> None:
        self.failures += 1
        self.error = str(outcome)
        passing = isinstance(outcome, CapacityError)
        self._not_before = self._contents.catalogue.head.commit + 1 if passing else _NEVER

    def _discard(self, merge: Merge) -> None:
        if merge.writer is not None:
            self._contents.log.abandon(merge.writer)

    # Making the result current

    def _install_fold(self, merge: Merge) -> None:
        catalogue, bases = self._contents.catalogue, self._contents.bases
        try:
            for table_id, (bitmap, _) in merge.written.items():
                bases[table_id].map_rows(bitmap)
        except CapacityError as exc:
            self._failed(exc)
            return
        folded = {s.number for s in merge.segments}
        written = {str(table_id): path for table_id, (_, path) in merge.written.items()}
        new = replace(
            catalogue,
            segments=tuple(s for s in catalogue.segments if s.number not in folded),
            written=catalogue.written | written,
        )
        if not self._committed(new):
            return
        for table_id, (bitmap, path) in merge.written.items():
            bases[table_id].use(bitmap, path)
        self._contents.log.replace(merge.segments, None, merge.keys, merge.positions)
        self._remove(merge.segments, *(catalogue.written.get(i, "") for i in written))
        self.folds += 1

    def _install_compaction(self, merge: Merge) -> None:
        commit = merge.segments[-1].commit
        result = merge.result if len(merge.keys) else None  # nothing was live: nothing replaces
        if result is not None:
            result.commit = commit
        if commit and not self._committed(self._compacted(merge.segments, result)):
            self._discard(merge)
            return
        if result is None:
            self._discard(merge)
        elif commit:
            result.close()
        self._contents.log.replace(merge.segments, result, merge.keys, merge.positions)
        self._remove(merge.segments)
        self.compactions += 1

    def _compacted(self, segments: list[Segment], result: Segment | None) -> Catalogue:
        """Return the catalogue with `result`, if any, where the newest of `segments` stood."""
        catalogue = self._contents.catalogue
        merged = {s.number for s in segments}
        entries = list(catalogue.segments)
        at = max(i for i, s in enumerate(entries) if s.number in merged)
        if result is not None:
            entry = SegmentEntry(result.number, result.commit, result.bytes, result.checksum)
            entries.insert(at + 1, entry)
        return replace(
            catalogue,
            next_segment=max(catalogue.next_segment, self._contents.log.next_number),
            segments=tuple(s for s in entries if s.number not in merged),
        )

    def _committed(self, new: Catalogue) -> bool:
        """Commit what a merge changed; say False where there is no room."""
        self._contents.files.sync_directory("log")
        try:
            self._contents.replace_catalogue(new)
        except CapacityError as exc:
            self._failed(exc)
            return False
        self._contents.files.reached("merge:renamed")
        return True

    def _remove(self, segments: list[Segment], *paths: str) -> None:
        for path in [*(s.path for s in segments), *paths]:
            if path:
                self._contents.files.discard(path)


def _end(stop: threading.Event, threads: list[threading.Thread]) -> None:
    stop.set()
    for thread in threads:
        thread.join()


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
