"""Commits that a store makes by itself, to bound the work that a crash loses.

A commit logs every dirty row, syncs the log and renames the catalogue (storage.py). A commit in one
piece would make calls wait for seconds. Therefore it is made in pieces, and other calls are
executed between the pieces:

    flush    log the dirty rows of one range of slots after another, a few milliseconds each
    sync     sync the log up to its current end, in this thread and without the engine
    commit   with the engine: log and sync the rows that have changed since, and rename the
             catalogue

Rows that every step changes are dirty again at the end of a pass of flushes. Passes are repeated as
long as a pass finds at most half as many dirty rows as the pass before. The stats show the time
since the last commit: a crash would lose the changes of that time.

A commit that the store makes by itself has no label: the store opens at the commit, but `restore`
cannot go back to it. A store that has not changed since its last commit makes no commit. A
checkpoint is made in the same way, except that its last piece is the command that makes the label.

Measured on two cores, with a million dirty rows of 64 elements: 3,300 to 4,000 updates of 64 keys
ran during a commit, and the longest update took 29 to 87 ms. A checkpoint in one piece made an
update wait for 600 to 750 ms.

Rejected: a copy-on-write snapshot of the rows as of the beginning of the commit. The snapshot would
make the passes unnecessary, but every command would have to check each of its rows.
"""

import threading
import weakref
from collections.abc import Callable
from contextlib import ExitStack, closing
from time import monotonic

from embstore.cache.pool import Pool
from embstore.cache.writing import FIRST, Place
from embstore.commands import Progress
from embstore.engine.write_back import WriteBack
from embstore.errors import CapacityError, EmbstoreError, StoreClosedError
from embstore.options import StoreOptions
from embstore.tables.slices import Slices
from embstore.tables.tables import Tables

LOG_BYTES_MAX = 4 << 30
"""Length of the command log at which a commit is made, even if the replay of the log would be
short."""
ROWS_BYTES_LEAST = 256 << 20
ROWS_LEAST = 1 << 20
"""Because of evicted rows, a commit is made before its interval ends only if at least this number
of bytes (ROWS_BYTES_LEAST) or rows (ROWS_LEAST) has left the cache since the last commit."""
_PASSES_MAX = 4
_SEALED_LEAST = 1 << 15
"""If the current log segment has more records than this, the segment's index is written before the
last piece of a commit."""
_LOOK_S = 60.0
"""Seconds after which the thread checks whether the store is still referenced."""
_PAUSE_S = 10.0
"""Seconds from a failed commit to the next try, if the commit is due because a log is long."""


