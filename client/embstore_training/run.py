"""The trainer's side of a session: a loop over batches whose steps are looked up and updated.

`Run` is one rank's part in a session, over any store. While its loop works on one step, `ReadAhead`
announces those to come.

A loop that is left early stops reading; its batches are lost to it, and the steps that were
announced and not begun are dropped when the session closes. They are not finished, so opening the
session by name goes on at the first of them (`last_step` + 1).

A server that is killed, or stopped, and started again is waited for, and the loop goes on where it
was, if nothing is lost: see `rank_session`.

Keys travel once each and gradients as sums (contract.md, rule 2), in announced order, so that
neither has to be looked for again.
"""

import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import TracebackType
from typing import Any, Self, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from embstore.arithmetic import Pooling, bag_gradients, sum_by_key
from embstore.arrays import Rows, as_rows
from embstore.checks.arguments import integer
from embstore.commands import LEASE_MS, LOOKAHEAD, RANK_TIMEOUT_MS, OnNonfinite, UpdateOptions
from embstore.errors import InvalidArgumentError
from embstore.handles.sessions import Sessions, StepBags
from embstore.results import AcknowledgedUpdate, SessionFacts
from embstore_training.rank_session import Opening, RankSession
from embstore_training.read_ahead import Entry, KeysOf, OnceKeys, ReadAhead, check_names

T = TypeVar("T")


class Run:
    """One rank's part in a session, inside a with block. Not to be shared between threads."""

    def __init__(
        self,
        sessions: Sessions,
        tables: Iterable[str],
        *,
        lookahead: int = LOOKAHEAD,
        name: str | None = None,
        rank: int = 0,
        world_size: int = 1,
        planner: str = "per_step",
        shared: bool = False,
        lease_ms: int = LEASE_MS,
        rank_timeout_ms: int = RANK_TIMEOUT_MS,
        wait_s: float | None = None,
    ) -> None:
        """Prepare a run; nothing is opened before the with block. See `embstore.Store.session`.

        Raises
        ------
        InvalidArgumentError : `tables` is one text; no name, and more than one rank; no such rank;
            `wait_s` is no number, or below 0.
        """
        if isinstance(tables, str):
            raise InvalidArgumentError(f"expected tables to be a list of names, found {tables!r}")
        if name is None and world_size != 1:
            raise InvalidArgumentError(
                f"expected a name, by which the {world_size} ranks of a session find each other"
            )
        integer(rank, "rank", 0, integer(world_size, "world_size", 1) - 1)
        if wait_s is not None and (not isinstance(wait_s, int | float) or not wait_s >= 0):
            raise InvalidArgumentError(f"expected wait_s to be seconds >= 0, found {wait_s!r}")
        self._sessions = sessions
        self._tables = tuple(tables)
        options: dict[str, Any] = {
            "lookahead_steps_max": lookahead,
            "world_size": world_size,
            "planner": planner,
            "shared": shared,
            "lease_ms": lease_ms,
            "rank_timeout_ms": rank_timeout_ms,
        }
        self._opening = Opening(
            f"run-{uuid.uuid4().hex}" if name is None else name,
            self._tables,
            options,
            rank,
            wait_s,
            forgets=name is None,
        )
        self._session: RankSession | None = None  # None before the with block.
        self._ahead: ReadAhead | None = None  # None but while a loop runs.
        self._broken_off = False  # A loop was left early: steps are announced and not begun.
        self._sums: dict[str, NDArray[np.float32]] = {}  # By table, as long as the longest so far.

    def __enter__(self) -> Self:
        """Open the session and join it; under a name, wait until the place is free.

        Raises
        ------
        TableHeldError : another trainer keeps the place, or other sessions the tables.
        """
        self._session = RankSession(self._sessions, self._opening)
        self._broken_off = False
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        failure: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close the session for this rank, whatever has happened.

        After a failure, or when nobody answers any more, it is not waited for longer than a moment:
        the lease will end what is left.
        """
        try:
            self._stop_reading()
        finally:
            self._joined.leave(failure)

    @property
    def _joined(self) -> RankSession:
        if self._session is None:
            raise InvalidArgumentError("expected the run to be used inside its with block")
        return self._session

    @property
    def member(self) -> str:
        """What calls of this rank name, or InvalidArgumentError outside the with block.

        Another one where the session was opened again: see `in_session`.
        """
        return self._joined.member

    @property
    def facts(self) -> SessionFacts:
        """The session as it was when it was opened, or InvalidArgumentError before that."""
        return self._joined.facts

    @property
    def last_step(self) -> int:
        """The last finished step, 0 for none: the next loop begins with the one after it."""
        return 0 if self._session is None else self._session.last_step

    def in_session(self, work: Callable[[str], T]) -> T:
        """Return what `work` returns, which makes calls of the member that it is given.

        Where the server was started again, and has lost nothing, `work` is called once more, with
        the member of the session that was opened again. It must find out what it had done before.
        """
        return self._joined.call(work)

    def steps(self, batches: Iterable[Any], keys: KeysOf) -> Iterator["Step"]:
        """Yield a step for each batch, announced as far ahead as the session allows.

        A step that the loop neither updates, releases nor skips is released when it takes the next
        one. A loop that is left early loses the batches that were read ahead, `lookahead` at most.

        Parameters
        ----------
        batches : whatever `keys` understands; a thread of its own iterates over it
        keys : returns a batch's keys by table, (n,) int64 in any order, repeated or not; called in
            that thread

        Raises
        ------
        InvalidArgumentError : outside the with block, within another loop, or after one that was
            left early; or what `keys` returned is wrong, at its step.
        What `batches` and `keys` raise, at the step where it belongs.
        """
        session, _ = self._joined, self.member
        if self._ahead is not None or self._broken_off:
            raise InvalidArgumentError(
                "expected the loop before to have gone through all its steps; open another run"
            )
        ahead = ReadAhead(
            batches,
            keys,
            session.announce,
            tables=self._tables,
            first=self.last_step + 1,
            lookahead=self.facts.lookahead_steps_max,
        )
        self._ahead = ahead
        try:
            while (entry := ahead.take()) is not None:
                step = Step(self, entry)
                yield step
                if not step.is_finished:
                    step.release()
        finally:
            if self._ahead is ahead:
                self._stop_reading()

    def _stop_reading(self) -> None:
        ahead, self._ahead = self._ahead, None
        if ahead is not None:
            self._broken_off = not ahead.has_ended
            ahead.stop()

    def _finish(
        self, number: int, verb: str, send: Callable[[str], AcknowledgedUpdate]
    ) -> AcknowledgedUpdate:
        done = self._joined.finish(number, verb, send)
        if self._ahead is not None:
            self._ahead.finish(number)
        return done

    def _rows(self, entry: Entry) -> dict[str, Rows]:
        """Return the rows of a step's unique keys, and send for those of the next one."""

        def looked_up(member: str) -> dict[str, Rows]:
            prefetched, entry.prefetched = entry.prefetched, None
            if prefetched is not None and entry.prefetched_by == member:
                return prefetched.result(None)
            return self._sessions.lookup_step(member, entry.number)

        rows = self.in_session(looked_up)
        following = self._ahead.peek() if self._ahead is not None else None
        if following is not None and following.prefetched is None:
            following.prefetched_by = member = self.member
            following.prefetched = self._sessions.prefetch_step(member, following.number)
        return rows

    def _sum(self, table: str, once: OnceKeys, gradients: Rows) -> Rows:
        """Return the sums by key, (u, dim), in a buffer that the table's next ones go to too."""
        if once.is_identity:
            return gradients
        count, dim = len(once.keys), gradients.shape[1]
        if table not in self._sums or len(self._sums[table]) < count * dim:
            self._sums[table] = np.empty(count * dim, np.float32)
        out = self._sums[table][: count * dim].reshape(count, dim)
        return sum_by_key(once.inverse, count, gradients, out)


