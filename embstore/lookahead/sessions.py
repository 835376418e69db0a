"""The look-ahead sessions of a store, with the implementation of their commands.

A rank identifies itself by its **member**, a secret that `join` returns. Steps are numbered
consecutively from the session's resume position. A rank can repeat a message for a step, and gets
the same answer. A command that may have to wait (for a step's rows, or for the other ranks) returns
a handle to poll. The functions `wait_...` block on a handle; a rank that waits in them keeps its
lease.

Lock order: engine first, then the sessions' lock.
"""

from collections.abc import Callable, Iterable, Sequence
from time import monotonic
from typing import Any

from embstore import commands as c
from embstore.errors import DeadlineError, InvalidArgumentError, StoreClosedError
from embstore.lookahead.announcing import Announcing
from embstore.lookahead.finishing import Finish, Finishing
from embstore.lookahead.handles import StepLookup, StepOutcome
from embstore.lookahead.records import StepReading, StepTurn
from embstore.lookahead.registry import Registry
from embstore.lookahead.session import Rank, Session
from embstore.lookahead.stats import LiveSessions, SessionsStats
from embstore.lookahead.step import Step
from embstore.results import AcknowledgedUpdate, Membership, RowsRead, SessionFacts
from embstore.stats import document
from embstore.tables.logged import SessionPlace
from embstore.tables.state import Share, TableState
from embstore.tables.tables import Tables


