"""The members of sessions: names, ranks, leases, and the resume positions that outlive sessions.

The **place** of a session's name is its resume position, the number of its last finished step.
Every commit contains the places, so that a trainer finds its resume position after a crash. The
first step of a name creates the place. Beyond `tables.PLACES_MAX` names, the owner with the most
names loses the name that was used longest ago (`tables.owners`).

A session ends for all its ranks at once: the next call of each rank gets the reason. The tables of
the session are free again as soon as the engine has released its pins. A rank that has declared
that it has no more steps, and whose steps are finished, has left the session: neither the silence
of this rank nor the end of its process ends the session.

All functions run under the sessions' lock, except functions documented to take the engine.
"""

from collections import OrderedDict
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace
from shlex import quote

from embstore.checks.arguments import integer
from embstore.errors import (
    CapacityError,
    EmbstoreError,
    InvalidArgumentError,
    LeaseExpiredError,
    SessionExpiredError,
    StoreClosedError,
    TableHeldError,
)
from embstore.lookahead.planner import Planner
from embstore.lookahead.session import Mode, Rank, Session, same_error
from embstore.results import Membership, Place, SessionFacts
from embstore.tables.logged import SessionPlace
from embstore.tables.state import TableState
from embstore.tables.tables import Tables

SESSIONS_MAX = 256
"""The most sessions that are open at a time."""
_ENDED_MAX = 4096
"""The most members of ended sessions for which the reason of the end is kept."""


