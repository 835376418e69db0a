"""A server as an executor: commands made smaller, sent, and their answers taken apart.

What the wire can do without is left out (`shares`). A call that is too large is refused here, as it
was before its keys were made unique: whether a call is taken may not depend on where the store is.

**Steps.** A call of a step may wait for other ranks, so its deadline is the connection's and beyond
it the session's `rank_timeout_ms`, as the server said when the member joined: a rank that is gone
is named (RankFailedError) before it passes. Where there are no others, it is the connection's
alone: a server that is gone is noticed as by any call. A lost call is sent again, since the server
knows each by member and step.

**Restarted servers.** A session lives in the server's process. The next call after a restart raises
SessionExpiredError, and has changed nothing; a call that finishes a step, of which an attempt was
out when the server ended, raises OutcomeUnknownError. No step can be done twice or left out: open
the name again, and go on after the `last_step` that it has then, which is that of the server's last
commit. What was looked up or announced of later steps is void.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar, cast

from embstore import commands as c
from embstore.arithmetic.denormals import kept
from embstore.arrays import Rows, as_out, check_on_host
from embstore.checks import checked
from embstore.checks.call_bytes import check_call_bytes, reply_bytes
from embstore.commands import Command, Progress
from embstore.config import Limits
from embstore.errors import InvalidArgumentError, OutcomeUnknownError, SessionExpiredError
from embstore.layout import VALUE_BYTES
from embstore.results import (
    Membership,
    RowsRead,
    ServerInfo,
    SessionFacts,
    TableDescription,
    Warmed,
)
from embstore_client.device_calls import are_on_device, check_exact, message_for, named
from embstore_client.known_tables import KnownTables
from embstore_client.map_version import split_by
from embstore_client.narrow_shares import narrower
from embstore_client.shares import UniqueKeys, summed
from embstore_client.step_rows import Assembly, StepRows, whole
from embstore_client.transport import Transport, checked_seconds
from embstore_proto.frame import NARROW
from embstore_proto.narrow import NARROW_BYTES
from embstore_proto.verbs import VERBS, Answer

R = TypeVar("R")


@dataclass
class _Place:
    """What this client knows of a member."""

    rank_timeout_s: float = 0.0
    """0 of a member that another client has joined, until the server has told it."""
    counts: dict[int, dict[str, int]] = field(default_factory=dict)
    """Of each announced and unfinished step how many keys each table has, in announced order."""

    def finished(self, step: int) -> None:
        """Forget a step, and those before it: steps are finished in their order."""
        for number in [n for n in tuple(self.counts) if n <= step]:  # another thread announces
            self.counts.pop(number, None)


_NO_PLACE = _Place()
"""Of commands without a member."""


class RemoteExecutor:
    """Executes commands on a server. Any thread.

    A member that another client has joined may be used here as well.
    """

    is_embedded = False

    def __init__(self, transport: Transport, wire_dtype: str = "float32") -> None:
        self.transport = transport
        self._wire_dtype = wire_dtype
        self.rounds_rows = wire_dtype in NARROW
        """Rows of lookups come rounded."""
        self.limits = Limits()
        """The server's, as told when it was connected to."""
        self.connected_by: dict[str, Any] | None = None
        """The arguments of `connect`, all but the token, by which another process can connect."""
        self.info: ServerInfo | None = None
        """What the server said of itself when it was last asked; None: it was not yet."""
        self._tables = KnownTables(self.execute)
        self._places: dict[str, _Place] = {}  # by member, until it closes or has expired

    def __repr__(self) -> str:
        return f"at {self.transport.address}"

    def check_device(self, name: str | None = None) -> None:
        """Have the server share its GPU's memory; see `embstore.commands.Executor`."""
        check_exact(self._wire_dtype)
        self.transport.share_device(VERBS["LookupStep"], name)

    @kept
    def execute(
        self,
        command: Command[R],
        *,
        out: Any = None,
        timeout_s: float | None = None,
        progress: Progress | None = None,
        map_version: int = 0,
    ) -> R:
        """Execute a command on the server; see `embstore.commands.Executor`.

        Raises DeadlineError where the server did not answer in time, else what it answered.
        """
        with split_by(map_version):
            return self._executed(command, out, timeout_s, progress)

    def _executed(
        self, command: Command[R], out: Any, timeout_s: float | None, progress: Progress | None
    ) -> R:
        if isinstance(command, c.GrowTable | c.SetLearningRate):
            command = cast(Command[R], replace(command, members=tuple(self._places)))
        command = checked(command)
        with self._membership(command) as place:
            if isinstance(command, c.LookupStep) and not are_on_device(out):
                assembly = Assembly(out or {})
                return cast(R, self._step_rows(command, assembly, place, timeout_s))
            if isinstance(command, c.WarmCache):
                return cast(R, self._warmed(command, progress, timeout_s))
            value = self._tables.by_id(command, lambda c: self._sent(c, out, place, timeout_s))
            self._note(command, value, place)
        return cast(R, value)

    def prefetch(self, command: c.LookupStep) -> StepRows:
        """Ask for a step's rows, and return at once what receives them."""
        checked(command)
        with self._membership(command) as place:
            seconds = self.transport.timeout_s + place.rank_timeout_s
        assembly = Assembly({})

        def fetch(timeout_s: float) -> dict[str, Any]:
            with self._membership(command) as place:
                read = self._step_rows(command, assembly, place, timeout_s)
            return {table.table: table.rows for table in read.tables}

        return StepRows(command.step, assembly, fetch, seconds)

    def warm_up(self) -> None:
        """A server has compiled its kernels before it said that it is ready."""

    def close(self) -> None:
        """End the connection. Calls that run are cut off. Closing twice is harmless."""
        self.transport.close()

    # Sending

    def _sent(self, command: Command[Any], out: Any, place: _Place, timeout_s: float | None) -> Any:
        check_call_bytes(command, self._tables.config_of, self.limits)
        verb = VERBS[type(command).__name__]
        counts = place.counts.get(getattr(command, "step", 0), {})
        config_of = self._tables.config_of
        on_device = message_for(command, out, config_of, self._wire_dtype, counts)
        if on_device is not None:
            seconds = self._deadline_s(command, place, timeout_s)
            if isinstance(command, c.LookupStep):
                command = replace(command, early=False)
            request, size = verb.outgoing(command, on_device), on_device.rows_bytes
            with named(command):
                answer = self.transport.send(verb, request, reply_bytes=size, timeout_s=seconds)
            return whole(answer.value) if verb.name == "LookupStep" else answer.value
        smaller, spread = self._smaller(command, out)
        request = verb.outgoing(smaller, rows_dtype=self._wire_dtype)
        if verb.document and request.payload_bytes > self.limits.call_bytes_max:
            raise InvalidArgumentError(
                f"expected {verb.document} of at most {self.limits.call_bytes_max} "
                f"bytes (limits.call_bytes_max), found {request.payload_bytes}"
            )
        seconds = self._deadline_s(command, place, timeout_s)
        if verb.is_streamed and not verb.is_bulk:  # a document
            (value,) = self.transport.receive(verb, request, _values, timeout_s=seconds)
            return value
        size = self._reply_bytes(smaller)
        if isinstance(command, c.Restore | c.Promote):
            with self.transport.beginning_epoch(command) as begins:
                answer = self.transport.send(verb, request, timeout_s=seconds)
                begins(answer.context.epoch)
                return answer.value
        answer = self.transport.send(verb, request, reply_bytes=size, timeout_s=seconds)
        return answer.value if spread is None else spread(answer.value)

    def _smaller(
        self, command: Command[Any], out: Any
    ) -> tuple[Command[Any], Callable[[RowsRead], RowsRead] | None]:
        """Return a command with each key once, and the way back of the rows that it reads."""
        if self._wire_dtype in NARROW and (found := narrower(command, self._wire_dtype)):
            sent, of_keys = found
            return sent, None if of_keys is None else lambda read: _spread(read, of_keys, out)
        match command:
            case c.Lookup(tables, admit):
                for part in tables:
                    _check_on_host(part.table, part.keys)
                if self.transport.wire.shares_memory:
                    return command, lambda read: _copied(read, out)
                once = [UniqueKeys.of(part) for part in tables]
                if all(keys.inverse is None for keys in once):
                    return command, lambda read: _spread(read, once, out)
                parts = [keys.in_place_of(p) for keys, p in zip(once, tables, strict=True)]
                return c.Lookup(tuple(parts), admit), lambda read: _spread(read, once, out)
            case c.ReadRows(keys):
                single = UniqueKeys.of(keys)
                smaller = c.ReadRows(single.in_place_of(keys))
                return smaller, lambda read: _spread_whole(read, single, out)
            case c.LookupPooled(pooled):
                for bags in pooled:
                    _check_on_host(bags.table, bags.keys)
                return command, lambda read: _copied(read, out)
            case c.UpdatePooled(spread):
                for of in spread:
                    _check_on_host(of.table, of.keys, of.gradients)
            case c.Assign(keys, rows):
                _check_on_host(keys.table, keys.keys, rows)
            case c.PutRows(keys, weights, state):
                _check_on_host(keys.table, keys.keys, weights, state)
            case c.LookupStepPooled():
                return command, lambda read: _copied(read, out)
            case c.Update(parts_of, options):
                if self.transport.wire.shares_memory:
                    for sent in parts_of:
                        _check_on_host(sent.table, sent.keys, sent.gradients)
                    return command, None
                return c.Update(tuple(map(summed, parts_of)), options), None
            case c.UpdateRanks(ranks, options):
                smaller_ranks = tuple(c.Rank(tuple(map(summed, rank.tables))) for rank in ranks)
                return c.UpdateRanks(smaller_ranks, options), None
        return command, None

    def _reply_bytes(self, command: Command[Any]) -> int:
        """Return about the bytes of the rows that come back."""
        if isinstance(command, c.LookupStepPooled | c.ReadStep):
            return 1  # that there are rows at all
        size = reply_bytes(command, self._tables.config_of)
        is_narrow = self._wire_dtype in NARROW and not isinstance(command, c.ReadRows)
        return size * NARROW_BYTES // VALUE_BYTES if is_narrow else size

    def _warmed(
        self, command: c.WarmCache, progress: Progress | None, timeout_s: float | None
    ) -> Warmed:
        def follow(answers: Iterator[Answer]) -> Warmed:
            warmed = Warmed(0, 0, finished=False)
            for answer in answers:
                warmed = answer.value
                if progress is not None:
                    progress(warmed.rows, warmed.of)
            return warmed

        verb = VERBS["WarmCache"]
        return self.transport.receive(verb, verb.outgoing(command), follow, timeout_s=timeout_s)

    # Sessions

    def _note(self, command: Command[Any], value: Any, place: _Place) -> None:
        """Remember what an answer says of tables and sessions."""
        match value:
            case ServerInfo():
                _check_takes(value, self._wire_dtype)
                self.limits, self.info = value.limits, value
            case TableDescription():
                self._tables.note(value)
            case Membership():
                self._places[value.member] = _Place(value.rank_timeout_ms / 1000)
            case SessionFacts() if isinstance(command, c.RenewLease):
                others_ms = 0 if value.world_size == 1 else value.rank_timeout_ms
                place.rank_timeout_s = others_ms / 1000
        match command:
            case c.Announce(member, steps):
                self._places.setdefault(member, place)  # another client may have joined it
                for step in steps:
                    place.counts[step.step] = {t.table: len(t.keys) for t in step.tables}
            case c.UpdateStep(step=step) | c.ReleaseStep(step=step) | c.SkipStep(step=step):
                place.finished(step)
            case c.CloseSession(member):
                self._places.pop(member, None)
            case c.DropTable(table):
                self._tables.forget(table)

    @contextmanager
    def _membership(self, command: Any) -> Iterator[_Place]:
        """Yield what is known of a command's member; nothing is any more once its session has
        ended."""
        member = getattr(command, "member", "")
        try:
            yield self._places.get(member) or (_Place() if member else _NO_PLACE)
        except (SessionExpiredError, OutcomeUnknownError):
            self._places.pop(member, None)
            raise

    def _deadline_s(self, command: Command[Any], place: _Place, timeout_s: float | None) -> float:
        if timeout_s is not None:
            return checked_seconds(timeout_s, "timeout_s")
        return self.transport.timeout_s + (
            place.rank_timeout_s if isinstance(command, _OF_STEPS) else 0.0
        )

    def _step_rows(
        self, command: c.LookupStep, assembly: Assembly, place: _Place, timeout_s: float | None
    ) -> RowsRead:
        counts = place.counts.get(command.step, {})

        def take(answers: Iterator[Answer]) -> RowsRead:
            return assembly.take((answer.value for answer in answers), counts)

        verb = VERBS["LookupStep"]
        seconds = self._deadline_s(command, place, timeout_s)
        request = verb.outgoing(command, rows_dtype=self._wire_dtype)
        return self.transport.receive(verb, request, take, timeout_s=seconds)


