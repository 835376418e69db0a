"""The planner: a thread that prefetches the rows of announced steps into the cache.

A step is **noted** as soon as every rank has announced it: from this time on the uses of its rows
are known (noting.py). The steps of a session are planned in order, when they are near enough and
there is room for their pins (`embstore.cache.prefetch` defines planning; pinning.py decides which
steps' rows are pinned). The planner's thread notes and plans steps and inserts rows, in short
slices with the engine. Other threads, the collectors, read rows in between, without the engine. So
several steps are prefetched at the same time:

    engine       plan 5 | insert 3 | (calls) | plan 6 | insert 4 | (calls) ...
    collectors   read 4 ....... read 5 ........ read 6 ...

**Priority of calls.** At most `COLLECTIONS_MAX` collections run at a time, victims leave a few at a
time, and the planner lets calls that wait for the engine run first: look-ahead must not starve
lookups of steps that were not announced. Between the update of one step and the lookup of the next
step the trainer waits for the store; after the lookup it computes. Therefore the planner does not
use the engine for a moment after each update.
"""

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from math import inf
from time import monotonic

from embstore.cache.prefetch import Collection
from embstore.errors import CapacityError, EmbstoreError, StoreClosedError
from embstore.lookahead.clock import Clock
from embstore.lookahead.noting import Noting
from embstore.lookahead.pinning import Pinning
from embstore.lookahead.session import Session
from embstore.lookahead.stats import Planning
from embstore.lookahead.step import Event, Step
from embstore.lookahead.threads import Threads
from embstore.tables.tables import Tables

_LOG = logging.getLogger(__name__)

COLLECTIONS_MAX = 4

_LATE_S = 5.0
"""A delay that is longer than the delays on a machine that is merely busy."""

Job = Callable[[], None]