class Registry:
    """The open sessions of one store, and their ranks."""

    def __init__(self, tables: Tables) -> None:
        self.sessions: dict[str, Session] = {}
        self.planner = Planner(tables, self.sessions)
        self.planner.end_expired = self.expire
        self.is_closed = False
        self._tables = tables
        self._members: dict[str, tuple[Session, Rank]] = {}
        self._ended: OrderedDict[str, EmbstoreError] = OrderedDict()  # by member: the error

    def open(self, facts: SessionFacts) -> SessionFacts:
        """Open a session, or return the open session of the same name and options. Takes the
        engine."""
        with self._tables.reading():
            with self.planner.changed:
                self.expire()
            self.planner.release_ended()
            with self.planner.changed:
                session = self.sessions.get(facts.name)
                if session is None:
                    self._tables.storage.begin_change()
                    return self._opened(facts)
                if replace(session.facts, last_step=0, written=()) != facts:
                    raise TableHeldError(
                        f"session {session.name!r} is open as {session.facts}, asked for was "
                        f"{facts}; close it, or give another name"
                    )
                return session.now()

    def _opened(self, facts: SessionFacts) -> SessionFacts:
        if len(self.sessions) >= SESSIONS_MAX:
            raise CapacityError(
                f"{SESSIONS_MAX} sessions are open, and there can be no more: close one first"
            )
        tables = {name: self._tables.find(name) for name in facts.tables}
        for table in tables.values():
            if table.writer or (table.sessions and not facts.shared):
                raise self._table_in_use(table)
        facts = replace(
            facts,
            last_step=self._tables.last_step(facts.name, tables.values()),
            written=(self._written_by_others(facts.name, tables.values()),),
        )
        for table in tables.values():
            table.sessions.add(facts.name)
            table.writer = "" if facts.shared else facts.name
        self.sessions[facts.name] = Session(
            facts, tables, Mode.of(facts.planner), facts.last_step, self.planner.clock
        )
        self.planner.start()
        self.planner.notify()
        return facts

    def _written_by_others(self, name: str, tables: Iterable[TableState]) -> int:
        """Return the number of the last command by which another client changed rows of the tables
        after the session's last command, for `SessionFacts.written`; 0: there is none."""
        place = self._tables.places.get(name, Place(0))
        return max((t.written for t in tables if t.written > place.command), default=0)

    def _table_in_use(self, table: TableState) -> TableHeldError:
        """Return the error that names the session which uses a table, and states how long this can
        last."""
        name = min(table.sessions)
        session = self.sessions.get(name)
        if session is None:  # the session has ended; its tables will be free in a moment
            return TableHeldError(f"table {table.name!r} is in use by session {name!r}; try again")
        silent_s, left_s = session.silence_s
        return TableHeldError(
            f"table {table.name!r} is in use by session {name!r}, whose trainer last called "
            f"{silent_s:.1f} s ago and which ends in {left_s:.1f} s without a call; wait for "
            f"that, or, if its trainer has ended, end it: store.sessions.end({name!r}), or "
            f"embstore sessions close {quote(name)}"
        )

    def join(self, name: str, rank: int, member: str) -> Membership:
        """Make a member a rank of a session, or confirm that it already is this rank."""
        self.expire()
        session = self.sessions.get(name)
        if session is None:
            raise SessionExpiredError(f"no session {name!r} is open; open it, then join")
        integer(rank, "rank", 0, session.facts.world_size - 1)
        taken = session.ranks.get(rank)
        if taken is not None and taken.member != member:
            _check_free(session, taken)
        if member in self._members and (taken is None or taken.member != member):
            raise InvalidArgumentError("expected a member that no other rank has")
        if taken is not None and taken.member != member:
            self._members.pop(taken.member, None)
            message = f"session {name!r}: rank {rank} has left it, and joined again"
            self._note_ended(taken.member, SessionExpiredError(message))
        membership = session.join(rank, member)
        self._members[membership.member] = session, session.ranks[rank]
        self.planner.notify()
        return membership

    def member(self, member: str) -> tuple[Session, Rank]:
        """Return the live session of a member and the member's rank. Renew the rank's lease."""
        if self.is_closed:
            raise StoreClosedError("the store is closed; open it again")
        found = self._members.get(member)
        if found is None:
            ended = self._ended.get(member)
            message = (
                "no session has this member: its session ended long ago, or with its server; open "
                "it and join again: it goes on after its last finished step"
            )
            raise SessionExpiredError(message) if ended is None else same_error(ended)
        session, rank = found
        session.check_live()
        now = self.planner.clock.now()
        if rank.is_closed:
            kind = LeaseExpiredError if rank.deadline < now else SessionExpiredError
            raise kind(f"session {session.name!r}: rank {rank.rank} has left it")
        if rank.deadline < now and not rank.has_given_all(session.last_step):
            self._end(session, session.lost(rank))
            session.check_live()
        rank.deadline = now + session.lease_s
        return session, rank

    def place_of(self, member: str) -> SessionPlace:
        """Return the present resume position of a member's session. Engine thread only.

        Raises SessionExpiredError if no session has this member.
        """
        session, _ = self.member(member)
        bound = {name: table.table_id for name, table in session.tables.items()}
        return SessionPlace(session.name, Place(session.last_step, bound), is_step=False)

    def check_may_set_rate(self, table: TableState) -> None:
        """Raise an error if a table's learning rate cannot be changed now, because a trainer that
        runs ahead has applied updates at the present rate for steps that the store has not
        finished."""
        session = self.sessions.get(table.writer)
        if session is not None and session.facts.waits != "late":
            raise InvalidArgumentError(
                f"table {table.name!r}: session {session.name!r} runs ahead of the store; "
                "expected learning_rate to be given to its updates, or the table's to be set "
                "before the session is opened, found the table's to be set"
            )

    def used_by(self, member: str, process: int) -> None:
        """Count a call of a member for the process that made the call, if the member has a
        session."""
        _, rank = self._members.get(member, (None, None))
        if rank is not None:
            rank.calls[process] = rank.calls.get(process, 0) + 1

    def process_ended(self, process: int) -> None:
        """After `process` has ended, end the session of each rank for which no other live process
        has made calls. If `process` made only one call for a rank, the rank's session goes on."""
        for session in list(self.sessions.values()):
            for rank in session.joined_ranks:
                if rank.calls.pop(process, 0) <= 1 or rank.calls:
                    continue
                if rank.has_given_all(session.last_step):
                    self._leave(session, rank)
                else:
                    self._end(session, session.lost(rank, process))

    def facts(self, member: str | None, name: str) -> SessionFacts | None:
        """Return the facts of the session of a member, or of the session with a name."""
        if member is None:
            session = self.sessions.get(name)
        else:
            session, _ = self._members.get(member, (None, None))
        return None if session is None else session.facts

    def close(self, member: str, *, forget: bool) -> None:
        """Make a rank leave its session. If it is the last rank, the session ends. Takes the
        engine."""
        with self.planner.lock:
            found = self._members.get(member)
        if found is None or found[1].is_closed:
            return
        session, rank = found
        with suppress(StoreClosedError), self._tables.reading():
            if forget or session.is_forgotten:
                self._tables.check_can_forget()
            self._tables.storage.begin_change()
            with self.planner.changed:
                session.is_forgotten = session.is_forgotten or forget
                self._leave(session, rank)
                if session.is_forgotten and session.name not in self.sessions:
                    self._tables.forget_place(session.name)
            self.planner.release_ended()

    def end(self, name: str, by: str) -> None:
        """End a session for all its ranks. Takes the engine."""
        with self._tables.reading():
            with self.planner.changed:
                self.expire()
                session = self.sessions.get(name)
                if session is None:
                    raise SessionExpiredError(f"no session {name!r} is open")
                message = (
                    f"session {name!r} was ended by {by}; open it again, it goes on after its last "
                    "finished step"
                )
                self._end(session, SessionExpiredError(message))
            self.planner.release_ended()

    def expire(self) -> float | None:
        """End the sessions of ranks whose leases have run out. Return the seconds until the next
        check, None if no session is open."""
        clock = self.planner.clock
        now = clock.now()
        for session in list(self.sessions.values()):
            for rank in session.joined_ranks:
                if rank.deadline < now and rank.has_given_all(session.last_step):
                    self._leave(session, rank)
            if session.error is not None:
                self._forget(session)
            elif (lost := session.expired(now)) is not None:
                self._end(session, lost)
        live = self.sessions.values()
        clock.keeps(min((session.lease_s for session in live), default=None))
        ends = [max(end - now, 0.0) + 1e-3 for session in live for end in session.deadlines]
        return min([clock.pause_s, *ends]) if live else None

    def _leave(self, session: Session, rank: Rank) -> None:
        """Make a rank leave a session. If it is the last rank, the session ends."""
        rank.is_closed = True
        if session.error is None and all(r.is_closed for r in session.ranks.values()):
            message = f"session {session.name!r} was closed; open it again to go on"
            self._end(session, SessionExpiredError(message))

    def _end(self, session: Session, error: EmbstoreError) -> None:
        self.planner.end(session, error)
        self._forget(session)

    def _forget(self, session: Session) -> None:
        if self.sessions.get(session.name) is session:
            del self.sessions[session.name]
        assert session.error is not None
        for rank in session.ranks.values():
            if self._members.pop(rank.member, None) is not None:
                self._note_ended(rank.member, session.error)

    def _note_ended(self, member: str, error: EmbstoreError) -> None:
        self._ended[member] = error
        while len(self._ended) > _ENDED_MAX:
            self._ended.popitem(last=False)


def _check_free(session: Session, taken: Rank) -> None:
    """Refuse a rank that another client occupies.

    A rank that has left can return. After its last step it can return only as long as other ranks
    can still announce steps. Otherwise the session is about to end, and the client would begin a
    new session.
    """
    if taken.is_done and not (taken.is_closed and session.ranks_at_work):
        raise TableHeldError(
            f"session {session.name!r}: rank {taken.rank} has ended its steps; open the session "
            "again when its other ranks have ended theirs"
        )
    if not taken.is_closed:
        left = max(taken.deadline - session.clock.now(), 0.0)
        raise TableHeldError(
            f"session {session.name!r}: rank {taken.rank} belongs to another client, whose lease "
            f"runs for another {left:.1f} s; wait for it, or give another name"
        )