class Step:
    """One step of a run, for the body of its loop."""

    def __init__(self, run: Run, entry: Entry) -> None:
        self._run = run
        self._entry = entry
        self._once = entry.once
        self._bags: dict[str, StepBags] = {}  # Of the last pooled lookup of each table.
        self._finished_by = ""  # The verb that finished it.
        self.number = entry.number
        """The step's number in the session."""
        self.batch = entry.batch
        """The batch, as the iterator gave it."""

    @property
    def is_finished(self) -> bool:
        """Whether it has been updated, released or skipped."""
        return bool(self._finished_by)

    def lookup(self) -> dict[str, Rows]:
        """Return a row for each key of the batch, in its order: (n, dim) float32 by table."""
        self._check_open("looked up")
        rows = self._run._rows(self._entry)
        return {table: once.spread(rows[table]) for table, once in self._once.items()}

    def lookup_unique(self) -> dict[str, tuple[Rows, NDArray[np.int32]]]:
        """Return the rows of the distinct keys, (u, dim), and which of them each key has, (n,)."""
        self._check_open("looked up")
        rows = self._run._rows(self._entry)
        return {table: (rows[table], once.inverse) for table, once in self._once.items()}

    def lookup_pooled(
        self,
        offsets: Mapping[str, ArrayLike],
        mode: Pooling = "sum",
        weights: Mapping[str, ArrayLike] | None = None,
    ) -> dict[str, Rows]:
        """Return the pooled rows of each bag, (bags, dim) by table; an empty bag is zeros.

        Parameters
        ----------
        offsets : by table, (bags + 1,) int64 from 0 to n: bag b is the batch's keys from
            offsets[b] to offsets[b + 1]
        weights : by table, for some of those in `offsets`, (n,) float32, finite; with "sum" only

        Raises
        ------
        InvalidArgumentError : any of that does not hold, or the step is finished.
        """
        self._check_open("looked up")
        given = {} if weights is None else weights
        check_names(offsets, self._once, "offsets")
        check_names(given, offsets, "weights")
        bags = {
            table: StepBags.of(
                self._once[table].inverse, bounds, mode, given.get(table), table=table
            )
            for table, bounds in offsets.items()
        }
        pooled = self._run._sessions.lookup_step_pooled
        rows = self._run.in_session(lambda member: pooled(member, self.number, bags))
        self._bags |= bags
        return rows

    def update(
        self,
        gradients: Mapping[str, ArrayLike],
        *,
        learning_rate: float | None = None,
        gradient_scale: float = 1.0,
        on_nonfinite: OnNonfinite = "refuse",
    ) -> AcknowledgedUpdate:
        """Finish the step by an update, with a gradient for each key of the batch.

        Parameters
        ----------
        gradients : by table, (n, dim) float32; summed by key here
        learning_rate : None: the table's

        Raises
        ------
        InvalidArgumentError : another shape, dtype or table, a sum that is not finite; the step is
            as before. Or it is finished already.
        """
        self._check_open("updated")
        check_names(gradients, self._once, "gradients")
        sums = {}
        for table, values in gradients.items():
            once = self._once[table]
            rows = _as_gradients(values, len(once.inverse), table)
            sums[table] = self._run._sum(table, once, rows)
        return self._update(sums, UpdateOptions(learning_rate, gradient_scale, on_nonfinite))

    def update_unique(
        self,
        gradients: Mapping[str, ArrayLike],
        *,
        learning_rate: float | None = None,
        gradient_scale: float = 1.0,
        on_nonfinite: OnNonfinite = "refuse",
    ) -> AcknowledgedUpdate:
        """Finish the step by an update, with one gradient for each distinct key.

        Parameters
        ----------
        gradients : by table, (u, dim) float32, in the order of `lookup_unique`: sums by key
            (`embstore.arithmetic.sum_by_key`), which are sent as they are

        Raises
        ------
        InvalidArgumentError : as `update`.
        """
        self._check_open("updated")
        check_names(gradients, self._once, "gradients")
        sums = {
            table: _as_gradients(values, len(self._once[table].keys), table)
            for table, values in gradients.items()
        }
        return self._update(sums, UpdateOptions(learning_rate, gradient_scale, on_nonfinite))

    def update_pooled(
        self,
        gradients: Mapping[str, ArrayLike],
        *,
        learning_rate: float | None = None,
        gradient_scale: float = 1.0,
        on_nonfinite: OnNonfinite = "refuse",
    ) -> AcknowledgedUpdate:
        """Finish the step by an update, with a gradient for each bag of its pooled lookup.

        Parameters
        ----------
        gradients : by table, (bags, dim) float32, for the bags, mode and weights of the last
            `lookup_pooled`

        Raises
        ------
        InvalidArgumentError : as `update`; or a table was not looked up pooled.
        """
        self._check_open("updated")
        check_names(gradients, self._bags, "gradients of a pooled update")
        sums = {}
        for table, values in gradients.items():
            once, (_, offsets, mode, weights) = self._once[table], self._bags[table]
            of_bags = _as_gradients(values, len(offsets) - 1, table)
            received = bag_gradients(of_bags, offsets, mode, weights)
            sums[table] = self._run._sum(table, once, received)
        return self._update(sums, UpdateOptions(learning_rate, gradient_scale, on_nonfinite))

    def release(self) -> AcknowledgedUpdate:
        """Finish the step, which only read."""
        return self._finish("released", self._run._sessions.release_step)

    def skip(self) -> AcknowledgedUpdate:
        """Finish the step without its update."""
        return self._finish("skipped", self._run._sessions.skip_step)

    def _update(self, sums: Mapping[str, Rows], options: UpdateOptions) -> AcknowledgedUpdate:
        try:
            update = self._run._sessions.update_step
            return self._finish("updated", update, sums, **vars(options))
        except BaseException:
            self._run._sums.clear()  # Whoever reads them still reads what was meant.
            raise

    def _check_open(self, verb: str) -> None:
        if self.is_finished:
            raise InvalidArgumentError(
                f"step {self.number} was {self._finished_by} and cannot be {verb}"
            )

    def _finish(self, verb: str, call: Any, *given: Any, **options: Any) -> AcknowledgedUpdate:
        """Finish the step by a call of its session."""
        self._check_open(verb)
        done = self._run._finish(
            self.number, verb, lambda member: call(member, self.number, *given, **options)
        )
        self._finished_by = verb
        return done


def _as_gradients(values: ArrayLike, count: int, table: str) -> Rows:
    """Return gradients as (count, dim) float32, whatever dim is: the store knows it."""
    shape = np.shape(values)
    if len(shape) != 2 or shape[0] != count:
        raise InvalidArgumentError(
            f"table {table!r}: expected gradients of shape ({count}, dim), found {tuple(shape)}"
        )
    return as_rows(values, (count, shape[1]), table, "gradients")
