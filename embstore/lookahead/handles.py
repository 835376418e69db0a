"""Handles of commands about a step. A handle waits for the step's rows or for the other ranks.

A handle never blocks. `poll` returns the state of the handle, on any thread, and raises the error
that ends the wait. A waiting thread or event loop polls again when the planner has notified it of a
change.
"""

from collections.abc import Mapping, Sequence
from enum import IntEnum
from time import monotonic

import numpy as np

from embstore.arrays import Rows
from embstore.commands import StepBags
from embstore.errors import InvalidArgumentError
from embstore.layout import VALUE_BYTES
from embstore.lookahead.planner import Planner
from embstore.lookahead.session import Rank, Session, same_error
from embstore.lookahead.step import Attempt, Part, Positions, RankShare, Step
from embstore.results import AcknowledgedUpdate, RowsRead, StepRows, StepTableRows, TableRows
from embstore.tables.callers import Allocate, output_of
from embstore.tables.tables import Tables

_NONE = np.empty(0, np.uint32)


class Readiness(IntEnum):
    """Which rows of a step can be read."""

    WAIT = 0
    EARLY = 1
    """The rows that no earlier unfinished step uses."""
    READY = 2
    """All rows."""


class StepHandle:
    """A wait of one rank, and the time for which the rank has waited for the other ranks."""

    def __init__(self, planner: Planner, session: Session, rank: Rank, number: int) -> None:
        self._planner = planner
        self._session = session
        self._rank = rank
        self.number = number
        self._since: float | None = None  # since when other ranks are late

    @property
    def timeout_s(self) -> float:
        """Seconds for which a call without a time-out waits."""
        return self._session.rank_timeout_s

    @property
    def left_s(self) -> float:
        """Seconds after which to poll again, even without a notification of a change."""
        often = self._session.lease_s / 3
        if self._since is None:
            return often
        patience = self._since + self._session.rank_timeout_s - self._planner.clock.now()
        return min(often, max(patience, 0.0) + 1e-3)

    def renew(self) -> None:
        """Renew the lease of a rank that waits in this process. Under the lock."""
        self._rank.deadline = self._planner.clock.now() + self._session.lease_s

    def _check_others(self) -> None:
        """End the session if other ranks have kept this rank waiting too long. Under the lock."""
        session, now = self._session, self._planner.clock.now()
        if not session.missing(self.number, self._rank):
            self._since = None
            return
        self._since = self._since or now
        stalled = session.stalled(self.number, self._rank, self._since, now)
        if stalled is not None:
            self._planner.end(session, stalled)
            raise same_error(stalled)


