"""How a step ends: each rank sends its share, and with the last one the step is done.

All ranks must send the same verb with the same options; ranks that contradict each other are all
told so, and the step is open again, as it is when its update is refused. A rank may send again what
it has sent, and something else as long as the step is not being done. What a finished step was told
is remembered for a while (`Session.outcomes`).

An update is one command, whose sum over ranks does not depend on who came last (contract.md, rule
6). A release and a skip are commands too, for they move the session's place.
"""

from collections.abc import Mapping
from time import monotonic
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from embstore import writes
from embstore.arrays import Rows, as_rows
from embstore.engine import Engine
from embstore.errors import InvalidArgumentError
from embstore.lookahead.announcing import mapping, step_number
from embstore.lookahead.handles import StepOutcome
from embstore.lookahead.registry import Registry
from embstore.lookahead.session import Rank, Session
from embstore.lookahead.step import Attempt, Options, RankShare, Sent, Step
from embstore.results import AcknowledgedUpdate

_SAID = {"update": "an update", "release": "a release", "skip": "a skip"}


class Finishing:
    """Takes what ranks send to finish steps. Any thread; takes the engine."""

    def __init__(self, engine: Engine, registry: Registry) -> None:
        self._engine = engine
        self._registry = registry
        self._planner = registry.planner

    def send(
        self, member: str, step: int, options: Options, gradients: Mapping[str, ArrayLike]
    ) -> StepOutcome:
        """Take one rank's share, and do the step if it is the last.

        Raises
        ------
        StepNotFoundError : the step was not announced.
        InvalidArgumentError : it is not its turn, or was finished otherwise; shapes, options; a sum
            that is not finite. The step is open.
        """
        number = step_number(step)
        with self._planner.lock:
            session, rank = self._registry.member(member)
            told = session.remembered(number, options.verb)
            if told is not None:
                return StepOutcome(self._planner, session, rank, number, Attempt(told))
            found = session.step(number, rank)
            _check_turn(session, found)
        rows = _checked_gradients(session, found.shares[rank.rank], options, gradients)
        with self._planner.lock:
            session.check_live()
            attempt = found.attempt
            is_last = self._take(session, found, rank, Sent(options, rows))
        if is_last:
            self._finish(session, found)
        return StepOutcome(self._planner, session, rank, number, attempt)

    def _take(self, session: Session, step: Step, rank: Rank, sent: Sent) -> bool:
        """Keep a rank's share; say whether the step is to be done now. Under the lock."""
        if step.is_finishing or step.number <= session.last_step:
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
        return len(step.sent) == session.facts.world_size

    def _finish(self, session: Session, step: Step) -> None:
        attempt = step.attempt
        try:
            with self._planner.lock:
                if step.is_finishing:
                    return  # by another rank's thread, which found all shares there as well
                step.is_finishing = True
            told = self._apply(session, step, step.sent[0].options)
        except BaseException as exc:
            with self._planner.changed:
                step.refuse(exc)
                self._planner.notify()
            raise
        with self._planner.changed:
            attempt.result = told
            self._planner.notify()

    def _apply(self, session: Session, step: Step, options: Options) -> AcknowledgedUpdate:
        engine = self._engine
        read_only = engine.storage.read_only and options.verb != "update"
        with engine.reading() if read_only else engine.writing():
            session.check_live()
            applied = options.verb == "update" and self._update(session, step, options)
            for rank in session.world:
                engine.frequencies.note(step.shares[rank].accessed())
            told = AcknowledgedUpdate(
                engine.command_number + (not read_only),
                {name: table.t for name, table in session.tables.items()},
                skipped=options.verb == "skip" or (options.verb == "update" and not applied),
            )
            with self._planner.changed:
                session.finished(step, options.verb, told, monotonic())
                self._registry.note_place(session)
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
        batches = share.batches(gradients)
        return writes.update_batches(batches, share.gradient_shares(gradients), **how)


def _check_turn(session: Session, step: Step) -> None:
    if step.number != session.last_step + 1:
        raise InvalidArgumentError(
            f"session {session.name!r}: step {session.last_step + 1} must be updated, released or "
            f"skipped before step {step.number}"
        )


def _checked_gradients(
    session: Session, share: RankShare, options: Options, gradients: Mapping[str, ArrayLike]
) -> dict[str, Rows]:
    """Return gradients as announced; of several ranks a copy, which waits for the others'."""
    if options.verb != "update":
        return {}
    given = mapping(gradients, "gradients")
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


def _described(options: Options) -> str:
    """Return what a rank said, for another one to read."""
    said = _SAID[options.verb]
    if options.verb != "update":
        return said
    rate = "the tables'" if options.learning_rate is None else options.learning_rate
    return (
        f"{said} with learning_rate {rate}, gradient_scale {options.gradient_scale} and "
        f"on_nonfinite {options.on_nonfinite!r}"
    )