_OF_STEPS = (
    *(c.LookupStep, c.LookupStepPooled, c.ReadStep),
    *(c.UpdateStep, c.ReleaseStep, c.SkipStep),
)
"""Commands that may wait for other ranks."""


def _check_takes(info: ServerInfo, wire_dtype: str) -> None:
    """Refuse a server that knows no arrays of a dtype."""
    if wire_dtype in NARROW and not {wire_dtype, "int64_delta"} <= {*info.wire_dtypes}:
        raise InvalidArgumentError(
            f'the server is too old for wire_dtype="{wire_dtype}": it is of version '
            f"{info.version}, and takes arrays of {', '.join(info.wire_dtypes)}"
        )


def _values(answers: Iterator[Answer]) -> list[Any]:
    return [answer.value for answer in answers]


def _spread(read: RowsRead, once: list[UniqueKeys], out: Any) -> RowsRead:
    """Return the rows of the keys of the call from those of its unique keys."""
    outs = out or [None] * len(once)
    for keys, table, own in zip(once, read.tables, outs, strict=True):
        if own is not None:  # all before the first is written to
            as_out(own, (keys.call_count, table.rows.shape[1]), table.table)
    return RowsRead(
        tuple(
            replace(table, rows=keys.spread(table.rows, own, table.table))
            for table, keys, own in zip(read.tables, once, outs, strict=True)
        )
    )


def _spread_whole(read: RowsRead, once: UniqueKeys, out: Any) -> RowsRead:
    """Do the same with the weights and the state of a table."""
    (table,) = read.tables
    both = RowsRead((table, replace(table, rows=cast(Rows, table.state))))
    weights, state = _spread(both, [once, once], out).tables
    return RowsRead((replace(weights, state=state.rows),))


def _check_on_host(table: str, *arrays: Any) -> None:
    for array in arrays:
        check_on_host(array, f"table {table!r}: ")


def _copied(read: RowsRead, out: Any) -> RowsRead:
    """Return rows where the caller wants them."""
    if not out:
        return read
    outs = list(out.values()) if isinstance(out, dict) else out
    tables = []
    for table, own in zip(read.tables, outs, strict=True):
        if own is not None:
            filled = as_out(own, table.rows.shape, table.table)
            filled[:] = table.rows
            table = replace(table, rows=filled)
        tables.append(table)
    return RowsRead(tuple(tables))
