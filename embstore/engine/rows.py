"""Handlers of commands that read and write rows.

The form of a command has been checked (`embstore.checks`). Here its parts become shares of tables,
which reads and writes take, and meet the table: rows must be as wide as the table's, arrays in the
device's memory must be this device's.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from embstore import commands as c
from embstore.arrays import Keys, Rows, as_keys, as_out, as_rows, refusal
from embstore.checks import check_call_bytes
from embstore.device.base import Array, Gradients
from embstore.errors import InvalidArgumentError
from embstore.lookahead.handles import Allocate
from embstore.results import AcknowledgedUpdate, RowsRead, TableRows
from embstore.tables import reads, writes
from embstore.tables.state import Share, TableState
from embstore.tables.writes import T_MAX, Put

if TYPE_CHECKING:
    from embstore.engine.engine import Engine

Out = Sequence[Any] | Allocate | None
"""Arrays for the rows, None for a new one each; or what makes them from names and shapes."""


def _check_bytes(engine: "Engine", command: c.Command[Any]) -> None:
    check_call_bytes(command, engine.tables.config_of, engine.tables.limits)


# Reading


def lookup(engine: "Engine", command: c.Lookup, out: Out) -> RowsRead:
    """Rows of several tables."""
    tables = engine.tables
    with tables.reading():
        _check_bytes(engine, command)
        shares = [_lookup_share(engine, part) for part in command.tables]
        shapes = [(len(share.keys), share.table.dim) for share in shares]
        given = _given(out, [share.table.name for share in shares], shapes)
        outs = [_output(share, own) for share, own in zip(shares, given, strict=True)]
        reads.lookup(shares, outs, admit=command.admit, stages=tables.stages)
        if command.admit:
            engine.frequencies.note(shares)
        return _rows_read(shares, outs, given)


def _given(out: Out, names: list[str], shapes: list[tuple[int, int]]) -> Sequence[Any]:
    """Return the caller's arrays for rows of these shapes, None where there is none."""
    if callable(out):
        return out(names, shapes)
    return out or [None] * len(shapes)


def _rows_read(shares: Sequence[Share], outs: Sequence[Any], given: Sequence[Any]) -> RowsRead:
    """Return the rows, where they were written to a caller's array, as the caller's."""
    parts = [
        TableRows(share.table.name, rows if own is None else own, None, share.table.t)
        for share, rows, own in zip(shares, outs, given, strict=True)
    ]
    return RowsRead(tuple(parts))


def lookup_pooled(engine: "Engine", command: c.LookupPooled, out: Out) -> RowsRead:
    """Pooled rows of one table's bags."""
    tables, bags = engine.tables, command.bags
    with tables.reading():
        _check_bytes(engine, command)
        share = _lookup_share(engine, command.keys)
        table = share.table
        shape = (len(bags.offsets) - 1, table.dim)
        rows = as_out(_given(out, [table.name], [shape])[0], shape, table.name)
        reads.lookup_pooled(
            share,
            bags.offsets,
            rows,
            mean=bags.mode == "mean",
            weights=bags.weights,
            admit=command.admit,
            stages=tables.stages,
        )
        if command.admit:
            engine.frequencies.note([share])
        return RowsRead((TableRows(table.name, rows, None, table.t),))


def read_rows(engine: "Engine", command: c.ReadRows, out: Out) -> RowsRead:
    """Weights and optimizer state."""
    tables = engine.tables
    with tables.reading():
        _check_bytes(engine, command)
        share = _lookup_share(engine, command.keys)
        table = share.table
        count, name = len(share.keys), table.name
        shapes = [(count, table.dim), (count, table.config.state_dim)]
        given = _given(out, [name], shapes)
        weights, state = (as_out(o, s, name) for o, s in zip(given, shapes, strict=True))
        reads.read_rows(share, weights, state)
        return RowsRead((TableRows(name, weights, state, table.t),))


# Writing


def update(engine: "Engine", command: c.Update, _: None) -> AcknowledgedUpdate:
    """One update of several tables."""
    with engine.tables.writing():
        _check_bytes(engine, command)
        shares = _gradient_shares(engine, command.tables)
        applied = writes.update(shares, command.options, stages=engine.tables.stages)
        return _acknowledged(engine, shares, applied)


def update_pooled(engine: "Engine", command: c.UpdatePooled, _: None) -> AcknowledgedUpdate:
    """One update of one table by the gradients of bags."""
    part, bags = command.gradients, command.bags
    with engine.tables.writing():
        _check_bytes(engine, command)
        table = engine.tables.find(part.table, part.table_id)
        shape = (len(bags.offsets) - 1, table.dim)
        rows = as_rows(part.gradients, shape, table.name, "gradients")
        shares = [Share(table, part.keys, _bag_gradients(rows, bags))]
        applied = writes.update(shares, command.options, stages=engine.tables.stages)
        return _acknowledged(engine, shares, applied)


def update_ranks(engine: "Engine", command: c.UpdateRanks, _: None) -> AcknowledgedUpdate:
    """One update from several ranks."""
    with engine.tables.writing():
        _check_bytes(engine, command)
        ranks = [_gradient_shares(engine, rank.tables) for rank in command.ranks]
        applied = writes.update_ranks(ranks, command.options, stages=engine.tables.stages)
        return _acknowledged(engine, [share for shares in ranks for share in shares], applied)


def assign(engine: "Engine", command: c.Assign, _: None) -> AcknowledgedUpdate:
    """Set rows; optimizer state starts anew."""
    with engine.tables.writing():
        _check_bytes(engine, command)
        share = _lookup_share(engine, command.keys)
        shape = (len(share.keys), share.table.dim)
        writes.assign(share, as_rows(command.rows, shape, share.table.name, "rows"))
        return _acknowledged(engine, [share])


