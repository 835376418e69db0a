"""The verbs that carry arrays: from a received message to the engine's call, and to the reply.

A verb's function takes the message apart on the event loop, as far as its bytes go (dtypes, shapes,
bounds of the payload), so that a malformed call never reaches the engine thread; what a table
expects is the engine's to check. It returns a `Call`, whose `work` runs on the engine thread and
whose `reply` frames what that returned. Arrays are views of the message that came.

The bulk verbs of look-ahead sessions are in `embstore_server.sessions`, made of the parts here.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from embstore.errors import InvalidArgumentError, TableNotFoundError
from embstore.results import Acknowledged
from embstore.store import Store
from embstore.table import Table
from embstore_proto.codec import Blank, Framed, Message, Received, array_of, parse
from embstore_proto.v1 import embstore_pb2 as pb
from embstore_server.answers import Answered

_RANKS_MAX = 4096
"""More trainers than step together; a header of empty ranks would keep the event loop busy."""


@dataclass(frozen=True)
class Rows:
    """Rows read, in the message that takes them to the client."""

    tables: list[tuple[str, int]]  # names, and t of each
    blank: Blank  # its arrays are each table's rows; of ReadRows rows and state
    has_state: bool = False


@dataclass(frozen=True)
class Call:
    """A bulk call, ready for the engine thread."""

    work: Callable[[Store], Any]
    reply: Callable[[Answered], Framed]
    stages: bool
    origin: pb.Origin | None = None
    beside: bool = False
    """Any thread may do it: it runs beside the engine thread."""
    header: Any = None
    """Of a session's call: it says which rank, and which step."""


def named(store: Store, name: str, table_id: int | None) -> Table:
    """Return the table of this name, if it is still the one that was meant.

    Raises
    ------
    TableNotFoundError
    """
    table = store.table(name)
    if table_id is not None and table.table_id != table_id:
        raise TableNotFoundError(f"table {name!r} no longer exists: another one has its name now")
    return table


def id_of(message: Any) -> int | None:
    """Return a message's table_id, or None where it is absent."""
    return message.table_id if message.HasField("table_id") else None


# What comes


def _keys(received: Received, message: Any) -> NDArray[np.int64]:
    return array_of(received, message.keys, np.int64, 1, f"table {message.table!r}: keys")


def _rows(received: Received, place: pb.Array, table: str, what: str) -> NDArray[np.float32]:
    return array_of(received, place, np.float32, 2, f"table {table!r}: {what}")


class Bags(NamedTuple):
    """How keys are pooled."""

    offsets: NDArray[np.int64]
    mode: Any
    weights: NDArray[np.float32] | None


_MODES = {pb.POOLING_MODE_SUM: "sum", pb.POOLING_MODE_MEAN: "mean"}
_ON_NONFINITE = {pb.ON_NONFINITE_REFUSE: "refuse", pb.ON_NONFINITE_SKIP: "skip"}


def bags_of(received: Received, bags: pb.Bags, table: str) -> Bags:
    """Return how a message's keys are pooled.

    Raises
    ------
    InvalidArgumentError
    """
    if bags.mode not in _MODES:
        raise InvalidArgumentError(f"table {table!r}: expected mode SUM or MEAN, found {bags.mode}")
    what = f"table {table!r}: "
    weights = None
    if bags.HasField("weights"):
        weights = array_of(received, bags.weights, np.float32, 1, what + "weights")
    offsets = array_of(received, bags.offsets, np.int64, 1, what + "offsets")
    return Bags(offsets, _MODES[bags.mode], weights)


def options_of(options: pb.UpdateOptions) -> dict[str, Any]:
    """Return an update's options as keyword arguments; who may give which is the engine's to say.

    Raises
    ------
    InvalidArgumentError
    """
    if options.on_nonfinite not in _ON_NONFINITE:
        raise InvalidArgumentError(
            f"expected on_nonfinite REFUSE or SKIP, found {options.on_nonfinite}"
        )
    return {
        "learning_rate": options.learning_rate if options.HasField("learning_rate") else None,
        "gradient_scale": options.gradient_scale if options.HasField("gradient_scale") else 1.0,
        "on_nonfinite": _ON_NONFINITE[options.on_nonfinite],
    }