class StepLookup(StepHandle):
    """A lookup of one rank's rows of a step: one row for each announced key, or the rows of
    occurrences or bags of these keys. Reading takes the engine."""

    def __init__(
        self,
        tables: Tables,
        planner: Planner,
        session: Session,
        rank: Rank,
        step: Step,
        bags: Sequence[StepBags] | None = None,
    ) -> None:
        super().__init__(planner, session, rank, step.number)
        self._tables = tables
        self._step = step
        self._bags = bags
        self._share: RankShare = step.shares[rank.rank]
        self._early: dict[str, Positions] | None = None
        self._given_at: int | None = None  # `_deletions` when early rows were read
        self._began = monotonic()
        self._has_stalled = False

    @property
    def shapes(self) -> dict[str, tuple[int, int]]:
        """The shape of each table's rows: (u, dim) in announced order; with `bags`, (n, dim) for
        occurrences, or (bags, dim) for bags.

        Raises
        ------
        InvalidArgumentError : `bags` name a table that was not announced.
        """
        announced = self._share.shapes
        if self._bags is None:
            return announced
        unknown = sorted({part.table for part in self._bags} - announced.keys())
        if unknown:
            raise InvalidArgumentError(
                f"session {self._session.name!r}: step {self.number} has no table {unknown[0]!r}; "
                f"announced were {', '.join(map(repr, announced))}"
            )
        return {
            b.table: (
                len(b.inverse) if b.bags is None else len(b.bags.offsets) - 1,
                announced[b.table][1],
            )
            for b in self._bags
        }

    def is_ready(self) -> bool:
        """Return whether all rows can be read; see `poll`."""
        return self.poll() is Readiness.READY

    def read(self, out: Mapping[str, Rows | None] | Allocate | None = None) -> RowsRead | None:
        """Return the rows, after `poll` has returned READY. Return None if another call has taken
        the step's pins since then; the caller must then wait for the rows again.

        Parameters
        ----------
        out : arrays for the rows of some tables, by name; or a function that makes all arrays from
            `shapes`
        """
        shapes, tables = self.shapes, self._session.tables
        with self._tables.reading():
            if self.poll() is not Readiness.READY:
                return None
            if callable(out):
                given = dict(zip(shapes, out(list(shapes), list(shapes.values())), strict=True))
            else:
                given = dict(out or {})
            outs = {
                name: output_of(tables[name], given.get(name), count)
                for name, (count, _) in shapes.items()
            }
            if self._bags is None:
                self.gather(None, outs)
            else:
                self._gather_occurrences(self._bags, outs)
            t = {name: tables[name].t for name in outs}
        read = {
            name: rows if given.get(name) is None else given[name] for name, rows in outs.items()
        }
        return RowsRead(tuple(TableRows(name, rows, None, t[name]) for name, rows in read.items()))

    def poll(self) -> Readiness:
        """Return which rows can be read now.

        Raises
        ------
        SessionExpiredError, RankFailedError : the session has ended.
        InvalidArgumentError : the step has been finished.
        """
        with self._planner.lock:
            self._session.check_live()
            self._session.step(self.number, self._rank)
            self._check_others()
            is_turn = self.number == self._session.last_step + 1
            if not is_turn:
                early = self._step.is_ready and not self._session.facts.shared
                return Readiness.EARLY if early else Readiness.WAIT
            is_ready = self._step.is_ready or self._step.is_in_parts
            self._note_stall(is_ready)
            return Readiness.READY if is_ready else Readiness.WAIT

    def _note_stall(self, is_ready: bool) -> None:
        """Count a stall: a lookup whose rows are not in the cache yet, although all earlier steps
        are finished."""
        if is_ready and self._has_stalled:
            waited_s = monotonic() - max(self._began, self._session.turn_since)
            self._session.count_stall(self.number, waited_s)
        self._has_stalled = not is_ready

    def early(self) -> dict[str, Positions]:
        """Return, for each table, the positions of the rows that are final: no earlier unfinished
        step uses them. Later calls return the same positions."""
        if self._early is None:
            with self._planner.lock:
                self._early = self._share.final_positions(self._session.last_step)
        return self._early

    def late(self) -> dict[str, Positions] | None:
        """Return, for each table, the positions of the rows that are still to be read.

        Return None if all rows are to be read, because no rows were read early, or because a member
        has since deleted rows of the same tables.
        """
        if self._early is None or self._given_at is None or self._given_at != self._deletions:
            return None
        late = {}
        for name, early in self._early.items():
            is_late = np.ones(self._share.shapes[name][0], np.bool_)
            is_late[early] = False
            late[name] = np.flatnonzero(is_late).astype(np.int32)
        return late

    @property
    def _deletions(self) -> int:
        return sum(self._session.tables[name].deletions for name in self._share.places)

    def some(self, positions: Mapping[str, Positions] | None, make: Allocate) -> StepRows | None:
        """Return the rows of some positions, or all rows. Early positions can be read once `poll`
        has returned EARLY; all other positions can be read once `poll` has returned READY.

        Return None if another call has taken the step's pins, so that the caller must wait for the
        rows again; or if a deletion has made the result of `late` invalid.
        """
        are_early = self._are_early(positions)
        least = Readiness.EARLY if are_early else Readiness.READY
        shapes = {
            name: (rows if positions is None else len(positions[name]), dim)
            for name, (rows, dim) in self.shapes.items()
        }
        places = {name: found.view(np.uint32) for name, found in (positions or {}).items()}
        with self._tables.reading():
            if self.poll() < least:
                return None
            if are_early:
                self._given_at = self._deletions
            elif positions is not None and self.late() is None:
                return None
            made = make(list(shapes), list(shapes.values()), list(places.values()))
            outs = dict(zip(shapes, made, strict=True))
            self.gather(positions, outs)
            t = {name: self._session.tables[name].t for name in outs}
        tables = (StepTableRows(n, rows, places.get(n), t[n]) for n, rows in outs.items())
        return StepRows(tuple(tables), are_early)

    def _are_early(self, positions: Mapping[str, Positions] | None) -> bool:
        return positions is not None and positions is self._early

    def gather(self, positions: Mapping[str, Positions] | None, outs: Mapping[str, Rows]) -> None:
        """Write the rows of some positions, or all rows, to `outs`, which has an array (p, dim) for
        each table. Only a call on the engine may do this.

        Early positions can be gathered once `poll` has returned EARLY; all other positions can be
        gathered once `poll` has returned READY.
        """
        is_early = self._are_early(positions)
        shapes = self._share.shapes
        self._session.check_live()
        missing = 0
        for part in self._share.parts:
            names, dim = [table.name for table in part.tables], part.pool.layout.dim
            d_rows, slots, batch, absent = part.rows(count=not is_early)
            if positions is not None:
                batch = part.occurrences([positions[name] for name in names]).of(batch)
            outs_of = [outs[name] for name in names]
            part.pool.device.rows.gather(d_rows, slots, batch, dim, outs_of)
            missing += absent
        counts = {
            n: rows if positions is None else len(positions[n]) for n, (rows, _) in shapes.items()
        }
        size = sum(VALUE_BYTES * counts[name] * dim for name, (_, dim) in shapes.items())
        self._count(sum(counts.values()), missing, size, is_early=is_early)

    def _count(self, count: int, missing: int, size: int, *, is_early: bool) -> None:
        """Count the rows that were read, and the bytes of these rows. A repeated lookup is counted
        once."""
        counts = self._session.counts
        with self._planner.changed:
            if not is_early:
                self._session.step_ended = 0.0
                self._planner.changed.notify_all()
            if is_early in self._share.counted:
                return
            self._share.counted.add(is_early)
            counts.lookup_keys += count
            counts.prefetched_keys += count if self._step.is_planned else 0
            counts.lookup_hits += max(count - missing, 0)
            if is_early:
                counts.early_rows += count
                counts.early_bytes += size
            else:
                counts.late_rows += count
                counts.late_bytes += size

    def _gather_occurrences(self, named: Sequence[StepBags], outs: Mapping[str, Rows]) -> None:
        """Write the rows of occurrences, or the pooled rows of bags, to `outs`. Only a call on the
        engine may do this."""
        self._session.check_live()
        of_tables, missing = {part.table: part for part in named}, 0
        for part in self._share.parts:
            given = [of_tables.get(table.name) for table in part.tables]
            if any(given):
                missing += self._gather_part(part, given, outs)
        count = sum(self._share.shapes[name][0] for name in of_tables)
        size = sum(VALUE_BYTES * rows * dim for rows, dim in self.shapes.values())
        self._count(count, missing, size, is_early=False)

    def _gather_part(
        self, part: Part, given: Sequence[StepBags | None], outs: Mapping[str, Rows]
    ) -> int:
        """Write the rows of one pool; return how many of the rows were missing."""
        inverses = [_NONE if one is None else one.inverse for one in given]
        named, device, dim = part.occurrences(inverses), part.pool.device, part.pool.layout.dim
        rows, slots, batch, missing = part.rows(count=True)
        if all(one is not None and one.bags is None for one in given):
            every = [outs[table.name] for table in part.tables]
            device.rows.gather(rows, slots, named.of(batch), dim, every)
            return missing
        for place, one in enumerate(given):
            if one is None:
                continue
            own, out, bags = named.of_table(batch, place), outs[one.table], one.bags
            if bags is None:
                device.rows.gather(rows, slots, own, dim, [out])
            else:
                mean = bags.mode == "mean"
                device.rows.gather_pooled(rows, slots, own, bags.offsets, mean, bags.weights, out)
        return missing


class StepOutcome(StepHandle):
    """The outcome of a step, for a rank that has sent its share."""

    def __init__(
        self, planner: Planner, session: Session, rank: Rank, number: int, attempt: Attempt
    ) -> None:
        super().__init__(planner, session, rank, number)
        self._attempt = attempt

    def poll(self) -> AcknowledgedUpdate | None:
        """Return the outcome of the step, or None if shares of other ranks are still missing.

        Raises
        ------
        SessionExpiredError, RankFailedError : the session has ended.
        Exception : the error that refused the step. The step is open again, for another attempt or
            a skip.
        """
        with self._planner.lock:
            if self._attempt.result is not None:
                return self._attempt.result
            if (error := self._attempt.error) is not None:
                raise type(error)(*error.args) from error
            self._session.check_live()
            self._check_others()
            return None
