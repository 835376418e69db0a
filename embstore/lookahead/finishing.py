"""How a step ends: each rank sends its share, and with the last one the step is done.

All ranks must send the same verb with the same options; ranks that contradict each other are all
answered with that, and the step is open again, as it is when its update is refused. A rank may send
again what it has sent, and something else as long as the step is not being done. What became of a
finished step is remembered for a while (`Session.outcomes`).

An update is one command, whose sum over ranks does not depend on who came last (docs/contract.md,
rule 6). A release and a skip are commands too, for they move the session's place.
"""

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from time import monotonic
from typing import Any

import numpy as np

from embstore import commands as c
from embstore.arrays import Rows, is_on_device
from embstore.errors import InvalidArgumentError
from embstore.lookahead.handles import StepOutcome
from embstore.lookahead.registry import Registry
from embstore.lookahead.session import Rank, Session
from embstore.lookahead.step import Attempt, Options, RankShare, Sent, Step, Verb
from embstore.results import AcknowledgedUpdate
from embstore.tables import writes
from embstore.tables.callers import host_rows_of
from embstore.tables.command_log import SessionPlace
from embstore.tables.state import Share
from embstore.tables.tables import Tables

Finish = c.UpdateStep | c.ReleaseStep | c.SkipStep

_VERBS: dict[type[Finish], Verb] = {
    c.UpdateStep: "update",
    c.ReleaseStep: "release",
    c.SkipStep: "skip",
}
_SENT = {"update": "an update", "release": "a release", "skip": "a skip"}


class Finishing:
    """Takes what ranks send to finish steps. Any thread; takes the engine."""

    def __init__(
        self, tables: Tables, registry: Registry, accessed: Callable[[Sequence[Share]], None]
    ) -> None:
        self._tables = tables
        self._registry = registry
        self._planner = registry.planner
        self._accessed = accessed

    def send(self, command: Finish) -> StepOutcome:
        """Take one rank's share, and do the step if it is the last."""
        number, options = command.step, _options_of(command)
        with self._planner.lock:
            session, rank = self._registry.member(command.member)
            outcome = session.remembered(number, options.verb)
            if outcome is not None:
                return StepOutcome(self._planner, session, rank, number, Attempt(outcome))
            found = session.step(number, rank)
            if number != session.last_step + 1:
                raise InvalidArgumentError(
                    f"session {session.name!r}: step {session.last_step + 1} must be updated, "
                    f"released or skipped before step {number}"
                )
        rows = self._gradients(session, found.shares[rank.rank], command)
        with self._planner.lock:
            session.check_live()
            attempt = found.attempt
            is_last = self._take(session, found, rank, Sent(options, rows))
        if is_last:
            self._finish(session, found)
        return StepOutcome(self._planner, session, rank, number, attempt)

    def _take(self, session: Session, step: Step, rank: Rank, sent: Sent) -> bool:
        """Keep a rank's share; say whether the step is to be done now. Under the lock."""
        if step.attempt.is_applied or step.number <= session.last_step:
            return False  # sent again: what became of the first holds
        for other, before in step.sent.items():
            if other != rank.rank and before.options != sent.options:
                error = InvalidArgumentError(
                    f"session {session.name!r}: step {step.number}: rank {other} sent "
                    f"{_described(before.options)}, rank {rank.rank} {_described(sent.options)}; "
                    "all ranks must do the same, and may send again"
                )
                step.refuse(error)
                self._planner.notify()
                raise error
        step.sent[rank.rank] = sent
        step.attempt.is_applied = len(step.sent) == session.facts.world_size
        return step.attempt.is_applied

    def _finish(self, session: Session, step: Step) -> None:
        attempt = step.attempt
        try:
            outcome = self._apply(session, step, step.sent[0].options)
        except BaseException as exc:
            with self._planner.changed:
                step.refuse(exc)
                self._planner.notify()
            raise
        with self._planner.changed:
            attempt.result = outcome
            self._planner.notify()

    def _apply(self, session: Session, step: Step, options: Options) -> AcknowledgedUpdate:
        tables = self._tables
        read_only = tables.storage.read_only and options.verb != "update"
        place = SessionPlace(session.name, step.number)
        logged = _logged(session, step, options) if tables.frame.log is not None else None
        with tables.reading() if read_only else tables.writing(logged, place):
            session.check_live()
            applied = options.verb == "update" and self._update(session, step, options)
            for rank in session.world:
                self._accessed(step.shares[rank].accessed())
            outcome = AcknowledgedUpdate(
                tables.frame.command_number + (not read_only),
                {name: table.t for name, table in session.tables.items()},
                skipped=options.verb == "skip" or (options.verb == "update" and not applied),
            )
            tables.storage.begin_change()
            with self._planner.changed:
                session.finished(step, options.verb, outcome, monotonic())
                tables.note_place(session.name, session.last_step)
            self._planner.retire(session, step)
        return outcome

    def _update(self, session: Session, step: Step, options: Options) -> bool:
        stages = self._tables.stages
        if session.facts.world_size > 1:
            ranks = [step.shares[r].gradient_shares(step.sent[r].gradients) for r in session.world]
            return writes.update_ranks(ranks, options.update, session=session.name, stages=stages)
        share = step.shares[0]
        shares = share.gradient_shares(step.sent[0].gradients)
        if len(shares) < len(share.places):  # the step's batches are of all its tables
            return writes.update_ranks(
                [shares], options.update, session=session.name, stages=stages
            )
        return writes.update_batches(share.batches(shares), shares, options.update, stages=stages)

    def _gradients(self, session: Session, share: RankShare, command: Finish) -> dict[str, Rows]:
        if not isinstance(command, c.UpdateStep):
            return {}
        on_device = any(is_on_device(part.gradients) for part in command.tables)
        is_copied = on_device and session.facts.world_size > 1
        with self._tables.reading() if is_copied else nullcontext():
            return _checked_gradients(session, share, command)


