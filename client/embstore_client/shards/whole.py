"""Commands of the whole cluster, each of which is split and joined in its own way."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import chain
from typing import TYPE_CHECKING, Any

from embstore import commands as c
from embstore.errors import (
    CorruptTableError,
    EmbstoreError,
    InvalidArgumentError,
    PermissionDeniedError,
    TableNotFoundError,
)
from embstore.results import BackupFacts, Barrier, ServerInfo, TableDescription
from embstore_client.barrier import pause_all
from embstore_client.shards import stats

if TYPE_CHECKING:
    from embstore_client.shards.router import Call, Router


def get_server_info(router: Router, command: c.GetServerInfo, call: Call) -> ServerInfo:
    """Return the facts of the cluster: the facts of its first shard, but with the sum of the cache
    bytes of all shards. The cluster's epoch grows with the epoch of any shard."""
    found = router.infos(call)
    epoch = router.shared.epochs + sum(one.context.epoch for one in found)
    context = replace(found[0].context, epoch=epoch)
    named = (f"{router.shard_map.version}:", *(one.process for one in found))
    return replace(
        found[0],
        context=context,
        cache_bytes=sum(one.cache_bytes for one in found),
        read_only=any(one.read_only for one in found),
        shard=None,
        shard_map=router.shard_map,
        process=" ".join(filter(None, named)),  # a new map ends sessions as a new process does
    )


def get_stats(router: Router, command: c.GetStats, call: Call) -> dict[str, Any]:
    """Return the stats of a table, or of the store, as sums over the shards. The field "shards"
    contains the stats of each shard."""
    found = router.all(command, call)
    whole = stats.merged(found, command.table)
    return whole if command.table else whole | {"shards": found}


def resize_cache(router: Router, command: c.ResizeCache, call: Call) -> None:
    """Divide the cluster's cache bytes equally among the shards."""
    share = -(-command.cache_bytes // len(router.shards))
    router.all(c.ResizeCache(share), call)


# Tables


def create_table(router: Router, command: c.CreateTable, call: Call) -> TableDescription:
    """Create a table on every shard, or find it.

    Raises
    ------
    CorruptTableError : a shard lacks a table of which other shards have updates. If the table were
        created there, its rows of that shard would silently be initial values again.
    """
    name = command.config.name
    without = [shard for shard in range(len(router.shards)) if not _has(router, shard, name, call)]
    if 0 < len(without) < len(router.shards):  # an earlier call has failed, or a shard has
        described = [{one.config.name: one.t for one in own} for own in router.all(_LIST, call)]
        for shard in without:
            for lost, t in chain.from_iterable(own.items() for own in described):
                if t and lost not in described[shard]:
                    raise CorruptTableError(
                        f"shard {shard} of cluster {router.shard_map.cluster!r} does not have "
                        f"table {lost!r}, of which another shard has {t} updates: it was served "
                        "from a new directory, or a client that dropped the table was stopped. "
                        "Serve the directory that the shard had before, restore a backup of the "
                        "cluster, or drop the table"
                    )
    if without:  # the next id can differ, since a half created table was dropped
        first_id = max(info.next_table_id for info in router.infos(call))
        command = replace(command, first_id=first_id)
    return router.joined(command, _of_one_id, call)


def _of_one_id(described: Sequence[TableDescription]) -> TableDescription:
    """Return the first shard's description of a table; it must have the same id on all shards."""
    found = [one.table_id for one in described]
    if len({*found}) > 1:
        raise EmbstoreError(
            f"expected the same table id from every shard, found {found}: several clients have "
            "created tables at the same time; drop this table, and create it again"
        )
    return replace(described[0], update_ids=0)


def _has(router: Router, shard: int, table: str, call: Call) -> bool:
    """Return whether a shard has a table; also True if the caller may not read it."""
    try:
        router.each({shard: c.GetTable(table)}, replace(call, progress=None))
    except TableNotFoundError:
        return False
    except PermissionDeniedError:
        pass
    return True


def list_tables(router: Router, command: c.ListTables, call: Call) -> tuple[TableDescription, ...]:
    """Return the first shard's descriptions of all tables, each with the lowest t of any shard."""
    first, *others = router.all(command, call)
    least = {one.table_id: one.t for one in first}
    for one in chain.from_iterable(others):
        least[one.table_id] = min(one.t, least.get(one.table_id, one.t))
    return tuple(replace(one, t=least[one.table_id], update_ids=0) for one in first)


# Durability


def backup(router: Router, command: c.Backup, call: Call) -> BackupFacts:
    """Copy every shard's files to its own folder, `shard-N` within the destination.

    Raises InvalidArgumentError if no label was given. Shards write their files at different
    moments. Only the files of a checkpoint contain the states of all shards at one moment.
    """
    if command.label is None:
        raise InvalidArgumentError(
            "expected a label: a backup of a cluster is of a checkpoint, which all shards have; "
            "make one by store.checkpoint(label), then store.backup(destination, label)"
        )
    parts = {
        shard: c.Backup(f"{command.destination.rstrip('/')}/shard-{shard}", command.label)
        for shard in range(len(router.shards))
    }
    found: list[BackupFacts] = list(router.each(parts, call).values())
    return BackupFacts(
        found[0].label,
        found[0].command,
        sum(one.files for one in found),
        sum(one.bytes for one in found),
        sum(one.new_files for one in found),
        sum(one.new_bytes for one in found),
    )


def pause_writes(router: Router, command: c.PauseWrites, call: Call) -> Barrier:
    """Have every shard pause its writes, at one barrier."""
    return pause_all(router.shards, command.by, timeout_s=call.timeout_s)


_LIST = c.ListTables()

HANDLERS = {
    c.CreateTable: create_table,
    c.GetServerInfo: get_server_info,
    c.GetStats: get_stats,
    c.ResizeCache: resize_cache,
    c.ListTables: list_tables,
    c.Backup: backup,
    c.PauseWrites: pause_writes,
}
