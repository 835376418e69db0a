"""The verbs of look-ahead sessions: what comes, what the engine is asked, and how a call waits.

**No Origin.** What names a session's call is its member and step: the session itself remembers what
became of a step, and answers the same call sent again as before. PutStepRows alone is of no step,
and grows t each time: it has an Origin.

**Where the work is done.** The engine thread opens and closes sessions, takes a rank's share of a
step, gathers and pools rows. What only the session has to know (joining, a lease, announced keys,
which are sorted and checked) is done beside it, on a thread of its own: a window of keys announced
while the engine computes costs the step under way nothing.

**How a call waits.** No thread waits. A call asks the session for a handle, which never blocks, and
polls it after each progress (`embstore_server.service`), under its deadline as any call. An update,
a release or a skip waits for the other ranks; its arrays count as in flight until the session has
taken them (`embstore_server.inflight`), by a copy where there are other ranks. A lookup waits for
the earlier steps. Waiting renews no lease: a client that is still there does so itself.

**Early and late rows.** Rows that no unfinished step touches are final while earlier steps are
still at work. LookupStep sends them at once, with their positions among the announced keys, and the
others when the step is ready: the network works while the trainer computes, and training stays
synchronous to the bit. Each of the two messages is gathered by the engine in its turn; nothing is
held in between. With no early row, or none wanted, there is one message, without positions.
"""

from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embstore.errors import InvalidArgumentError
from embstore.feed.bags import StepBags
from embstore.lookahead.handles import Readiness, StepLookup
from embstore.lookahead.registry import LOOKAHEAD_STEPS_MAX
from embstore.results import AcknowledgedUpdate, Announced, SessionFacts
from embstore.store import Store
from embstore_proto.codec import Framed, Message, Received, array_of, parse
from embstore_proto.v1 import embstore_pb2 as pb
from embstore_server.answers import Answered, Awaited, answering
from embstore_server.bulk import (
    Call,
    Rows,
    Written,
    acknowledgement,
    bags_of,
    blank_of,
    each_once,
    options_of,
    origin_of,
    rows_reply,
)
from embstore_server.control import Verb
from embstore_server.service import Caller, Service

_MEMBERS_MAX = 4096
_INT32_MAX = (1 << 31) - 1


class Ranks:
    """The ranks of the members that joined of late, for the log of slow calls. Event loop only."""

    def __init__(self) -> None:
        self._ranks: OrderedDict[str, int] = OrderedDict()

    def joined(self, caller: Caller, reply: pb.MembershipReply) -> None:
        """Note who is who; the oldest is forgotten."""
        caller.rank = self._ranks[reply.member] = reply.rank
        if len(self._ranks) > _MEMBERS_MAX:
            self._ranks.popitem(last=False)

    def tell(self, caller: Caller, request: Any) -> None:
        """Say in a caller which rank it is, and of which step, where its request has either."""
        caller.rank = self._ranks.get(getattr(request, "member", ""))
        caller.step = getattr(request, "step", None)


# Control


def _description(facts: SessionFacts) -> pb.SessionDescription:
    return pb.SessionDescription(
        name=facts.name,
        last_step=facts.last_step,
        tables=facts.tables,
        lookahead_steps_max=facts.lookahead_steps_max,
        world_size=facts.world_size,
        planner=facts.planner,
        shared=facts.shared,
        lease_ms=facts.lease_ms,
        rank_timeout_ms=facts.rank_timeout_ms,
    )


_OPTIONS = ("lookahead_steps_max", "world_size", "lease_ms", "rank_timeout_ms")


def _open_session(request: pb.OpenSessionRequest) -> Callable[[Store], Any]:
    options: dict[str, Any] = {
        name: getattr(request, name) for name in _OPTIONS if request.HasField(name)
    }
    if request.planner:
        options["planner"] = request.planner

    def work(store: Store) -> pb.SessionReply:
        facts = store.sessions.open(
            request.name, list(request.tables), shared=request.shared, **options
        )
        return pb.SessionReply(session=_description(facts))

    return work


def _join_session(request: pb.JoinSessionRequest) -> Callable[[Store], Any]:
    def work(store: Store) -> pb.MembershipReply:
        made = store.sessions.join(request.name, request.rank, member=request.member or None)
        return pb.MembershipReply(
            member=made.member,
            name=made.name,
            rank=made.rank,
            last_step=made.last_step,
            rank_timeout_ms=store.sessions.renew(made.member).rank_timeout_ms,
        )

    return work


def _renew_lease(request: pb.RenewLeaseRequest) -> Callable[[Store], Any]:
    def work(store: Store) -> pb.SessionReply:
        return pb.SessionReply(session=_description(store.sessions.renew(request.member)))

    return work


def _close_session(request: pb.CloseSessionRequest) -> Callable[[Store], Any]:
    def work(store: Store) -> pb.SessionClosedReply:
        store.sessions.close(request.member, forget=request.forget)
        return pb.SessionClosedReply()

    return work


def _step_reply(done: AcknowledgedUpdate) -> pb.StepReply:
    return pb.StepReply(t=done.t, skipped=done.skipped)


