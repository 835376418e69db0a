"""Look-ahead sessions of a server: the blocking verbs of `store.sessions`, each one call.

**Lost calls.** The server knows every call of a step by (member, step), and a join by the member
that the client has made up for it, so a lost one is simply sent again. `put_rows` is of no step: it
has an origin, as the calls beside sessions have.

**Restarted servers.** A session lives in the server's process. The next call after a restart raises
SessionExpiredError, and has changed nothing; a call that finishes a step, of which an attempt was
out when the server ended, raises OutcomeUnknownError. In either case nothing waits longer than its
deadline, and no step can be done twice or left out: open the name again, and go on behind the
`last_step` that it has then, which is that of the server's last commit. What was looked up or
announced of later steps is void.

**Deadlines.** A call of a step may wait for other ranks, so the deadline is the connection's and
beyond it the session's `rank_timeout_ms`, as the server told it: a rank that is gone is named
(RankFailedError) before it passes. A call renews its member's lease as it begins, and not while it
waits: whoever may wait for longer calls `renew` meanwhile, as a run's thread does.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from secrets import token_hex
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from embstore.arrays import Keys, Rows, as_keys, as_rows
from embstore.errors import (
    InvalidArgumentError,
    OutcomeUnknownError,
    SessionExpiredError,
    StepNotFoundError,
)
from embstore.feed.bags import StepBags
from embstore.results import AcknowledgedUpdate, Announced, Membership, SessionFacts
from embstore_client import messages
from embstore_client.calls import Calls
from embstore_client.shares import mapping
from embstore_client.step_rows import Assembly, StepRows
from embstore_client.transport import KnownBy, checked_seconds
from embstore_proto.codec import Message, Received, array_of
from embstore_proto.v1 import embstore_pb2 as pb

_UINT32_MAX = 2**32 - 1
_UINT64_MAX = 2**64 - 1


@dataclass
class _Place:
    """What this client knows of a member."""

    rank_timeout_s: float = 0.0
    """0 of a member that another client has joined, until the server has told it."""
    counts: dict[int, dict[str, int]] = field(default_factory=dict)
    """Of each announced and unfinished step how many keys each table has, in announced order."""

    def finished(self, step: int) -> None:
        """Forget a step, and those before it: steps are finished in their order."""
        for number in [n for n in self.counts if n <= step]:
            self.counts.pop(number, None)


class RemoteSessions:
    """A server's sessions. Any thread. What each verb does is said at `store.sessions`.

    A member that another client has joined may be used here as well.
    """

    def __init__(self, calls: Calls) -> None:
        self._calls = calls
        self._transport = calls.transport
        self._places: dict[str, _Place] = {}  # by member, until it closes or has expired

    # Coming and going

    def open(
        self,
        name: str,
        tables: Sequence[str],
        *,
        lookahead_steps_max: int = 16,
        world_size: int = 1,
        planner: str = "per_step",
        shared: bool = False,
        lease_ms: int = 10_000,
        rank_timeout_ms: int = 60_000,
    ) -> SessionFacts:
        """Open a session, or find it open with the same options, and return what it is."""
        if not isinstance(shared, bool):
            raise InvalidArgumentError(f"expected shared to be True or False, found {shared!r}")
        request = pb.OpenSessionRequest(
            name=_text(name, "a session's name"),
            tables=self._named_tables(tables),
            lookahead_steps_max=_count(lookahead_steps_max, "lookahead_steps_max"),
            world_size=_count(world_size, "world_size"),
            planner=_text(planner, "planner"),
            shared=shared,
            lease_ms=_count(lease_ms, "lease_ms"),
            rank_timeout_ms=_count(rank_timeout_ms, "rank_timeout_ms"),
        )
        reply = self._transport.call("OpenSession", request, pb.SessionReply.FromString)
        return _facts(reply.session)

    def _named_tables(self, tables: Any) -> list[str]:
        if isinstance(tables, str) or not isinstance(tables, Sequence):
            raise InvalidArgumentError(f"expected tables as a list of names, found {tables!r}")
        return [self._calls.name(table) for table in tables]

    def join(self, name: str, rank: int, *, member: str | None = None) -> Membership:
        """Take a rank's place in an open session; `member` None: one is made up here."""
        if not _is_text(name):
            raise SessionExpiredError(f"no session {name!r} is open; open it, then join")
        token = token_hex(16) if member is None else _text(member, "member")
        request = pb.JoinSessionRequest(name=name, rank=_count(rank, "rank"), member=token)
        reply = self._transport.call("JoinSession", request, pb.MembershipReply.FromString)
        self._places[reply.member] = _Place(reply.rank_timeout_ms / 1000)
        return Membership(reply.member, reply.name, reply.rank, reply.last_step)

    def renew(self, member: str, *, timeout_s: float | None = None) -> SessionFacts:
        """Renew a member's lease, as every other call of it does; it waits for nobody."""
        with self._place(member) as place:
            request = pb.RenewLeaseRequest(member=member)
            reply = self._transport.call(
                "RenewLease", request, pb.SessionReply.FromString, timeout_s=timeout_s
            )
        place.rank_timeout_s = reply.session.rank_timeout_ms / 1000
        return _facts(reply.session)

    def close(self, member: str, *, forget: bool = False, timeout_s: float | None = None) -> None:
        """Leave the session; the last member to leave closes it. Closing twice is harmless."""
        with self._place(member):
            request = pb.CloseSessionRequest(member=member, forget=bool(forget))
            self._transport.call(
                "CloseSession", request, pb.SessionClosedReply.FromString, timeout_s=timeout_s
            )
        self._places.pop(member, None)

    def facts(self) -> list[dict[str, Any]]:
        """Return the facts and figures of every session of the server."""
        facts: list[dict[str, Any]] = self._calls.stats()["sessions"]["open"]
        return facts

    # Steps

    def announce(self, member: str, steps: Mapping[int, Mapping[str, ArrayLike]]) -> Announced:
        """Announce the unique keys of steps to come, {step: {table: keys}}."""
        with self._place(member) as place:
            checked = _announced_keys(steps)
            keys = [k for step in checked.values() for k in step.values()]
            self._calls.check_bytes(sum(k.nbytes for k in keys))
            message = Message()
            header = pb.AnnounceRequest.Header(
                member=member, steps=messages.announced(message, checked)
            )
            received = self._transport.bulk("Announce", header, message, reply_bytes=0)
        reply = pb.AnnouncedReply.Header.FromString(received.header)
        self._transport.knows(reply.context)
        self._places.setdefault(member, place)  # another client may have joined it
        for number, step in checked.items():
            place.counts[number] = {name: len(k) for name, k in step.items()}
        return Announced(reply.announced_step, reply.planned_step, reply.held_back)

    def lookup_step(
        self,
        member: str,
        step: int,
        *,
        out: Mapping[str, Rows] | None = None,
        timeout_s: float | None = None,
    ) -> dict[str, Rows]:
        """Return a step's rows, {table: (u, dim) float32} in the announced order of its keys.

        They come when every earlier step is finished, and those that can before.
        """
        outs = mapping({} if out is None else out, "out")
        return self._fetch(member, step, Assembly(outs), timeout_s)

    def prefetch_step(self, member: str, step: int) -> StepRows:
        """Ask for a step's rows, and return at once the handle that receives them."""
        with self._place(member) as place:
            number, seconds = _step(step), self._timeout_s(place, None)
        assembly = Assembly({})

        def fetch(timeout_s: float) -> dict[str, Rows]:
            return self._fetch(member, number, assembly, timeout_s)

        return StepRows(number, assembly, fetch, seconds)

    def _fetch(
        self, member: str, step: int, assembly: Assembly, timeout_s: float | None
    ) -> dict[str, Rows]:
        with self._place(member) as place:
            request = pb.LookupStepRequest(member=member, step=_step(step))
            counts = place.counts.get(request.step, {})

            def take(received: Iterator[Received]) -> dict[str, Rows]:
                return assembly.take(received, counts, self._transport.knows)

            return self._transport.messages(
                "LookupStep", request, take, timeout_s=self._timeout_s(place, timeout_s)
            )

    def lookup_step_pooled(
        self,
        member: str,
        step: int,
        bags: Mapping[str, StepBags],
        *,
        timeout_s: float | None = None,
    ) -> dict[str, Rows]:
        """Return bags of a step's rows, pooled by the server, {table: (bags, dim) float32}."""
        with self._place(member) as place:
            checked = {
                _text(name, "a table's name"): StepBags.of(
                    _inverse(b.inverse, name), b.offsets, b.mode, b.weights, table=name
                )
                for name, b in mapping(bags, "bags").items()
            }
            message = Message()
            header = pb.LookupStepPooledRequest.Header(
                member=member, step=_step(step), tables=messages.step_bags(message, checked)
            )
            received = self._transport.stream(
                "LookupStepPooled", header, message, timeout_s=self._timeout_s(place, timeout_s)
            )
        reply = pb.RowsReply.Header.FromString(received.header)
        self._transport.knows(reply.context)
        return {
            table.table: array_of(received, table.rows, np.float32, 2, "the reply")
            for table in reply.tables
        }

    def update_step(
        self,
        member: str,
        step: int,
        gradients: Mapping[str, ArrayLike],
        *,
        learning_rate: float | None = None,
        gradient_scale: float = 1.0,
        on_nonfinite: str = "refuse",
        timeout_s: float | None = None,
    ) -> AcknowledgedUpdate:
        """Send a step's gradients, (u, dim) a table, and wait until the step is finished by all."""
        with self._place(member) as place:
            given = mapping(gradients, "gradients")
            rows = {_text(name, "a table's name"): _gradients(g, name) for name, g in given.items()}
            self._calls.check_bytes(sum(r.nbytes for r in rows.values()))
            message = Message()
            header = pb.UpdateStepRequest.Header(
                member=member,
                step=_step(step),
                tables=messages.step_gradients(message, rows),
                options=messages.options(learning_rate, gradient_scale, on_nonfinite),
            )
            received = self._transport.bulk(
                "UpdateStep",
                header,
                message,
                reply_bytes=0,
                mutates=True,
                known_by=KnownBy.STEP,
                timeout_s=self._timeout_s(place, timeout_s),
            )
        place.finished(header.step)
        reply = pb.BulkAcknowledgedReply.Header.FromString(received.header)
        self._transport.knows(reply.context)
        return AcknowledgedUpdate(reply.context.command, dict(reply.t), reply.skipped)

    def release_step(
        self, member: str, step: int, *, timeout_s: float | None = None
    ) -> AcknowledgedUpdate:
        """Finish a step that only read."""
        return self._finish("ReleaseStep", pb.ReleaseStepRequest, member, step, timeout_s)

    def skip_step(
        self, member: str, step: int, *, timeout_s: float | None = None
    ) -> AcknowledgedUpdate:
        """Finish a step whose batch is dropped."""
        return self._finish("SkipStep", pb.SkipStepRequest, member, step, timeout_s)

    def _finish(
        self, name: str, request: Any, member: str, step: int, timeout_s: float | None
    ) -> AcknowledgedUpdate:
        with self._place(member) as place:
            number = _step(step)
            reply = self._transport.call(
                name,
                request(member=member, step=number),
                pb.StepReply.FromString,
                mutates=True,
                known_by=KnownBy.STEP,
                timeout_s=self._timeout_s(place, timeout_s),
            )
        place.finished(number)
        return AcknowledgedUpdate(reply.context.command, dict(reply.t), reply.skipped)

    # Rows of a hot replica

    def put_rows(
        self,
        member: str,
        puts: Mapping[str, tuple[ArrayLike, ArrayLike, ArrayLike, int]],
    ) -> AcknowledgedUpdate:
        """Set rows of several tables, {table: (keys, weights, state, t to add)}, in one command.

        Refused while an announced step of the session is unfinished.
        """
        with self._place(member):
            rows = _replica_rows(puts)
            self._calls.check_bytes(
                sum(k.nbytes + w.nbytes + s.nbytes for k, w, s, _ in rows.values())
            )
            message = Message()
            header = pb.PutStepRowsRequest.Header(
                member=member, tables=messages.replica_rows(message, rows)
            )
            reply = self._calls.write("PutStepRows", header, message)
        return AcknowledgedUpdate(reply.context.command, dict(reply.t), reply.skipped)

    # What is known of members

    @contextmanager
    def _place(self, member: str) -> Iterator[_Place]:
        """Yield what is known of a member; nothing is any more once its session has ended."""
        if not isinstance(member, str) or not member.isascii():
            raise SessionExpiredError(f"no session has a member {member!r}; open and join one")
        try:
            yield self._places.get(member) or _Place()
        except (SessionExpiredError, OutcomeUnknownError):
            self._places.pop(member, None)
            raise

    def _timeout_s(self, place: _Place, timeout_s: float | None) -> float:
        if timeout_s is None:
            return self._transport.timeout_s + place.rank_timeout_s
        return checked_seconds(timeout_s, "timeout_s")


