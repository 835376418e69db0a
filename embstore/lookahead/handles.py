"""What a call about a step waits for: rows that are ready, or the other ranks.

A handle never waits itself. `poll` says how things stand, from any thread, and raises what is in
the way; whoever waits, a thread or an event loop, polls again when the planner has noted a change.
"""

from collections.abc import Mapping
from enum import IntEnum
from time import monotonic

import numpy as np
from numpy.typing import NDArray

from embstore.arrays import Rows
from embstore.engine import Engine
from embstore.errors import InvalidArgumentError
from embstore.feed.bags import StepBags
from embstore.lookahead.planner import Planner
from embstore.lookahead.session import Rank, Session, told_again
from embstore.lookahead.step import Attempt, Part, Positions, RankShare, Step
from embstore.results import AcknowledgedUpdate


class Readiness(IntEnum):
    """How much of a step's rows can be read."""

    WAIT = 0
    EARLY = 1
    """Those that no unfinished earlier step has."""
    READY = 2
    """All."""


class _Handle:
    """What one rank waits for, and how long it has waited for others."""

    def __init__(self, planner: Planner, session: Session, rank: Rank, number: int) -> None:
        self._planner = planner
        self._session = session
        self._rank = rank
        self._number = number
        self._since: float | None = None  # when the others began to be late

    @property
    def timeout_s(self) -> float:
        """How long a call waits that does not say."""
        return self._session.rank_timeout_s

    @property
    def left_s(self) -> float:
        """Seconds after which to poll again, though nothing changes."""
        often = self._session.lease_s / 3
        if self._since is None:
            return often
        patience = self._since + self._session.rank_timeout_s - monotonic()
        return min(often, max(patience, 0.0) + 1e-3)

    def renew(self) -> None:
        """Renew the lease of a rank that waits in this process. Under the lock."""
        self._rank.deadline = monotonic() + self._session.lease_s

    def _check_others(self) -> None:
        """End the session if others have kept this rank waiting for too long. Under the lock."""
        session, now = self._session, monotonic()
        if not session.missing(self._number, self._rank):
            self._since = None
            return
        self._since = self._since or now
        stalled = session.stalled(self._number, self._rank, self._since, now)
        if stalled is not None:
            self._planner.end(session, stalled)
            raise told_again(stalled)


