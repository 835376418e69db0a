"""Noting: the planner learns the rows of a step as soon as every rank has announced the step.

For each row of a noted step the planner knows the previous step that uses the row. The step's rows
in the cache are scored by the time of the step (foresight.py). When a session ends, the rows of its
steps get ordinary scores again, one step at a time. The planner's thread does this work.
"""

import threading
from collections.abc import Iterable
from contextlib import suppress
from time import perf_counter

from embstore.cache.prefetch import Work
from embstore.errors import CapacityError
from embstore.lookahead.foresight import Foresight
from embstore.lookahead.session import Session
from embstore.lookahead.step import Event, Step
from embstore.tables.tables import Tables


class Noting:
    """Notes the steps of all live sessions, in the order of their turns."""

    def __init__(
        self, tables: Tables, foresight: Foresight, work: Work, lock: threading.RLock
    ) -> None:
        self._lock = lock
        self._tables = tables
        self._foresight = foresight
        self._work = work
        self._stale: list[Step] = []  # steps of ended sessions, whose rows are still ranked

    def next(self, sessions: Iterable[Session]) -> Session | None:
        """Of the steps that each session would note next, find the step that is nearest to its
        turn; return its session. Under the lock."""
        due = [
            session
            for session in sessions
            if session.error is None
            and session.announced_by_all(session.noted_step + 1)
            and (session.noted_step == session.last_step or not session.is_between_steps)
        ]
        return min(due, key=lambda session: session.noted_step - session.last_step, default=None)

    def note(self, session: Session) -> None:
        """Note the next step of a session, unless its trainer has already finished the step."""
        number = session.noted_step + 1
        step = session.steps.get(number)
        if step is None:
            return
        named = step.note_keys()
        with session.uses_lock:
            if number <= session.last_step:
                return
            previous = {own: session.uses[own].note(keys, number) for own, keys in named.items()}
            step.is_noted = True
        for part, steps in step.by_part(previous):
            part.previous = steps
        with self._tables.background():
            with self._lock:
                step.move(Event.NOTE)
                session.noted_step = max(session.noted_step, number)
            begun = perf_counter()
            if session.error is None and number > session.last_step:
                self._foresight.note(session, step)
            self._work.seconds["note"] += perf_counter() - begun

    @property
    def has_stale(self) -> bool:
        """Whether rows are scored by steps that will never be done."""
        return bool(self._stale)

    def end(self, session: Session) -> None:
        """Register the steps of an ended session for `forget`. Engine thread."""
        self._stale += [step for step in session.steps.values() if step.is_noted]

    def forget(self) -> None:
        """Give the rows of one registered step ordinary scores again."""
        with self._tables.background():
            step = self._stale.pop()
            pools = [id(pool) for pool in self._tables.pools.values()]
            with suppress(CapacityError):  # ranks are hints
                self._foresight.forget(part for part in step.parts if id(part.pool) in pools)