def put_rows(engine: "Engine", command: c.PutRows, _: None) -> AcknowledgedUpdate:
    """Set weights and state of one table's rows."""
    with engine.tables.writing():
        _check_bytes(engine, command)
        table = engine.tables.find(command.keys.table, command.keys.table_id)
        keys = command.keys.keys
        put = _put_of(table, keys, command.weights, command.state, command.add_t)
        writes.put_rows([put])
        return _acknowledged(engine, [put.share])


def put_step_rows(engine: "Engine", command: c.PutStepRows, _: None) -> AcknowledgedUpdate:
    """Set weights and state of rows of a session's tables, as its only writer.

    Steps that are announced may have been sent early; so all must be finished before.
    """
    with engine.tables.writing():
        session = engine.sessions.check_may_put(command.member)
        puts = [
            _put_of(session.table(p.table), p.keys, p.weights, p.state, p.add_t)
            for p in command.tables
        ]
        _check_bytes(engine, command)
        writes.put_rows(puts, session.name)
        return _acknowledged(engine, [put.share for put in puts])


def _gradient_shares(engine: "Engine", parts: Iterable[c.TableGradients]) -> list[Share]:
    return [_gradient_share(engine, part) for part in parts]


def _acknowledged(
    engine: "Engine", shares: Sequence[Share], applied: bool = True
) -> AcknowledgedUpdate:
    t = {share.table.name: share.table.t for share in shares}
    return AcknowledgedUpdate(engine.tables.frame.command_number + 1, t, not applied)


# Shares of tables


def _lookup_share(engine: "Engine", part: c.TableKeys) -> Share:
    """Return one table's share of a lookup; keys must be in the host's or this device's memory."""
    table = engine.tables.find(part.table, part.table_id)
    counts = None if part.counts is None else part.counts.astype(np.int64)
    return Share(table, _keys(table, part.keys), counts=counts)


def _gradient_share(engine: "Engine", part: c.TableGradients) -> Share:
    """Return one table's share of an update; gradients must be as wide as the table's rows."""
    table = engine.tables.find(part.table, part.table_id)
    keys, rows = _keys(table, part.keys), part.gradients
    if isinstance(rows, np.ndarray) and rows.shape == (len(keys), table.dim):
        return Share(table, keys, Gradients(rows))
    adopted = _adopted(table, rows, len(keys), "gradients")
    if adopted is None:
        adopted = as_rows(part.gradients, (len(keys), table.dim), table.name, "gradients")
    return Share(table, keys, Gradients(adopted))


def _put_of(table: TableState, keys: Keys, weights: Rows, state: Rows, add_t: int) -> Put:
    """Return rows of one table that were trained elsewhere, checked against the table."""
    if add_t > T_MAX - table.t:
        raise refusal(table.name, f"add_t of at most {T_MAX - table.t}", add_t)
    count, state_dim = len(keys), table.config.state_dim
    return Put(
        Share(table, keys),
        as_rows(weights, (count, table.dim), table.name, "weights"),
        as_rows(state, (count, state_dim), table.name, "state"),
        add_t,
    )


def _output(share: Share, out: Any) -> Rows | Array:
    """Return the array for the rows of a lookup: the caller's, or a new one on the host.

    With keys in the device's memory `out` must be given: what is made here would go with the
    caller's last reference, whatever its streams still do.
    """
    table, count = share.table, len(share.keys)
    if out is None and isinstance(share.keys, np.ndarray):
        return np.empty((count, table.dim), np.float32)
    if out is None:
        raise InvalidArgumentError(
            f"table {table.name!r}: expected out to be given with keys in the device's memory"
        )
    adopted = _adopted(table, out, count, "out", write=True)
    return as_out(out, (count, table.dim), table.name) if adopted is None else adopted


def _keys(table: TableState, keys: Any) -> Any:
    if isinstance(keys, np.ndarray):
        return keys
    adopted = table.pool.device.memory.adopt(keys, np.int64, 1)
    return as_keys(keys, table.name) if adopted is None else adopted


def _adopted(
    table: TableState, rows: Any, count: int, what: str, *, write: bool = False
) -> Array | None:
    """Return a caller's rows that are in the device's memory; None for those of the host."""
    adopted = table.pool.device.memory.adopt(rows, np.float32, 2, write=write)
    if adopted is not None and (len(adopted), adopted.width) != (count, table.dim):
        found = len(adopted), adopted.width
        raise refusal(table.name, f"{what} of shape {count, table.dim}", found)
    return adopted


def _bag_gradients(rows: Rows, bags: c.Bags) -> Gradients:
    """Return the gradients of the rows of bags from those of the bags, (bags, dim) each."""
    counts = np.diff(bags.offsets)
    source = np.repeat(np.arange(len(counts), dtype=np.int32), counts)
    if bags.mode == "mean":
        return Gradients(rows, source, counts.astype(np.float32)[source], divide=True)
    return Gradients(rows, source, bags.weights)


HANDLERS: dict[Any, Callable[[Any, Any, Any], Any]] = {
    c.Lookup: lookup,
    c.LookupPooled: lookup_pooled,
    c.ReadRows: read_rows,
    c.Update: update,
    c.UpdatePooled: update_pooled,
    c.UpdateRanks: update_ranks,
    c.Assign: assign,
    c.PutRows: put_rows,
    c.PutStepRows: put_step_rows,
}