class Sessions:
    """All sessions of one store. Any thread."""

    def __init__(self, tables: Tables, accessed: Callable[[Sequence[Share]], None]) -> None:
        """Begin with no open session. `accessed` is called with each finished step's lookups."""
        self._tables = tables
        self._registry = Registry(tables)
        self._planner = self._registry.planner
        self._finishing = Finishing(tables, self._registry, accessed)
        self.announcing = Announcing(tables, self._registry, self._finishing)

    # Opening and closing

    def open(self, command: c.OpenSession) -> SessionFacts:
        """Open a session, or return the open session of this name and these options.

        Raises
        ------
        TableNotFoundError, CapacityError : nothing has changed.
        TableHeldError : the name is open with other options, or another session uses a table.
        """
        facts = SessionFacts(
            name=command.name,
            last_step=0,
            tables=command.tables,
            lookahead_steps_max=command.lookahead_steps_max,
            world_size=command.world_size,
            planner=command.planner,
            shared=command.shared,
            lease_ms=command.lease_ms,
            rank_timeout_ms=command.rank_timeout_ms,
            waits=command.waits,
        )
        return self._registry.open(facts)

    def join(self, command: c.JoinSession) -> Membership:
        """Make a client a rank of a session. Never waits for the engine.

        Raises
        ------
        SessionExpiredError : no session of this name is open.
        TableHeldError : another client has the rank, and its lease has not run out.
        InvalidArgumentError : the session has no such rank.
        """
        with self._planner.changed:
            return self._registry.join(command.name, command.rank, command.member)

    def renew(self, command: c.RenewLease) -> SessionFacts:
        """Renew a rank's lease, as each command of the rank does. Never waits for the engine."""
        with self._planner.lock:
            session, _ = self._registry.member(command.member)
            return session.now()

    def used_by(self, member: str, process: int) -> None:
        """Note a call of a member by a process of this host; 0: the process is unknown."""
        with self._planner.lock:
            self._registry.used_by(member, process)

    def process_ended(self, process: int) -> None:
        """After `process` has ended, end the session of each member for which no other live process
        has made calls. If `process` made only one call for a member, the member's session goes
        on."""
        with self._planner.changed:
            self._registry.process_ended(process)

    def facts(self, *, member: str | None, name: str) -> SessionFacts | None:
        """Return the session of a member, or, if `member` is None, the session of this name; None
        if there is no such session. Renews no lease, and never waits for the engine."""
        with self._planner.lock:
            return self._registry.facts(member, name)

    def names(self) -> list[str]:
        """Return the names of the open sessions."""
        with self._planner.lock:
            return list(self._registry.sessions)

    def has(self, name: str, members: Iterable[str]) -> bool:
        """Return whether one of the members belongs to the session of this name."""
        with self._planner.lock:
            found = (self._registry.facts(member, "") for member in members)
            return any(facts is not None and facts.name == name for facts in found)

    def members_on(self, table: str) -> tuple[str, ...]:
        """Return the members of all open sessions that use a table."""
        with self._planner.lock:
            sessions = [s for s in self._registry.sessions.values() if table in s.tables]
            return tuple(rank.member for s in sessions for rank in s.ranks.values())

    def close(self, command: c.CloseSession) -> None:
        """Leave a session. If its last rank leaves, the session ends. Closing twice is harmless."""
        self._registry.close(command.member, forget=command.forget)

    def end(self, name: str, by: str = "EndSession, which is for operators") -> None:
        """End a session for all its ranks, and keep its resume position. The ranks' errors name
        `by`.

        Raises
        ------
        SessionExpiredError : no session of this name is open.
        """
        self._registry.end(name, by)

    def expire(self) -> None:
        """End now, and not at the next check, the sessions of ranks whose leases have run out."""
        with self._planner.changed:
            self._registry.expire()

    # Steps

    def lookup(self, command: c.LookupStep | c.LookupStepPooled) -> StepLookup:
        """Return a handle to wait for the rows of an announced step. Never waits for the engine.

        Raises
        ------
        StepNotFoundError : the step was not announced.
        InvalidArgumentError : the step is finished.
        """
        bags = getattr(command, "tables", None)
        with self._planner.lock:
            session, rank = self._registry.member(command.member)
            step = self._asked(session, rank, command.step)
            return StepLookup(self._tables, self._planner, session, rank, step, bags)

    def _asked(self, session: Session, rank: Rank, number: int) -> Step:
        """Return a step whose rows a rank requests. Under the lock."""
        step = session.step(number, rank)
        if number > session.near_step:
            session.ask(number)
            self._planner.notify()
        return step

    def read(self, command: c.ReadStep) -> StepReading:
        """Return a handle to wait for whole rows of an announced step.

        Raises
        ------
        StepNotFoundError : the step was not announced.
        InvalidArgumentError : the step is finished; tables or positions were not announced; the
            session's trainer does not run ahead; or the rows have too many bytes for a call.
        """
        with self._planner.lock:
            session, rank = self._registry.member(command.member)
            step = self._asked(session, rank, command.step)
            tables, planner = self._tables, self._planner
            reading = StepReading(tables, planner, session, rank, step, command.tables)
        reading.check_bytes(tables.limits.call_bytes_max)
        return reading

    def turn(self, command: Finish) -> StepTurn | None:
        """Return a handle that waits until a step can be finished; None if no wait is needed. Never
        waits for the engine."""
        with self._planner.lock:
            session, rank = self._registry.member(command.member)
            if session.facts.waits != "none" or command.step <= session.last_step + 1:
                return None
            return StepTurn(self._planner, session, rank, command.step)

    def finish(self, command: c.UpdateStep | c.ReleaseStep | c.SkipStep) -> StepOutcome:
        """Receive a rank's share to finish a step; the last rank's share finishes the step.

        Raises
        ------
        StepNotFoundError : the step was not announced.
        InvalidArgumentError : an earlier step is not finished, or another command finished the
            step; tables, shapes or dtypes differ from the announcement; options differ from another
            rank's options; or a sum is not finite. The step stays open for another attempt or a
            skip.
        """
        return self._finishing.send(command)

    def place_of(self, member: str) -> SessionPlace:
        """Return the resume position of a member's session; see `Registry.place_of`."""
        with self._planner.lock:
            return self._registry.place_of(member)

    def check_may_put(self, member: str) -> Session:
        """Return the session of a member if the member can set rows. Engine thread only.

        Raises
        ------
        InvalidArgumentError : steps are announced and not finished, or the session is shared.
        """
        with self._planner.lock:
            session, _ = self._registry.member(member)
            session.check_may_put()
            return session

    def check_may_delete(self, member: str, table: TableState) -> str:
        """Return the name of a member's session if the member can delete rows of a table. Rows that
        were sent early are sent again after the deletion (handles.py). Engine thread only.

        Raises
        ------
        InvalidArgumentError : the session does not have the table, or has a trainer that runs
            ahead.
        """
        with self._planner.lock:
            session, _ = self._registry.member(member)
        session.table(table.name)
        if session.facts.waits != "late":
            raise InvalidArgumentError(
                f"session {session.name!r} runs ahead of the store (waits={session.facts.waits!r})"
                ": its trainer has rows that no deletion reaches. Delete rows when it is closed, "
                "or open it with waits='late'"
            )
        return session.name

    def check_may_set_rate(self, table: TableState) -> None:
        """Raise an error if a table's rate cannot be set; see `Registry.check_may_set_rate`."""
        with self._planner.lock:
            self._registry.check_may_set_rate(table)

    def release_ended(self) -> None:
        """Release the pins and tables of ended sessions. Engine thread only."""
        self._planner.release_ended()

    # Waiting

    def wait_for_rows(self, lookup: StepLookup, out: Any, timeout_s: float | None) -> RowsRead:
        """Return the rows of a step, when its turn has come.

        Other calls can take the step's pins between the wait and the read. In this case the
        function waits again.

        timeout_s : the longest wait in seconds; None: the session's rank_timeout_ms

        Raises
        ------
        DeadlineError : earlier steps were not finished in time.
        """
        read = None
        while read is None:
            self._wait(lookup, lambda: lookup.is_ready() or None, timeout_s)
            read = lookup.read(out)
        return read

    def wait_for_turn(self, command: Finish, timeout_s: float | None) -> None:
        """Wait until a step can be finished, in a session whose trainer runs ahead. Timeout and
        error are as in `wait_for_rows`."""
        turn = self.turn(command)
        if turn is not None:
            self._wait(turn, turn.poll, timeout_s)

    def wait_for_ranks(self, outcome: StepOutcome, timeout_s: float | None) -> AcknowledgedUpdate:
        """Wait until a step is finished, and return its outcome. Timeout and error are as in
        `wait_for_rows`."""
        done: AcknowledgedUpdate = self._wait(outcome, outcome.poll, timeout_s)
        return done

    def _wait(
        self,
        handle: StepLookup | StepOutcome | StepTurn,
        poll: Callable[[], Any],
        timeout_s: float | None,
    ) -> Any:
        seconds = handle.timeout_s if timeout_s is None else timeout_s
        until = monotonic() + seconds
        with self._planner.changed:
            while (found := poll()) is None:
                if self._registry.is_closed:
                    raise StoreClosedError("the store was closed during the call")
                left = until - monotonic()
                if left <= 0:
                    raise DeadlineError(
                        f"step {handle.number} had to wait for more than {seconds:g} s; are the "
                        "steps before it updated, released or skipped?"
                    )
                handle.renew()
                self._planner.changed.wait(min(left, handle.left_s))
        return found

    def watch(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Call `callback` after every change that a waiting caller may wait for, on any thread.
        `callback` must not block. Return a function that stops these calls."""
        with self._planner.lock:
            self._planner.watchers.append(callback)

        def unwatch() -> None:
            with self._planner.lock:
                if callback in self._planner.watchers:
                    self._planner.watchers.remove(callback)

        return unwatch

    # Looking, and the end

    def stats(self) -> dict[str, Any]:
        """Return the stats of every open session, and of planning for all of them."""
        with self._planner.lock:
            live = list(self._registry.sessions.values())
            return document(SessionsStats, LiveSessions(live, self._planner.planning()))

    def stop(self) -> None:
        """End all waits and all planning, before the store is closed."""
        self._registry.is_closed = True
        self._planner.stop()

    def join_threads(self) -> None:
        """Wait for the planner's threads to end. The caller must not have the engine."""
        self._planner.join()


HANDLERS: dict[Any, Callable[[Any, Any], Any]] = {
    c.OpenSession: Sessions.open,
    c.JoinSession: Sessions.join,
    c.RenewLease: Sessions.renew,
    c.CloseSession: Sessions.close,
    c.EndSession: lambda sessions, command: sessions.end(command.name),
    c.Announce: lambda sessions, command: sessions.announcing.take(command),
    c.LookupStep: Sessions.lookup,
    c.LookupStepPooled: Sessions.lookup,
    c.ReadStep: Sessions.read,
    c.UpdateStep: Sessions.finish,
    c.ReleaseStep: Sessions.finish,
    c.SkipStep: Sessions.finish,
}
"""The handler of each command, called as handler(sessions, command)."""
