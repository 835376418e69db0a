"""Foresight: rows needed farthest in the future leave first, as far as steps are announced.

A row's next use is known from the moment its step is announced, long before it is planned; only
keys have travelled by then. Therefore all rows in the cache that an announced step will use are
scored by the first such step. The others leave before them, by the pool's policy. That is Belady's
rule within the announced steps.

Rows are brought in ahead of their step's turn, and every choice made ahead knows less than one at
the turn itself. Two limits keep it from costing reads:

- Steps are planned as late as their rows can still be there in time (`Session.near_step`).
- Ahead of its turn a step gets only the slots that it would get at its turn. By then the steps
  before it are finished, and their rows could leave too. Where one of those is a better victim than
  the rows that could leave now, the step waits: otherwise it would push out rows that are needed
  sooner.

The second limit holds for announced uses. For rows without one the policy only guesses which are
needed first; those that can leave now leave. (Under `rank` most rows of a step are of the lowest
level, and waiting for them would bring nothing in ahead.) In the mode "window" a step ahead gets
the slot of any row that is needed after it: more is hidden where reads are slow, and more is read.

Measured by simulation, 1.9 to 7.4 steps of slots, 16 announced, as multiples of what Belady's
choice at each step's turn would read: 1.00 to 1.03 with up to four steps ahead, 1.00 to 1.06 under
`rank`; without the second limit 1.18 where two steps hardly fit, and without the first 1.7 in a
loop.

A pool that no row has ever left, and that has room for all announced rows or lacks none of them,
ranks no rows: nothing is about to leave. Time is counted in finished steps of all sessions, so that
ranks of theirs compare. A call that touches a foreseen row ends its foresight: the row is treated
as any other that was just used, until its step ends.
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
    """The ranks of all sessions' rows. Engine thread, but `use`."""

    def __init__(self, prefetch: Callable[[Pool], Prefetch]) -> None:
        """Rank rows that a pool's prefetch finds, and will look for again."""
        self._prefetch = prefetch
        self._time = 0  # finished steps of all sessions
        self._asked: tuple[Any, ...] = ()
        self._answer = Use(0, 0)

    def close(self) -> None:
        """Rank no more, and refer to nothing that plans."""
        self._prefetch = _closed

    def note(self, session: Session, step: Step) -> None:
        """Rank the resident rows of an announced step that no unfinished step before it has."""
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
        """Rank the rows of a finished step, whose pins are still there, by their next use."""
        self._time += 1
        with session.uses_lock:
            is_noted = step.is_noted
        if not is_noted:
            return  # no rank has asked for it, and it was finished at once
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
        """Rank the rows of a step that loses its pins: those that came with it never were."""
        for part in step.parts:
            if part.pins is not None:
                ranks = np.full(part.key_count, self._rank(session, step.number))
                part.pool.scores.foresee(part.pins.slots, ranks)

    def forget(self, parts: Iterable[Part]) -> None:
        """Rank rows of a step that will not be done as touched now."""
        for part in parts:
            slots, missing = part.pool.finder.locate(part.batch().unique_keys)
            if missing < len(slots):
                part.pool.scores.foresee(slots, np.full(len(slots), NO_USE))

    def use(self, session: Session, step: Step, pool: Pool) -> Use:
        """Return the rank of a step's rows in a pool, and which scores may leave for them now."""
        named = session.name, session.opened, id(pool)
        asked = *named, step.number, session.last_step, session.noted_step, self._time
        if asked != self._asked:  # ranks have a part each, and ask the same
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
        """Return the lowest score that a row of the unfinished steps before a step can have at its
        turn, if it is not the step's own; a row without an announced use has FORESEEN."""
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
    """Return the lowest score of a rank."""
    return FORESEEN | rank << RANK_SHIFT
