"""The end of a step: each rank sends its share, and the share that arrives last finishes the step.

A rank's share is a command (an update with gradients, a release or a skip) with options, which must
be the same for all ranks. If the commands or options of two ranks differ, all ranks get an error,
and the step is open again, as after an update that is refused. A rank can repeat its share, and can
replace the share until the step is being applied. The outcome of a finished step is remembered for
a while (`Session.outcomes`).

An update is one command. Its sum over ranks does not depend on the order in which the ranks' shares
arrive (docs/contract.md, rule 6). A release or a skip is a command too, because it advances the
session's resume position.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import replace
from operator import index
from time import monotonic
from typing import Any

import numpy as np

from embstore import commands as c
from embstore.arrays import SPARSE_ROWS, Rows, is_on_device, refusal
from embstore.errors import EmbstoreError, InvalidArgumentError, ReplicaMismatchError
from embstore.lookahead.handles import StepOutcome
from embstore.lookahead.rank_sums import summed
from embstore.lookahead.records import check_rows
from embstore.lookahead.registry import Registry
from embstore.lookahead.session import Rank, Session
from embstore.lookahead.step import Attempt, KeptSums, Options, RankShare, Sent, Step, Verb
from embstore.results import AcknowledgedUpdate, Place
from embstore.step_sums import summed_part
from embstore.tables import writes
from embstore.tables.callers import host_rows_of
from embstore.tables.frame import LATER
from embstore.tables.logged import SessionPlace
from embstore.tables.state import Share, TableState
from embstore.tables.summed import logging
from embstore.tables.tables import Tables

Finish = c.UpdateStep | c.ReleaseStep | c.SkipStep

_VERBS: dict[type[Finish], Verb] = {
    c.UpdateStep: "update",
    c.ReleaseStep: "release",
    c.SkipStep: "skip",
}
_SENT = {"update": "an update", "release": "a release", "skip": "a skip"}


class Finishing:
    """Receives the shares by which ranks finish steps. Any thread. Takes the engine."""

    def __init__(
        self, tables: Tables, registry: Registry, accessed: Callable[[Sequence[Share]], None]
    ) -> None:
        self._tables = tables
        self._registry = registry
        self._planner = registry.planner
        self._accessed = accessed

    def send(self, command: Finish) -> StepOutcome:
        """Receive one rank's share, and finish the step if the share is the last."""
        number, update = command.step, command if isinstance(command, c.UpdateStep) else None
        verb = _VERBS[type(command)]
        options = Options(verb) if update is None else Options(verb, update.options)
        with self._planner.lock:
            session, rank = self._registry.member(command.member)
            outcome = session.remembered(number, verb)
            if outcome is not None:
                return StepOutcome(self._planner, session, rank, number, Attempt(outcome))
            found = session.step(number, rank)
            if number != session.last_step + 1:
                raise InvalidArgumentError(
                    f"session {session.name!r}: step {session.last_step + 1} must be updated, "
                    f"released or skipped before step {number}"
                )
        sent = Sent(options, {})
        if update is not None:
            sent = self._sent(session, found.shares[rank.rank], update, options)
        with self._planner.lock:
            session.check_live()
            attempt = found.attempt
            is_last = self._take(session, found, rank, sent)
        if is_last:
            self._finish(session, found)
        return StepOutcome(self._planner, session, rank, number, attempt)

    def _take(self, session: Session, step: Step, rank: Rank, sent: Sent) -> bool:
        """Keep a rank's share; return whether the step must be applied now. Under the lock."""
        if step.attempt.is_applied or step.number <= session.last_step:
            return False  # a repeated share: the outcome of the first share counts
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
        step.attempt.is_applied = session.is_sent_by_all(step)
        return step.attempt.is_applied

    def finish_sent(self, session: Session) -> None:
        """Finish the current step if it waits only for ranks that announce no more steps."""
        with self._planner.lock:
            step = session.steps.get(session.last_step + 1)
            if step is None or step.attempt.is_applied or not session.is_sent_by_all(step):
                return
            step.attempt.is_applied = True
        with suppress(EmbstoreError):  # the ranks of the step get the error
            self._finish(session, step)

    def _finish(self, session: Session, step: Step) -> None:
        attempt = step.attempt
        try:
            outcome = self._apply(session, step, next(iter(step.sent.values())).options)
        except BaseException as exc:
            with self._planner.changed:
                step.refuse(exc)
                if isinstance(exc, ReplicaMismatchError):
                    self._planner.end(session, exc)
                self._planner.notify()
            raise
        with self._planner.changed:
            attempt.result = outcome
            self._planner.notify()

    def _apply(self, session: Session, step: Step, options: Options) -> AcknowledgedUpdate:
        tables = self._tables
        read_only = tables.storage.read_only and options.verb != "update"
        bound = {name: table.table_id for name, table in session.tables.items()}
        place = SessionPlace(session.name, Place(step.number, bound))
        is_finite = all(sent.is_finite is not False for sent in step.sent.values())
        is_update = options.verb == "update" and is_finite
        logged = self._logged(session, step, options) if is_update else None
        with tables.reading() if read_only else tables.writing(logged, place):
            session.check_live()
            check_rows(session, step)
            applied = is_update and self._update(session, step, options, logged is LATER)
            if options.verb == "update" and not is_finite:
                names = (name for sent in step.sent.values() for name in sent.gradients)
                writes.count_skipped(session.tables[name] for name in names)
            for rank in sorted(step.shares):
                self._accessed(step.shares[rank].accessed())
            number = tables.frame.command_number + (not read_only)
            outcome = AcknowledgedUpdate(
                number,
                {name: table.t for name, table in session.tables.items()},
                skipped=options.verb == "skip" or (options.verb == "update" and not applied),
            )
            tables.storage.begin_change()
            with self._planner.changed:
                session.finished(step, options.verb, outcome, monotonic())
                tables.note_place(session.name, replace(place.place, command=number))
            self._planner.retire(session, step)
        return outcome

    def _logged(self, session: Session, step: Step, options: Options) -> Any:
        """Return an update as a command for the command log; or LATER, if the update can only be
        logged when its sums have been computed; or None, if there is no command log."""
        if self._tables.frame.log is None:
            return None
        parts = [part for sent in step.sent.values() for part in sent.gradients.values()]
        is_summed = any(p.inverse is not None or is_on_device(p.gradients) for p in parts)
        if is_summed and len(step.sent) == 1:
            return LATER
        return _logged(session, step, options)

    def _update(self, session: Session, step: Step, options: Options, is_later: bool) -> bool:
        stages = self._tables.stages
        if session.facts.world_size > 1:
            ranks = [
                step.shares[r].gradient_shares(step.sent[r].gradients) for r in sorted(step.sent)
            ]
            return writes.update_ranks(ranks, options.update, session=session.name, stages=stages)
        share, gradients = step.shares[0], step.sent[0].gradients
        shares = share.gradient_shares(gradients)
        parts = share.batches(shares, gradients)
        summed = logging(self._tables.frame, shares, options.update) if is_later else None
        return writes.update(
            shares, options.update, stages=stages, parts=parts, session=session.name, summed=summed
        )

    def _sent(
        self, session: Session, share: RankShare, command: c.UpdateStep, options: Options
    ) -> Sent:
        on_device = any(is_on_device(part.gradients) for part in command.tables)
        is_copied = on_device and session.facts.world_size > 1
        is_logged = self._tables.frame.log is not None
        with self._tables.reading() if is_copied else nullcontext():
            gradients = _checked_gradients(session, share, command, is_logged=is_logged)
        checksum = command.rows_checksum
        checksum = None if checksum is None else index(checksum)
        return Sent(options, gradients, checksum, command.is_finite)


