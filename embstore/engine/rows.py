"""Handlers of commands that read and write rows.

The form of a command has been checked before (`embstore.checks`). A handler turns each part of the
command into a `Share`: a table, its keys and, for an update, its gradients. `tables.reads` and
`tables.writes` expect shares. The handler checks each part against its table: rows must have the
table's width, and arrays in device memory must be in the memory of this device.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from embstore import commands as c
from embstore.arrays import Keys, Rows, as_out, outside, refusal
from embstore.checks.call_bytes import check_call_bytes
from embstore.engine.sharding import check_moved
from embstore.results import AcknowledgedUpdate, Deleted, RowsRead, TableRows
from embstore.tables import reads, writes
from embstore.tables.callers import (
    Out,
    bag_gradients,
    gradient_shares,
    gradients_of,
    host_rows_of,
    keys_of,
    lookup_shares,
    outputs_of,
)
from embstore.tables.frame import LATER
from embstore.tables.state import Share, TableState
from embstore.tables.summed import logging
from embstore.tables.writes import T_MAX, Put

if TYPE_CHECKING:
    from embstore.engine.engine import Engine


def _check_bytes(engine: "Engine", command: c.Command[Any]) -> None:
    check_call_bytes(command, engine.tables.config_of, engine.tables.limits)


# Reading


def lookup(engine: "Engine", command: c.Lookup, out: Out) -> RowsRead:
    """Return rows of several tables."""
    found = _lookup(engine, [command], [out])
    assert found is not None
    return found[0]


def lookup_resident(
    engine: "Engine", commands: Sequence[c.Lookup], outs: Sequence[Out]
) -> list[RowsRead] | None:
    """Execute several lookups at once, and return their rows; return None if a row is not in the
    cache, because the lookups would then wait for the disk.

    All lookups must have the same `admit`. Several lookups can read the same table.
    """
    return _lookup(engine, commands, outs, resident_only=True)


def _lookup(
    engine: "Engine",
    commands: Sequence[c.Lookup],
    outs: Sequence[Out],
    *,
    resident_only: bool = False,
) -> list[RowsRead] | None:
    tables, admit = engine.tables, commands[0].admit
    with tables.reading():
        everyone: list[Share] = []
        arrays: list[Any] = []
        asked: list[tuple[list[Share], Sequence[Any]]] = []
        for command, out in zip(commands, outs, strict=True):
            shares = lookup_shares(tables, command.tables)
            written, given = outputs_of(shares, out)
            everyone += shares
            arrays += written
            asked.append((shares, given))
        if not reads.lookup(
            everyone, arrays, admit=admit, stages=tables.stages, resident_only=resident_only
        ):
            return None
        if admit:
            for shares, _ in asked:
                engine.frequencies.note(shares)
        return [_rows_read(shares, given) for shares, given in asked]


def _rows_read(shares: Sequence[Share], rows: Sequence[Any]) -> RowsRead:
    parts = zip(shares, rows, strict=True)
    return RowsRead(tuple([TableRows(s.table.name, own, None, s.table.t) for s, own in parts]))


def lookup_pooled(engine: "Engine", command: c.LookupPooled, out: Out) -> RowsRead:
    """Return one pooled row (a sum or mean of rows) per bag of keys, for several tables."""
    tables = engine.tables
    with tables.reading():
        _check_bytes(engine, command)
        shares = [_share(engine, part) for part in command.tables]
        bags = [part.bags for part in command.tables]
        counts = [len(of.offsets) - 1 for of in bags]
        rows, given = outputs_of(shares, out, counts)
        if len(shares) > 1:
            _check_ranges(shares)
        for share, of, own in zip(shares, bags, rows, strict=True):
            reads.lookup_pooled(
                share,
                of.offsets,
                own,
                mean=of.mode == "mean",
                weights=of.weights,
                admit=command.admit,
                stages=tables.stages,
            )
        if command.admit:
            engine.frequencies.note(shares)
        return _rows_read(shares, given)


def _check_ranges(shares: Sequence[Share]) -> None:
    """Refuse keys in host memory that are out of range, before rows of any table are written."""
    for share in shares:
        if isinstance(share.keys, np.ndarray) and len(share.keys):
            error = outside(share.keys, share.table.rows, share.table.name)
            if error is not None:
                raise error


def read_rows(engine: "Engine", command: c.ReadRows, out: Out) -> RowsRead:
    """Return weights and optimizer state."""
    tables = engine.tables
    with tables.reading():
        _check_bytes(engine, command)
        share = _share(engine, command.keys)
        table = share.table
        count, name = len(share.keys), table.name
        shapes = [(count, table.dim), (count, table.config.state_dim)]
        given = (out([name], shapes) if callable(out) else out) or (None, None)
        weights, state = (as_out(o, s, name) for o, s in zip(given, shapes, strict=True))
        reads.read_rows(share, weights, state)
        return RowsRead((TableRows(name, weights, state, table.t),))


# Writing


def update(engine: "Engine", command: c.Update, _: None) -> AcknowledgedUpdate:
    """Update several tables once."""
    frame = engine.tables.frame
    with frame.writing(LATER):
        shares = gradient_shares(engine.tables, command.tables)
        if command.options.learning_rates:
            _check_named(engine, command.options)
        applied = writes.update(
            shares,
            command.options,
            stages=engine.tables.stages,
            summed=logging(frame, shares, command.options),
        )
        return _acknowledged(engine, shares, applied)


def _check_named(engine: "Engine", options: c.UpdateOptions) -> None:
    """Raise TableNotFoundError if a learning rate is given for a name that no table has, for
    example a misspelt name."""
    for name in options.learning_rates:
        engine.tables.find(name)


def update_pooled(engine: "Engine", command: c.UpdatePooled, _: None) -> AcknowledgedUpdate:
    """Apply one update to several tables, by the gradients of bags."""
    with engine.tables.writing(command):
        _check_bytes(engine, command)
        shares = [_bag_share(engine, part) for part in command.tables]
        if command.options.learning_rates:
            _check_named(engine, command.options)
        applied = writes.update(shares, command.options, stages=engine.tables.stages)
        return _acknowledged(engine, shares, applied)


def update_ranks(engine: "Engine", command: c.UpdateRanks, _: None) -> AcknowledgedUpdate:
    """Apply one update to several tables, by the gradients of several ranks."""
    with engine.tables.writing(command):
        _check_bytes(engine, command)
        ranks = [gradient_shares(engine.tables, rank.tables) for rank in command.ranks]
        if command.options.learning_rates:
            _check_named(engine, command.options)
        applied = writes.update_ranks(ranks, command.options, stages=engine.tables.stages)
        return _acknowledged(engine, [share for shares in ranks for share in shares], applied)


def assign(engine: "Engine", command: c.Assign, _: None) -> AcknowledgedUpdate:
    """Set weights of rows; the rows' optimizer state starts anew."""
    with engine.tables.writing(command):
        _check_bytes(engine, command)
        share = _share(engine, command.keys)
        shape = (len(share.keys), share.table.dim)
        writes.assign(share, host_rows_of(share.table, command.rows, shape, "rows"))
        return _acknowledged(engine, [share])


