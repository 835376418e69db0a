"""Commands that read and write rows, over shards.

Bags are pooled here: the rows of a bag are added in the order of the bag (rule 8), and may come
from any shards.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import wraps
from typing import TYPE_CHECKING, Any, TypeVar, cast

from embstore import commands as c
from embstore.arithmetic import bag_gradients, pool_rows
from embstore.arrays import as_out, as_rows, check_on_host
from embstore.checks.call_bytes import check_call_bytes
from embstore.commands.joins import acknowledged, first_with_sum
from embstore.errors import InvalidArgumentError
from embstore.results import AcknowledgedUpdate, Deleted, RowsRead, TableRows
from embstore_client.shards.finite import not_a_number, refused
from embstore_client.shards.split import taken

if TYPE_CHECKING:
    from embstore_client.shards.router import Call, Router
    from embstore_client.shards.split import Split

C = TypeVar("C", bound=c.Command[Any])
R = TypeVar("R")
Handler = Callable[["Router", C, "Call"], R]


def _of_named(handler: Handler[C, R]) -> Handler[C, R]:
    """Check the size of a command, and pass it to a handler with the ids of its tables. If a name
    in the command belongs to another table by now, check the command and pass it on once more."""

    @wraps(handler)
    def handle(router: Router, command: C, call: Call) -> R:
        def send(named: C) -> R:
            check_call_bytes(named, router.tables.config_of, router.limits)
            return handler(router, named, call)

        return router.tables.by_id(command, send)

    return handle


# Reading


@_of_named
def lookup(router: Router, command: c.Lookup, call: Call) -> RowsRead:
    """Return rows of several tables."""
    splits = [router.split(part) for part in command.tables]
    outs = _outs(router, command.tables, splits, call.out)
    parts: dict[int, c.Lookup] = {}
    for shard in range(len(router.shards)):
        named = tuple(
            c.TableKeys(
                part.table,
                part.table_id,
                part.keys[split.of(shard)],
                None if part.counts is None else part.counts[split.of(shard)],
            )
            for part, split in zip(command.tables, splits, strict=True)
            if split.count(shard) or (shard == 0 and not len(split))
        )
        if named or (shard == 0 and not command.tables):
            parts[shard] = c.Lookup(named, command.admit)
    t: dict[str, int] = {}
    by_name = {p.table: (s, o) for p, s, o in zip(command.tables, splits, outs, strict=True)}
    for shard, read in router.each(parts, replace(call, out=None)).items():
        for table in read.tables:
            split, rows = by_name[table.table]
            rows[split.of(shard)] = table.rows
            t[table.table] = table.t
    return RowsRead(
        tuple(
            TableRows(part.table, rows, None, t[part.table])
            for part, rows in zip(command.tables, outs, strict=True)
        )
    )


def _outs(router: Router, tables: Sequence[c.TableKeys], splits: list[Split], out: Any) -> Any:
    shapes = [
        (len(split), router.tables.config_of(part.table, part.table_id).dim)
        for part, split in zip(tables, splits, strict=True)
    ]
    given = out or [None] * len(tables)
    return [as_out(o, s, p.table) for o, s, p in zip(given, shapes, tables, strict=True)]


@_of_named
def lookup_pooled(router: Router, command: c.LookupPooled, call: Call) -> RowsRead:
    """Return pooled rows of bags. Shards return the rows of all occurrences; this function pools
    the rows."""
    keys = tuple(c.TableKeys(part.table, part.table_id, part.keys) for part in command.tables)
    read = lookup(router, c.Lookup(keys, command.admit), replace(call, out=None))
    return _pooled(read, [part.bags for part in command.tables], call.out)


def _pooled(read: RowsRead, bags: Sequence[c.Bags], out: Any) -> RowsRead:
    found = [
        pool_rows(table.rows, own.offsets, own.mode, own.weights)
        for table, own in zip(read.tables, bags, strict=True)
    ]
    filled = [
        as_out(given, pooled.shape, table.table)  # check all outputs before any is written to
        for given, pooled, table in zip(out or found, found, read.tables, strict=True)
    ]
    for rows, pooled in zip(filled, found, strict=True):
        rows[:] = pooled
    return RowsRead(tuple(replace(t, rows=r) for t, r in zip(read.tables, filled, strict=True)))


@_of_named
def read_rows(router: Router, command: c.ReadRows, call: Call) -> RowsRead:
    """Return the weights and the state of a table's rows."""
    part = command.keys
    split, config = router.split(part), router.tables.config_of(part.table, part.table_id)
    given = call.out or (None, None)
    dims = config.dim, config.state_dim
    weights, state = (
        as_out(own, (len(split), dim), part.table) for own, dim in zip(given, dims, strict=True)
    )
    parts = {
        shard: c.ReadRows(c.TableKeys(part.table, part.table_id, part.keys[split.of(shard)]))
        for shard in range(len(router.shards))
        if split.count(shard) or (shard == 0 and not len(split))
    }
    t = 0
    for shard, read in router.each(parts, replace(call, out=None)).items():
        (table,) = read.tables
        weights[split.of(shard)], state[split.of(shard)] = table.rows, table.state
        t = table.t
    return RowsRead((TableRows(part.table, weights, state, t),))


