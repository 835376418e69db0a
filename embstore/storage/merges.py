"""Merges: rows rewritten in the background, so that files stay few and dead records are removed.

- A **fold** moves the newest records of the oldest log segments to a new run of the base (fold.py).
- A **base merge** replaces several runs by fewer runs (base_merge.py, tiers.py).
- A **compaction** drops dead records from the log (compaction.py).

Only one merge runs at a time. `poll` is called between commands. It installs a merge that has
finished, and starts a merge that is due; it never waits. Between the call of `poll` that starts a
merge and the call that installs it, the merge's `run` works on a thread of its own. This thread
reads files that never change, and writes files that no catalogue names yet.

Installing makes the result current in two steps. First, if the merge replaces committed files, a
new catalogue is renamed into place. Second, the index entries *that still point to the old records*
are changed; entries that changed meanwhile are newer, and stay. The entries are changed in slices,
one slice per `poll`. An entry that is not yet changed leads to the old record. The old record has
the same content as the new record, and exists until all entries are changed. A commit completes a
running installation first. After a crash at any point the catalogue names either the old files or
the new ones. The next opening removes unnamed files, and the merge is done again.

A merge that fails has changed nothing, and its failure is reported in the stats. A merge that
failed for lack of space is tried again after the next commit. After any other failure no more
merges of the same kind are made until the store is opened again.
"""

import threading
import weakref
from collections.abc import Callable, Iterator
from time import monotonic
from typing import Protocol

from embstore.errors import CapacityError, EmbstoreError
from embstore.storage.base_merge import BaseMerge
from embstore.storage.catalogue import Catalogue
from embstore.storage.compaction import Compaction
from embstore.storage.contents import Contents
from embstore.storage.copying import WrongRecordError
from embstore.storage.fold import Fold
from embstore.storage.log import Log
from embstore.storage.segment import Segment

_NEVER = 1 << 62
_BEHIND_FOLDS = 4
_BYTES_PER_S = 64 << 20
_WAIT_MAX_S = 0.2


class Merge(Protocol):
    """One merge, of any kind."""

    def run(self, reached: Callable[[str], None]) -> None:
        """Write the kept records durably to new files. Nothing that is current changes. Any thread.

        `reached` is called at each stage; an exception stops the merge.

        Raises
        ------
        CapacityError, StorageError : nothing is lost, and the merge can be tried again.
        WrongRecordError : a record is damaged.
        """

    def catalogue(self, contents: Contents) -> Catalogue | None:
        """Return the catalogue that makes the result current; None if the merge replaces no
        committed files."""

    def install(self, contents: Contents) -> Iterator[int]:
        """Make the result current in slices, one before each yield and one at the end; remove the
        replaced files."""

    def discard(self, contents: Contents) -> None:
        """Remove the written files."""


class _StoppedError(Exception):
    """A merge was stopped, and its work is discarded."""


