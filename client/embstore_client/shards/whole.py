"""Commands that every shard hears as they are, and what comes of the answers."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from embstore import commands as c
from embstore.errors import CheckpointNotFoundError, EmbstoreError
from embstore.results import (
    Acknowledged,
    BackupFacts,
    Boundary,
    Checkpoint,
    ServerInfo,
    TableDescription,
)
from embstore_client.boundary import pause_all
from embstore_client.shards.patience import check_newest

if TYPE_CHECKING:
    from embstore_client.shards.router import Call, Router


def get_server_info(router: Router, command: c.GetServerInfo, call: Call) -> ServerInfo:
    """What the cluster is: its first shard, with the memory of all. Its epoch grows with any."""
    found = router.all(command, call)
    for one in found:
        check_newest(one, router.shard_map)
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
        process=" ".join(filter(None, named)),  # sessions end with the map, too
    )


_ADDED = ("resident_rows", "dirty_rows")
"""Of a table's stats: what each shard has of it."""


def get_stats(router: Router, command: c.GetStats, call: Call) -> dict[str, Any]:
    """The stats of a table, or those of the first shard with "shards", those of each."""
    found = router.all(command, call)
    if command.table:
        return found[0] | {name: sum(one[name] for one in found) for name in _ADDED}
    return found[0] | {"shards": found}


def resize_cache(router: Router, command: c.ResizeCache, call: Call) -> None:
    """Give every shard its share of a budget."""
    share = -(-command.cache_bytes // len(router.shards))
    router.all(c.ResizeCache(share), call)


def check_integrity(router: Router, command: c.CheckIntegrity, call: Call) -> str:
    """The first violation, by shard."""
    return next(filter(None, router.all(command, call)), "")


# Tables


def create_table(router: Router, command: c.CreateTable, call: Call) -> TableDescription:
    """Create a table on every shard, with one id."""
    with router.writing():
        found = router.all(command, call)
    if len({one.table_id for one in found}) > 1:
        raise EmbstoreError(
            f"table {command.config.name!r} has another id on each shard, "
            f"{[one.table_id for one in found]}: they have not heard the same commands; restore "
            "the cluster to its last checkpoint"
        )
    router.tables.note(found[0])
    return found[0]


def get_table(router: Router, command: c.GetTable, call: Call) -> TableDescription:
    """What a table is."""
    described = router.described(command)
    router.tables.note(described)
    return described


def list_tables(router: Router, command: c.ListTables, call: Call) -> tuple[TableDescription, ...]:
    """What the first shard says of all tables."""
    return router.first(command, call)


def drop_table(router: Router, command: c.DropTable, call: Call) -> Acknowledged:
    """Forget a table on every shard."""
    router.tables.forget(command.table)
    return acknowledged(router, command, call)


def acknowledged(router: Router, command: Any, call: Call) -> Acknowledged:
    """Tell every shard, and return what the first answers."""
    with router.writing():
        found: list[Acknowledged] = router.all(command, call)
    return found[0]


# Durability


def flush(router: Router, command: c.Flush, call: Call) -> int:
    """Dirty rows of all shards."""
    return sum(router.all(command, call))


def checkpoint(router: Router, command: c.Checkpoint, call: Call) -> Checkpoint:
    """Keep one label on every shard, at one command."""
    with router.writing():
        found = router.all(command, call)
    if any(one.state.tables != found[0].state.tables for one in found):
        raise EmbstoreError(
            f"checkpoint {command.label!r}: the shards have kept other states of the tables, as "
            "other clients were writing, so it is none of the cluster; stop them, and keep "
            "another label"
        )
    return found[0]


def set_retention(router: Router, command: c.SetRetention, call: Call) -> Checkpoint:
    """Protect a label on every shard, or drop it."""
    return router.all(command, call)[0]


def list_checkpoints(
    router: Router, command: c.ListCheckpoints, call: Call
) -> tuple[Checkpoint, ...]:
    """Those that all shards keep, of the same tables, each with as many updates."""
    found = router.all(command, call)
    others = [{one.label: one.state.tables for one in kept} for kept in found[1:]]
    return tuple(
        one for one in found[0] if all(kept.get(one.label) == one.state.tables for kept in others)
    )


def restore(router: Router, command: c.Restore, call: Call) -> Acknowledged:
    """Have every shard go back to a label that all of them keep."""
    with router.writing():
        kept = [{one.label: one for one in of_shard} for of_shard in router.all(_LIST)]
        found = [of_shard.get(command.label) for of_shard in kept]
        for shard, one in enumerate(found):
            if one is None:  # so it says, and the others stay as they are
                router.each({shard: command}, call)
        states = [one.state.tables for one in found if one is not None]
        if any(state != states[0] for state in states):
            raise CheckpointNotFoundError(
                f"expected {command.label!r} to be a checkpoint of the whole cluster, found other "
                "states of the tables on its shards: it was kept while other clients were writing"
            )
        try:
            done = router.all(command, call)[0]
        finally:
            router.tables.forget_all()  # a name may be another table's
        router.places.ended(None)
        return done


_LIST = c.ListCheckpoints()


def backup(router: Router, command: c.Backup, call: Call) -> BackupFacts:
    """Copy every shard's files to a folder of its own, `shard-N` within the destination."""
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


def tell(router: Router, command: Any, call: Call) -> None:
    """Tell every shard."""
    router.all(command, call)


def pause_writes(router: Router, command: c.PauseWrites, call: Call) -> Boundary:
    """Have every shard pause its writes, at one boundary."""
    return pause_all(router.shards, command.by, timeout_s=call.timeout_s)


HANDLERS = {
    c.GetServerInfo: get_server_info,
    c.GetStats: get_stats,
    c.ResizeCache: resize_cache,
    c.SetPolicy: tell,
    c.CheckIntegrity: check_integrity,
    c.CreateTable: create_table,
    c.GetTable: get_table,
    c.ListTables: list_tables,
    c.DropTable: drop_table,
    c.GrowTable: acknowledged,
    c.SetLearningRate: acknowledged,
    c.Flush: flush,
    c.Checkpoint: checkpoint,
    c.SetRetention: set_retention,
    c.ListCheckpoints: list_checkpoints,
    c.Restore: restore,
    c.Backup: backup,
    c.Promote: tell,
    c.SetShardMap: tell,
    c.PauseWrites: pause_writes,
    c.ResumeWrites: tell,
}
