"""Whole rows of steps, for a trainer that runs ahead of the store.

In a session with waits="none" a trainer applies each step's update to its own rows at once, and
begins the next step while it sends the gradients (`embstore_training.write_behind`). Two commands
differ in such a session:

    ReadStep      returns weights and state of the positions that the trainer asks for, as soon as
                  the rows are in the cache, even if earlier steps are unfinished; the answer has
                  the last finished step, so that the trainer knows which updates the rows contain
    UpdateStep    waits for its turn (`StepTurn`); in another session it would be refused. It is
                  also checked: its gradients must have been computed with the store's rows

**The check** compares all rows that the rank has announced, before the update and before anything
changes. Therefore gradients of wrong rows are never applied: the step is refused, its session ends,
and the resume position stays at the step before. Rejected: comparing the rows after the update.
This would find an error of the arithmetic one step earlier, but an error of memory only after the
store has applied gradients that were computed from wrong rows.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from embstore.arithmetic import checksum
from embstore.arrays import Rows
from embstore.commands import StepPositions
from embstore.errors import InvalidArgumentError, ReplicaMismatchError
from embstore.layout import VALUE_BYTES
from embstore.lookahead.handles import Readiness, StepHandle, StepLookup
from embstore.lookahead.planner import Planner
from embstore.lookahead.session import Rank, Session
from embstore.lookahead.step import Part, RankShare, Step
from embstore.results import StepRecords, TableRows
from embstore.tables.tables import Tables


class StepTurn(StepHandle):
    """The wait of a trainer for the turn of the step that it wants to finish."""

    def poll(self) -> bool | None:
        """Return True when all earlier steps are finished, else None.

        Raises
        ------
        SessionExpiredError, RankFailedError : the session has ended.
        """
        with self._planner.lock:
            self._session.check_live()
            self._check_others()
            return True if self.number <= self._session.last_step + 1 else None


class StepReading(StepLookup):
    """A read of whole rows (weights and state) of one rank's share of a step. Reading takes the
    engine."""

    def __init__(
        self,
        tables: Tables,
        planner: Planner,
        session: Session,
        rank: Rank,
        step: Step,
        wanted: Sequence[StepPositions],
    ) -> None:
        """Prepare a handle. Raises InvalidArgumentError if the session was not opened with
        waits="none", or if tables or positions were not announced."""
        super().__init__(tables, planner, session, rank, step)
        where = f"session {session.name!r}"
        if session.facts.waits != "none":
            raise InvalidArgumentError(
                f"{where}: expected it to be opened with waits='none', found "
                f"{session.facts.waits!r}; look its steps up"
            )
        self._wanted = {part.table: part.positions.view(np.int32) for part in wanted}
        announced = super().shapes
        for name, positions in self._wanted.items():
            count = announced[name][0] if name in announced else 0
            if name not in announced or (len(positions) and positions[-1] >= count):
                raise InvalidArgumentError(
                    f"{where}: step {step.number}: expected positions of announced keys, below "
                    f"{count} of table {name!r}, found {positions[-1:].tolist()}"
                )

    @property
    def reply_bytes(self) -> int:
        """Bytes of the rows' weights and state."""
        return sum(
            VALUE_BYTES * len(p) * (table.dim + table.config.state_dim)
            for name, p in self._wanted.items()
            for table in (self._share.table(name),)
        )

    def check_bytes(self, most: int) -> None:
        """Raise InvalidArgumentError if the rows have more bytes than `most`."""
        if self.reply_bytes > most:
            raise InvalidArgumentError(
                f"session {self._session.name!r}: step {self.number}: expected rows and state of "
                f"at most {most} bytes (limits.call_bytes_max), found {self.reply_bytes}; read "
                "fewer rows in a call"
            )

    def is_ready(self) -> bool:
        """Return whether the rows can be read; see `poll`."""
        return self.poll() >= Readiness.EARLY

    def read(self, out: Any = None) -> Any:
        """Return the rows as `StepRecords`, after `is_ready` has returned True. Return None if
        another call has taken the step's pins since then; the caller must then wait for the rows
        again."""
        with self._tables.reading():
            if not self.is_ready():
                return None
            last_step = self._session.last_step  # no step can be finished during this call
            found: dict[str, tuple[Rows, Rows]] = {}
            missing = 0
            for part in self._share.parts:
                wanted = [self._wanted.get(t.name, np.empty(0, np.int32)) for t in part.tables]
                missing += _read(part, wanted, found)
            tables = self._session.tables
            read = tuple(TableRows(n, *found[n], tables[n].t) for n in self._wanted)
        count = sum(len(positions) for positions in self._wanted.values())
        is_early = self.number > last_step + 1
        self._count(count, missing, self.reply_bytes, is_early=is_early)
        return StepRecords(read, last_step)


def check_rows(session: Session, step: Step) -> None:
    """Check, before an update, that all ranks have computed with the store's rows. Engine thread
    only.

    Raises
    ------
    ReplicaMismatchError : a rank has computed with other rows.
    """
    for rank, sent in sorted(step.sent.items()):
        if sent.rows_checksum is None:
            continue
        found = checksum(_records(step.shares[rank]))
        if found != sent.rows_checksum:
            raise ReplicaMismatchError(
                f"session {session.name!r}: step {step.number}: expected rank {rank} to have the "
                f"rows of the store, of checksum {found:08x}, found {sent.rows_checksum:08x}; its "
                "gradients are not applied. Open the session again: it goes on after step "
                f"{session.last_step}, from the rows of the store"
            )


def _records(share: RankShare) -> Iterator[tuple[Rows, Rows]]:
    found: dict[str, tuple[Rows, Rows]] = {}
    for part in share.parts:
        _read(part, [np.arange(len(keys), dtype=np.int32) for keys in part.keys], found)
    return (found[name] for name in share.places)


def _read(part: Part, wanted: Sequence[Any], found: dict[str, tuple[Rows, Rows]]) -> int:
    """Put weights and state of some positions of each table into `found`. Return how many rows of
    the part were missing."""
    places = [positions + low for positions, low in zip(wanted, part.bounds, strict=False)]
    d_rows, d_slots, _, missing = part.rows(count=False)
    device = part.pool.device
    slots = device.memory.download(d_slots)[np.concatenate(places)]
    records = device.rows.read_rows(d_rows, slots)
    dim, end = part.pool.layout.dim, part.pool.layout.dim + part.pool.layout.state_dim
    cuts = np.cumsum([len(positions) for positions in wanted])[:-1]
    for table, rows in zip(part.tables, np.split(records, cuts), strict=True):
        found[table.name] = rows[:, :dim], rows[:, dim:end]
    return missing
