"""Merges: rows rewritten in the background, so that files stay few and what is dead goes.

- A **fold** moves the newest records of the oldest log segments to a new run of the base (fold.py).
- A **base merge** makes fewer runs of several (base_merge.py, tiers.py).
- A **compaction** drops dead records from the log (compaction.py).

One merge at a time. `poll` is called between commands: it installs a merge that has finished, and
starts one that is due; it never waits. The merge runs on a thread of its own in between. `run`
reads files that never change, and writes files that nothing names yet. Installing makes the result
current: the catalogue's rename if committed files are replaced, then index entries *that still
point to the old records*, so whatever happened meanwhile is newer and stays. A crash at any point
leaves either the old files or the new ones named; what is not named is removed at the next opening,
and the merge is done again.

A merge that fails has changed nothing. For lack of room it is tried again after the next commit;
any other failure is reported in the stats, and stops merging until the store is opened again.
"""

import threading
import weakref
from collections.abc import Callable
from time import monotonic
from typing import Protocol

from embstore.errors import CapacityError, EmbstoreError
from embstore.storage.base_merge import BaseMerge
from embstore.storage.catalogue import Catalogue
from embstore.storage.compaction import Compaction
from embstore.storage.contents import Contents
from embstore.storage.fold import Fold
from embstore.storage.log import Log

_NEVER = 1 << 62
_BEHIND_FOLDS = 4
_BYTES_PER_S = 64 << 20
_WAIT_MAX_S = 0.2


class Merge(Protocol):
    """One merge, of any kind."""

    def run(self, reached: Callable[[str], None]) -> None:
        """Write the kept records durably where they go. Any thread; nothing current changes.

        `reached` is called at each stage; what it raises stops the merge.

        Raises
        ------
        CapacityError, StorageError : nothing is lost; the merge may be tried again.
        CorruptTableError : a record is not what was written.
        """

    def catalogue(self, contents: Contents) -> Catalogue | None:
        """Return the catalogue that makes the result current; None: no commit knows these rows."""

    def install(self, contents: Contents) -> None:
        """Make the result current; what it replaces goes."""

    def discard(self, contents: Contents) -> None:
        """Remove what was written."""


class _StoppedError(Exception):
    """A merge was stopped: its work is thrown away."""


class Merges:
    """The merges of one store. Engine thread only, but `_run`."""

    def __init__(self, contents: Contents) -> None:
        self.folds = 0
        self.base_merges = 0
        self.compactions = 0
        self.failures = 0
        self.waited_s = 0.0
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
            plan = self._due()
        except EmbstoreError as exc:  # no room for a compaction's file, say
            self._failed(exc)
            return
        if plan is not None:
            self._start(plan)

    def slow_down(self, wanted_bytes: int) -> None:
        """Let a command that logs so many bytes wait, if merges are far behind: in proportion to
        its bytes and to how far, so that all commands become slower and none waits for a merge."""
        if self._thread is not None:
            waiting = sum(s.bytes for s in self._contents.log.segments if s.commit)
            behind = waiting / (_BEHIND_FOLDS * self._contents.limits.fold_bytes) - 1
            if behind > 0:
                began = monotonic()
                self._thread.join(min(behind * wanted_bytes / _BYTES_PER_S, _WAIT_MAX_S))
                self.waited_s += monotonic() - began

    def finish(self) -> None:
        """Run all merges that are due, and wait for them. For tests, and before a measurement."""
        while True:
            self.poll()
            if self._thread is None:
                break
            self._thread.join()
        self._contents.removal.finish()

    def stop(self) -> None:
        """End a running merge: its result is installed if it is there, else thrown away."""
        if self._thread is not None:
            self._stop.set()
            self._thread.join()
            self._finish()

    def try_again(self) -> None:
        """Forget that a merge had no room: a restore has changed what there is."""
        self._not_before = 0 if self._not_before < _NEVER else _NEVER

    def _due(self) -> Merge | None:
        # The base first: a fold adds to it, and would else never let it come to its turn.
        contents = self._contents
        return BaseMerge.due(contents) or Fold.due(contents) or Compaction.due(contents)

    # Running

    def _start(self, merge: Merge) -> None:
        self._stop.clear()
        self._merge, self._outcome = merge, None
        self._thread = threading.Thread(target=self._run, args=(merge,), daemon=True)
        self._threads[:] = [self._thread]
        self._thread.start()

    def _reached(self, point: str) -> None:
        self._contents.files.reached(point)
        if self._stop.is_set():
            raise _StoppedError

    def _run(self, merge: Merge) -> None:
        try:
            merge.run(self._reached)
        except BaseException as exc:  # handed to the engine thread, which decides
            self._outcome = exc

    def _finish(self) -> None:
        merge, outcome = self._merge, self._outcome
        assert merge is not None
        self._merge = self._thread = None
        if self._contents.failure is not None:
            return  # nothing is committed any more; what the merge wrote has no name
        self._looked_at = None  # what was due may still be
        if outcome is None:
            try:
                self._install(merge)
                return
            except EmbstoreError as exc:
                if self._contents.failure is not None:
                    raise  # the disk may have the new catalogue, and need what the merge wrote
                outcome = exc
        merge.discard(self._contents)
        if not isinstance(outcome, _StoppedError):
            self._failed(outcome)

    def _install(self, merge: Merge) -> None:
        contents = self._contents
        new = merge.catalogue(contents)
        if new is not None:
            with contents.irreversible():
                contents.files.sync_directory("log")
            contents.replace_catalogue(new)
            contents.files.reached("merge:renamed")
        # From here on files, catalogue and index change together.
        with contents.irreversible():
            merge.install(contents)
        self.folds += isinstance(merge, Fold)
        self.base_merges += isinstance(merge, BaseMerge)
        self.compactions += isinstance(merge, Compaction)

    def _failed(self, outcome: BaseException) -> None:
        self.failures += 1
        self.error = str(outcome)
        passing = isinstance(outcome, CapacityError)
        self._not_before = self._contents.catalogue.head.commit + 1 if passing else _NEVER


def _end(stop: threading.Event, threads: list[threading.Thread]) -> None:
    stop.set()
    for thread in threads:
        thread.join()
