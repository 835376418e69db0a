"""Checks of commands that read and write rows."""

from typing import Any, cast

from embstore import commands as c
from embstore.arrays import KEY_BITS, keys_of, length, rows_of
from embstore.checks.arguments import Checks, expect, flag, integer, text
from embstore.checks.parts import (
    added_t,
    checked_bags,
    gradients_of,
    one_table,
    options_of,
    table_keys,
    table_name,
    tables_of,
)
from embstore.checks.sessions import member_name
from embstore.sharding import SHARDS_MAX

RANKS_MAX = 4096
"""Maximum number of ranks in an update, far more than train together. It is limited because a call
with many empty ranks would keep a server busy."""
SCAN_CHARACTERS = range(16, 256)


def _lookup(command: c.Lookup) -> c.Lookup:
    tables = tables_of(command.tables, table_keys)
    admit = command.admit if isinstance(command.admit, bool) else bool(command.admit)
    if tables is command.tables and admit is command.admit:
        return command
    return c.Lookup(tables, admit)


def _lookup_pooled(command: c.LookupPooled) -> c.LookupPooled:
    return c.LookupPooled(tables_of(command.tables, _pooled_keys), bool(command.admit))


def _pooled_keys(part: c.PooledKeys) -> c.PooledKeys:
    name = table_name(part.table)
    keys = keys_of(part.keys, name)
    return c.PooledKeys(name, part.table_id, keys, checked_bags(part.bags, length(keys), name))


def _read_rows(command: c.ReadRows) -> c.ReadRows:
    return c.ReadRows(one_table(command.keys))


def _update(command: c.Update) -> c.Update:
    tables = tables_of(command.tables, gradients_of)
    options = options_of(command.options)
    if tables is command.tables and options is command.options:
        return command
    return c.Update(tables, options)


def _update_pooled(command: c.UpdatePooled) -> c.UpdatePooled:
    tables = tables_of(command.tables, _pooled_gradients)
    return c.UpdatePooled(tables, options_of(command.options))


def _pooled_gradients(part: c.PooledGradients) -> c.PooledGradients:
    name = table_name(part.table)
    keys = keys_of(part.keys, name)
    bags = checked_bags(part.bags, length(keys), name)
    rows = rows_of(part.gradients, len(bags.offsets) - 1, name, "gradients")
    return c.PooledGradients(name, part.table_id, keys, rows, bags)


def _update_ranks(command: c.UpdateRanks) -> c.UpdateRanks:
    expect(len(command.ranks) <= RANKS_MAX, f"at most {RANKS_MAX} ranks", len(command.ranks))
    ranks = tuple(c.Rank(tables_of(rank.tables, gradients_of)) for rank in command.ranks)
    return c.UpdateRanks(ranks, options_of(command.options))


def _assign(command: c.Assign) -> c.Assign:
    keys = one_table(command.keys)
    return c.Assign(keys, rows_of(command.rows, length(keys.keys), keys.table, "rows"))


def _delete_rows(command: c.DeleteRows) -> c.DeleteRows:
    if command.member is not None:
        member_name(command.member)
    return c.DeleteRows(one_table(command.keys), flag(command.moved, "moved"), command.member)


def _put_rows(command: c.PutRows) -> c.PutRows:
    keys = one_table(command.keys)
    count, name = length(keys.keys), keys.table
    return c.PutRows(
        keys,
        rows_of(command.weights, count, name, "weights"),
        rows_of(command.state, count, name, "state"),
        added_t(command.add_t, name),
        flag(command.moved, "moved"),
    )


def _scan(command: Any) -> Any:
    """Check the names of a scan and of its table."""
    name, most = command.scan, SCAN_CHARACTERS.stop - 1
    is_name = isinstance(name, str) and len(name) in SCAN_CHARACTERS and name.isascii()
    expected = f"the name of a scan, {SCAN_CHARACTERS.start} to {most} printable ASCII characters"
    expect(is_name and name.isprintable(), expected, name)
    table_name(command.table)
    return command


def _open_scan(command: c.OpenScan) -> c.OpenScan:
    for label in (command.label, command.since):
        if label is not None:
            text(label, "a label")
    return cast(c.OpenScan, _scan(command))


def _read_scan(command: c.ReadScan) -> c.ReadScan:
    _scan(command)
    low = integer(command.low, "low", 0, SHARDS_MAX << KEY_BITS)
    rows = integer(command.rows, "rows", 1)
    with_state = flag(command.with_state, "with_state")
    deleted = flag(command.deleted, "deleted")
    return c.ReadScan(command.scan, command.table, low, rows, with_state, deleted)


ROWS: Checks = {
    c.Lookup: _lookup,
    c.LookupPooled: _lookup_pooled,
    c.ReadRows: _read_rows,
    c.Update: _update,
    c.UpdatePooled: _update_pooled,
    c.UpdateRanks: _update_ranks,
    c.Assign: _assign,
    c.DeleteRows: _delete_rows,
    c.PutRows: _put_rows,
    c.OpenScan: _open_scan,
    c.ReadScan: _read_scan,
    c.CloseScan: _scan,
}