def _logged(session: Session, step: Step, options: Options) -> c.Command[Any]:
    """Return a command with the same effect on the tables as the update of a step."""
    ranks = [
        tuple(
            c.TableGradients(
                name,
                session.tables[name].table_id,
                share.keys_with_gradients(parts[name]),
                parts[name].gradients,
            )
            for name in share.places
            if name in parts
        )
        for share, parts in ((step.shares[r], step.sent[r].gradients) for r in sorted(step.sent))
    ]
    if len(ranks) == 1:
        return c.Update(ranks[0], options.update)
    return c.UpdateRanks(tuple(map(c.Rank, ranks)), options.update)


def _checked_gradients(
    session: Session, share: RankShare, command: c.UpdateStep, *, is_logged: bool
) -> Mapping[str, c.StepGradients | KeptSums]:
    """Return the checked gradients of some tables, in announced order.

    With several ranks, the returned gradients are kept until the other ranks' gradients arrive.
    Therefore they are copies of the caller's arrays, or sums that the device has computed from
    these arrays.
    """
    given = {part.table: part for part in command.tables}
    unknown = sorted(command.options.learning_rates.keys() - session.tables.keys())
    if unknown:
        raise InvalidArgumentError(
            f"session {session.name!r}: expected learning rates of its tables, of "
            f"{sorted(session.tables)}, found {unknown}"
        )
    if command.is_finite is False and command.options.on_nonfinite == "refuse":
        raise InvalidArgumentError(
            f"session {session.name!r}: expected finite gradients, found that those for other "
            "shards are not"
        )
    if not given.keys() <= share.places.keys():
        raise InvalidArgumentError(
            f"session {session.name!r}: expected gradients of announced tables, of "
            f"{sorted(share.places)}, found {sorted(given)}"
        )
    for part in command.tables:
        _check_positions(part, len(share.keys_of(part.table)))
    is_there, kept = any(is_on_device(p.gradients) for p in command.tables), None
    if is_there and session.facts.world_size == 1:
        return given  # used at once, and checked when used
    if is_there and share.parts[0].pool.device.is_queued:
        kept, may_be_refused = summed(share, given, to_host=is_logged)
        if not may_be_refused:
            return kept
    checked = {
        name: replace(given[name], gradients=_on_host(session.tables[name], share, given[name]))
        for name in share.places
        if name in given
    }
    if session.facts.world_size == 1:
        return checked
    for name, part in checked.items() if command.options.on_nonfinite == "refuse" else ():
        wrong = np.flatnonzero(~np.isfinite(part.gradients).all(axis=1))
        if len(wrong):
            unsigned = int(share.keys_with_gradients(part)[wrong[0]]) & SPARSE_ROWS
            raise InvalidArgumentError(
                f"table {name!r}: expected finite gradients, found one that is not, for key "
                f'{unsigned}; skip the step on all ranks, or give on_nonfinite="skip"'
            )
    return kept or {name: _kept(part, len(share.keys_of(name))) for name, part in checked.items()}