# What the wire cannot carry


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and value != "" and value.isprintable()


def _text(value: str, what: str) -> str:
    if not _is_text(value):
        raise InvalidArgumentError(f"expected {what} to be printable text, found {value!r}")
    return value


def _count(value: Any, name: str) -> int:
    if (
        isinstance(value, bool)
        or not isinstance(value, int | np.integer)
        or not 0 <= value <= _UINT32_MAX
    ):
        raise InvalidArgumentError(f"expected {name} to be an integer >= 0, found {value!r}")
    return int(value)


def _number(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int | np.integer):
        raise InvalidArgumentError(f"expected the number of a step, found {value!r}")
    return int(value)


def _step(value: Any) -> int:
    """Return the number of a step that was announced, perhaps."""
    number = _number(value)
    if not 0 <= number <= _UINT64_MAX:
        raise StepNotFoundError(f"expected an announced step, found {number}")
    return number


def _next_step(value: Any) -> int:
    """Return the number of a step to be announced."""
    number = _number(value)
    if not 0 <= number <= _UINT64_MAX:
        raise InvalidArgumentError(f"step {number} was announced out of order")
    return number


def _announced_keys(steps: Any) -> dict[int, dict[str, Keys]]:
    if not isinstance(steps, Mapping):
        raise InvalidArgumentError(
            f"expected steps to be a mapping by number, found {type(steps).__name__}"
        )
    return {
        _next_step(number): {
            _text(name, "a table's name"): as_keys(keys, name)
            for name, keys in mapping(tables, "a step's keys").items()
        }
        for number, tables in steps.items()
    }


