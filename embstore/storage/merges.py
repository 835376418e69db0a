"""Merges in the background: when one is due, what it takes, and how its result becomes current.

One merge at a time. `tend` is called between commands: it installs a merge that has finished, and
starts one that is due; it never waits. merge.py says what a merge does; here is which, and why it
is safe:

- a **fold** is due when the segments that no kept checkpoint is older than have grown to
  `fold_bytes`, or are many;
- a **compaction** is due for segments of which less than half is live, or for many small ones.
  Liveness is what the index says, and the index tells of memory; so committed segments are judged
  only directly after a commit, when memory and commit agree, and frozen ones never. At other times
  uncommitted segments qualify: a cache that thrashes between two checkpoints must not fill the
  disk.

A merge that fails has changed nothing. For lack of room it is tried again after the next commit;
any other failure is reported in the stats, and stops merging until the store is opened again.
"""

import threading
import weakref
from dataclasses import replace

import numpy as np

from embstore.arrays import KEY_BITS
from embstore.errors import CapacityError, EmbstoreError
from embstore.storage.catalogue import Catalogue, SegmentEntry
from embstore.storage.contents import Contents
from embstore.storage.format import record_bytes
from embstore.storage.log import Log
from embstore.storage.merge import Merge, newest
from embstore.storage.segment import Segment, capacity_for

_NEVER = 1 << 62


class _StoppedError(Exception):
    """A merge was told to stop: its work is thrown away."""


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
        """Say whether a merge has been started and not yet installed."""
        return self._thread is not None

    def tend(self) -> None:
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

    def settle(self) -> None:
        """Do all merges that are due, and wait for them. For tests, and before a measurement."""
        while True:
            self.tend()
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
        size = max((run[2] for s in chosen for run in s.runs), default=record_bytes(4))
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
        with self._contents.no_way_back():
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