# Writing


@_of_named
def update(router: Router, command: c.Update, call: Call) -> AcknowledgedUpdate:
    """Apply one update to several tables."""
    tables = tuple(_of_width(router, part) for part in command.tables)
    return _updated(router, c.UpdateRanks((c.Rank(tables),), command.options), call)


@_of_named
def update_pooled(router: Router, command: c.UpdatePooled, call: Call) -> AcknowledgedUpdate:
    """Apply one update by gradients of bags. The gradient of a bag is spread to the occurrences of
    keys in the bag."""
    tables = []
    for part in (_of_width(router, given) for given in command.tables):
        bags = part.bags
        spread = bag_gradients(part.gradients, bags.offsets, bags.mode, bags.weights)
        tables.append(c.TableGradients(part.table, part.table_id, part.keys, spread))
    return _updated(router, c.UpdateRanks((c.Rank(tuple(tables)),), command.options), call)


@_of_named
def update_ranks(router: Router, command: c.UpdateRanks, call: Call) -> AcknowledgedUpdate:
    """Apply one update from several ranks."""
    ranks = tuple(
        c.Rank(tuple(_of_width(router, part) for part in rank.tables)) for rank in command.ranks
    )
    return _updated(router, c.UpdateRanks(ranks, command.options), call, is_of_ranks=True)


def _of_width(router: Router, part: Any) -> Any:
    """Return a part after a check that its gradients are on the host and have the table's width."""
    check_on_host(part.keys, f"table {part.table!r}: ")
    check_on_host(part.gradients, f"table {part.table!r}: ")
    dim = router.tables.config_of(part.table, part.table_id).dim
    shape = len(part.gradients), dim
    return replace(part, gradients=as_rows(part.gradients, shape, part.table, "gradients"))


def _updated(
    router: Router, command: c.UpdateRanks, call: Call, *, is_of_ranks: bool = False
) -> AcknowledgedUpdate:
    """Have an update applied by all shards, or by none."""
    ranks, options = [rank.tables for rank in command.ranks], command.options
    splits = [[router.split(part) for part in parts] for parts in ranks]
    wrong = refused(ranks, options.gradient_scale)
    commands: dict[int, c.UpdateRanks] = {}
    if wrong is None:
        for shard in range(len(router.shards)):
            commands[shard] = c.UpdateRanks(
                tuple(
                    c.Rank(tuple(_part(p, s, shard) for p, s in zip(parts, own, strict=True)))
                    for parts, own in zip(ranks, splits, strict=True)
                ),
                options,
            )
    elif options.on_nonfinite == "refuse":  # a shard refuses it, and makes the message
        commands[0] = c.UpdateRanks(wrong.ranks, options)
    else:
        config_of = router.tables.config_of
        named = {part.table: part for parts in ranks for part in parts}.values()
        skipped = tuple(not_a_number(p, config_of(p.table, p.table_id).dim) for p in named)
        commands = dict.fromkeys(
            range(len(router.shards)), c.UpdateRanks((c.Rank(skipped),), options)
        )
    if is_of_ranks:
        return _written(router, commands, call)
    single = {s: c.Update(one.ranks[0].tables, options) for s, one in commands.items()}
    return _written(router, single, call)