def _gradients(gradients: Any, table: str) -> Rows:
    """Return gradients as float32; what shape they must have is the server's to say."""
    return as_rows(gradients, np.shape(gradients), table, "gradients")


def _replica_rows(puts: Any) -> dict[str, tuple[Keys, Rows, Rows, int]]:
    """Return a replica's rows, as far as the wire cares; the rest is the server's to say."""
    rows = {}
    for name, given in mapping(puts, "puts").items():
        table = _text(name, "a table's name")
        if not isinstance(given, tuple | list) or len(given) != 4:
            raise InvalidArgumentError(
                f"table {name!r}: expected (keys, weights, state, add_t), found "
                f"{type(given).__name__}"
            )
        keys, weights, state, add_t = given
        rows[table] = (
            as_keys(keys, name),
            as_rows(weights, np.shape(weights), name, "weights"),
            as_rows(state, np.shape(state), name, "state"),
            _added_t(add_t, name),
        )
    return rows


def _added_t(value: Any, table: str) -> int:
    if (
        isinstance(value, bool)
        or not isinstance(value, int | np.integer)
        or not 0 <= value <= _UINT64_MAX
    ):
        raise InvalidArgumentError(
            f"table {table!r}: expected add_t to be an integer >= 0, found {value!r}"
        )
    return int(value)


def _inverse(inverse: Any, table: str) -> NDArray[np.int32]:
    array = as_keys(inverse, table)
    if len(array) and not (0 <= array.min() and array.max() < 2**31):
        raise InvalidArgumentError(
            f"table {table!r}: expected indices of announced keys, found {array.min()} to "
            f"{array.max()}"
        )
    return array.astype(np.int32)


def _facts(session: pb.SessionDescription) -> SessionFacts:
    return SessionFacts(
        name=session.name,
        last_step=session.last_step,
        tables=tuple(session.tables),
        lookahead_steps_max=session.lookahead_steps_max,
        world_size=session.world_size,
        planner=session.planner,
        shared=session.shared,
        lease_ms=session.lease_ms,
        rank_timeout_ms=session.rank_timeout_ms,
    )