def each_once(messages: Iterable[Any]) -> dict[str, Any]:
    """Return messages by the table that they name.

    Raises
    ------
    InvalidArgumentError : two name the same.
    """
    by_name: dict[str, Any] = {}
    for message in messages:
        if message.table in by_name:
            raise InvalidArgumentError(f"table {message.table!r} is named twice in one call")
        by_name[message.table] = message
    return by_name


Gradients = dict[str, tuple[NDArray[np.int64], NDArray[np.float32]]]


def _gradients(received: Received, messages: Iterable[pb.TableGradients]) -> Gradients:
    return {
        name: (_keys(received, m), _rows(received, m.gradients, name, "gradients"))
        for name, m in each_once(messages).items()
    }


def _check_ids(store: Store, messages: Iterable[Any]) -> None:
    for message in messages:
        if message.HasField("table_id"):
            named(store, message.table, message.table_id)


def _admits(header: Any) -> bool:
    return header.admit if header.HasField("admit") else True


# What goes


_CONTEXT_ROOM, _TABLE_ROOM, _STAGES_ROOM = 160, 80, 600
"""Bytes of a reply's header: what is not said per table, what is beside its name, stage times."""


def blank_of(
    store: Store, names: Iterable[str], shapes: Sequence[tuple[int, int]], stages: bool
) -> Blank | None:
    """Return the reply in which rows of these shapes are to be written; None: it is too large.

    In that case the engine refuses the call, by name.
    """
    if sum(4 * rows * dim for rows, dim in shapes) > store.limits.call_bytes_max:
        return None
    room = _CONTEXT_ROOM + sum(len(name) + _TABLE_ROOM for name in names)
    return Blank(room + (_STAGES_ROOM if stages else 0), shapes)


def rows_reply(answered: Answered) -> Framed:
    """Frame Rows as a RowsReply."""
    rows: Rows = answered.value
    header = pb.RowsReply.Header(context=answered.context, stage_seconds=answered.stage_seconds)
    places = iter(rows.blank.places)
    for name, t in rows.tables:
        header.tables.add(
            table=name, t=t, rows=next(places), state=next(places) if rows.has_state else None
        )
    return rows.blank.framed(header.SerializeToString())


class Written(NamedTuple):
    """What a writing call became."""

    t: dict[str, int]
    skipped: bool = False


def acknowledgement(answered: Answered) -> Framed:
    """Frame Written as a BulkAcknowledgedReply."""
    written: Written = answered.value
    header = pb.BulkAcknowledgedReply.Header(
        context=answered.context,
        t=written.t,
        skipped=written.skipped,
        stage_seconds=answered.stage_seconds,
    )
    return Message().framed(header.SerializeToString())


def _written(table: str, done: Acknowledged) -> Written:
    return Written({table: done.t}, done.skipped)


# Reading


def lookup(received: Received) -> Call:
    """Several tables' rows."""
    header = parse(pb.LookupRequest.Header, received.header)
    tables = each_once(header.tables)
    keys = {name: _keys(received, m) for name, m in tables.items()}
    counts = {
        name: array_of(received, m.counts, np.uint32, 1, f"table {name!r}: counts")
        for name, m in tables.items()
        if m.HasField("counts")
    }
    admit = _admits(header)

    def work(store: Store) -> Rows:
        _check_ids(store, header.tables)
        shapes = [(len(k), store.table(name).dim) for name, k in keys.items()]
        blank = blank_of(store, keys, shapes, header.trace.stages)
        outs = dict(zip(keys, blank.arrays, strict=True)) if blank else None
        store.lookup(keys, admit=admit, counts=counts, out=outs)
        assert blank is not None
        return Rows([(name, store.table(name).t) for name in keys], blank)

    return Call(work, rows_reply, header.trace.stages)


def lookup_pooled(received: Received) -> Call:
    """One table's bags."""
    header = parse(pb.LookupPooledRequest.Header, received.header)
    name = header.keys.table
    keys, bags = _keys(received, header.keys), bags_of(received, header.bags, name)
    admit = _admits(header)

    def work(store: Store) -> Rows:
        table = named(store, name, id_of(header.keys))
        shapes = [(max(len(bags.offsets) - 1, 0), table.dim)]
        blank = blank_of(store, [name], shapes, header.trace.stages)
        out = blank.arrays[0] if blank else None
        table.lookup_pooled(keys, bags.offsets, bags.mode, bags.weights, admit=admit, out=out)
        assert blank is not None
        return Rows([(name, table.t)], blank)

    return Call(work, rows_reply, header.trace.stages)


