"""Commands of the whole cluster, each of which is split and joined in its own way."""

from __future__ import annotations

from dataclasses import replace
from itertools import chain
from typing import TYPE_CHECKING, Any

from embstore import commands as c
from embstore.errors import InvalidArgumentError
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


def list_tables(router: Router, command: c.ListTables, call: Call) -> tuple[TableDescription, ...]:
    """Return the first shard's descriptions of all tables, each with the lowest t of any shard."""
    first, *others = router.all(command, call)
    least = {one.table_id: one.t for one in first}
    for one in chain.from_iterable(others):
        least[one.table_id] = min(one.t, least.get(one.table_id, one.t))
    return tuple(replace(one, t=least[one.table_id]) for one in first)


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


HANDLERS = {
    c.GetServerInfo: get_server_info,
    c.GetStats: get_stats,
    c.ResizeCache: resize_cache,
    c.ListTables: list_tables,
    c.Backup: backup,
    c.PauseWrites: pause_writes,
}
