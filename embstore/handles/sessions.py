"""Look-ahead sessions: a method for each of their commands."""

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray

from embstore import commands as c
from embstore.checks.arguments import mapping
from embstore.checks.parts import checked_bags
from embstore.commands import OnNonfinite, Pooling, Prefetched
from embstore.errors import InvalidArgumentError
from embstore.handles import parts
from embstore.handles.reach import Reach
from embstore.results import (
    AcknowledgedUpdate,
    Announced,
    Deleted,
    Membership,
    SessionFacts,
    StepRecords,
    TableDescription,
)


class StepBags(NamedTuple):
    """Occurrences of the keys of one table in one step, and the bags that contain them.

    A step knows each key once, in announced order, so a bag is a range of indices into these keys:
    bag b pools the rows of the keys inverse[offsets[b]:offsets[b + 1]] (docs/contract.md, rule 8).
    A key that occurs twice in a bag counts twice.
    """

    inverse: NDArray[np.int32]
    """The index of each occurrence among the announced keys, shape (n,)."""
    offsets: NDArray[np.int64] | None = None
    """Bounds of the bags, shape (bags + 1,), rising from 0 to n; None: no bags, one row for each
    occurrence."""
    mode: Pooling = "sum"
    weights: NDArray[np.float32] | None = None
    """Weights of the occurrences, shape (n,), finite, with mode "sum" only; None: no weights."""

    @classmethod
    def of(
        cls,
        inverse: NDArray[np.int32],
        offsets: Any,
        mode: Pooling = "sum",
        weights: Any = None,
        *,
        table: str,
    ) -> "StepBags":
        """Return checked bags of `table`. `inverse` must be correct already.

        Raises
        ------
        InvalidArgumentError : another shape, dtype or mode; weights that are not finite, or are
            given with a mode other than "sum".
        """
        bags = checked_bags(c.Bags(offsets, mode, weights), len(inverse), table)
        return cls(inverse, bags.offsets, bags.mode, bags.weights)

    @property
    def bags(self) -> c.Bags | None:
        """The bags in the form of a command."""
        return None if self.offsets is None else c.Bags(self.offsets, self.mode, self.weights)


class SomeGradients(NamedTuple):
    """Gradients for some of the keys of one table in one step; the other keys get no update."""

    positions: NDArray[Any]
    """The indices, among the announced keys, of the keys with a gradient: (n,) integers,
    ascending."""
    rows: ArrayLike
    """Gradients, (n, dim) float32."""


class BagGradients(NamedTuple):
    """Gradients of the occurrences of a table's keys in one step, or of bags of occurrences."""

    bags: StepBags
    rows: ArrayLike
    """Gradients, float32: (n, dim) of the occurrences, or (bags, dim) of their bags. The store sums
    them by key (docs/contract.md, rules 2 and 8)."""


MakeRows = Callable[[list[str], list[tuple[int, int]]], Sequence[Any]]
"""Function that makes float32 arrays for rows, given the names of their tables and their shapes."""


class Serving(NamedTuple):
    """The process that runs the sessions now, and the epoch of the store."""

    process: str
    """The id of the server's process; sessions end with the process. Empty: the store is
    embedded."""
    epoch: int
    """The store's epoch. A change of the epoch means that commands were lost."""


