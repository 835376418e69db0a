"""Scrubbing: a thread slowly and repeatedly reads a running store's files, and checks every row.

Damage of a record that is never looked up could stay unnoticed for months, until the backups that
contain the record are deleted. The thread reads the catalogue's files in pieces of some megabytes,
at a rate that costs little. The stats and the server's messages report damage. The thread does not
need the engine: these files never change, and a file that a merge has removed meanwhile is skipped.
The files' pages do not stay in memory.
"""

import threading
import weakref
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from time import monotonic

from embstore.storage.catalogue import Catalogue, Entry
from embstore.storage.checking import FileCheck
from embstore.storage.storage import Storage
from embstore.storage.verify import affected_by, entries_of

PASS_S = 3600.0
"""Seconds between the end of a pass and the next pass; a small store need not be checked more
often."""


@dataclass
class Scrubbed:
    """The findings so far. One thread writes them; any thread can read them."""

    rows: int = 0
    passes: int = 0
    ended_at: float | None = None
    """The end of the last pass, a `monotonic` time; None: no pass has ended."""
    problems: dict[str, list[str]] = field(default_factory=dict)
    """The problems of each file of the catalogue, by path, as of the last reading of the file."""
    after_problem: Callable[[list[str]], None] = lambda found: None
    """A function that is called with the problems of a file, in the scrubbing thread; a server logs
    the problems."""


class Scrubber:
    """Checks files on a thread of its own."""

    def __init__(self, storage: Storage, bytes_per_s: int) -> None:
        self.bytes_per_s = bytes_per_s
        self.bytes = 0
        self.found = Scrubbed()
        self._read_only = storage.read_only
        self._work = _passes(storage, self.found)
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None

    @property
    def age_s(self) -> float:
        """Seconds since the last pass ended; 0: no pass has ended."""
        return 0.0 if self.found.ended_at is None else monotonic() - self.found.ended_at

    def start(self) -> None:
        """Start the thread, if a rate is given."""
        if self.bytes_per_s and not self._read_only:
            # A weak reference, so that the thread does not keep the store alive.
            arguments = weakref.ref(self), self._stopping
            self._thread = threading.Thread(target=_run, args=arguments, name="scrubbing")
            self._thread.daemon = True
            self._thread.start()

    def step(self) -> float:
        """Check the next piece; return the seconds until the piece after it is due."""
        begun = monotonic()
        size = next(self._work)
        if size is None:
            return PASS_S
        self.bytes += size
        return max(size / self.bytes_per_s - (monotonic() - begun), 0.0)

    def stop(self) -> None:
        """Check no further piece."""
        self._stopping.set()

    def join_threads(self) -> None:
        """Wait for the end of the thread, and close the file that the thread was reading."""
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()
        self._work.close()


def _run(ref: "weakref.ref[Scrubber]", stopping: threading.Event) -> None:
    while (scrubber := ref()) is not None:
        pause_s = scrubber.step()
        del scrubber
        if stopping.wait(pause_s):
            return


def _passes(storage: Storage, found: Scrubbed) -> Generator[int | None]:
    """Yield the bytes of each piece, and None at the end of a pass.

    The generator does not refer to the scrubber, because the scrubber would then keep itself alive.
    """
    while True:
        catalogue = storage.catalogue  # replaced as a whole
        for entry in entries_of(catalogue):
            if entry.path in _paths(storage.catalogue):
                yield from _check(storage, catalogue, entry, found)
        named = _paths(storage.catalogue)
        found.problems = {path: text for path, text in found.problems.items() if path in named}
        found.passes += 1
        found.ended_at = monotonic()
        yield None


def _check(storage: Storage, catalogue: Catalogue, entry: Entry, found: Scrubbed) -> Generator[int]:
    check = FileCheck(storage.files, bytes.fromhex(catalogue.store_id), entry)
    report, rows = check.report, 0
    for size in check.run():
        found.rows += report.rows - rows
        rows = report.rows
        yield size
    now = storage.catalogue
    others = {path: text for path, text in found.problems.items() if path != report.path}
    if not report.problems or report.path not in _paths(now):
        found.problems = others
        return
    affected = affected_by(storage.files, now, {report.path: report})
    text = [*report.problems, *map(str, affected)]
    if text != found.problems.get(report.path):
        found.problems = others | {report.path: text}
        found.after_problem(text)


def _paths(catalogue: Catalogue) -> set[str]:
    return {entry.path for entry in entries_of(catalogue)}
