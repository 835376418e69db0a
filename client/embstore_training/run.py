"""The trainer's side of a session: a loop over batches whose steps are looked up and updated.

`Run` is one rank's part in a session, over any store. While its loop works on one step, `ReadAhead`
announces those to come.

A loop that is left early stops reading; its batches are lost to it, and the steps that were
announced and not begun are dropped when the session closes. They are not finished, so opening the
session by name goes on at the first of them (`last_step` + 1).

**Resuming.** The batches of a run's loops, one loop after the other, are the batches of its steps.
With `resume` this holds from step 1 on, and batches of finished steps are read and left out: their
number need not be known. Without it they begin after `last_step`. The batches do not show whether
they do; but a caller that never asks where the session goes on cannot have known. Therefore a run
that goes on warns, once, if its first loop begins before `last_step` (or `facts`) was read, or
`resume=False` was given. `batches[run.last_step:]` reads it.

A server that is killed, or stopped, and started again is waited for, and the loop goes on where it
was, if nothing is lost: see `rank_session`.

    step         the interface of one step for the body of the loop
    exchange     the calls that steps make; write_behind: the calls of a run with waits="none"
    read_ahead   batches, announced ahead of the loop
    times        where the loop's time goes
"""

import os
import socket
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from secrets import token_hex
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar

from numpy.typing import ArrayLike

from embstore.errors import InvalidArgumentError
from embstore.handles.run_options import RunOptions
from embstore.handles.sessions import Sessions
from embstore.results import Deleted, SessionFacts
from embstore_training.exchange import SessionExchange, check_reached, rows_where
from embstore_training.rank_session import Opening, RankSession
from embstore_training.read_ahead import Entry, KeysOf, Prepare, ReadAhead, preparing
from embstore_training.step import Step
from embstore_training.times import RunStats, Times
from embstore_training.write_behind.on_device import exchange_of
from embstore_training.write_behind.options import behind_of

if TYPE_CHECKING:
    from embstore.handles.store import Store

T = TypeVar("T")


def _own_name() -> str:
    """Return a name for a session without one, by which people can identify it."""
    script = Path(sys.argv[0]).name if sys.argv else ""
    if not script or script.startswith("-"):  # as of `python -c`: a command takes no such name
        script = "python"
    made = f"{script[-60:]}@{socket.gethostname()[:60]}-pid{os.getpid()}"
    plain = "".join(c if c.isprintable() and c not in ": " else "_" for c in made)
    return f"{plain}-{token_hex(4)}"  # a process may have several, and another one its id later


