"""The verbs of look-ahead sessions: open, join, announce, look up, update, release, skip, close.

A rank names itself by its **member**, which `join` gave it. Steps are numbered one after the other
from the session's place; what a rank sends for a step it may send again, and gets the same answer.
Each verb has a form that waits for nobody (`lookup`, `send_*`: they return a handle to poll) and
one that waits (`lookup_step`, `update_step`, ...).

Whoever holds the engine may take the sessions' lock, and nobody who holds that takes the engine.
"""

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from time import monotonic
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from embstore import writes
from embstore.arithmetic import unique
from embstore.arrays import Keys, Rows, as_keys, as_out, as_rows
from embstore.engine import Engine
from embstore.errors import (
    CapacityError,
    DeadlineError,
    EmbstoreError,
    InvalidArgumentError,
    SessionExpiredError,
    StoreClosedError,
    TableHeldError,
)
from embstore.feed.bags import StepBags
from embstore.lookahead.handles import Readiness, StepLookup, StepOutcome
from embstore.lookahead.planner import Planner
from embstore.lookahead.session import Mode, Rank, Session, told_again
from embstore.lookahead.step import Attempt, Options, RankShare, Sent, Step
from embstore.results import AcknowledgedUpdate, Announced, Membership, SessionFacts
from embstore.table import check_call_bytes, checked_options
from embstore.tablestate import Share, TableState

LOOKAHEAD_STEPS_MAX = 1024
"""Of a session; a slot counts 2,047 pins."""
WORLD_SIZE_MAX = 1024
PLACES_MAX = 4096
"""Names that may be resumed."""
_ENDED_MAX = 4096
"""Members of ended sessions that are told why theirs ended."""
_NAME_CHARACTERS_MAX = 255
_LEASE_MS_MAX = 86_400_000