def _logged(session: Session, step: Step, options: Options) -> c.Command[Any] | None:
    """Return a command that does what a step does to the tables; None: nothing."""
    if options.verb != "update":
        return None
    ranks = [
        tuple(
            c.TableGradients(name, session.tables[name].table_id, share.keys_of(name), rows[name])
            for name in share.places
            if name in rows
        )
        for share, rows in ((step.shares[r], step.sent[r].gradients) for r in session.world)
    ]
    if len(ranks) == 1:
        return c.Update(ranks[0], options.update)
    return c.UpdateRanks(tuple(map(c.Rank, ranks)), options.update)


def _options_of(command: Finish) -> Options:
    verb = _VERBS[type(command)]
    return Options(verb, command.options) if isinstance(command, c.UpdateStep) else Options(verb)


def _checked_gradients(
    session: Session, share: RankShare, command: c.UpdateStep
) -> dict[str, Rows]:
    """Return gradients as announced, of some tables; of several ranks a copy, which waits for the
    others'."""
    given = {part.table: part.gradients for part in command.tables}
    if not given.keys() <= share.places.keys():
        raise InvalidArgumentError(
            f"session {session.name!r}: expected gradients of announced tables, of "
            f"{sorted(share.places)}, found {sorted(given)}"
        )
    if session.facts.world_size == 1 and any(map(is_on_device, given.values())):
        return given  # used at once, and looked at there
    rows = {
        name: host_rows_of(session.tables[name], given[name], shape, "gradients")
        for name, shape in share.shapes.items()
        if name in given
    }
    if session.facts.world_size == 1:
        return rows
    for name, of_table in rows.items() if command.options.on_nonfinite == "refuse" else ():
        wrong = np.flatnonzero(~np.isfinite(of_table).all(axis=1))
        if len(wrong):
            raise InvalidArgumentError(
                f"table {name!r}: expected finite gradients, found one that is not, for key "
                f"{share.keys_of(name)[wrong[0]]}; skip the step on all ranks, or give "
                'on_nonfinite="skip"'
            )
    return {name: of_table.copy() for name, of_table in rows.items()}


def _described(options: Options) -> str:
    """Return what a rank sent, for another one to read."""
    sent, how = _SENT[options.verb], options.update
    if options.verb != "update":
        return sent
    rate = "the tables'" if how.learning_rate is None else how.learning_rate
    return (
        f"{sent} with learning_rate {rate}, gradient_scale {how.gradient_scale} and "
        f"on_nonfinite {how.on_nonfinite!r}"
    )