class Run:
    """One rank's part in a session, inside a with block. Not to be shared between threads."""

    def __init__(self, sessions: Sessions, tables: Iterable[str], **options: Any) -> None:
        """Prepare a run; nothing is opened before the with block.

        Parameters
        ----------
        tables : tables that steps may name
        options : as in `embstore.handles.run_options.RunOptions`

        Raises
        ------
        InvalidArgumentError : `tables` is one text; an option is wrong; `waits`, `depth` and
            `all_gather` do not go with each other, or with the rest, nor do `rows`.
        """
        if isinstance(tables, str):
            raise InvalidArgumentError(f"expected tables to be a list of names, found {tables!r}")
        given = RunOptions(**options)
        self._behind = behind_of(sessions, given)
        self._rows = rows_where(given.rows, given.waits, sessions)
        self._sessions = sessions
        self._tables = tuple(tables)
        self._opening = Opening(
            _own_name() if given.name is None else given.name, self._tables, given
        )
        self._resume = given.resume
        self._session: RankSession | None = None  # None before the with block.
        self._exchange: SessionExchange | None = None  # Likewise.
        self._broken_off = False  # A loop was left early: steps are announced and not begun.
        self._times = Times()
        self._has_warned = False
        self._left_out = 0  # Batches of finished steps that its loops are still to be given.
        self._is_place_known = True  # To the caller, as far as can be seen.

    def __enter__(self) -> Self:
        """Open the session and join it; wait until its place and its tables are free.

        Raises
        ------
        TableHeldError : another trainer keeps the place, or other sessions the tables.
        InvalidArgumentError : rows="device", which this process does not reach.
        """
        check_reached(self._rows, self._sessions)
        self._session = RankSession(self._sessions, self._opening)
        self._exchange = exchange_of(
            self._sessions, self._session, self._times, self._rows, self._behind
        )
        self._broken_off = False
        place = self._session.last_step
        self._left_out = place if self._resume else 0
        self._is_place_known = place == 0 or self._resume is not None
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        failure: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close the session for this rank, after any outcome.

        With waits="none" it waits first until all finished steps are acknowledged. After a failure,
        or when the server does not answer any more, it waits no longer than a moment: the lease
        will end the rest.
        """
        try:
            self._stop_reading()
            if self._exchange is not None:
                self._exchange.close(failure)
        finally:
            self._exchange = None  # it may have many rows
            self._joined.leave(failure or sys.exception())

    @property
    def _joined(self) -> RankSession:
        if self._session is None:
            raise InvalidArgumentError("expected the run to be used inside its with block")
        return self._session

    @property
    def _ahead(self) -> ReadAhead | None:
        return None if self._exchange is None else self._exchange.ahead

    @property
    def member(self) -> str:
        """The member that calls of this rank name, or InvalidArgumentError outside the with block.

        Another one where the session was opened again: see `in_session`.
        """
        return self._joined.member

    @property
    def facts(self) -> SessionFacts:
        """The session as it was when it was opened, or InvalidArgumentError before that."""
        self._is_place_known = True
        return self._joined.facts

    @property
    def last_step(self) -> int:
        """The last step that is finished at the store, 0 for none: the next loop begins with the
        one after it. With waits="none" the loop may be ahead of it."""
        self._is_place_known = True
        return 0 if self._session is None else self._session.last_step

    def expect_place(self, last_step: int) -> None:
        """Declare that the caller's batches begin after `last_step`. Where the session goes on
        there, no loop warns of its place."""
        self._is_place_known |= self._joined.last_step == last_step

    def in_session(self, work: Callable[[str], T]) -> T:
        """Return the result of `work`, which makes calls of the member that it is given.

        Where the server was started again, and has lost nothing, `work` is called once more, with
        the member of the session that was opened again. It must find out which calls were done
        before.
        """
        return self._joined.call(work)

    def steps(
        self, batches: Iterable[Any], keys: KeysOf, *, prepare: Prepare | None = None
    ) -> Iterator[Step]:
        """Yield a step for each batch, announced as far ahead as the session allows.

        A step that the loop neither updates, releases nor skips is released when it takes the next
        one, with a warning if it was looked up. A loop that is left early loses the batches that
        were read ahead, `lookahead` at most.

        Parameters
        ----------
        batches : any iterable that `keys` understands; a thread of its own iterates over it; with
            `resume` the batches of all steps, of which finished ones are left out
        keys : returns a batch's keys by table, (n,) int64 in any order, repeated or not
        prepare : takes a batch and its distinct keys, {table: `OnceKeys`}, as `keys` in that thread

        Raises
        ------
        InvalidArgumentError : outside the with block, within another loop, or after one that was
            left early; or `keys` returned wrong keys, at its step.
        Errors of `batches`, `keys` and `prepare`, at the step where they belong.
        """
        session, _ = self._joined, self.member
        self._warn_of_place(session.last_step)
        if self._ahead is not None or self._broken_off:
            raise InvalidArgumentError(
                "expected the loop before to have finished all its steps; open another run"
            )
        exchange = self._exchange
        assert exchange is not None, "it is made with the session"
        exchange.begin_loop()
        ahead = ReadAhead(
            batches,
            keys,
            session.announce,
            tables=self._tables,
            first=session.last_step + 1,
            lookahead=session.facts.lookahead_steps_max,
            prepare=preparing(exchange.prepare, prepare),
            skip=self._left_out,
        )
        exchange.ahead = ahead
        try:
            self._times.begin()
            while (entry := self._next(ahead)) is not None:
                exchange.begin(entry)
                step = Step(exchange, entry)
                yield step
                if not step.is_finished:
                    self._warn_of(step)
                    step.release()
            exchange.synchronize()
        finally:
            if exchange.ahead is ahead:
                self._stop_reading()

    def join(self) -> None:
        """Declare that this rank has no more steps, and wait until no rank has.

        For ranks with unequal numbers of batches, behind the loop: steps of the other ranks do not
        wait for this rank any more, as in `torch.distributed.algorithms.Join`. Then `last_step` is
        the last of all ranks, and the run takes no more steps.

        Raises
        ------
        InvalidArgumentError : within a loop, or after one that was left early.
        RankFailedError : another rank has failed, has never joined, or has left with steps to come.
        """
        if self._ahead is not None or self._broken_off:
            raise InvalidArgumentError(
                "expected the loop to have finished all its steps: take the remaining ones first"
            )
        if self._behind is not None and self._behind.all_gather is not None:
            raise InvalidArgumentError(
                'expected the same number of steps on all ranks with waits="none", because every '
                "step calls all_gather on all ranks; give a rank that has no more samples batches "
                "without keys"
            )
        self._joined.end_steps()

    def delete(self, table: str, keys: ArrayLike) -> Deleted:
        """Delete rows of one of the run's tables, as `Table.delete`: within a loop too, between the
        calls of its steps. A later lookup has the initial rows, also of a step that was announced.

        A step that was looked up before is updated as if it had been looked up after it: gradients
        of deleted rows are applied to the initial ones.

        Raises
        ------
        InvalidArgumentError : the run has no such table; waits="none"; keys of another shape, dtype
            or range. Nothing has changed.
        """
        return self._deleted(lambda member: self._sessions.delete_rows(member, table, keys))

    def clear(self, table: str) -> Deleted:
        """Delete all rows of one of the run's tables, as `delete` some."""
        return self._deleted(lambda member: self._sessions.clear_table(member, table))

    def _deleted(self, delete: Callable[[str], Deleted]) -> Deleted:
        done = self._joined.call(delete)
        if self._exchange is not None:
            self._exchange.forget_rows()
        return done

    def synchronize(self) -> int:
        """Wait until the store has every step that the loop has finished; return `last_step`.

        For a checkpoint within a loop with waits="none": without it some steps may be on their way.

        Raises
        ------
        EmbstoreError : the error of a step that failed.
        """
        if self._exchange is not None:
            self._exchange.synchronize()
        return self.last_step

    def stats(self) -> RunStats:
        """Return how many steps the loop has taken, and how its time was spent, until now."""
        return self._times.stats()

    def reporting(
        self, store: "Store", path: str | os.PathLike[str] | None
    ) -> AbstractContextManager[Callable[[], object]]:
        """Yield a function to call after each step, and write the run's history to a file for
        `embstore report` at the end, also where it has failed. None: write nothing."""
        from embstore_training.history import reporting  # which is of a run

        return reporting(store, self, path)

    def _next(self, ahead: ReadAhead) -> Entry | None:
        with self._times.part("batch"):
            entry = ahead.take()
        skipped, ahead.skipped = ahead.skipped, 0
        self._left_out -= skipped
        self._times.skipped += skipped
        self._times.steps += entry is not None
        return entry

    def _warn_of_place(self, last_step: int) -> None:
        """Warn once of a session that goes on, where its place was not read."""
        if not self._is_place_known:
            self._is_place_known = True
            warnings.warn(
                f"session {self._opening.name!r} goes on after step {last_step}, and the first "
                f"batch is taken for step {last_step + 1}: give resume=True with all batches from "
                "step 1 on, which skips those of finished steps, or resume=False if the batches "
                f"begin at step {last_step + 1}",
                stacklevel=3,
            )

    def _warn_of(self, step: Step) -> None:
        """Warn once of a step whose rows were used, and which the loop does not finish."""
        if step.was_looked_up and not self._has_warned:
            self._has_warned = True
            warnings.warn(
                f"step {step.number} was looked up, and neither updated, released nor skipped: it "
                "is released, and no row learns from it; finish it by an update, or, where rows "
                "are only read, by a release",
                stacklevel=3,
            )

    def _stop_reading(self) -> None:
        self._times.end()
        ahead = self._ahead
        if ahead is not None and self._exchange is not None:
            self._exchange.ahead = None
            self._broken_off = not ahead.has_ended
            ahead.stop()
