"""The trainer's side of a session: a loop over batches whose steps are looked up and updated.

`Run` is one rank's part in a session, over any store. While its loop works on one step, `ReadAhead`
announces the coming steps.

If a loop is left early, reading stops, and the batches that were read ahead are lost. Steps that
were announced and not begun are dropped when the session closes. They are not finished, so a
session that is opened by the same name continues with the first of these steps (`last_step` + 1).

**Resuming.** The batches of a run's loops, one loop after the other, are the batches of its steps.
With `resume` the first batch is the batch of step 1, and batches of finished steps are read and
left out, so the caller need not know their number. Without `resume` the first batch is the batch of
step `last_step` + 1. The batches themselves do not show whether they begin at this step, but a
caller that never reads the position of the session cannot know the step. Therefore a run that
continues a session warns, once, when its first loop begins, unless the caller has read `last_step`
or `facts`, or has passed `resume`. A caller that slices `batches[run.last_step:]` has read the
position.

If a server is stopped or killed, and started again, the run waits for it. The loop continues at its
step if no commands are lost: see `rank_session`.

    step         the interface of one step for the body of the loop
    exchange     the calls that steps make; write_behind: the calls of a run with waits="none"
    read_ahead   batches, announced ahead of the loop
    times        the time of the loop, by its parts
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
    """Return a name for a session that the caller has not named. People can read from the name
    which process has opened the session."""
    script = Path(sys.argv[0]).name if sys.argv else ""
    if not script or script.startswith("-"):  # `python -c`; "-..." is no name on a command line
        script = "python"
    made = f"{script[-60:]}@{socket.gethostname()[:60]}-pid{os.getpid()}"
    plain = "".join(c if c.isprintable() and c not in ": " else "_" for c in made)
    return f"{plain}-{token_hex(4)}"  # a process can have several sessions; its id is reused


class Run:
    """One rank's part in a session, inside a with block. Threads must not share a run."""

    def __init__(self, sessions: Sessions, tables: Iterable[str], **options: Any) -> None:
        """Prepare a run; nothing is opened before the with block.

        Parameters
        ----------
        tables : names of the tables that steps can use
        options : as in `embstore.handles.run_options.RunOptions`

        Raises
        ------
        InvalidArgumentError : `tables` is a string; an option is wrong; or the values of `waits`,
            `depth`, `all_gather` and `rows` conflict with each other or with another option.
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
        self._exchange: SessionExchange | None = None  # None before the with block.
        self._broken_off = False  # Whether a loop was left before its announced steps.
        self._times = Times()
        self._has_warned = False
        self._left_out = 0  # How many more batches of finished steps the loops have to leave out.
        self._is_place_known = True  # Whether the caller seems to know the resume position.

    def __enter__(self) -> Self:
        """Open the session and join it; wait until the rank and the tables are free.

        Raises
        ------
        TableHeldError : another trainer occupies the rank, or another session locks the tables.
        InvalidArgumentError : rows="device", and this process cannot reach the store's device.
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
        """Close the session for this rank, whether the loop has succeeded or failed.

        With waits="none" this first waits until all finished steps are acknowledged. After a
        failure, or if the server no longer answers, the wait takes at most a moment, because the
        lease will end the session.
        """
        try:
            self._stop_reading()
            if self._exchange is not None:
                self._exchange.close(failure)
        finally:
            self._exchange = None  # free the rows in it, which may be many
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
        """The member, a secret that identifies this rank in its calls; InvalidArgumentError outside
        the with block.

        When the session is opened again, the member changes: see `in_session`.
        """
        return self._joined.member

    @property
    def facts(self) -> SessionFacts:
        """The facts of the session when it was opened; InvalidArgumentError before it is opened."""
        self._is_place_known = True
        return self._joined.facts

    @property
    def last_step(self) -> int:
        """The last step that is finished at the store; 0: no step. The next loop begins with the
        step after this step. With waits="none" the loop may be ahead of this step."""
        self._is_place_known = True
        return 0 if self._session is None else self._session.last_step

    def expect_place(self, last_step: int) -> None:
        """Declare that the caller's batches begin after `last_step`. If the session continues after
        this step, no loop warns about the position."""
        self._is_place_known |= self._joined.last_step == last_step

    def in_session(self, work: Callable[[str], T]) -> T:
        """Return the result of `work`, a function that gets a member and makes calls with it.

        If the server is restarted and has lost nothing, `work` is called once more, with the member
        of the session that was opened again. `work` must find out which of its calls were executed
        before.
        """
        return self._joined.call(work)

    def steps(
        self, batches: Iterable[Any], keys: KeysOf, *, prepare: Prepare | None = None
    ) -> Iterator[Step]:
        """Yield a step for each batch, announced as far ahead as the session allows.

        A step that the loop neither updates, releases nor skips is released when the loop takes the
        next step, with a warning if it was looked up. A loop that is left early loses the batches
        that were read ahead, at most `lookahead`.

        Parameters
        ----------
        batches : any iterable of values that `keys` understands; a background thread iterates over
            it. With `resume`, `batches` has the batches of all steps, and batches of finished steps
            are left out
        keys : function that returns a batch's keys by table, (n,) int64 in any order, repeated or
            not
        prepare : function that gets a batch and its distinct keys, {table: `OnceKeys`}; called in
            the same thread as `keys`

        Raises
        ------
        InvalidArgumentError : called outside the with block, within another loop, or after a loop
            that was left early; or, at the step of the batch, if `keys` returned wrong keys.
        Errors of `batches`, `keys` and `prepare`, at the step of the batch.
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
        """Declare that this rank has no more steps, and wait until no rank has more steps.

        Call this after the loop, if ranks have unequal numbers of batches. Steps of other ranks
        then no longer wait for this rank, as in `torch.distributed.algorithms.Join`. Afterwards
        `last_step` is the last step of all ranks, and the run accepts no more steps.

        Raises
        ------
        InvalidArgumentError : this was called within a loop, or after a loop that was left early.
        RankFailedError : another rank has failed, has never joined the session, or has left it
            before its last step.
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
        """Delete rows of one of the run's tables, as `Table.delete` does. This can be called within
        a loop, too, between the calls of a step. Later lookups return the initial rows, also in a
        step that was announced before.

        A step that was looked up before the deletion is updated as if it had been looked up after
        the deletion: gradients of deleted rows are applied to the initial rows.

        Raises
        ------
        InvalidArgumentError : the run has no such table; waits="none"; keys have another shape,
            dtype or range. Nothing has changed.
        """
        return self._deleted(lambda member: self._sessions.delete_rows(member, table, keys))

    def clear(self, table: str) -> Deleted:
        """Delete all rows of one of the run's tables, as `delete` deletes some rows."""
        return self._deleted(lambda member: self._sessions.clear_table(member, table))

    def _deleted(self, delete: Callable[[str], Deleted]) -> Deleted:
        done = self._joined.call(delete)
        if self._exchange is not None:
            self._exchange.forget_rows()
        return done

    def synchronize(self) -> int:
        """Wait until the store has every step that the loop has finished; return `last_step`.

        With waits="none" some finished steps may not have reached the store yet, so call this
        before a checkpoint within a loop.

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
        """Return a context manager that yields a function to call after each step. At the end of
        the block, even after a failure, it writes the run's history to a file for `embstore
        report`. If `path` is None, it writes nothing."""
        from embstore_training.history import reporting  # here, because history imports this module

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
        """Warn once about a session that continues, if the caller has not read its position."""
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
        """Warn once about a step whose rows were looked up and that the loop does not finish."""
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