def _release_step(request: pb.ReleaseStepRequest) -> Callable[[Store], Any]:
    def work(store: Store) -> Awaited:
        return Awaited(store.sessions.send_release(request.member, request.step), _step_reply)

    return work


def _skip_step(request: pb.SkipStepRequest) -> Callable[[Store], Any]:
    def work(store: Store) -> Awaited:
        return Awaited(store.sessions.send_skip(request.member, request.step), _step_reply)

    return work


CONTROL: dict[str, Verb] = {
    "OpenSession": Verb(pb.OpenSessionRequest, pb.SessionReply, _open_session),
    "JoinSession": Verb(pb.JoinSessionRequest, pb.MembershipReply, _join_session, beside=True),
    "ReleaseStep": Verb(pb.ReleaseStepRequest, pb.StepReply, _release_step),
    "SkipStep": Verb(pb.SkipStepRequest, pb.StepReply, _skip_step),
    "RenewLease": Verb(pb.RenewLeaseRequest, pb.SessionReply, _renew_lease, beside=True),
    "CloseSession": Verb(pb.CloseSessionRequest, pb.SessionClosedReply, _close_session),
}
"""By the name in the .proto file."""


# Bulk: announcing and updating


def announce(received: Received) -> Call:
    """The unique keys of steps to come."""
    header = parse(pb.AnnounceRequest.Header, received.header)
    if len(header.steps) > LOOKAHEAD_STEPS_MAX:
        raise InvalidArgumentError(
            f"expected at most {LOOKAHEAD_STEPS_MAX} steps in one call, found {len(header.steps)}"
        )
    steps: dict[int, dict[str, NDArray[np.int64]]] = {}
    for step in header.steps:
        if step.step in steps:
            raise InvalidArgumentError(f"step {step.step} is named twice in one call")
        steps[step.step] = {
            name: array_of(received, m.keys, np.int64, 1, f"table {name!r}: keys")
            for name, m in each_once(step.tables).items()
        }

    def work(store: Store) -> Announced:
        return store.sessions.announce(header.member, steps)

    return Call(work, _announced_reply, stages=False, beside=True, header=header)


def _announced_reply(answered: Answered) -> Framed:
    announced: Announced = answered.value
    header = pb.AnnouncedReply.Header(
        context=answered.context,
        announced_step=announced.announced_step,
        planned_step=announced.planned_step,
        held_back=announced.held_back,
    )
    return Message().framed(header.SerializeToString())


def update_step(received: Received) -> Call:
    """One rank's share of a step."""
    header = parse(pb.UpdateStepRequest.Header, received.header)
    options = options_of(header.options)
    gradients = {
        name: array_of(received, m.gradients, np.float32, 2, f"table {name!r}: gradients")
        for name, m in each_once(header.tables).items()
    }

    def work(store: Store) -> Awaited:
        outcome = store.sessions.send_update(header.member, header.step, gradients, **options)
        return Awaited(outcome, lambda done: Written(done.t, done.skipped))

    return Call(work, acknowledgement, header.trace.stages, header=header)


def put_step_rows(received: Received) -> Call:
    """A hot replica's rows of several tables, in one command."""
    header = parse(pb.PutStepRowsRequest.Header, received.header)
    rows = {name: _replica_rows(received, m) for name, m in each_once(header.tables).items()}

    def work(store: Store) -> Written:
        done = store.sessions.put_rows(header.member, rows)
        return Written(done.t, done.skipped)

    return Call(work, acknowledgement, header.trace.stages, origin_of(header), header=header)


def _replica_rows(
    received: Received, message: pb.PutStepRowsRequest.Table
) -> tuple[NDArray[np.int64], NDArray[np.float32], NDArray[np.float32], int]:
    what = f"table {message.table!r}: "
    return (
        array_of(received, message.keys, np.int64, 1, what + "keys"),
        array_of(received, message.weights, np.float32, 2, what + "weights"),
        array_of(received, message.state, np.float32, 2, what + "state"),
        message.add_t,
    )


BULK: dict[str, Callable[[Received], Call]] = {
    "Announce": announce,
    "UpdateStep": update_step,
    "PutStepRows": put_step_rows,
}
"""By the name in the .proto file; each has a stream twin."""

READS = ("LookupStep", "LookupStepPooled")
"""Streams alone: a step's rows come in two messages, and bags of any size."""


# Reading


Send = Callable[[Framed], Awaitable[None]]
"""Sends a message to the client."""


async def send_rows(
    service: Service, caller: Caller, request: pb.LookupStepRequest, send: Send
) -> None:
    """Send a step's rows, early and late ones, in one message or two (StepRowsReply).

    Raises
    ------
    StepNotFoundError, SessionExpiredError, RankFailedError, InvalidArgumentError
    """
    lookup = service.store.sessions.lookup(request.member, request.step)
    _check_bytes(service.store, lookup.shapes.values())
    wants_early = request.early if request.HasField("early") else True
    positions: dict[str, NDArray[np.int32]] | None = None
    if wants_early and await _reached(service, lookup, Readiness.EARLY) == Readiness.EARLY:
        early = lookup.early()
        if any(len(places) for places in early.values()):
            await send(await _gathered(service, caller, lookup, early, early=True))
            positions = {
                name: _others(places, lookup.shapes[name][0]) for name, places in early.items()
            }
    await _reached(service, lookup, Readiness.READY)
    await send(await _gathered(service, caller, lookup, positions, early=False))