def _kept(part: c.StepGradients, count: int) -> c.StepGradients:
    """Return a copy of a rank's gradients, one per key. The copy is kept until the other ranks'
    gradients arrive."""
    if part.inverse is not None:
        return summed_part(part, count)
    positions = None if part.positions is None else part.positions.copy()
    return replace(part, gradients=part.gradients.copy(), positions=positions)


def _check_positions(part: c.StepGradients, count: int) -> None:
    positions, inverse = part.positions, part.inverse
    if positions is not None and len(positions) and positions[-1] >= count:
        expected = f"positions below {count}, the number of announced keys"
        raise refusal(part.table, expected, positions[-1])
    if inverse is not None and len(inverse) and inverse.max() >= count:
        raise refusal(part.table, f"inverse in [0, {count}), the announced keys", inverse.max())


def _on_host(table: TableState, share: RankShare, part: c.StepGradients) -> Rows:
    bags = part.bags
    count = len(share.keys_with_gradients(part)) if bags is None else len(bags.offsets) - 1
    return host_rows_of(table, part.gradients, (count, table.dim), "gradients")


def _described(options: Options) -> str:
    """Return a description of a rank's share, for the error of another rank."""
    sent, how = _SENT[options.verb], options.update
    if options.verb != "update":
        return sent
    every = "the tables'" if how.learning_rate is None else how.learning_rate
    rate = how.learning_rates or every
    return (
        f"{sent} with learning_rate {rate}, gradient_scale {how.gradient_scale} and "
        f"on_nonfinite {how.on_nonfinite!r}"
    )
