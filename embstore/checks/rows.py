"""Commands that read and write rows."""

from embstore import commands as c
from embstore.checks.arguments import Checks, expect
from embstore.checks.parts import (
    added_t,
    checked_bags,
    gradients_of,
    keys_of,
    length,
    one_table,
    options_of,
    rows_of,
    table_keys,
    table_name,
    tables_of,
)

RANKS_MAX = 4096
"""More trainers than step together; a call of empty ranks would keep a server busy."""


def _lookup(command: c.Lookup) -> c.Lookup:
    tables = tables_of(command.tables, table_keys)
    admit = command.admit if isinstance(command.admit, bool) else bool(command.admit)
    if tables is command.tables and admit is command.admit:
        return command
    return c.Lookup(tables, admit)


def _lookup_pooled(command: c.LookupPooled) -> c.LookupPooled:
    keys = one_table(command.keys)
    bags = checked_bags(command.bags, length(keys.keys), keys.table)
    return c.LookupPooled(keys, bags, bool(command.admit))


def _read_rows(command: c.ReadRows) -> c.ReadRows:
    return c.ReadRows(one_table(command.keys))


def _update(command: c.Update) -> c.Update:
    tables = tables_of(command.tables, gradients_of)
    options = options_of(command.options)
    if tables is command.tables and options is command.options:
        return command
    return c.Update(tables, options)


def _update_pooled(command: c.UpdatePooled) -> c.UpdatePooled:
    part = command.gradients
    name = table_name(part.table)
    keys = keys_of(part.keys, name)
    bags = checked_bags(command.bags, length(keys), name)
    rows = rows_of(part.gradients, len(bags.offsets) - 1, name, "gradients")
    gradients = c.TableGradients(name, part.table_id, keys, rows)
    return c.UpdatePooled(gradients, bags, options_of(command.options))


def _update_ranks(command: c.UpdateRanks) -> c.UpdateRanks:
    expect(len(command.ranks) <= RANKS_MAX, f"at most {RANKS_MAX} ranks", len(command.ranks))
    ranks = tuple(c.Rank(tables_of(rank.tables, gradients_of)) for rank in command.ranks)
    return c.UpdateRanks(ranks, options_of(command.options))


def _assign(command: c.Assign) -> c.Assign:
    keys = one_table(command.keys)
    return c.Assign(keys, rows_of(command.rows, length(keys.keys), keys.table, "rows"))


def _put_rows(command: c.PutRows) -> c.PutRows:
    keys = one_table(command.keys)
    count, name = length(keys.keys), keys.table
    return c.PutRows(
        keys,
        rows_of(command.weights, count, name, "weights"),
        rows_of(command.state, count, name, "state"),
        added_t(command.add_t, name),
    )


ROWS: Checks = {
    c.Lookup: _lookup,
    c.LookupPooled: _lookup_pooled,
    c.ReadRows: _read_rows,
    c.Update: _update,
    c.UpdatePooled: _update_pooled,
    c.UpdateRanks: _update_ranks,
    c.Assign: _assign,
    c.PutRows: _put_rows,
}
