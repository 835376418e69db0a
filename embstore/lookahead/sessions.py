"""The verbs of look-ahead sessions: open, join, announce, look up, update, release, skip, close.

A rank names itself by its **member**, which `join` gave it. Steps are numbered one after the other
from the session's place; what a rank sends for a step it may send again, and gets the same answer.
Each verb has a form that waits for nobody (`lookup`, `send_*`: they return a handle to poll) and
one that waits (`lookup_step`, `update_step`, ...); a rank that waits there keeps its lease.

Whoever holds the engine may take the sessions' lock, and nobody who holds that takes the engine.
"""

from collections.abc import Callable, Mapping, Sequence
from time import monotonic
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from embstore import writes
from embstore.arguments import check_call_bytes, checked_options, put_of
from embstore.arrays import Rows, as_out
from embstore.engine import Engine
from embstore.errors import DeadlineError, InvalidArgumentError, StoreClosedError
from embstore.feed.bags import StepBags
from embstore.lookahead.announcing import (
    announce,
    mapping,
    session_table,
    share_of,
    step_number,
)
from embstore.lookahead.finishing import Finishing
from embstore.lookahead.handles import Readiness, StepLookup, StepOutcome
from embstore.lookahead.registry import Registry, checked_facts, checked_tables
from embstore.lookahead.step import Options
from embstore.results import AcknowledgedUpdate, Announced, Membership, SessionFacts
from embstore.tablestate import Share


class Sessions:
    """All sessions of one store. Any thread."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._registry = Registry(engine)
        self._planner = self._registry.planner
        self._finishing = Finishing(engine, self._registry)

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
        facts = SessionFacts(
            name=name,
            last_step=0,
            tables=checked_tables(tables),
            lookahead_steps_max=lookahead_steps_max,
            world_size=world_size,
            planner=planner,
            shared=shared,
            lease_ms=lease_ms,
            rank_timeout_ms=rank_timeout_ms,
        )
        return self._registry.open(checked_facts(facts))

    def join(self, name: str, rank: int, *, member: str | None = None) -> Membership:
        """Take the place of a rank.

        member : 16 to 64 characters that nobody can guess; a join that is sent again with them is
            answered as before. None: chosen here

        Raises
        ------
        SessionExpiredError : no session of this name is open.
        TableHeldError : the rank is taken, by a client whose lease has not run out.
        InvalidArgumentError : the session has no such rank.
        """
        with self._planner.changed:
            return self._registry.join(name, rank, member)

    def renew(self, member: str, *, timeout_s: float | None = None) -> SessionFacts:
        """Renew the rank's lease, as every other call of it does. Never waits."""
        with self._planner.lock:
            session, _ = self._registry.member(member)
            return session.now()

    def close(self, member: str, *, forget: bool = False, timeout_s: float | None = None) -> None:
        """Leave a session; the last rank's leaving ends it. Closing twice is harmless.

        forget : the name's place is forgotten as well
        """
        self._registry.close(member, forget=forget)

    def expire(self) -> None:
        """End the sessions of ranks whose leases have run out, now and not in a while."""
        with self._planner.changed:
            self._registry.expire()

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
            session, rank = self._registry.member(member)
        shares = {}
        for given, keys in mapping(steps, "steps").items():
            number = step_number(given)
            shares[number] = share = share_of(session, number, keys)
            tables = [Share(share.table(name), share.keys_of(name)) for name in share.places]
            check_call_bytes(self._engine, tables)
        with self._planner.changed:
            session.check_live()
            announce(session, rank, shares, self._key_bytes_left())
            self._planner.notify()
            return Announced(rank.announced, session.planned_step, session.held_since is not None)

    def _key_bytes_left(self) -> int:
        announced = sum(session.key_bytes for session in self._registry.sessions.values())
        return self._engine.limits.announced_bytes_max - announced

    def lookup(self, member: str, step: int) -> StepLookup:
        """Return the rows of an announced step, to be waited for.

        Raises
        ------
        StepNotFoundError : it was not announced.
        InvalidArgumentError : it is finished, or no integer.
        """
        number = step_number(step)
        with self._planner.lock:
            session, rank = self._registry.member(member)
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
        given = mapping({} if out is None else out, "out")
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
        return self._finishing.send(member, step, Options("update", **options), gradients)

    def send_release(self, member: str, step: int) -> StepOutcome:
        """Finish a step of which rows were read only."""
        return self._finishing.send(member, step, Options("release"), {})

    def send_skip(self, member: str, step: int) -> StepOutcome:
        """Finish a step whose gradients are not to be applied; all ranks must say so."""
        return self._finishing.send(member, step, Options("skip"), {})

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

    # Rows that were trained elsewhere

    def put_rows(self, member: str, puts: Mapping[str, Any]) -> AcknowledgedUpdate:
        """Set rows of the session's tables, as its only writer: what a hot replica sends back.

        One command for all tables, as `Table.put_rows` is for one. Steps that are announced may
        have been sent early; so all must be finished before.

        Parameters
        ----------
        puts : {table: (keys (n,), weights (n, dim), state (n, state_dim), updates to add to t)}

        Raises
        ------
        InvalidArgumentError : steps are announced and not finished, the session is shared, or has
            no such table; or an argument is wrong. Nothing has changed.
        """
        engine = self._engine
        with engine.writing():
            with self._planner.lock:
                session, _ = self._registry.member(member)
                session.check_may_put()
            where = f"session {session.name!r}"
            found = [
                put_of(session_table(session, name, where), *_four(name, put))
                for name, put in mapping(puts, "puts").items()
            ]
            check_call_bytes(engine, [p.share for p in found], sum(p.state.nbytes for p in found))
            writes.put_rows(found, session.name)
            t = {put.share.table.name: put.share.table.t for put in found}
            return AcknowledgedUpdate(engine.command_number + 1, t)

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
                if self._registry.is_closed:
                    raise StoreClosedError("the store was closed during the call")
                left = until - monotonic()
                if left <= 0:
                    raise DeadlineError(
                        f"step {step} had to wait for more than {seconds:g} s; are the steps "
                        "before it updated, released or skipped?"
                    )
                handle.renew()
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
            return [session.told() | planning for session in self._registry.sessions.values()]

    def planning(self) -> dict[str, Any]:
        """Return what planning costs: seconds by stage, rows pinned and under way."""
        with self._planner.lock:
            return self._planner.told()

    def stop(self) -> None:
        """End all waiting and planning; the store is about to close."""
        self._registry.is_closed = True
        self._planner.stop()

    def join_threads(self) -> None:
        """Wait for the planner's threads. Not with the engine."""
        self._planner.join()


def _four(name: str, put: Any) -> tuple[Any, Any, Any, Any]:
    if not isinstance(put, tuple | list) or len(put) != 4:
        raise InvalidArgumentError(
            f"table {name!r}: expected (keys, weights, state, add_t), found {type(put).__name__}"
        )
    keys, weights, state, add_t = put
    return keys, weights, state, add_t