async def pooled_rows(
    service: Service, caller: Caller, header: pb.LookupStepPooledRequest.Header, received: Received
) -> Framed:
    """Return bags of a step's rows (RowsReply), once the step is ready.

    Raises
    ------
    StepNotFoundError, SessionExpiredError, RankFailedError, InvalidArgumentError
    """
    lookup = service.store.sessions.lookup(header.member, header.step)
    bags = await service.run_beside(lambda _: _bags_by_table(received, header.tables))
    shapes = [(max(len(b.offsets) - 1, 0), _dim(lookup, name)) for name, b in bags.items()]
    _check_bytes(service.store, shapes)
    await _reached(service, lookup, Readiness.READY)

    def work(store: Store) -> Rows:
        blank = blank_of(store, bags, shapes, header.trace.stages)
        assert blank is not None
        lookup.pool(bags, dict(zip(bags, blank.arrays, strict=True)))
        return Rows([(name, store.table(name).t) for name in bags], blank)

    answered = answering(work, service.instance, stages=header.trace.stages)
    return rows_reply(await service.run(caller, answered))


async def _reached(service: Service, lookup: StepLookup, least: Readiness) -> Readiness:
    """Wait until a step is as ready as `least`; return how ready it is."""

    def poll() -> Readiness | None:
        found = lookup.poll()
        return found if found >= least else None

    return await service.until(lookup, poll)


def _check_bytes(store: Store, shapes: Iterable[tuple[int, int]]) -> None:
    """Refuse rows that no call may have; the engine is not asked for their memory."""
    size = sum(4 * rows * dim for rows, dim in shapes)
    if size > store.limits.call_bytes_max:
        raise InvalidArgumentError(
            f"expected rows of at most {store.limits.call_bytes_max} bytes (limits.call_bytes_max) "
            f"in a step, found {size}; make smaller batches"
        )


def _others(places: NDArray[np.int32], count: int) -> NDArray[np.int32]:
    """Return the positions below `count` that are not among `places`."""
    others = np.ones(count, np.bool_)
    others[places] = False
    return np.flatnonzero(others).astype(np.int32)


async def _gathered(
    service: Service,
    caller: Caller,
    lookup: StepLookup,
    positions: Mapping[str, NDArray[np.int32]] | None,
    *,
    early: bool,
) -> Framed:
    shapes = {
        name: (rows if positions is None else len(positions[name]), dim)
        for name, (rows, dim) in lookup.shapes.items()
    }

    def work(store: Store) -> tuple[dict[str, NDArray[np.float32]], dict[str, int]]:
        outs = {name: np.empty(shape, np.float32) for name, shape in shapes.items()}
        lookup.gather(positions, outs)
        return outs, {name: store.table(name).t for name in outs}

    answered = await service.run(caller, answering(work, service.instance))
    return _step_rows_reply(answered, positions, early=early)


def _step_rows_reply(
    answered: Answered, positions: Mapping[str, NDArray[np.int32]] | None, *, early: bool
) -> Framed:
    outs, t = answered.value
    message = Message()
    header = pb.StepRowsReply.Header(context=answered.context, early=early)
    for name, rows in outs.items():
        places = None if positions is None else message.add(positions[name].view(np.uint32))
        header.tables.add(table=name, rows=message.add(rows), positions=places, t=t[name])
    return message.framed(header.SerializeToString())


def _dim(lookup: StepLookup, table: str) -> int:
    if table not in lookup.shapes:
        raise InvalidArgumentError(
            f"table {table!r}: expected one that was announced for the step, which are "
            f"{', '.join(map(repr, lookup.shapes))}"
        )
    return lookup.shapes[table][1]


def _bags_by_table(
    received: Received, messages: Iterable[pb.LookupStepPooledRequest.Table]
) -> dict[str, StepBags]:
    """Return each table's bags, checked: a pass over every occurrence."""
    found = {}
    for name, message in each_once(messages).items():
        inverse = _inverse(received, message.inverse, name)
        offsets, mode, weights = bags_of(received, message.bags, name)
        found[name] = StepBags.of(inverse, offsets, mode, weights, table=name)
    return found


def _inverse(received: Received, place: pb.Array, table: str) -> NDArray[np.int32]:
    """Return indices as the engine has them; whether they are below u is checked there."""
    what = f"table {table!r}: inverse"
    if place.dtype != pb.DTYPE_INT64:
        return array_of(received, place, np.uint32, 1, what).view(np.int32)
    indices = array_of(received, place, np.int64, 1, what)
    if len(indices) and not 0 <= indices.min() <= indices.max() <= _INT32_MAX:
        raise InvalidArgumentError(
            f"table {table!r}: expected an inverse of indices into the announced keys, found "
            f"{indices.min()} to {indices.max()}"
        )
    return indices.astype(np.int32)