class Planner:
    """Plans the steps of all live sessions of a store."""

    def __init__(self, tables: Tables, sessions: dict[str, Session]) -> None:
        self.lock = threading.RLock()
        self.changed = threading.Condition(self.lock)
        """Guards this planner and all sessions. Lock order: engine first."""
        self.watchers: list[Callable[[], None]] = []
        self.ended: list[Session] = []  # sessions whose pins and tables are still to be released
        self.clock = Clock()
        """The clock of leases, and of all waits for ranks."""
        self.end_expired: Callable[[], float | None] = lambda: None
        """A function that ends sessions whose lease has run out, and returns the seconds until it
        must be called again, or None."""
        self._tables = tables
        self._sessions = sessions
        self._collecting = 0
        self._pinning = Pinning(tables, sessions, self.ended, self.lock, self.notify)
        self._noting = Noting(tables, self._pinning.foresight, self._pinning.work, self.lock)
        self._threads = Threads(self.changed)

    # Life

    def start(self) -> None:
        """Start the threads, unless they run. Under the lock."""
        self._threads.start(self._run, self._collect)

    def stop(self) -> None:
        """Let the threads begin no more work. `join` waits for running work."""
        if not self._threads.are_here:
            return  # in a forked child, the lock may belong to the parent
        self._threads.stopping.set()
        with self.changed:
            self.notify()

    def join(self) -> None:
        """Wait for the threads to end. Neither one of the threads nor a caller with the engine may
        call this."""
        self._threads.join()
        self.end_expired = lambda: None  # no cycle keeps closed objects alive
        self._pinning.close()

    def notify(self) -> None:
        """Wake all threads and event loops that wait for a change. Under the lock."""
        self.changed.notify_all()
        for callback in self.watchers:
            with suppress(RuntimeError):  # an event loop that has ended needs no wake-up
                callback()

    # The thread

    def _run(self) -> None:
        while (job := self._next_job()) is not None:
            try:
                job()
            except StoreClosedError as exc:  # closed, or failed permanently
                self._fail(exc)
                break
            except BaseException as exc:  # all waits get the error, and do not wait forever
                self._fail(exc)

    def _next_job(self) -> Job | None:
        with self.changed:
            while not self._threads.stopping.is_set():
                until_next_look = self.end_expired()
                # Before the search for due work: a pause can end during it, without a notification.
                pauses = [s.pause_s for s in self._sessions.values() if s.is_between_steps]
                job = self._due()
                if job is not None:
                    return job
                times = [t for t in (until_next_look, *pauses) if t is not None]
                self._wait(min(times, default=None))
        return None

    def _wait(self, seconds: float | None) -> None:
        """Wait for a change, at most `seconds`. Log a warning if the wait took far longer."""
        begun = monotonic()
        self.changed.wait(seconds)
        late_s = monotonic() - begun - (inf if seconds is None else seconds)
        if late_s > _LATE_S:
            _LOG.warning(
                "the process did not run for %.1f s: the leases of sessions are extended by that",
                late_s,
            )

    def _due(self) -> Job | None:
        if self.ended:
            return self._release_ended
        if any(self._collected_collections()):
            return self._insert
        if self._noting.has_stale:
            return self._noting.forget
        to_plan, to_note = self._next_to_plan(), self._noting.next(self._sessions.values())
        if to_plan is not None and (to_note is None or self._is_turn(to_plan)):
            return partial(self._do_or_end, self._plan, to_plan)
        if to_note is not None:
            return partial(self._do_or_end, self._noting.note, to_note)
        return None

    def _do_or_end(self, work: Callable[[Session], None], session: Session) -> None:
        try:
            work(session)
        except StoreClosedError:
            raise
        except BaseException as exc:  # an error in one session must not end other sessions
            with self.changed:
                self.end(session, _session_error(exc))

    def _fail(self, error: BaseException) -> None:
        with self.changed:
            for session in self._sessions.values():
                self.end(session, _session_error(error))

    def end(self, session: Session, error: EmbstoreError) -> None:
        """End a session. Its pins and tables are released later. Under the lock."""
        if session.error is None:
            session.error = error
            self.ended.append(session)
            self.notify()

    # Insert

    def _collected_collections(self) -> Iterator[Collection]:
        for prefetch in self._pinning.prefetches:
            for collection in prefetch.pool.finder.arriving[:1]:
                if isinstance(collection, Collection) and collection.is_collected:
                    yield collection

    def _insert(self) -> None:
        with self._tables.background():
            for collection in list(self._collected_collections()):
                collection.finish()
        self._tables.storage.files.reached("lookahead:insert")
        with self.changed:
            self.notify()

    def _collect(self, collection: Collection) -> None:
        self._tables.storage.files.reached("lookahead:collect")
        collection.collect()
        with self.changed:
            self._collecting -= 1
            self.notify()

    # Plan

    def _next_to_plan(self) -> Session | None:
        """Of the steps that each session would plan next, find the step that is nearest to its
        turn; return its session."""
        due = [s for s in self._sessions.values() if self._is_due(s)]
        return min(due, key=lambda s: s.planned_step - s.last_step, default=None)

    @staticmethod
    def _is_turn(session: Session) -> bool:
        return session.planned_step == session.last_step

    def _is_due(self, session: Session) -> bool:
        number = session.planned_step + 1
        if session.error is not None or session.noted_step < number:
            return False
        is_turn = self._is_turn(session)
        if not is_turn and (session.is_between_steps or not self._is_near(session, number)):
            return False
        if self._collecting >= COLLECTIONS_MAX and not is_turn:
            return False
        if session.waits_at == self._pinning.releases and not is_turn:
            return False
        return is_turn or self._group_is_complete(session, number)

    def _is_near(self, session: Session, number: int) -> bool:
        """Return whether a step, or the group that contains it, is near enough to its turn."""
        first = number - (number - 1) % session.mode.group
        return first <= session.near_step

    def _group_is_complete(self, session: Session, number: int) -> bool:
        group = session.mode.group
        last = number + (-number % group)
        window_end = session.last_step + session.facts.lookahead_steps_max
        return session.noted_step >= min(last, window_end)

    def _plan(self, session: Session) -> None:
        with self.lock:
            steps = self._next_steps(session)
        if not steps:
            return  # finished meanwhile, by a trainer that did not look it up
        for prefetch in self._pinning.prefetches:
            prefetch.forget_cleared()
        for n, step in enumerate(steps):
            self._pinning.clear(session, step, before=steps[:n])
        self._tables.storage.files.reached("lookahead:plan")
        with self._tables.background():
            begun = self._pinning.pin_steps(session, steps)
        with self.changed:
            self._collecting += len(begun)
            self.notify()
        for collection in begun:
            self._threads.put(collection)

    def _next_steps(self, session: Session) -> list[Step]:
        first = session.planned_step + 1
        numbers = range(first, first + (-first % session.mode.group) + 1)
        return [session.steps[n] for n in numbers if n in session.steps and n <= session.noted_step]

    # Finished steps

    def retire(self, session: Session, step: Step) -> None:
        """Release the pins of a finished step. Engine thread only."""
        try:
            with suppress(CapacityError):  # ranks are hints
                self._pinning.foresight.finish(session, step)
        finally:
            self._pinning.unpin(step)
        with self.lock:
            step.move(Event.FINISH)
        with session.uses_lock:
            for uses in session.uses.values():
                uses.forget(step.number)

    def _release_ended(self) -> None:
        """Take the engine, and release the pins and tables of ended sessions."""
        with self._tables.background():
            self.release_ended()

    def release_ended(self) -> None:
        """Release the pins and tables of ended sessions. Engine thread only."""
        if not self.ended:
            return
        self._tables.storage.begin_change()
        with self.lock:
            ended = self.ended.copy()
            self.ended.clear()
        for session in ended:
            for step in list(session.steps.values()):
                self._pinning.unpin(step)
            self._noting.end(session)
        with self.changed:
            for session in ended:
                session.steps.clear()
                for table in session.tables.values():
                    table.sessions.discard(session.name)
                    table.writer = "" if table.writer == session.name else table.writer
            self._pinning.forget_pools()
            self._pinning.releases += 1  # there may be fewer owners now
            self.notify()

    # Looking

    def planning(self) -> Planning:
        """Return the cost of planning, and the running work. Under the lock."""
        return Planning(self._pinning.work, self._collecting, list(self._tables.pools.values()))


def _session_error(error: BaseException) -> EmbstoreError:
    if isinstance(error, EmbstoreError):
        return error
    failed = EmbstoreError(f"look-ahead failed: {error!r}")
    failed.__cause__ = error
    return failed