class StepLookup(_Handle):
    """The rows of one rank's share of a step. `gather` and `pool` take the engine."""

    def __init__(
        self, engine: Engine, planner: Planner, session: Session, rank: Rank, step: Step
    ) -> None:
        super().__init__(planner, session, rank, step.number)
        self._engine = engine
        self._step = step
        self._share: RankShare = step.shares[rank.rank]
        self._early: dict[str, Positions] | None = None
        self._began = monotonic()
        self._has_stalled = False

    @property
    def shapes(self) -> dict[str, tuple[int, int]]:
        """The rows of each table in announced order, (u, dim)."""
        return self._share.shapes

    def poll(self) -> Readiness:
        """Say how much can be read now.

        Raises
        ------
        SessionExpiredError, RankFailedError : the session has ended.
        InvalidArgumentError : the step has been finished meanwhile.
        """
        with self._planner.lock:
            self._session.check_live()
            self._session.step(self._number, self._rank)
            self._check_others()
            is_turn = self._number == self._session.last_step + 1
            if not is_turn:
                early = self._step.is_ready and not self._session.facts.shared
                return Readiness.EARLY if early else Readiness.WAIT
            is_ready = self._step.is_ready or self._step.in_parts
            self._note_stall(is_ready)
            return Readiness.READY if is_ready else Readiness.WAIT

    def _note_stall(self, is_ready: bool) -> None:
        """Count a lookup whose turn had come before its rows."""
        figures = self._session.figures
        if is_ready and self._has_stalled:
            figures.stall_s += monotonic() - max(self._began, self._session.turn_since)
            figures.stalls += 1
        self._has_stalled = not is_ready

    def early(self) -> dict[str, Positions]:
        """Return the positions of each table whose rows are final; fixed from the first call on."""
        if self._early is None:
            with self._planner.lock:
                self._early = self._share.final_positions(self._session.last_step)
        return self._early

    def gather(self, positions: Mapping[str, Positions] | None, outs: Mapping[str, Rows]) -> None:
        """Write rows to `outs`, by table (p, dim): of some positions, or of all.

        Early positions may be gathered when poll() has said EARLY, any when it has said READY.
        """
        is_early = positions is not None and positions is self._early
        shapes = self.shapes
        chosen = {
            name: np.arange(shapes[name][0]) if positions is None else positions[name]
            for name in shapes
        }
        with self._engine.reading():
            self._session.check_live()
            missing = [self._gather_part(p, chosen, outs, not is_early) for p in self._share.parts]
        count = sum(len(positions) for positions in chosen.values())
        size = sum(4 * len(chosen[name]) * dim for name, (_, dim) in shapes.items())
        self._count(count, sum(missing), size, is_early=is_early)

    def _gather_part(
        self,
        part: Part,
        chosen: Mapping[str, NDArray[np.integer]],
        outs: Mapping[str, Rows],
        count: bool,
    ) -> int:
        names = [table.name for table in part.tables]
        bounds = part.bounds
        ids = [chosen[name] + bounds[i] for i, name in enumerate(names)]
        rows, slots, batch, missing = part.look_at(ids, count=count)
        dim = part.pool.layout.dim
        part.pool.device.gather(rows, slots, batch, dim, [outs[name] for name in names])
        return missing

    def _count(self, count: int, missing: int, size: int, *, is_early: bool) -> None:
        """Count rows that were read, and their bytes; a lookup that is repeated counts once."""
        figures = self._session.figures
        with self._planner.changed:
            if not is_early:
                self._session.step_ended = 0.0
                self._planner.changed.notify_all()
            if is_early in self._share.counted:
                return
            self._share.counted.add(is_early)
            figures.lookup_keys += count
            figures.prefetched_keys += count if self._step.is_planned else 0
            figures.lookup_hits += max(count - missing, 0)
            if is_early:
                figures.early_rows += count
                figures.early_bytes += size
            else:
                figures.late_rows += count
                figures.late_bytes += size

    def pool(self, bags: Mapping[str, StepBags], outs: Mapping[str, Rows]) -> None:
        """Write the pooled rows of every bag to `outs`, by table (bags, dim). When READY."""
        with self._engine.reading():
            self._session.check_live()
            missing = [self._pool_table(name, b, outs[name]) for name, b in bags.items()]
        count = sum(self.shapes[name][0] for name in bags)
        self._count(count, sum(missing), sum(outs[n].nbytes for n in bags), is_early=False)

    def _pool_table(self, name: str, bags: StepBags, out: Rows) -> int:
        if name not in self._share.places:
            raise InvalidArgumentError(
                f"session {self._session.name!r}: step {self._step.number} has no table {name!r}"
            )
        index, place = self._share.places[name]
        part = self._share.parts[index]
        low, high = part.bounds[place : place + 2].tolist()
        inverse = np.asarray(bags.inverse)
        if len(inverse) and not (0 <= inverse.min() and inverse.max() < high - low):
            raise InvalidArgumentError(
                f"table {name!r}: expected inverse in [0, {high - low}), the announced keys"
            )
        rows, slots, batch, missing = part.look_at([inverse + low], count=True)
        part.pool.device.gather_pooled(
            rows, slots, batch, bags.offsets, bags.mode == "mean", bags.weights, out
        )
        return missing


class StepOutcome(_Handle):
    """What becomes of a step that a rank has sent its share of."""

    def __init__(
        self,
        planner: Planner,
        session: Session,
        rank: Rank,
        number: int,
        attempt: Attempt,
    ) -> None:
        super().__init__(planner, session, rank, number)
        self._attempt = attempt

    def poll(self) -> AcknowledgedUpdate | None:
        """Return what became of the step; None while ranks are missing.

        Raises
        ------
        SessionExpiredError, RankFailedError : the session has ended.
        Exception : what the step was refused with; it is open, for another try or a skip.
        """
        with self._planner.lock:
            if self._attempt.result is not None:
                return self._attempt.result
            if self._attempt.error is not None:
                error = self._attempt.error
                raise type(error)(*error.args) from error
            self._session.check_live()
            self._check_others()
            return None