class Sessions:
    """All sessions of one store. Any thread."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._live: dict[str, Session] = {}
        self._members: dict[str, tuple[Session, Rank]] = {}
        self._ended: OrderedDict[str, EmbstoreError] = OrderedDict()  # by member: why it ended
        self._closed = False
        self._planner = Planner(engine, self._live)
        self._planner.end_expired = self.expire

    # Opening and closing

    def open(
        self,
        name: str,
        tables: Sequence[str],
        *,
        lookahead_steps_max: int = 16,
        world_size: int = 1,
        planner: str = "per_step",
        shared: bool = False,
        lease_ms: int = 10_000,
        rank_timeout_ms: int = 60_000,
    ) -> SessionFacts:
        """Open a session, or return the one that is open by this name with these options.

        Parameters
        ----------
        name : 1 to 255 printable characters; a name that was used before goes on at its place
        tables : that steps may name; held until the session ends
        lookahead_steps_max : steps that may be announced beyond the last finished one
        world_size : ranks that share each step
        planner : "per_step", "group:N" (N steps are planned as one) or "window" (rows leave the
            cache by their next use, as far as it is announced)
        shared : others may write to the tables as well; no rows are early then
        lease_ms : a rank that is silent for longer loses its place
        rank_timeout_ms : how long ranks wait for one another before the session fails

        Raises
        ------
        InvalidArgumentError, TableNotFoundError : nothing has changed.
        TableHeldError : the name is open with other options, or another session holds a table.
        """
        facts = _checked_facts(
            SessionFacts(
                name, 0, _names(tables), lookahead_steps_max, world_size, planner, shared, lease_ms
            )
        )
        timeout_s = _in_range(rank_timeout_ms, "rank_timeout_ms", 1, _LEASE_MS_MAX) / 1000
        with self._engine.reading(), self._planner.changed:
            self._planner.give_back()
            session = self._live.get(name)
            if session is not None:
                return self._joinable(session, facts)
            return self._opened(facts, timeout_s)

    def _joinable(self, session: Session, facts: SessionFacts) -> SessionFacts:
        if replace(session.facts, last_step=0) != facts:
            raise TableHeldError(
                f"session {session.name!r} is open as {session.facts}, asked for was {facts}; "
                "close it, or give another name"
            )
        return replace(facts, last_step=session.last_step)

    def _opened(self, facts: SessionFacts, timeout_s: float) -> SessionFacts:
        tables = {name: self._engine.find(name) for name in facts.tables}
        for table in tables.values():
            if table.writer or (table.sessions and not facts.shared):
                raise TableHeldError(
                    f"table {table.name!r} is in use by session "
                    f"{', '.join(map(repr, sorted(table.sessions)))}; close it first"
                )
        places = self._engine.places
        if facts.name not in places and len(places) >= PLACES_MAX:
            raise CapacityError(
                f"{len(places)} sessions may be resumed, and there can be no more; close some "
                "with forget=True"
            )
        last_step = places.setdefault(facts.name, 0)
        facts = replace(facts, last_step=last_step)
        session = Session(facts, tables, timeout_s, Mode.of(facts.planner), last_step)
        for table in tables.values():
            table.sessions.add(facts.name)
            table.writer = "" if facts.shared else facts.name
        self._live[facts.name] = session
        self._planner.start()
        return facts

    def join(self, name: str, rank: int) -> Membership:
        """Take the place of a rank.

        Raises
        ------
        SessionExpiredError : no session of this name is open.
        TableHeldError : the rank is taken, by a client whose lease has not run out.
        InvalidArgumentError : the session has no such rank.
        """
        with self._planner.changed:
            self.expire()
            session = self._live.get(name)
            if session is None:
                raise SessionExpiredError(f"no session {name!r} is open; open it, then join")
            _in_range(rank, "rank", 0, session.facts.world_size - 1)
            taken = session.ranks.get(rank)
            if taken is not None:
                left = max(taken.deadline - monotonic(), 0.0)
                why = "has left" if taken.is_closed else f"has a lease for another {left:.1f} s"
                raise TableHeldError(
                    f"session {name!r}: rank {rank} belongs to another client, who {why}"
                )
            membership = session.join(rank)
            self._members[membership.member] = session, session.ranks[rank]
            self._planner.notify()
            return membership

    def renew(self, member: str) -> SessionFacts:
        """Renew the rank's lease, as every other call of it does."""
        with self._planner.lock:
            session, _ = self._member(member)
            return replace(session.facts, last_step=session.last_step)

    def close(self, member: str, *, forget: bool = False) -> None:
        """Leave a session; the last rank's leaving ends it. Closing twice is harmless.

        forget : the name's place is forgotten as well
        """
        with self._planner.lock:
            found = self._members.get(member)
            if found is None or found[1].is_closed:
                return
        session, rank = found
        with suppress(StoreClosedError), self._engine.reading(), self._planner.changed:
            rank.is_closed = True
            session.is_forgotten = session.is_forgotten or forget
            live = [r for r in session.ranks.values() if not r.is_closed]
            if not live and session.error is None:
                told = f"session {session.name!r} was closed; open it again to go on"
                self._end(session, SessionExpiredError(told))
                self._planner.give_back()
            if session.is_forgotten and self._live.get(session.name) is None:
                self._engine.places.pop(session.name, None)

    def expire(self) -> float | None:
        """End the sessions of ranks whose leases have run out; return seconds to the next end."""
        with self._planner.changed:
            now = monotonic()
            for session in list(self._live.values()):
                if session.error is not None:
                    self._forget(session)
                elif (lost := session.expired(now)) is not None:
                    self._end(session, lost)
            deadlines = [d for session in self._live.values() for d in session.deadlines]
            return max(min(deadlines) - now, 0.0) + 1e-3 if deadlines else None

    def _end(self, session: Session, error: EmbstoreError) -> None:
        self._planner.end(session, error)
        self._forget(session)

    def _forget(self, session: Session) -> None:
        if self._live.get(session.name) is session:
            del self._live[session.name]
        assert session.error is not None
        for rank in session.ranks.values():
            if self._members.pop(rank.member, None) is not None:
                self._ended[rank.member] = session.error
        while len(self._ended) > _ENDED_MAX:
            self._ended.popitem(last=False)

    def _member(self, member: str) -> tuple[Session, Rank]:
        """Return a live session and the rank, whose lease is renewed. Under the lock."""
        if self._closed:
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

    # Steps

    def announce(self, member: str, steps: Mapping[int, Mapping[str, ArrayLike]]) -> Announced:
        """Say which keys coming steps will use.

        Parameters
        ----------
        steps : {step: {table: (u,) int64, unique}}, each the next one; a step that was announced
            with the same keys is passed over

        Raises
        ------
        InvalidArgumentError : not the next step, more than the session's lookahead_steps_max ahead,
            keys that repeat or are out of range, a table that is not the session's. None of the
            steps is announced.
        """
        with self._planner.lock:
            session, rank = self._member(member)
        shares = {
            _step_number(number): self._share(session, number, keys)
            for number, keys in _mapping(steps, "steps").items()
        }
        with self._planner.changed:
            session.check_live()
            new = self._new(session, rank, shares)
            for number in new:
                step = session.steps.setdefault(number, Step(number))
                step.shares[rank.rank] = shares[number]
                rank.announced = number
            self._planner.notify()
            return Announced(rank.announced, session.planned_step, session.held_since is not None)

    def _share(self, session: Session, number: int, keys: Any) -> RankShare:
        """Return what a rank announces of a step, its keys checked and copied."""
        where = f"session {session.name!r}: step {number}"
        given = _mapping(keys, f"{where}: keys")
        tables = {name: self._table(session, name, where) for name in given}
        named = {name: as_keys(given[name], name).copy() for name in given}
        for name, table in tables.items():
            _check_keys(table, named[name], where)
        check_call_bytes(self._engine, [Share(table, named[n]) for n, table in tables.items()])
        return RankShare.of(tables, named)

    def _new(self, session: Session, rank: Rank, shares: Mapping[int, RankShare]) -> list[int]:
        """Return the steps that were not announced before. Under the lock."""
        new: list[int] = []
        for number, share in shares.items():
            where = f"session {session.name!r}: step {number}"
            if 0 < number <= session.last_step:
                continue
            before = (
                session.steps[number].shares.get(rank.rank) if number in session.steps else None
            )
            if before is not None:
                if not before.equals(share):
                    raise InvalidArgumentError(f"{where} was announced with other keys")
                continue
            expected = rank.announced + 1 + len(new)
            if number != expected:
                raise InvalidArgumentError(
                    f"{where} was announced out of order: expected {expected}"
                )
            most = session.facts.lookahead_steps_max
            if number > session.last_step + most:
                raise InvalidArgumentError(
                    f"{where} is more than lookahead_steps_max = {most} steps beyond the last "
                    f"finished one, {session.last_step}"
                )
            new.append(int(number))
        return new

    def _table(self, session: Session, name: str, where: str) -> TableState:
        if name not in session.tables:
            raise InvalidArgumentError(
                f"{where}: expected tables of the session, {sorted(session.tables)}, found {name!r}"
            )
        return session.tables[name]

    def lookup(self, member: str, step: int) -> StepLookup:
        """Return the rows of an announced step, to be waited for.

        Raises
        ------
        StepNotFoundError : it was not announced.
        InvalidArgumentError : it is finished, or no integer.
        """
        number = _step_number(step)
        with self._planner.lock:
            session, rank = self._member(member)
            found = session.step(number, rank)
            return StepLookup(self._engine, self._planner, session, rank, found)

    def lookup_step(
        self,
        member: str,
        step: int,
        *,
        out: Mapping[str, Rows] | None = None,
        timeout_s: float | None = None,
    ) -> dict[str, Rows]:
        """Return the rows of an announced step, {table: (u, dim)}, when its turn has come.

        timeout_s : how long to wait for that; None: the session's rank_timeout_ms

        Raises
        ------
        DeadlineError : earlier steps are not finished in time.
        """
        given = _mapping({} if out is None else out, "out")
        lookup = self.lookup(member, step)
        self._wait(lambda: lookup.poll() is Readiness.READY, lookup, step, timeout_s)
        outs = {name: as_out(given.get(name), shape, name) for name, shape in lookup.shapes.items()}
        lookup.gather(None, outs)
        return outs

    def lookup_step_pooled(
        self,
        member: str,
        step: int,
        bags: Mapping[str, StepBags],
        *,
        timeout_s: float | None = None,
    ) -> dict[str, Rows]:
        """Return the pooled rows of bags of announced keys, {table: (bags, dim)}."""
        lookup = self.lookup(member, step)
        shapes = lookup.shapes
        outs = {
            name: np.empty((len(b.offsets) - 1, shapes[name][1] if name in shapes else 0), "f4")
            for name, b in bags.items()
        }
        self._wait(lambda: lookup.poll() is Readiness.READY, lookup, step, timeout_s)
        lookup.pool(bags, outs)
        return outs

    # Finishing a step

    def send_update(
        self,
        member: str,
        step: int,
        gradients: Mapping[str, ArrayLike],
        *,
        learning_rate: float | None = None,
        gradient_scale: float = 1.0,
        on_nonfinite: writes.OnNonfinite = "refuse",
    ) -> StepOutcome:
        """Send one gradient for each announced key, {table: (u, dim)}; the last rank's applies all.

        Raises
        ------
        InvalidArgumentError : tables, shapes or dtypes other than announced, options other than
            another rank's, a sum that is not finite. The step is open, for another try or a skip.
        """
        options = checked_options(learning_rate, gradient_scale, on_nonfinite)
        return self._send(member, step, Options("update", **options), gradients)

    def send_release(self, member: str, step: int) -> StepOutcome:
        """Finish a step of which rows were read only."""
        return self._send(member, step, Options("release"), {})

    def send_skip(self, member: str, step: int) -> StepOutcome:
        """Finish a step whose gradients are not to be applied; all ranks must say so."""
        return self._send(member, step, Options("skip"), {})

    def update_step(
        self,
        member: str,
        step: int,
        gradients: Mapping[str, ArrayLike],
        *,
        learning_rate: float | None = None,
        gradient_scale: float = 1.0,
        on_nonfinite: writes.OnNonfinite = "refuse",
        timeout_s: float | None = None,
    ) -> AcknowledgedUpdate:
        """As `send_update`, and wait until the step is finished."""
        outcome = self.send_update(
            member,
            step,
            gradients,
            learning_rate=learning_rate,
            gradient_scale=gradient_scale,
            on_nonfinite=on_nonfinite,
        )
        return self._finished(outcome, step, timeout_s)

    def release_step(
        self, member: str, step: int, *, timeout_s: float | None = None
    ) -> AcknowledgedUpdate:
        """As `send_release`, and wait until the step is finished."""
        return self._finished(self.send_release(member, step), step, timeout_s)

    def skip_step(
        self, member: str, step: int, *, timeout_s: float | None = None
    ) -> AcknowledgedUpdate:
        """As `send_skip`, and wait until the step is finished."""
        return self._finished(self.send_skip(member, step), step, timeout_s)

    def _send(
        self, member: str, number: int, options: Options, gradients: Mapping[str, ArrayLike]
    ) -> StepOutcome:
        number = _step_number(number)
        with self._planner.changed:
            session, rank = self._member(member)
            told = session.remembered(number, options.verb)
            if told is not None:
                return StepOutcome(self._planner, session, rank, number, Attempt(told))
            step = session.step(number, rank)
            share = step.shares[rank.rank]
        rows = _checked_gradients(session, share, options, gradients)
        with self._planner.changed:
            _check_turn(session, step, rank, options)
            attempt = step.attempt
            step.sent.setdefault(rank.rank, Sent(options, rows))
            is_last = len(step.sent) == session.facts.world_size and not step.is_finishing
            step.is_finishing = step.is_finishing or is_last
            self._planner.notify()
        if is_last:
            self._finish(session, step)
        return StepOutcome(self._planner, session, rank, number, attempt)

    def _finish(self, session: Session, step: Step) -> None:
        options = step.sent[0].options
        try:
            told = self._apply(session, step, options)
        except BaseException as exc:
            with self._planner.changed:
                step.attempt.error = exc
                step.attempt, step.is_finishing = Attempt(), False
                step.sent.clear()
                self._planner.notify()
            raise
        with self._planner.changed:
            step.attempt.result = told
            self._planner.notify()

    def _apply(self, session: Session, step: Step, options: Options) -> AcknowledgedUpdate:
        engine = self._engine
        read_only = engine.storage.read_only and options.verb != "update"
        with engine.reading() if read_only else engine.writing():
            session.check_live()
            applied = options.verb == "update" and self._update(session, step, options)
            skipped = options.verb == "skip" or (options.verb == "update" and not applied)
            told = AcknowledgedUpdate(
                engine.command_number + (not read_only),
                {name: table.t for name, table in session.tables.items()},
                skipped,
            )
            with self._planner.changed:
                session.step_ended = monotonic()
                session.last_step = engine.places[session.name] = step.number
                session.remember(step.number, options.verb, told)
                session.figures.steps_finished += 1
                session.planned_step = max(session.planned_step, step.number)
                session.steps.pop(step.number, None)
            self._planner.retire(session, step)
        return told

    def _update(self, session: Session, step: Step, options: Options) -> bool:
        how: dict[str, Any] = {
            "learning_rate": options.learning_rate,
            "gradient_scale": options.gradient_scale,
            "on_nonfinite": options.on_nonfinite,
            "stages": self._engine.stages,
        }
        if session.facts.world_size > 1:
            ranks = [step.shares[r].gradient_shares(step.sent[r].gradients) for r in session.world]
            return writes.update_ranks(ranks, session=session.name, **how)
        share, gradients = step.shares[0], step.sent[0].gradients
        self._engine.stages.start()
        batches = share.batches(gradients)
        return writes.update_batches(batches, share.gradient_shares(gradients), **how)

    # Waiting

    def _finished(
        self, outcome: StepOutcome, step: int, timeout_s: float | None
    ) -> AcknowledgedUpdate:
        told: list[AcknowledgedUpdate] = []

        def is_told() -> bool:
            answer = outcome.poll()
            told.extend([] if answer is None else [answer])
            return bool(told)

        self._wait(is_told, outcome, step, timeout_s)
        return told[0]

    def _wait(
        self,
        is_done: Callable[[], bool],
        handle: StepLookup | StepOutcome,
        step: int,
        timeout_s: float | None,
    ) -> None:
        seconds = handle.timeout_s if timeout_s is None else timeout_s
        until = monotonic() + seconds
        with self._planner.changed:
            while not is_done():
                if self._closed:
                    raise StoreClosedError("the store was closed during the call")
                left = until - monotonic()
                if left <= 0:
                    raise DeadlineError(
                        f"step {step} had to wait for more than {seconds:g} s; are the steps "
                        "before it updated, released or skipped?"
                    )
                self._planner.changed.wait(min(left, handle.left_s))

    def watch(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Call `callback` after any progress, on any thread; it must not block. Returns the way to
        end that."""
        with self._planner.lock:
            self._planner.watchers.append(callback)

        def unwatch() -> None:
            with self._planner.lock:
                if callback in self._planner.watchers:
                    self._planner.watchers.remove(callback)

        return unwatch

    # Looking, and the end

    def facts(self) -> list[dict[str, Any]]:
        """Return what every open session is, and did."""
        with self._planner.lock:
            planning = self._planner.told()
            return [session.told() | planning for session in self._live.values()]

    def planning(self) -> dict[str, Any]:
        """Return what planning costs: seconds by stage, rows pinned and under way."""
        with self._planner.lock:
            return self._planner.told()

    def stop(self) -> None:
        """End all waiting and planning; the store is about to close."""
        with self._planner.changed:
            self._closed = True
        self._planner.stop()

    def join_threads(self) -> None:
        """Wait for the planner's threads. Not with the engine."""
        self._planner.join()


def _mapping(value: Any, what: str) -> Mapping[Any, Any]:
    if not isinstance(value, Mapping):
        raise InvalidArgumentError(f"expected {what} as a mapping, found {type(value).__name__}")
    return value


def _step_number(value: Any) -> int:
    """Return a step's number; 1.0 and True are none, though they find the same step as 1."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer):
        raise InvalidArgumentError(f"expected the number of a step, found {value!r}")
    return int(value)


def _in_range(value: Any, what: str, low: int, high: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int | np.integer):
        raise InvalidArgumentError(f"expected {what} to be an integer, found {value!r}")
    if not low <= value <= high:
        raise InvalidArgumentError(f"expected {what} of {low} to {high}, found {value}")
    return int(value)


def _names(tables: Any) -> tuple[str, ...]:
    if isinstance(tables, str) or not isinstance(tables, Sequence) or not tables:
        raise InvalidArgumentError(f"expected tables as a list of names, found {tables!r}")
    if len(set(tables)) != len(tables):
        raise InvalidArgumentError(f"expected each table once, found {list(tables)}")
    return tuple(tables)


def _checked_facts(facts: SessionFacts) -> SessionFacts:
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
    return replace(
        facts,
        lookahead_steps_max=_in_range(
            facts.lookahead_steps_max, "lookahead_steps_max", 1, LOOKAHEAD_STEPS_MAX
        ),
        world_size=_in_range(facts.world_size, "world_size", 1, WORLD_SIZE_MAX),
        lease_ms=_in_range(facts.lease_ms, "lease_ms", 1, _LEASE_MS_MAX),
    )


def _check_keys(table: TableState, keys: Keys, where: str) -> None:
    if not len(keys):
        return
    low, high = int(keys.min()), int(keys.max())
    if low < 0 or high >= table.rows:
        raise InvalidArgumentError(
            f"{where}: table {table.name!r}: expected keys in [0, {table.rows}), found "
            f"{low if low < 0 else high}"
        )
    once, inverse = unique(keys)
    if len(once) != len(keys):
        again = int(once[np.argmax(np.bincount(inverse) > 1)])
        raise InvalidArgumentError(
            f"{where}: table {table.name!r}: expected each key once, found key {again} repeated"
        )


def _checked_gradients(
    session: Session, share: RankShare, options: Options, gradients: Mapping[str, ArrayLike]
) -> dict[str, Rows]:
    """Return gradients as announced; of several ranks a copy, which waits for the others'."""
    if options.verb != "update":
        return {}
    given = _mapping(gradients, "gradients")
    if given.keys() != share.places.keys():
        raise InvalidArgumentError(
            f"session {session.name!r}: expected gradients of the announced tables "
            f"{sorted(share.places)}, found {sorted(given, key=repr)}"
        )
    rows = {
        name: as_rows(given[name], shape, name, "gradients") for name, shape in share.shapes.items()
    }
    if session.facts.world_size == 1:
        return rows
    for name, of_table in rows.items() if options.on_nonfinite == "refuse" else ():
        wrong = np.flatnonzero(~np.isfinite(of_table).all(axis=1))
        if len(wrong):
            raise InvalidArgumentError(
                f"table {name!r}: expected finite gradients, found one that is not, for key "
                f"{share.keys_of(name)[wrong[0]]}; skip the step on all ranks, or give "
                'on_nonfinite="skip"'
            )
    return {name: of_table.copy() for name, of_table in rows.items()}


def _check_turn(session: Session, step: Step, rank: Rank, options: Options) -> None:
    session.check_live()
    number = session.last_step + 1
    if step.number != number and step.number in session.steps:
        raise InvalidArgumentError(
            f"session {session.name!r}: step {number} must be updated, released or skipped before "
            f"step {step.number}"
        )
    for other, sent in step.sent.items():
        if other != rank.rank and sent.options != options:
            raise InvalidArgumentError(
                f"session {session.name!r}: step {step.number}: rank {other} sent {sent.options}, "
                f"rank {rank.rank} {options}; all ranks must do the same"
            )
