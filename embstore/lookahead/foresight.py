"""Foresight: of the rows of announced steps, the row that is needed last leaves the cache first.

A row's next use is known from the moment its step is announced, long before the step is planned,
because only keys are needed to know it. Therefore every row in the cache that an announced step
will use gets a score that depends on the first such step. All other rows leave before these rows,
in the order of the pool's policy. This is Belady's rule within the announced steps.

A step has its turn when all earlier steps are finished. Its rows are read before its turn, and a
choice of victims at that time is based on less knowledge than a choice at the turn. Two limits keep
early choices from costing additional reads:

- Steps are planned late, but early enough that their rows arrive in time (`Session.near_step`).
- A step that is planned ahead of its turn gets only the slots that it would get at its turn. At its
  turn the steps before it are finished, and the rows of these steps can leave too. If one of these
  rows is a better victim than the rows that can leave now, the step waits: otherwise it would evict
  rows that are needed sooner.

The second limit holds for announced uses. A step does not wait for better victims among rows
without an announced use, because the policy only guesses which of these rows are needed first.
(Under `rank` most rows of a step are of the lowest level; if steps waited for these rows, no row
would be read ahead.) In the mode "window" a step that is planned ahead can get the slot of every
row whose next use is after the step. This hides more time if reads are slow, but reads more rows.

The number of reads was simulated, with slots for 1.9 to 7.4 steps and 16 announced steps, and
divided by the number of reads that Belady's choice at each step's turn makes. With up to four steps
planned ahead, the quotient was 1.00 to 1.03 (under `rank` 1.00 to 1.06). Without the second limit
it was 1.18 if two steps hardly fit; without the first limit it was 1.7 in a loop.

The rows of a step are not ranked if no row is about to leave the pool, that is, if two conditions
hold: no row has ever left the pool; and the pool contains all rows of the step or has room for all
announced rows. The **rank** of a row is the time of its next use, counted in finished steps of all
sessions, so that the ranks of rows of different sessions are comparable. A call that touches a
ranked row gives it the score of a row that was just used, until the step that uses the row ends.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embstore.cache.pool import Pool
from embstore.cache.prefetch import Prefetch, Use
from embstore.errors import StoreClosedError
from embstore.lookahead.session import Session
from embstore.lookahead.step import Part, Step
from embstore.score import CLOCK_MASK, FORESEEN, NO_USE, PIN_ONE, RANK_SHIFT, UNCHANGED

Steps = NDArray[np.int64]


class Foresight:
    """Ranks the rows of all sessions by their next use. Engine thread only."""

    def __init__(self, prefetch: Callable[[Pool], Prefetch]) -> None:
        """Begin with no ranks. `prefetch` returns the `Prefetch` of a pool, which finds the pool's
        rows."""
        self._prefetch = prefetch
        self._time = 0  # finished steps of all sessions
        self._asked: tuple[Any, ...] = ()
        self._answer = Use(0, 0)

    def close(self) -> None:
        """Stop ranking, and drop the reference to the planner's objects."""
        self._prefetch = _closed

    def note(self, session: Session, step: Step) -> None:
        """Rank the rows of an announced step: those that are in the cache and that no earlier
        unfinished step uses."""
        for part in step.parts:
            assert part.previous is not None, "it is noted"
            found = self._prefetch(part.pool).find(part.batch())
            window = session.facts.lookahead_steps_max * part.key_count
            may_fit = not found.missing or part.pool.room >= window
            part.is_ranked = part.pool.counters.has_evicted or not may_fit
            if not part.is_ranked or found.missing == part.key_count:
                continue
            is_next = part.previous <= session.last_step
            ranks = np.where(is_next, self._rank(session, step.number), UNCHANGED)
            part.pool.scores.foresee(found.slots, ranks)

    def finish(self, session: Session, step: Step) -> None:
        """Rank the rows of a finished step by their next use. Call this before the step's pins are
        released."""
        self._time += 1
        with session.uses_lock:
            is_noted = step.is_noted
        if not is_noted:
            return  # finished before it was noted: no trainer looked it up
        for part, next_uses in self._next_uses(session, step):
            if not (part.is_ranked or part.pool.counters.has_evicted):
                continue
            if part.pins is not None:
                slots = part.pins.slots
            else:
                slots, _ = part.pool.finder.locate(part.batch().unique_keys)
            ranks = CLOCK_MASK - (self._time + next_uses - session.last_step)
            part.pool.scores.foresee(slots, np.where(next_uses > 0, ranks, NO_USE))

    def rank_again(self, session: Session, step: Step) -> None:
        """Rank the rows of a step that loses its pins; rows that were read for the step have no
        rank yet."""
        for part in step.parts:
            if part.pins is not None:
                ranks = np.full(part.key_count, self._rank(session, step.number))
                part.pool.scores.foresee(part.pins.slots, ranks)

    def forget(self, parts: Iterable[Part]) -> None:
        """For a step that will never be done: give its rows ordinary scores, those of rows that
        were just touched."""
        for part in parts:
            slots, missing = part.pool.finder.locate(part.batch().unique_keys)
            if missing < len(slots):
                part.pool.scores.foresee(slots, np.full(len(slots), NO_USE))

    def use(self, session: Session, step: Step, pool: Pool) -> Use:
        """Return the rank of a step's rows in a pool, and a ceiling: to make room for these rows
        now, only rows with scores below the ceiling may be evicted."""
        named = session.name, session.opened, id(pool)
        asked = *named, step.number, session.last_step, session.noted_step, self._time
        if asked != self._asked:  # the same for the parts of all trainers
            self._asked, self._answer = asked, self._found_use(session, step, pool)
        return self._answer

    def _found_use(self, session: Session, step: Step, pool: Pool) -> Use:
        rank = self._rank(session, step.number)
        if step.number == session.last_step + 1:
            return Use(rank, PIN_ONE)
        if session.mode.is_deep:
            return Use(rank, _score(rank))
        return Use(rank, self._best_rank_before(session, step, pool))

    def _best_rank_before(self, session: Session, step: Step, pool: Pool) -> int:
        """Return the lowest score that a row of the steps before `step` can have at the turn of
        `step`, when these steps are finished. Rows that `step` uses too do not count. If one of the
        rows has no next use, return FORESEEN."""
        farthest = step.number
        for number in range(session.last_step + 1, step.number):
            before = session.steps.get(number)
            for part, uses in self._next_uses(session, before) if before else ():
                if part.pool is not pool or not len(uses):
                    continue
                if not uses.all():
                    return FORESEEN
                farthest = max(farthest, int(uses.max()))
        return _score(self._rank(session, farthest))

    def _next_uses(self, session: Session, step: Step) -> Iterator[tuple[Part, Steps]]:
        with session.uses_lock:
            spaces = {part.pool.row_keys for part in step.parts}
            found = {own: session.uses[own].next_uses(step.number).copy() for own in spaces}
        return step.by_part(found)

    def _rank(self, session: Session, number: int) -> int:
        return CLOCK_MASK - (self._time + number - session.last_step)


def _closed(pool: Pool) -> Prefetch:
    raise StoreClosedError("the store is closed")


def _score(rank: int) -> int:
    """Return the lowest score of a row with this rank."""
    return FORESEEN | rank << RANK_SHIFT
