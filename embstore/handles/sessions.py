"""Look-ahead sessions by their verbs."""

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
    """Occurrences of the keys of one table in one step, and the bags that they lie in.

    The keys of a step are known once each, in announced order, so a bag is a run of indices into
    them: bag b pools the rows of the keys inverse[offsets[b]:offsets[b + 1]], as docs/contract.md,
    rule 8 says. A key that occurs twice in a bag is there twice.
    """

    inverse: NDArray[np.int32]
    """(n,), the index of each occurrence into the announced keys."""
    offsets: NDArray[np.int64] | None = None
    """(bags + 1,), rising from 0 to n; None: no bags, a row for each occurrence."""
    mode: Pooling = "sum"
    weights: NDArray[np.float32] | None = None
    """(n,), finite, with mode "sum" only; None: no weights."""

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
        """Check a caller's bags of `table`; `inverse` is known to be right.

        Raises
        ------
        InvalidArgumentError : another shape, dtype or mode; weights that are not finite, or that
            come with another mode than "sum".
        """
        bags = checked_bags(c.Bags(offsets, mode, weights), len(inverse), table)
        return cls(inverse, bags.offsets, bags.mode, bags.weights)

    @property
    def bags(self) -> c.Bags | None:
        """The bags, as a command has them."""
        return None if self.offsets is None else c.Bags(self.offsets, self.mode, self.weights)


class SomeGradients(NamedTuple):
    """Gradients of some of the keys of one table in one step; the others have none."""

    positions: NDArray[Any]
    """(n,) integers, ascending: which announced keys have one."""
    rows: ArrayLike
    """(n, dim) float32."""


class BagGradients(NamedTuple):
    """Gradients of occurrences of a table's keys in one step, or of bags of them."""

    bags: StepBags
    rows: ArrayLike
    """(n, dim) float32, of the occurrences; (bags, dim), where they lie in bags. The store sums
    them by key (docs/contract.md, rules 2 and 8)."""


MakeRows = Callable[[list[str], list[tuple[int, int]]], Sequence[Any]]
"""Returns arrays for rows, float32, by the names of their tables and their shapes."""


class Serving(NamedTuple):
    """The process that has the sessions now, and the store's state."""

    process: str
    """The server's process: its sessions end with it. Empty: the store is embedded."""
    epoch: int
    """The store's epoch: another one has lost commands."""