def delete_rows(engine: "Engine", command: c.DeleteRows, _: None) -> Deleted:
    """Delete rows. Afterwards they are as if they had never been written."""
    moved, member = command.moved, command.member
    command = replace(command, moved=False, member=None)  # these fields are not logged
    with _writing_of(engine, member, command, even_paused=moved):
        _check_bytes(engine, command)
        share = _share(engine, command.keys)
        if moved:
            check_moved(engine, share.table, share.keys)
        session = share.table.writer if moved else _deleting(engine, share.table, member)
        with share.table.moving_rows() if moved else nullcontext():
            rows = writes.delete(share, session)
        return Deleted(engine.tables.frame.command_number + 1, share.table.t, rows)


def clear_table(engine: "Engine", command: c.ClearTable, _: None) -> Deleted:
    """Delete all rows of a table. Afterwards they are as if they had never been written."""
    member, command = command.member, replace(command, member=None)  # this field is not logged
    with _writing_of(engine, member, command):
        table, owns = engine.tables.find(command.table, command.table_id), engine.scans.owns
        session = _deleting(engine, table, member)
        rows = writes.clear(table, owns and partial(owns, table.config), session)
        return Deleted(engine.tables.frame.command_number + 1, table.t, rows)


def _deleting(engine: "Engine", table: TableState, member: str | None) -> str:
    """Return the name of the session whose member deletes rows of a table; empty if `member` is
    None."""
    return "" if member is None else engine.sessions.check_may_delete(member, table)