class Merges:
    """The merges of one store. Engine thread only, except `_run`."""

    def __init__(self, contents: Contents) -> None:
        self.folds = 0
        self.base_merges = 0
        self.compactions = 0
        self.failures = 0
        self.waited_s = 0.0
        self.error: str | None = None
        self._contents = contents
        self._merge: Merge | None = None
        self._installing: Iterator[int] | None = None  # the rest of the installation
        self._thread: threading.Thread | None = None
        self._outcome: BaseException | None = None
        self._stop = threading.Event()
        self._looked_at: tuple[Log, int] | None = None  # the state last searched for due merges
        self._threads: list[threading.Thread] = []  # the thread above; shared with the finalizer
        # If the interpreter ends while a thread is inside a kernel, the whole process crashes.
        weakref.finalize(self, _end, self._stop, self._threads)
        # By kind of merge: the commit from which the kind can be tried again after a failure.
        self._not_before: dict[type, int] = {}
        self._was_stopped = False

    @property
    def running(self) -> bool:
        """Whether a merge has been started and not yet installed."""
        return self._thread is not None or self._installing is not None

    def poll(self) -> None:
        """Install a finished merge, slice by slice; start a merge that is due. This method is
        called between commands, and never waits."""
        if self._contents.read_only or self._contents.failure is not None:
            return
        self._contents.removal.begin()
        if self._installing is not None:
            self._install_slice()
        elif self._thread is not None:
            if self._thread.is_alive():
                return
            self._finish()
        if self._installing is not None:
            return
        seen = (self._contents.log, self._contents.log.changes)
        if seen == self._looked_at:
            return  # nothing has become due since
        self._looked_at = seen
        plan = self._due()
        if plan is not None:
            self._start(plan)

    def slow_down(self, wanted_bytes: int) -> None:
        """If merges are far behind, delay a command that logs `wanted_bytes` (an update, or a
        lookup that evicts dirty rows). All such commands become a little slower, and none waits
        until a merge ends."""
        if self._thread is not None and (delay_s := self.delay_s(wanted_bytes)) > 0:
            began = monotonic()
            self._thread.join(delay_s)
            self.waited_s += monotonic() - began

    def delay_s(self, wanted_bytes: int) -> float:
        """Return the seconds that a command waits before or after it logs `wanted_bytes`. The delay
        is proportional to these bytes, and to the distance by which merges are behind."""
        if self._thread is None:
            return 0.0
        waiting = sum(s.bytes for s in self._committed())
        behind = waiting / (_BEHIND_FOLDS * self._contents.limits.fold_bytes) - 1
        return min(max(behind, 0.0) * wanted_bytes / _BYTES_PER_S, _WAIT_MAX_S)

    def finish(self) -> None:
        """Run all merges that are due, and wait for them. This is for tests, and for use before
        measurements."""
        while True:
            self.poll()
            if not self.running:
                break
            if self._thread is not None:
                self._thread.join()
        self._contents.removal.finish()

    def complete(self) -> None:
        """Complete an installation that has begun. Work that depends on the installed files calls
        this first."""
        while self._installing is not None:
            self._install_slice()

    def stop(self) -> None:
        """End a running merge: its result is installed if it is ready, else discarded."""
        if self._thread is not None:
            self._stop.set()
            self._thread.join()
            self._finish()
        self.complete()

    def try_again(self) -> None:
        """Let merges that failed for lack of space be tried again, because a restore has changed
        the files."""
        self._not_before = {k: n for k, n in self._not_before.items() if n == _NEVER}

    def look_again(self) -> None:
        """Search for due merges again, because more merges are possible after checkpoints were
        dropped."""
        self._looked_at = None

    def _due(self) -> Merge | None:
        # Base merges first: otherwise folds, each of which adds a run, could follow one another and
        # never let a base merge start. But folds are first if they are behind, or if the last merge
        # was stopped: a base merge might be stopped again and again.
        limits, committed = self._contents.limits, self._committed()
        is_behind = (
            sum(s.bytes for s in committed) > _BEHIND_FOLDS * limits.fold_bytes
            or len(committed) > _BEHIND_FOLDS * limits.fold_segments
        )
        order = (Fold, BaseMerge) if is_behind or self._was_stopped else (BaseMerge, Fold)
        for kind in (*order, Compaction):
            if self._contents.catalogue.head.commit < self._not_before.get(kind, 0):
                continue
            try:
                plan: Merge | None = kind.due(self._contents)
            except EmbstoreError as exc:  # for example: no space for the file of a compaction
                self._failed(kind, exc)
                continue
            if plan is not None:
                return plan
        return None

    def _committed(self) -> list[Segment]:
        return [s for s in self._contents.log.segments if s.commit]

    # Running

    def _start(self, merge: Merge) -> None:
        self._stop.clear()
        self._merge, self._outcome = merge, None
        thread = threading.Thread(target=self._run, args=(merge,), daemon=True)
        try:
            thread.start()
        except RuntimeError as exc:  # the system gives no more threads
            merge.discard(self._contents)
            self._failed(type(merge), CapacityError(str(exc)))
            return
        self._thread = thread
        self._threads[:] = [thread]

    def _reached(self, point: str) -> None:
        self._contents.files.reached(point)
        if self._stop.is_set():
            raise _StoppedError

    def _run(self, merge: Merge) -> None:
        try:
            merge.run(self._reached)
        except BaseException as exc:  # the engine thread handles it
            self._outcome = exc

    def _finish(self) -> None:
        merge, outcome = self._merge, self._outcome
        assert merge is not None
        self._merge = self._thread = None
        if self._contents.failure is not None:
            return  # nothing is committed any more, so no catalogue will name the written files
        self._looked_at = None  # search again: another merge may be due
        if outcome is None:
            try:
                self._install(merge)
                self._was_stopped = False
                return
            except EmbstoreError as exc:
                if self._contents.failure is not None:
                    raise  # the new catalogue, which names the written files, may be on the disk
                outcome = exc
        merge.discard(self._contents)
        self._was_stopped = isinstance(outcome, _StoppedError)
        if not self._was_stopped:
            self._failed(type(merge), outcome)

    def _install(self, merge: Merge) -> None:
        contents = self._contents
        new = merge.catalogue(contents)
        if new is not None:
            if isinstance(merge, Compaction):
                with contents.irreversible:
                    contents.files.sync_directory("log")
            contents.replace_catalogue(new)
            contents.files.reached("merge:renamed")
        # From here on, files, catalogue and index must change together.
        with contents.irreversible:
            self._installing = merge.install(contents)
        self._install_slice()
        self.folds += isinstance(merge, Fold)
        self.base_merges += isinstance(merge, BaseMerge)
        self.compactions += isinstance(merge, Compaction)

    def _install_slice(self) -> None:
        assert self._installing is not None
        with self._contents.irreversible:
            if next(self._installing, None) is None:
                self._installing = self._looked_at = None  # search again: another may be due

    def _failed(self, kind: type, outcome: BaseException) -> None:
        self.failures += 1
        if isinstance(outcome, WrongRecordError):
            outcome = self._contents.wrong_record(outcome.row_key, "stored")
        self.error = str(outcome)
        is_passing = isinstance(outcome, (CapacityError, MemoryError))
        after = self._contents.catalogue.head.commit + 1
        self._not_before[kind] = after if is_passing else _NEVER


def _end(stop: threading.Event, threads: list[threading.Thread]) -> None:
    stop.set()
    for thread in threads:
        thread.join()
