"""Scores by next use: in the mode "window", what is needed farthest in the future leaves first.

The rows of a finished step are scored by the next step of the window that has them: Belady's order
within what is known, as BagPipe does it. Rows of no announced step leave first, by the pool's
policy. Time is counted in finished steps of all sessions, so that the scores of theirs compare.
"""

import numpy as np
from numpy.typing import NDArray

from embstore.lookahead.session import Session
from embstore.lookahead.step import Step
from embstore.score import CLOCK_MASK, FORESEEN


class NextUses:
    """The scores of all sessions' rows. Engine thread."""

    def __init__(self) -> None:
        self._time = 0  # finished steps of all sessions

    def finish(self, session: Session, step: Step) -> None:
        """Score the rows of a finished step, whose pins are still there."""
        self._time += 1
        if not session.mode.by_next_use or not step.is_planned:
            return
        with session.uses_lock:
            next_uses = session.uses.next_uses(step.number)
        if step.inverse is not None:
            next_uses = next_uses[step.inverse]
        low = 0
        for part in step.parts:
            uses = next_uses[low : low + part.key_count]
            low += part.key_count
            if part.pins is not None:
                scores = part.pool.scores
                scores.touch(part.pins.slots, len(uses))
                if scores.has_lost_levels:  # a rank by next use has taken their place
                    keys = part.pool.device.memory.download(part.batch().unique_keys)
                    scores.rank_again(part.pins.slots, keys)
                scores.foresee(part.pins.slots, self._scores(session, uses))

    def await_room(self, session: Session, step: Step) -> None:
        """Score the resident rows of a step that must wait for room by its number."""
        if not session.mode.by_next_use:
            return
        for part in step.parts:
            keys = part.batch().unique_keys
            slots, _ = part.pool.finder.locate(keys)
            part.pool.scores.foresee(slots, self._scores(session, np.full(len(keys), step.number)))

    def forget(self, session: Session) -> None:
        """Score the rows of a session that has ended by their policy again."""
        if not session.mode.by_next_use:
            return
        for pool in {id(t.pool): t.pool for t in session.tables.values()}.values():
            pool.scores.forget_foreseen()
            pool.residency.rank_again()

    def _scores(self, session: Session, next_uses: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return scores by which the farthest next use leaves first; -1: none is known."""
        times = self._time + next_uses - session.last_step
        return np.where(next_uses > 0, FORESEEN | (CLOCK_MASK - times), -1)
