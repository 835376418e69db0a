"""Who is in which session: names, ranks, leases, and the places that outlive them.

A name's **place** is the number of its last finished step. It is part of every commit, so that a
trainer finds out where to go on, whatever has died meanwhile. It is made with the first step. Of
more than `PLACES_MAX` names those are forgotten that have not been at work since the store was
opened, and then the one that was longest ago.

What ends a session ends it for all its ranks: they are told why when they next ask. The tables are
free again as soon as the engine has taken the pins back.

Under the sessions' lock, but where it says that the engine is taken.
"""

from collections import OrderedDict
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from time import monotonic
from typing import Any

import numpy as np

from embstore.engine import Engine
from embstore.errors import (
    CapacityError,
    EmbstoreError,
    InvalidArgumentError,
    SessionExpiredError,
    StoreClosedError,
    TableHeldError,
)
from embstore.lookahead.planner import Planner
from embstore.lookahead.session import Mode, Rank, Session, told_again
from embstore.results import Membership, SessionFacts

LOOKAHEAD_STEPS_MAX = 1024
"""Of a session; a slot counts 2,047 pins."""
WORLD_SIZE_MAX = 1024
SESSIONS_MAX = 256
"""Open at a time."""
PLACES_MAX = 4096
"""Names that may be resumed."""
_ENDED_MAX = 4096
"""Members of ended sessions that are told why theirs ended."""
_NAME_CHARACTERS_MAX = 255
_MS_MAX = 86_400_000
_MEMBER_CHARACTERS = range(16, 65)


class Registry:
    """The open sessions of one store, and their ranks."""

    def __init__(self, engine: Engine) -> None:
        self.sessions: dict[str, Session] = {}
        self.planner = Planner(engine, self.sessions)
        self.planner.end_expired = self.expire
        engine.before_change = self.planner.give_back
        self.is_closed = False
        self._engine = engine
        self._members: dict[str, tuple[Session, Rank]] = {}
        self._ended: OrderedDict[str, EmbstoreError] = OrderedDict()  # by member: why it ended

    def open(self, facts: SessionFacts) -> SessionFacts:
        """Open a session, or find it open with these options. Takes the engine.

        Raises
        ------
        TableNotFoundError, CapacityError : nothing has changed.
        TableHeldError : the name is open with other options, or another session holds a table.
        """
        with self._engine.reading():
            with self.planner.changed:
                self.expire()
            self.planner.give_back()
            with self.planner.changed:
                session = self.sessions.get(facts.name)
                if session is None:
                    return self._opened(facts)
                if replace(session.facts, last_step=0) != facts:
                    raise TableHeldError(
                        f"session {session.name!r} is open as {session.facts}, asked for was "
                        f"{facts}; close it, or give another name"
                    )
                return replace(facts, last_step=session.last_step)

    def _opened(self, facts: SessionFacts) -> SessionFacts:
        if len(self.sessions) >= SESSIONS_MAX:
            raise CapacityError(f"{SESSIONS_MAX} sessions are open, and there can be no more")
        tables = {name: self._engine.find(name) for name in facts.tables}
        for table in tables.values():
            if table.writer or (table.sessions and not facts.shared):
                raise TableHeldError(
                    f"table {table.name!r} is in use by session "
                    f"{', '.join(map(repr, sorted(table.sessions)))}; close it first"
                )
        facts = replace(facts, last_step=self._engine.places.get(facts.name, 0))
        for table in tables.values():
            table.sessions.add(facts.name)
            table.writer = "" if facts.shared else facts.name
        self.sessions[facts.name] = Session(facts, tables, Mode.of(facts.planner), facts.last_step)
        self.planner.start()
        return facts

    def join(self, name: str, rank: int, member: str | None) -> Membership:
        """Take the place of a rank, or find that this member has it.

        Raises
        ------
        SessionExpiredError : no session of this name is open.
        TableHeldError : the rank is taken, by a client whose lease has not run out.
        InvalidArgumentError : the session has no such rank.
        """
        self.expire()
        session = self.sessions.get(name)
        if session is None:
            raise SessionExpiredError(f"no session {name!r} is open; open it, then join")
        rank = in_range(rank, "rank", 0, session.facts.world_size - 1)
        taken = session.ranks.get(rank)
        if taken is not None and not taken.is_closed and taken.member != member:
            left = max(taken.deadline - monotonic(), 0.0)
            raise TableHeldError(
                f"session {name!r}: rank {rank} belongs to another client, whose lease runs for "
                f"another {left:.1f} s; wait for it, or give another name"
            )
        if member is not None and (
            not isinstance(member, str) or len(member) not in _MEMBER_CHARACTERS
        ):
            raise InvalidArgumentError("expected a member of 16 to 64 characters, chosen at random")
        if member in self._members and (taken is None or taken.member != member):
            raise InvalidArgumentError("expected a member that no other rank has")
        membership = session.join(rank, member)
        self._members[membership.member] = session, session.ranks[rank]
        self.planner.notify()
        return membership

    def member(self, member: str) -> tuple[Session, Rank]:
        """Return a live session and the rank, whose lease is renewed.

        Raises
        ------
        StoreClosedError, SessionExpiredError, RankFailedError
        """
        if self.is_closed:
            raise StoreClosedError("the store is closed; open it again")
        found = self._members.get(member) if isinstance(member, str) else None
        if found is None:
            ended = self._ended.get(member) if isinstance(member, str) else None
            told = "no such member of a session; open it and join again"
            raise SessionExpiredError(told) if ended is None else told_again(ended)
        session, rank = found
        session.check_live()
        if rank.is_closed:
            raise SessionExpiredError(f"session {session.name!r}: rank {rank.rank} has left it")
        if rank.deadline < monotonic():
            self._end(session, session.lost(rank))
            session.check_live()
        rank.deadline = monotonic() + session.lease_s
        return session, rank

    def close(self, member: str, *, forget: bool) -> None:
        """Have a rank leave; the last one's leaving ends the session. Takes the engine."""
        with self.planner.lock:
            found = self._members.get(member)
        if found is None or found[1].is_closed:
            return
        session, rank = found
        with suppress(StoreClosedError), self._engine.reading():
            with self.planner.changed:
                rank.is_closed = True
                session.is_forgotten = session.is_forgotten or forget
                if session.error is None and all(r.is_closed for r in session.ranks.values()):
                    told = f"session {session.name!r} was closed; open it again to go on"
                    self._end(session, SessionExpiredError(told))
                if session.is_forgotten and session.name not in self.sessions:
                    self._engine.places.pop(session.name, None)
            self.planner.give_back()

    def expire(self) -> float | None:
        """End the sessions of ranks whose leases have run out; return seconds to the next end."""
        now = monotonic()
        for session in list(self.sessions.values()):
            if session.error is not None:
                self._forget(session)
            elif (lost := session.expired(now)) is not None:
                self._end(session, lost)
        deadlines = [d for session in self.sessions.values() for d in session.deadlines]
        return max(min(deadlines) - now, 0.0) + 1e-3 if deadlines else None

    def _end(self, session: Session, error: EmbstoreError) -> None:
        self.planner.end(session, error)
        self._forget(session)

    def _forget(self, session: Session) -> None:
        if self.sessions.get(session.name) is session:
            del self.sessions[session.name]
        assert session.error is not None
        for rank in session.ranks.values():
            if self._members.pop(rank.member, None) is not None:
                self._ended[rank.member] = session.error
        while len(self._ended) > _ENDED_MAX:
            self._ended.popitem(last=False)

    def note_place(self, session: Session) -> None:
        """Record how far a session has come."""
        places = self._engine.places
        places.pop(session.name, None)
        places[session.name] = session.last_step
        while len(places) > PLACES_MAX:
            del places[next(iter(places))]