def put_rows(engine: "Engine", command: c.PutRows, _: None) -> AcknowledgedUpdate:
    """Set weights and state of one table's rows."""
    moved, command = command.moved, replace(command, moved=False)  # this field is not logged
    with engine.tables.writing(command, even_paused=moved):
        _check_bytes(engine, command)
        table = engine.tables.find(command.keys.table, command.keys.table_id)
        keys = keys_of(table, command.keys.keys)
        if moved:
            check_moved(engine, table, keys)
        put = _put_of(table, keys, command.weights, command.state, command.add_t)
        with table.moving_rows() if moved else nullcontext():
            writes.put_rows([put], table.writer if moved else "")
        return _acknowledged(engine, [put.share])


def put_step_rows(engine: "Engine", command: c.PutStepRows, _: None) -> AcknowledgedUpdate:
    """Set weights and state of rows of a session's tables. No other client writes these tables.

    All announced steps must be finished before this command: otherwise ranks could already have
    received rows of an unfinished step, which this command would make outdated.
    """
    with _writing_of(engine, command.member, command):
        session = engine.sessions.check_may_put(command.member)
        return _put_tables(engine, command, session.table, session.name)


def put_step_rows_again(engine: "Engine", command: c.PutStepRows) -> AcknowledgedUpdate:
    """Execute a PutStepRows from the command log again; its session no longer exists."""
    with engine.tables.writing(command):
        return _put_tables(engine, command, engine.tables.find, "")


@contextmanager
def _writing_of(
    engine: "Engine", member: str | None, command: c.Command[Any], *, even_paused: bool = False
) -> Iterator[None]:
    """Run a command that writes. If `member` is given, the command comes from a member of a
    session: the session's resume position then gets the command's number, so that the written rows
    do not count as written by another client."""
    tables = engine.tables
    with tables.frame.turn():
        place = None if member is None else engine.sessions.place_of(member)
        with tables.writing(command, place, even_paused=even_paused):
            yield
            if place is not None:
                number = tables.frame.command_number + 1
                tables.note_place(place.session, replace(place.place, command=number))


def _put_tables(
    engine: "Engine",
    command: c.PutStepRows,
    find: Callable[[str], TableState],
    session: str,
) -> AcknowledgedUpdate:
    puts = [_put_of(find(p.table), p.keys, p.weights, p.state, p.add_t) for p in command.tables]
    _check_bytes(engine, command)
    writes.put_rows(puts, session)
    return _acknowledged(engine, [put.share for put in puts])


def _acknowledged(
    engine: "Engine", shares: Sequence[Share], applied: bool = True
) -> AcknowledgedUpdate:
    t = {share.table.name: share.table.t for share in shares}
    return AcknowledgedUpdate(engine.tables.frame.command_number + 1, t, not applied)


# Shares of tables


def _share(engine: "Engine", part: c.TableKeys | c.PooledKeys) -> Share:
    """Return the `Share` for one part of a command: a table and its keys. The keys must be in host
    memory or in the memory of this device."""
    table = engine.tables.find(part.table, part.table_id)
    return Share(table, keys_of(table, part.keys))


def _bag_share(engine: "Engine", part: c.PooledGradients) -> Share:
    """Return the `Share` for one table of an update by the gradients of bags."""
    table, bags = engine.tables.find(part.table, part.table_id), part.bags
    rows = gradients_of(table, part.gradients, len(bags.offsets) - 1)
    return Share(table, keys_of(table, part.keys), bag_gradients(rows, bags))


def _put_of(table: TableState, keys: Keys, weights: Rows, state: Rows, add_t: int) -> Put:
    """Return rows of one table that were trained elsewhere, after checking them against the
    table."""
    if add_t > T_MAX - table.t:
        raise refusal(table.name, f"add_t of at most {T_MAX - table.t}", add_t)
    count, state_dim = len(keys), table.config.state_dim
    return Put(
        Share(table, keys),
        host_rows_of(table, weights, (count, table.dim), "weights"),
        host_rows_of(table, state, (count, state_dim), "state"),
        add_t,
    )


HANDLERS: dict[Any, Callable[[Any, Any, Any], Any]] = {
    c.Lookup: lookup,
    c.LookupPooled: lookup_pooled,
    c.ReadRows: read_rows,
    c.Update: update,
    c.UpdatePooled: update_pooled,
    c.UpdateRanks: update_ranks,
    c.Assign: assign,
    c.DeleteRows: delete_rows,
    c.ClearTable: clear_table,
    c.PutRows: put_rows,
    c.PutStepRows: put_step_rows,
}