class OwnCommits:
    """Makes commits at intervals, on a thread of its own. Any thread.

    Parameters
    ----------
    options : a commit is made `commit_every_s` after the last commit of any kind. If there is a
        command log, a commit is also made when the replay of that log would take `recovery_s`, or
        when the log has LOG_BYTES_MAX bytes. Between commits this thread logs dirty rows
        (`WriteBack`), whose ceiling is `dirty_bytes`
    """

    def __init__(self, tables: Tables, options: StoreOptions) -> None:
        self.write_back = WriteBack(tables, options.dirty_bytes)
        self.every_s, self.recovery_s = options.commit_every_s, options.recovery_s
        self.is_running = False
        self.count = 0
        self.seconds = 0.0
        self.error: str | None = None
        self.after_each: Callable[[], None] = lambda: None
        """A function that is called after each commit, in the thread that has made it; a server
        logs the commit."""
        self._tables = tables
        self._stopping = threading.Event()
        self._wake = threading.Event()
        self._thread: threading.Thread | None = None
        self._tried_at = monotonic()
        # the row log, its number of changes, and its uncommitted bytes after these changes
        self._seen: tuple[object, int, int] = None, 0, 0

    @property
    def age_s(self) -> float:
        """Seconds since the last commit; 0 if that commit contains all changes."""
        tables = self._tables
        return 0.0 if tables.is_committed else monotonic() - tables.storage.committed_at

    def start(self) -> None:
        """Start the thread, if it has anything to do."""
        has_cause = self.every_s or self._tables.frame.log is not None or self.write_back.is_on
        if has_cause and not self._tables.storage.read_only:
            # A weak reference, so that the thread does not keep the store alive.
            arguments = weakref.ref(self), self._stopping, self._wake
            self._thread = threading.Thread(target=_run, args=arguments, name="commits")
            self._thread.daemon = True
            self._thread.start()

    def stop(self) -> None:
        """Begin no further commit. A running commit ends after its present piece."""
        self._stopping.set()
        self._wake.set()

    def consider(self) -> None:
        """Wake the thread of commits if a log has become long, or if there are many dirty rows.

        The caller has the engine, and has executed a command that writes.
        """
        is_due = self.write_back.note()
        if not self._wake.is_set() and (is_due or self._is_log_long):
            self._wake.set()

    @property
    def _is_log_long(self) -> bool:
        """Whether the command log or the row log is long enough for a commit to be due."""
        log = self._tables.frame.log
        if log is not None:
            if log.replay_s > self.recovery_s or log.files.segments.bytes > LOG_BYTES_MAX:
                return True
        return self._are_rows_many

    @property
    def _are_rows_many(self) -> bool:
        """Whether so many rows have left the cache that the log should be folded, which needs a
        commit.

        A commit writes all dirty rows of the cache. Therefore a commit is due only when at least as
        many bytes have left the cache as the cache contains, or when the log's index is half full.
        """
        tables = self._tables
        log = tables.storage.log
        if (log, log.changes) != self._seen[:2]:
            self._seen = log, log.changes, log.uncommitted_bytes
        uncommitted = self._seen[2]
        if uncommitted <= ROWS_BYTES_LEAST // 4:  # the usual case
            return False
        dirty = max(ROWS_BYTES_LEAST, tables.cache_bytes_used)
        rows = max(ROWS_LEAST, tables.storage.log_rows_max // 2)
        # If folds lag, another commit only adds to their work.
        is_worth = uncommitted > log.bytes // 2
        return uncommitted > dirty or (log.index.size > rows and is_worth)

    def join_threads(self) -> None:
        """Wait for the end of the thread. The caller must not have the engine."""
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()

    @property
    def is_stopping(self) -> bool:
        """Whether the store is being closed."""
        return self._stopping.is_set() or self._tables.frame.is_closed

    @property
    def storage_failure(self) -> EmbstoreError | None:
        """The error that failed the store, so that no commit can be made; None: the store has not
        failed."""
        return self._tables.storage.failure

    def due_in_s(self) -> float | None:
        """Return the seconds until the next commit is due; None: only a long log will cause a
        commit.

        The time counts from the last commit, or from the last failed try.
        """
        now = monotonic()
        is_long = not self._tables.is_committed and self._is_log_long
        if is_long and (self.error is None or now - self._tried_at > _PAUSE_S):
            return 0.0
        if not self.every_s:
            return None
        last = max(self._tables.storage.committed_at, self._tried_at)
        return max(last + self.every_s - now, 0.0)

    def commit(self, progress: Progress | None = None) -> bool:
        """Commit the changes since the last commit, in pieces; return whether there were any
        changes.

        Raises
        ------
        CapacityError : there is no space; rows that were flushed stay flushed.
        StoreClosedError, StorageError, DeviceError : the store is closed, or has failed.
        Exception : an error of `progress`; rows that were flushed stay flushed.
        """
        begun = self._tried_at = monotonic()
        if self._tables.is_committed:
            return False
        self.is_running = True
        try:
            self.prepare(progress)
            is_done = self._commit()
        finally:
            self.is_running = False
        if is_done:
            self.count += 1
            self.seconds = monotonic() - begun
        return is_done

    def prepare(self, progress: Progress | None = None) -> None:
        """Log and sync dirty rows in pieces, so that the commit that follows has few rows left to
        log. Raises the errors of `commit`."""
        slices = Slices(self._tables.frame, progress)
        flushed = self._flush(slices)
        for _ in range(1, _PASSES_MAX):
            again = self._flush(slices)
            if 2 * again > flushed or not again:
                break
            flushed = again
        self._sync(slices)
        if (command_log := self._tables.frame.log) is not None:
            command_log.files.sync()  # the commit syncs the rest while it has the engine

    def _commit(self) -> bool:
        with self._tables.background():
            if self._stopping.is_set() or self._tables.is_committed:
                return False
            self._tables.commit()
        return True

    def write_dirty(self) -> bool:
        """Log dirty rows in slices until few dirty rows are left, or a commit is due.

        Returns False, because no commit was made.

        Raises
        ------
        CapacityError : there is no space; rows that were logged stay logged.
        StoreClosedError, StorageError, DeviceError : the store is closed, or has failed.
        """
        slices = Slices(self._tables.frame)
        self.is_running = True
        try:
            while self.write_back.is_wanted and self.due_in_s() != 0:
                with slices.one():
                    written = self.write_back.write()
                    delay_s = self._tables.storage.merges.delay_s(written)
                if self._stopping.wait(delay_s):
                    return False
            self._sync(slices)
        except CapacityError:
            self._tried_at = monotonic()
            raise
        finally:
            self.write_back.end_run()
            self.is_running = False
        return False

    @property
    def may_write(self) -> bool:
        """Whether `write_dirty` has work, and enough time has passed since the last failure."""
        is_time = self.error is None or monotonic() - self._tried_at > _PAUSE_S
        return is_time and self.write_back.is_due

    def flush(self, name: str, table_id: int | None, progress: Progress | None) -> int:
        """Log the dirty rows of a table in pieces; return how many rows were dirty.

        An empty name stands for all tables.
        """
        slices = Slices(self._tables.frame, progress)
        if not name:
            flushed = self._flush(slices)
        else:
            with slices.one():
                table = self._tables.find(name, table_id)
            flushed = self._flush_pool(table.pool, slices, table.table_id)
        if self._stopping.is_set():
            raise StoreClosedError(
                "the store was closed before the flush ended; closing has committed all"
            )
        return flushed

    def _flush(self, slices: Slices) -> int:
        """Flush each pool, range by range; return how many rows were dirty."""
        with slices.one():
            pools = list(self._tables.pools.values())
        return sum(self._flush_pool(pool, slices) for pool in pools)

    def _flush_pool(self, pool: Pool, slices: Slices, table_id: int | None = None) -> int:
        flushed = 0
        at: Place | None = FIRST
        while at is not None and not self._stopping.is_set():
            with slices.one():
                if self._tables.pools.get(pool.name) is not pool:
                    break
                at, rows = self.write_back.flush(pool, at, table_id)
            flushed += rows
        return flushed

    def _sync(self, slices: Slices) -> None:
        """Sync the log up to its present end; a failure fails the store, as it does in a commit.

        The method opens descriptors of its own: the system reports a write error once per
        descriptor, and a concurrent commit must get the error as well.
        """
        storage = self._tables.storage
        with ExitStack() as opened:
            with self._tables.background():
                if storage.log.appending_records > _SEALED_LEAST:
                    with storage.irreversible:
                        storage.log.seal()  # so that the index is synced as well
                files = [
                    opened.enter_context(closing(storage.files.open(path)))
                    for path in storage.log.unsynced()
                ]
            for file in files:
                if not self._stopping.is_set():
                    slices.wanted()
                    began = monotonic()
                    with storage.irreversible:
                        file.sync()
                    self.write_back.synced(monotonic() - began)


def _run(ref: "weakref.ref[OwnCommits]", stopping: threading.Event, wake: threading.Event) -> None:
    while (commits := ref()) is not None:
        if commits.due_in_s() == 0 and not _tried(commits, commits.commit):
            return
        if commits.may_write and not _tried(commits, commits.write_dirty):
            return
        due_in_s = commits.due_in_s()
        del commits
        wake.wait(_LOOK_S if due_in_s is None else min(due_in_s, _LOOK_S))
        wake.clear()
        if stopping.is_set():
            return


def _tried(commits: OwnCommits, work: Callable[[], bool]) -> bool:
    """Call `work`, which returns whether it has made a commit. Return whether the thread is to go
    on: False if the store is being closed or has failed."""
    try:
        is_new = work()
        commits.error = None
    except EmbstoreError as exc:
        if commits.is_stopping:
            return False
        commits.error = str(exc)
        is_new = True
    except BaseException as exc:
        commits.error = f"{exc!r}; the store makes no further commit by itself"
        commits.after_each()
        raise
    if is_new:
        commits.after_each()
    return commits.storage_failure is None