class Sessions(Reach):
    """Look-ahead sessions by their verbs. Any thread.

    A rank names itself by its **member**, which `join` gave it. Steps are numbered one after the
    other from the session's place; a rank may repeat a call for a step, and gets the same answer. A
    call renews its member's lease as it begins, and not while it waits for a server: a client that
    may wait for longer calls `renew` meanwhile.

    One class, because each verb of a session is a method, and has a text of its own.
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
        """Open a session, or return the one that is open by this name with these options.

        Parameters
        ----------
        name : 1 to 255 printable characters; a name that was used before goes on at its place
        tables : tables that steps may name; held until the session ends
        lookahead_steps_max : steps that may be announced beyond the last finished one
        world_size : ranks that share each step
        planner : how early rows are fetched: "per_step" as late as they can be there in time,
            "group:N" N steps as one, "window" as early as their step is announced
        shared : others may write to the tables as well; no rows are early then
        lease_ms : a rank that is silent for longer loses its place; ten minutes at most
        rank_timeout_ms : how long ranks wait for one another before the session fails
        waits : "none" for trainers that apply updates themselves: `read_step` is theirs, and a step
            may be sent to be finished before earlier steps are

        Raises
        ------
        InvalidArgumentError, TableNotFoundError : nothing has changed.
        TableHeldError : the name is open with other options, or another session holds a table.
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
        """Take the place of a rank.

        member : 16 to 64 characters that cannot be guessed; a repeated join with the same ones gets
            the same answer. None: chosen here

        Raises
        ------
        SessionExpiredError : no session of this name is open.
        TableHeldError : the rank is taken, by a client whose lease has not run out.
        InvalidArgumentError : the session has no such rank.
        """
        chosen = os.urandom(16).hex() if member is None else member
        return self._executor.execute(c.JoinSession(name, rank, chosen))

    def renew(self, member: str, *, timeout_s: float | None = None) -> SessionFacts:
        """Renew the rank's lease, as every other call of it does. Does not wait for other ranks."""
        return self._executor.execute(c.RenewLease(member), timeout_s=timeout_s)

    def close(self, member: str, *, forget: bool = False, timeout_s: float | None = None) -> None:
        """Leave a session; the last rank's leaving ends it. Closing twice is harmless.

        forget : also delete the place that is kept under the name
        """
        self._executor.execute(c.CloseSession(member, bool(forget)), timeout_s=timeout_s)

    def end(self, name: str) -> None:
        """End a session for all its ranks, which get an error; its place stays. For operators.

        Raises
        ------
        SessionExpiredError : no session of this name is open.
        """
        self._executor.execute(c.EndSession(name))

    def serving(self) -> Serving:
        """Return the process that has the sessions; after a restart it is another one."""
        found = self._executor.execute(c.GetServerInfo())
        return Serving(found.process, found.context.epoch)

    def tables(self, names: Iterable[str]) -> dict[str, TableDescription]:
        """Return the descriptions of tables, by name."""
        found = {table.config.name: table for table in self._executor.execute(c.ListTables())}
        return {name: found[name] for name in names}

    def t(self, tables: Iterable[str]) -> dict[str, int]:
        """Return the t of tables, by name: for a session's tables, t after its last finished
        step."""
        return {name: table.t for name, table in self.tables(tables).items()}

    def call_bytes_max(self) -> int:
        """Return how many bytes of keys and rows a call may have."""
        return self._executor.execute(c.GetServerInfo()).limits.call_bytes_max

    # Steps

    def announce(
        self, member: str, steps: Mapping[int, Mapping[str, ArrayLike]], *, is_last: bool = False
    ) -> Announced:
        """Announce the keys that coming steps will use.

        Parameters
        ----------
        steps : {step: {table: (u,) int64, unique}}, each the next one; a step that was announced
            with the same keys is passed over
        is_last : this rank has no steps after these. It finishes those that it has announced; the
            steps of the other ranks do not wait for it any more

        Raises
        ------
        InvalidArgumentError : not the next step, more than the session's lookahead_steps_max ahead,
            keys that repeat or are out of range, a table that is not the session's, steps after the
            last. None of the steps is announced.
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
        """Return the rows of an announced step, {table: (u, dim)}, when its turn has come.

        out : {table: (u, dim) float32} to fill and return, of some tables, or a function that makes
            them, of all. They may be in the memory of the device that has the tables, as in
            `Table.lookup`, where `reaches_device`; arrays of a function must be there, unless the
            store is embedded
        on_device : rows are new arrays in the memory of the device that has the tables: CuPy arrays
            of a GPU, ordered behind the store's work in CuPy's current stream. A server that shares
            its GPU's memory with this process lends them, as in `Table.lookup`; use them in that
            stream, or in the one in which the step's gradients are made
        timeout_s : how long to wait for the turn; None: the session's rank_timeout_ms

        Raises
        ------
        DeadlineError : earlier steps are not finished in time.
        InvalidArgumentError : `on_device` together with `out`, or where `reaches_device` is False;
            `out` on the device, for a step that another client has announced.
        """
        makes = callable(out)
        outs = {} if out is None or makes else mapping(out, "out")
        if on_device and out:
            raise InvalidArgumentError("expected out, or on_device with new arrays, found both")
        into = c.ON_DEVICE if on_device else out if makes else outs
        command = c.LookupStep(member, step)
        return parts.filled(self._executor.execute(command, out=into, timeout_s=timeout_s), outs)

    def prefetch_step(self, member: str, step: int) -> Prefetched | None:
        """Ask for a step's rows, and return at once an object that waits for them; None: nothing is
        gained by it, as the store is in this process."""
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
        occurrences that lie in no bags, (n, dim). `on_device` as in `lookup_step`."""
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
        """Return weights and state of some announced keys, as soon as they are in the cache.

        Earlier steps may be unfinished: `last_step` of the result says which are in the rows.

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
        finished; the last rank's call applies the gradients of all ranks. With an embedded store,
        and with a server that shares its GPU's memory with this process, they may be in the
        device's memory; gradients there of several ranks are summed by key, and wait for the last
        rank. `SomeGradients` leave keys out, which are not updated; `BagGradients` are of
        occurrences, and are summed by key.

        learning_rate : for this update only, also by table; None: the tables'
        rows_checksum : `embstore.arithmetic.checksum` of the rows before the update, of all
            announced tables and keys in their order; None: unchecked. Over shards only a
            `embstore.commands.RowsChecksum` is compared
        is_finite : whether rule 9 accepts the update of all ranks, where the caller knows: False
            skips it (or refuses it, see `on_nonfinite`)

        Raises
        ------
        ReplicaMismatchError : the checksum differs. The step is not applied, and the session ends.
        InvalidArgumentError : tables, shapes or dtypes other than announced, options other than
            another rank's, a sum that is not finite. The step is open, for another try or a skip.
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
        """Finish a step whose gradients are not to be applied; all ranks must say so."""
        return self._executor.execute(c.SkipStep(member, step), timeout_s=timeout_s)

    # Rows that were trained elsewhere

    def put_rows(self, member: str, puts: Mapping[str, Any]) -> AcknowledgedUpdate:
        """Set rows of the session's tables, as its only writer: a hot replica's way to send back.

        One command for all tables, as `Table.put_rows` is for one. Steps that are announced may
        have been sent early; so all must be finished before.

        Parameters
        ----------
        puts : {table: (keys (n,), weights (n, dim), state (n, state_dim), updates to add to t)}

        Raises
        ------
        InvalidArgumentError : steps are announced and not finished, the session is shared, or has
            no such table; or an argument is wrong. Nothing has changed.
        """
        named = tuple(
            c.StepPut(name, *parts.arrays(put, 4, name))
            for name, put in mapping(puts, "puts").items()
        )
        return self._executor.execute(c.PutStepRows(member, named))

    # Rows that are to be as if they had never been written

    def delete_rows(self, member: str, table: str, keys: ArrayLike) -> Deleted:
        """Delete rows of one of the session's tables, as `Table.delete`, which is refused as long
        as a session holds the table.

        It is done when its turn has come, between two steps as a rule: whatever was announced, the
        rows of steps that are looked up afterwards are those after the deletion, also where they
        were sent early, or with `prefetch_step`. A step that was looked up before may be updated.

        Raises
        ------
        InvalidArgumentError : the session has no such table; its trainer runs ahead (waits="none"),
            and has rows of its own; keys of another shape, dtype or range. Nothing has changed.
        """
        given: Any = keys  # the executor makes an array of it
        return self._executor.execute(c.DeleteRows(c.TableKeys(table, None, given), member=member))

    def clear_table(self, member: str, table: str) -> Deleted:
        """Delete all rows of one of the session's tables, as `delete_rows` some."""
        return self._executor.execute(c.ClearTable(table, member=member))

    def stats(self) -> list[dict[str, Any]]:
        """Return the stats of every open session, each with the stats of planning."""
        found = self._executor.execute(c.GetStats())["sessions"]
        return [session | found["planning"] for session in found["open"]]


def step_gradients(table: str, given: Any) -> c.StepGradients:
    """Return one table's gradients of a step, as `update_step` takes them, as they are sent."""
    if isinstance(given, SomeGradients):
        rows: Any = given.rows
        return c.StepGradients(table, rows, given.positions)
    if isinstance(given, BagGradients):
        of, inverse = given.bags, cast(Any, given.bags.inverse)
        return c.StepGradients(table, cast(Any, given.rows), None, inverse, of.bags)
    return c.StepGradients(table, given)