class Sessions(Reach):
    """Look-ahead sessions: one method for each of their commands. Any thread can call the methods.

    A rank identifies itself by its **member**, a secret from `join`. Steps are numbered
    consecutively from the session's resume position; a rank can repeat a call for a step, and gets
    the same answer. A call renews its member's lease when it begins, but not while it waits for a
    server: a client whose call may wait longer than the lease must call `renew` meanwhile.

    One class has all commands of a session, because each command is a method with its own
    documentation.
    """

    # Opening and closing

    def open(
        self,
        name: str,
        tables: Sequence[str],
        *,
        lookahead_steps_max: int = c.LOOKAHEAD,
        world_size: int = 1,
        planner: str = "per_step",
        shared: bool = False,
        lease_ms: int = c.LEASE_MS,
        rank_timeout_ms: int = c.RANK_TIMEOUT_MS,
        waits: c.Waits = "late",
    ) -> SessionFacts:
        """Open a session, or return the session that is open by this name with these options.

        Parameters
        ----------
        name : 1 to 255 printable characters; if the name was used before, the session resumes after
            the last step that was finished under the name
        tables : tables that steps can name; the session is their only writer until it ends
        lookahead_steps_max : maximum number of steps that can be announced beyond the last finished
            step
        world_size : number of ranks that share each step
        planner : time at which rows are fetched. "per_step": just in time for their step;
            "group:N": for N steps at once; "window": as soon as their step is announced
        shared : whether other clients can write to the tables as well; if so, no rows arrive early
        lease_ms : milliseconds for which a rank can be silent before the session ends; ten minutes
            at most
        rank_timeout_ms : milliseconds that ranks wait for one another before the session fails
        waits : "none" for trainers that apply updates themselves. Such trainers can call
            `read_step`, and can send the end of a step before earlier steps are finished. "mixed"
            for hot/cold runs, which apply updates of hot batches themselves. With both, the tables'
            learning rates are fixed, and steps cannot delete rows

        Raises
        ------
        InvalidArgumentError, TableNotFoundError : nothing has changed.
        TableHeldError : the name is open with other options, or another session uses a table.
        """
        named: Any = tuple(tables) if isinstance(tables, list) else tables
        command = c.OpenSession(
            name,
            named,
            lookahead_steps_max,
            world_size,
            planner,
            shared,
            lease_ms,
            rank_timeout_ms,
            waits,
        )
        return self._executor.execute(command)

    def join(self, name: str, rank: int, *, member: str | None = None) -> Membership:
        """Become a rank of a session.

        member : 16 to 64 characters that cannot be guessed; a repeated join with the same member
            gets the same answer. None: this method chooses them

        Raises
        ------
        SessionExpiredError : no session of this name is open.
        TableHeldError : another client, whose lease has not run out, has the rank.
        InvalidArgumentError : the session has no such rank.
        """
        chosen = os.urandom(16).hex() if member is None else member
        return self._executor.execute(c.JoinSession(name, rank, chosen))

    def renew(self, member: str, *, timeout_s: float | None = None) -> SessionFacts:
        """Renew the rank's lease, as every other call of the rank does. This call does not wait for
        other ranks."""
        return self._executor.execute(c.RenewLease(member), timeout_s=timeout_s)

    def close(self, member: str, *, forget: bool = False, timeout_s: float | None = None) -> None:
        """Leave a session, which ends when its last rank leaves. Closing twice is harmless.

        forget : also delete the resume position that the store keeps for the session's name
        """
        self._executor.execute(c.CloseSession(member, bool(forget)), timeout_s=timeout_s)

    def end(self, name: str) -> None:
        """End a session for all its ranks, which get an error; the resume position is kept. For
        operators.

        Raises
        ------
        SessionExpiredError : no session of this name is open.
        """
        self._executor.execute(c.EndSession(name))

    def serving(self) -> Serving:
        """Return the process that runs the sessions (it changes with a restart), and the epoch."""
        found = self._executor.execute(c.GetServerInfo())
        return Serving(found.process, found.context.epoch)

    def tables(self, names: Iterable[str]) -> dict[str, TableDescription]:
        """Return the descriptions of tables, by name."""
        found = {table.config.name: table for table in self._executor.execute(c.ListTables())}
        return {name: found[name] for name in names}

    def t(self, tables: Iterable[str]) -> dict[str, int]:
        """Return t, the number of applied updates, of each table, by name. For a table of a session
        this is t after the session's last finished step."""
        return {name: table.t for name, table in self.tables(tables).items()}

    def call_bytes_max(self) -> int:
        """Return the most bytes of keys and rows that a call can have."""
        return self._executor.execute(c.GetServerInfo()).limits.call_bytes_max

    # Steps

    def announce(
        self, member: str, steps: Mapping[int, Mapping[str, ArrayLike]], *, is_last: bool = False
    ) -> Announced:
        """Announce the keys that coming steps will use.

        Parameters
        ----------
        steps : {step: {table: (u,) int64, unique}}, consecutive steps; a step that was announced
            before with the same keys is skipped
        is_last : whether this rank has no steps after these steps. The rank still finishes all
            steps that it has announced; later steps of the other ranks do not wait for it

        Raises
        ------
        InvalidArgumentError : a step is not the next step, or is more than the session's
            lookahead_steps_max ahead; keys repeat or are out of range; the session lacks a table;
            steps follow the last step. None of the steps is announced.
        """
        named = tuple(
            c.StepKeys(step, tuple(c.StepTable(name, keys) for name, keys in of_step.items()))
            for step, given in mapping(steps, "steps").items()
            for of_step in (mapping(given, f"step {step}: keys"),)
        )
        return self._executor.execute(c.Announce(member, named, bool(is_last)))

    def lookup_step(
        self,
        member: str,
        step: int,
        *,
        out: Mapping[str, Any] | MakeRows | None = None,
        on_device: bool = False,
        timeout_s: float | None = None,
    ) -> dict[str, Any]:
        """Return the rows of an announced step, {table: (u, dim)}, once all earlier steps are
        finished.

        out : {table: (u, dim) float32}, arrays to fill and return for some of the tables; or a
            function that makes the arrays of all tables. If `reaches_device` is True, the arrays
            can be in the memory of the device that has the tables, as in `Table.lookup`; the arrays
            of a function must be in that memory, unless the store is embedded
        on_device : whether the rows are new arrays in the memory of the device that has the tables:
            CuPy arrays of a GPU. Work that is later queued in CuPy's current stream finds the
            arrays complete. A server that shares its GPU's memory with this process lends the
            arrays, as in `Table.lookup`; use them in that stream, or in the stream in which the
            step's gradients are computed
        timeout_s : longest wait for earlier steps, in seconds; None: the session's rank_timeout_ms

        Raises
        ------
        DeadlineError : earlier steps were not finished in time.
        InvalidArgumentError : `on_device` is given together with `out`, or while `reaches_device`
            is False; or `out` is on the device, and another client announced the step.
        """
        makes = callable(out)
        outs = {} if out is None or makes else mapping(out, "out")
        if on_device and out:
            raise InvalidArgumentError("expected out, or on_device with new arrays, found both")
        into = c.ON_DEVICE if on_device else out if makes else outs
        command = c.LookupStep(member, step)
        return parts.filled(self._executor.execute(command, out=into, timeout_s=timeout_s), outs)

    def prefetch_step(self, member: str, step: int) -> Prefetched | None:
        """Request a step's rows, and return at once an object that waits for them.

        Return None if the store is in this process, where a prefetch gains nothing.
        """
        return self._executor.prefetch(c.LookupStep(member, step))

    def lookup_step_pooled(
        self,
        member: str,
        step: int,
        bags: Mapping[str, StepBags],
        *,
        on_device: bool = False,
        timeout_s: float | None = None,
    ) -> dict[str, Any]:
        """Return the pooled rows of bags of announced keys, {table: (bags, dim)}, or the rows of
        occurrences without bags, (n, dim). `on_device` has the same meaning as in `lookup_step`."""
        named = tuple(
            c.StepBags(name, of.inverse, of.bags) for name, of in mapping(bags, "bags").items()
        )
        into = c.ON_DEVICE if on_device else None
        command = c.LookupStepPooled(member, step, named)
        return parts.filled(self._executor.execute(command, out=into, timeout_s=timeout_s), {})

    def read_step(
        self,
        member: str,
        step: int,
        positions: Mapping[str, ArrayLike],
        *,
        timeout_s: float | None = None,
    ) -> StepRecords:
        """Return weights and state of some announced keys, as soon as their rows are in the cache.

        Earlier steps can be unfinished: the rows contain the updates up to the result's
        `last_step`.

        Parameters
        ----------
        positions : {table: (n,) integers, ascending}, indices into the announced keys
        """
        wanted: Mapping[str, Any] = mapping(positions, "positions")
        named = tuple(c.StepPositions(name, places) for name, places in wanted.items())
        return self._executor.execute(c.ReadStep(member, step, named), timeout_s=timeout_s)

    # Finishing a step

    def update_step(
        self,
        member: str,
        step: int,
        gradients: Mapping[str, ArrayLike | SomeGradients | BagGradients],
        *,
        learning_rate: c.LearningRate | None = None,
        gradient_scale: float = 1.0,
        on_nonfinite: OnNonfinite = "refuse",
        rows_checksum: int | c.RowsChecksum | None = None,
        is_finite: bool | None = None,
        timeout_s: float | None = None,
    ) -> AcknowledgedUpdate:
        """Send one gradient for each announced key, {table: (u, dim)}, and wait until the step is
        finished. The last rank's call applies the gradients of all ranks.

        With an embedded store, and with a server that shares its GPU's memory with this process,
        gradients can be in the device's memory. If there are several ranks, such gradients are
        summed by key on the device, and the sums wait there for the last rank. `SomeGradients`
        leave out some keys, which are not updated. `BagGradients` belong to occurrences, and are
        summed by key.

        learning_rate : one rate, or rates by table, for this update only; None: the tables' rates
        rows_checksum : `embstore.arithmetic.checksum` of the rows before the update: all rows of
            the step, with tables and keys in the announced order; None: no check. A cluster
            compares only an `embstore.commands.RowsChecksum`
        is_finite : whether rule 9 of contract.md (finite gradients) accepts the update of all
            ranks; None: the caller does not know. False skips the update (or refuses it, see
            `on_nonfinite`)

        Raises
        ------
        ReplicaMismatchError : the checksum differs. The step is not applied, and the session ends.
        InvalidArgumentError : tables, shapes or dtypes differ from the announcement, options differ
            from another rank's options, or a sum is not finite. The step stays open: send it again
            or skip it.
        """
        named = tuple(
            step_gradients(name, given) for name, given in mapping(gradients, "gradients").items()
        )
        options = parts.options(learning_rate, gradient_scale, on_nonfinite)
        command = c.UpdateStep(member, step, named, options, rows_checksum, is_finite)
        return self._executor.execute(command, timeout_s=timeout_s)

    def release_step(
        self, member: str, step: int, *, timeout_s: float | None = None
    ) -> AcknowledgedUpdate:
        """Finish a step whose rows were only read, and wait until all ranks have finished it."""
        return self._executor.execute(c.ReleaseStep(member, step), timeout_s=timeout_s)

    def skip_step(
        self, member: str, step: int, *, timeout_s: float | None = None
    ) -> AcknowledgedUpdate:
        """Finish a step without applying its gradients; all ranks must skip it."""
        return self._executor.execute(c.SkipStep(member, step), timeout_s=timeout_s)

    # Rows that were trained elsewhere

    def put_rows(self, member: str, puts: Mapping[str, Any]) -> AcknowledgedUpdate:
        """Set rows of the session's tables. The session must be the only writer of its tables. A
        hot replica (a trainer's copy of hot rows) sends its rows back by this method.

        One command sets the rows of all tables; `Table.put_rows` sets rows of one table. All
        announced steps must be finished first, because their rows may have been sent early.

        Parameters
        ----------
        puts : {table: (keys (n,), weights (n, dim), state (n, state_dim), updates to add to t)}

        Raises
        ------
        InvalidArgumentError : announced steps are not finished, the session is shared or lacks a
            table, or an argument is wrong. Nothing has changed.
        """
        named = tuple(
            c.StepPut(name, *parts.arrays(put, 4, name))
            for name, put in mapping(puts, "puts").items()
        )
        return self._executor.execute(c.PutStepRows(member, named))

    # Rows that are deleted

    def delete_rows(self, member: str, table: str, keys: ArrayLike) -> Deleted:
        """Delete rows of one of the session's tables. `Table.delete` is refused while a session
        uses the table.

        The engine executes the deletion after the calls that came earlier, usually between two
        steps. A step that is looked up after the deletion gets rows without the deleted content,
        even if its rows were sent early or requested by `prefetch_step`. A step that was looked up
        before the deletion can still be updated.

        Raises
        ------
        InvalidArgumentError : the session lacks the table; its trainer runs ahead (waits="none"),
            and therefore has rows of its own; or keys have another shape, dtype or range. Nothing
            has changed.
        """
        given: Any = keys  # the executor converts it to an array
        return self._executor.execute(c.DeleteRows(c.TableKeys(table, None, given), member=member))

    def clear_table(self, member: str, table: str) -> Deleted:
        """Delete all rows of one of the session's tables, as `delete_rows` deletes some of them."""
        return self._executor.execute(c.ClearTable(table, member=member))

    def stats(self) -> list[dict[str, Any]]:
        """Return the stats of every open session. Each of them also contains the stats of planning,
        which are the same for all sessions."""
        found = self._executor.execute(c.GetStats())["sessions"]
        return [session | found["planning"] for session in found["open"]]


def step_gradients(table: str, given: Any) -> c.StepGradients:
    """Return one table's gradients of a step, in the form of `update_step`, as a command part."""
    if isinstance(given, SomeGradients):
        rows: Any = given.rows
        return c.StepGradients(table, rows, given.positions)
    if isinstance(given, BagGradients):
        of, inverse = given.bags, cast(Any, given.bags.inverse)
        return c.StepGradients(table, cast(Any, given.rows), None, inverse, of.bags)
    return c.StepGradients(table, given)