def read_rows(received: Received) -> Call:
    """One table's weights and state."""
    header = parse(pb.ReadRowsRequest.Header, received.header)
    name, keys = header.keys.table, _keys(received, header.keys)

    def work(store: Store) -> Rows:
        table = named(store, name, id_of(header.keys))
        shapes = [(len(keys), table.dim), (len(keys), table.config.state_dim)]
        blank = blank_of(store, [name], shapes, header.trace.stages)
        table.read_rows(keys, out=(blank.arrays[0], blank.arrays[1]) if blank else None)
        assert blank is not None
        return Rows([(name, table.t)], blank, has_state=True)

    return Call(work, rows_reply, header.trace.stages)


# Writing


def origin_of(header: Any) -> pb.Origin | None:
    """Return who sends a call, where it says so."""
    return header.origin if header.HasField("origin") else None


def update(received: Received) -> Call:
    """One update of several tables."""
    header = parse(pb.UpdateRequest.Header, received.header)
    gradients, options = _gradients(received, header.tables), options_of(header.options)

    def work(store: Store) -> Written:
        _check_ids(store, header.tables)
        done = store.update(gradients, **options)
        return Written(done.t, done.skipped)

    return Call(work, acknowledgement, header.trace.stages, origin_of(header))


def update_pooled(received: Received) -> Call:
    """One update of one table, by gradients of bags."""
    header = parse(pb.UpdatePooledRequest.Header, received.header)
    name, message = header.gradients.table, header.gradients
    keys, bags = _keys(received, message), bags_of(received, header.bags, name)
    gradients = _rows(received, message.gradients, name, "gradients")
    options = options_of(header.options)

    def work(store: Store) -> Written:
        table = named(store, name, id_of(message))
        done = table.update_pooled(
            keys, bags.offsets, gradients, bags.mode, bags.weights, **options
        )
        return _written(name, done)

    return Call(work, acknowledgement, header.trace.stages, origin_of(header))


def update_ranks(received: Received) -> Call:
    """One update from several ranks."""
    header = parse(pb.UpdateRanksRequest.Header, received.header)
    if len(header.ranks) > _RANKS_MAX:
        raise InvalidArgumentError(
            f"expected at most {_RANKS_MAX} ranks in a call, found {len(header.ranks)}"
        )
    ranks = [_gradients(received, rank.tables) for rank in header.ranks]
    options = options_of(header.options)

    def work(store: Store) -> Written:
        for rank in header.ranks:
            _check_ids(store, rank.tables)
        done = store.update_ranks(ranks, **options)
        return Written(done.t, done.skipped)

    return Call(work, acknowledgement, header.trace.stages, origin_of(header))


def assign(received: Received) -> Call:
    """New rows for keys of one table."""
    header = parse(pb.AssignRequest.Header, received.header)
    name, keys = header.keys.table, _keys(received, header.keys)
    rows = _rows(received, header.rows, name, "rows")

    def work(store: Store) -> Written:
        return _written(name, named(store, name, id_of(header.keys)).assign(keys, rows))

    return Call(work, acknowledgement, header.trace.stages, origin_of(header))


def put_rows(received: Received) -> Call:
    """Weights and state for keys of one table."""
    header = parse(pb.PutRowsRequest.Header, received.header)
    name, keys = header.keys.table, _keys(received, header.keys)
    weights = _rows(received, header.weights, name, "weights")
    state = _rows(received, header.state, name, "state")

    def work(store: Store) -> Written:
        table = named(store, name, id_of(header.keys))
        return _written(name, table.put_rows(keys, weights, state, header.add_t))

    return Call(work, acknowledgement, header.trace.stages, origin_of(header))


VERBS: dict[str, Callable[[Received], Call]] = {
    "Lookup": lookup,
    "LookupPooled": lookup_pooled,
    "ReadRows": read_rows,
    "Update": update,
    "UpdatePooled": update_pooled,
    "UpdateRanks": update_ranks,
    "Assign": assign,
    "PutRows": put_rows,
}
"""By the name in the .proto file; each has a stream twin."""