def checked_facts(facts: SessionFacts) -> SessionFacts:
    """Return what a session is asked to be, checked.

    Raises
    ------
    InvalidArgumentError
    """
    name = facts.name
    if (
        not isinstance(name, str)
        or not 0 < len(name) <= _NAME_CHARACTERS_MAX
        or not name.isprintable()
    ):
        raise InvalidArgumentError(
            f"expected a session name of 1 to {_NAME_CHARACTERS_MAX} printable characters, found "
            f"{name!r}"
        )
    if not isinstance(facts.shared, bool):
        raise InvalidArgumentError(f"expected shared to be True or False, found {facts.shared!r}")
    Mode.of(facts.planner)
    steps_max = facts.lookahead_steps_max
    return replace(
        facts,
        lookahead_steps_max=in_range(steps_max, "lookahead_steps_max", 1, LOOKAHEAD_STEPS_MAX),
        world_size=in_range(facts.world_size, "world_size", 1, WORLD_SIZE_MAX),
        lease_ms=in_range(facts.lease_ms, "lease_ms", 1, _MS_MAX),
        rank_timeout_ms=in_range(facts.rank_timeout_ms, "rank_timeout_ms", 1, _MS_MAX),
    )


def checked_tables(tables: Any) -> tuple[str, ...]:
    """Return the names of a session's tables, checked to be some, and each once.

    Raises
    ------
    InvalidArgumentError
    """
    is_list = isinstance(tables, Sequence) and not isinstance(tables, str)
    if not is_list or not tables or not all(isinstance(name, str) for name in tables):
        raise InvalidArgumentError(f"expected tables as a list of names, found {tables!r}")
    if len(set(tables)) != len(tables):
        raise InvalidArgumentError(f"expected each table once, found {list(tables)}")
    return tuple(tables)


def in_range(value: Any, what: str, low: int, high: int) -> int:
    """Return an integer, checked to be within bounds.

    Raises
    ------
    InvalidArgumentError
    """
    if isinstance(value, bool) or not isinstance(value, int | np.integer):
        raise InvalidArgumentError(f"expected {what} to be an integer, found {value!r}")
    if not low <= value <= high:
        raise InvalidArgumentError(f"expected {what} of {low} to {high}, found {value}")
    return int(value)
