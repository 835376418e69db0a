"""What a call about a step waits for: rows that are ready, or the other ranks.

A handle never waits itself. `poll` says how things stand, from any thread, and raises what is in
the way; whoever waits, a thread or an event loop, polls again when the planner has noted a change.
"""

from collections.abc import Callable, Mapping
from enum import IntEnum
from time import monotonic

import numpy as np
from numpy.typing import NDArray

from embstore.arrays import Rows
from embstore.engine import Engine
from embstore.errors import EmbstoreError, InvalidArgumentError
from embstore.feed.bags import StepBags
from embstore.lookahead.planner import Planner
from embstore.lookahead.session import Rank, Session
from embstore.lookahead.step import Attempt, Part, Positions, RankShare, Step
from embstore.results import AcknowledgedUpdate


class Readiness(IntEnum):
    """How much of a step's rows can be read."""

    WAIT = 0
    EARLY = 1
    """Those that no unfinished earlier step has."""
    READY = 2
    """All."""


class _Patience:
    """How long a rank has waited for others."""

    def __init__(self, session: Session, rank: Rank) -> None:
        self._session = session
        self._rank = rank
        self._since: float | None = None

    def check(self, number: int, fail: Callable[[Session, EmbstoreError], None]) -> None:
        """End the session if others have kept this rank waiting for too long. Under the lock.

        A rank that waits is there: its lease is renewed.
        """
        session, rank, now = self._session, self._rank, monotonic()
        rank.deadline = now + session.lease_s
        if not session.missing(number, rank):
            self._since = None
            return
        self._since = self._since or now
        stalled = session.stalled(number, rank, self._since, now)
        if stalled is not None:
            fail(session, stalled)
            raise stalled

    @property
    def left_s(self) -> float:
        """Seconds until the lease wants to be renewed, or patience ends."""
        renewal = self._session.lease_s / 3
        if self._since is None:
            return renewal
        patience = self._since + self._session.rank_timeout_s - monotonic()
        return min(renewal, max(patience, 0.0) + 1e-3)


class StepLookup:
    """The rows of one rank's share of a step. `gather` and `pool` take the engine."""

    def __init__(
        self, engine: Engine, planner: Planner, session: Session, rank: Rank, step: Step
    ) -> None:
        self._engine = engine
        self._planner = planner
        self._session = session
        self._rank = rank
        self._step = step
        self._share: RankShare = step.shares[rank.rank]
        self._early: dict[str, Positions] | None = None
        self._patience = _Patience(session, rank)
        self._began = monotonic()
        self._was_ready = False

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
            number = self._step.number
            self._session.step(number, self._rank)
            self._patience.check(number, self._planner.end)
            readiness = self._readiness(number)
            if readiness is Readiness.READY and not self._was_ready:
                self._was_ready = True
                self._session.figures.stall_s += monotonic() - self._began
                self._session.figures.stalls += 1
            return readiness

    def _readiness(self, number: int) -> Readiness:
        session, step = self._session, self._step
        if number == session.last_step + 1 and (step.is_ready or step.in_parts):
            return Readiness.READY
        early = step.is_ready and not session.facts.shared
        return Readiness.EARLY if early else Readiness.WAIT

    @property
    def timeout_s(self) -> float:
        """How long a call waits that does not say."""
        return self._session.rank_timeout_s

    @property
    def left_s(self) -> float:
        """Seconds after which to poll again, though nothing changes."""
        return self._patience.left_s

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
        self._count(chosen, sum(missing), is_early=is_early)

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

    def _count(
        self, chosen: Mapping[str, NDArray[np.integer]], missing: int, *, is_early: bool
    ) -> None:
        count = sum(len(positions) for positions in chosen.values())
        size = sum(4 * len(chosen[n]) * dim for n, (_, dim) in self.shapes.items())
        figures = self._session.figures
        with self._planner.changed:
            if not is_early:
                self._session.step_ended = 0.0
                self._planner.changed.notify_all()
            figures.lookup_keys += count
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
            for name, of_table in bags.items():
                self._pool_table(name, of_table, outs[name])
        self._count({name: np.arange(u) for name, (u, _) in self.shapes.items()}, 0, is_early=False)

    def _pool_table(self, name: str, bags: StepBags, out: Rows) -> None:
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
        rows, slots, batch, _ = part.look_at([inverse + low], count=True)
        part.pool.device.gather_pooled(
            rows, slots, batch, bags.offsets, bags.mode == "mean", bags.weights, out
        )


class StepOutcome:
    """What becomes of a step that a rank has sent its share of."""

    def __init__(
        self,
        planner: Planner,
        session: Session,
        rank: Rank,
        number: int,
        attempt: Attempt,
    ) -> None:
        self._planner = planner
        self._session = session
        self._number = number
        self._attempt = attempt
        self._patience = _Patience(session, rank)

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
            self._patience.check(self._number, self._planner.end)
            return None

    @property
    def timeout_s(self) -> float:
        """How long a call waits that does not say."""
        return self._session.rank_timeout_s

    @property
    def left_s(self) -> float:
        """Seconds after which to poll again, though nothing changes."""
        return self._patience.left_s