def _part(part: c.TableGradients, split: Split, shard: int) -> c.TableGradients:
    own = split.of(shard)
    gradients = taken(part.gradients, own)
    return c.TableGradients(part.table, part.table_id, part.keys[own], gradients)


@_of_named
def assign(router: Router, command: c.Assign, call: Call) -> AcknowledgedUpdate:
    """Set the weights of rows."""
    part = command.keys
    check_on_host(command.rows, f"table {part.table!r}: ")
    dim = router.tables.config_of(part.table, part.table_id).dim
    rows = as_rows(command.rows, (len(part.keys), dim), part.table, "rows")
    split = router.split(part)
    commands = {s: c.Assign(_keys(part, o), rows[o]) for s, o in _each(router, split)}
    with router.writing():
        return cast(AcknowledgedUpdate, acknowledged([*router.agreed(commands, call).values()]))


@_of_named
def delete_rows(router: Router, command: c.DeleteRows, call: Call) -> Deleted:
    """Delete rows. Afterwards they are as if they had never been written."""
    if command.moved:
        raise _not_at_its_shard("deleted")
    part, split = command.keys, router.split(command.keys)
    commands = {
        s: c.DeleteRows(_keys(part, own), member=command.member) for s, own in _each(router, split)
    }
    with router.writing():
        answers = list(router.agreed(commands, call).values())
    return cast(Deleted, first_with_sum("rows")(answers))


@_of_named
def put_rows(router: Router, command: c.PutRows, call: Call) -> AcknowledgedUpdate:
    """Set the weights and the state of rows."""
    part, add_t = command.keys, command.add_t
    if command.moved:
        raise _not_at_its_shard("put")
    for array in (command.weights, command.state):
        check_on_host(array, f"table {part.table!r}: ")
    config = router.tables.config_of(part.table, part.table_id)
    weights = as_rows(command.weights, (len(part.keys), config.dim), part.table, "weights")
    state = as_rows(command.state, (len(part.keys), config.state_dim), part.table, "state")
    split = router.split(part)
    commands = {
        s: c.PutRows(_keys(part, o), weights[o], state[o], add_t) for s, o in _each(router, split)
    }
    return _written(router, commands, call)


def _not_at_its_shard(done: str) -> InvalidArgumentError:
    return InvalidArgumentError(
        f"expected rows that are moved to be {done} at their shard, found the whole cluster"
    )


def _each(router: Router, split: Split) -> list[tuple[int, Any]]:
    return [(shard, split.of(shard)) for shard in range(len(router.shards))]


def _keys(part: c.TableKeys, own: Any) -> c.TableKeys:
    return c.TableKeys(part.table, part.table_id, part.keys[own])


def _written(
    router: Router, commands: Mapping[int, c.Command[AcknowledgedUpdate]], call: Call
) -> AcknowledgedUpdate:
    with router.writing():
        answers = list(router.each(commands, call).values())
    return cast(AcknowledgedUpdate, acknowledged(answers))


HANDLERS = {
    c.Lookup: lookup,
    c.LookupPooled: lookup_pooled,
    c.ReadRows: read_rows,
    c.Update: update,
    c.UpdatePooled: update_pooled,
    c.UpdateRanks: update_ranks,
    c.Assign: assign,
    c.DeleteRows: delete_rows,
    c.PutRows: put_rows,
}
