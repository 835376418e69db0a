"""Handlers of commands on tables, durability, the cache and the process."""

import shlex
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from embstore import commands as c
from embstore import results
from embstore.arrays import refusal
from embstore.cluster_checkpoints import given, mark_of, may_be_made
from embstore.engine.stats import store_stats, table_stats
from embstore.errors import (
    CheckpointExistsError,
    CheckpointNotFoundError,
    InvalidArgumentError,
    PermissionDeniedError,
    SessionExpiredError,
    WritesPausedError,
)
from embstore.results import Acknowledged, TableDescription
from embstore.storage.labels import check_loses_none
from embstore.storage.lives import numbered
from embstore.tables.slices import Slices
from embstore.tables.state import TableState, check_writer
from embstore.version import __version__

if TYPE_CHECKING:
    from embstore.engine.engine import Engine

# The process


def get_server_info(engine: "Engine", command: c.GetServerInfo, _: None) -> results.ServerInfo:
    """Return the store's facts, even once the store is closed. The handler does not acquire the
    engine, because it reads values that are replaced as a whole."""
    tables, place = engine.tables, engine.shard
    return results.ServerInfo(
        context=context(engine),
        version=__version__,
        device=engine.device.name,
        device_info=dict(engine.device_facts),
        policy=tables.policy,
        cache_bytes=tables.arena.budget_bytes,
        read_only=engine.storage.read_only or engine.replication.role != "leader",
        limits=tables.limits,
        shard=None if place is None else place.shard,
        shard_map=None if place is None else place.shard_map,
        next_table_id=0 if place is None else engine.storage.next_table_id,
    )


def context(engine: "Engine", instance: str = "") -> results.Context:
    """Return the context of an answer: the store's id, epoch and command number, and `instance`,
    which names the server if there is one."""
    catalogue = engine.storage.catalogue
    number = engine.tables.frame.command_number
    return results.Context(catalogue.store_id, catalogue.epoch, number, instance)


def get_stats(engine: "Engine", command: c.GetStats, _: None) -> dict[str, Any]:
    """Return the stats of a table, or of the store."""
    with engine.tables.reading():
        if command.table:
            return table_stats(engine.tables.find(command.table, command.table_id))
        engine.device_facts = engine.device.facts()
        for pool in engine.tables.pools.values():
            pool.pins.synchronize()
        return store_stats(engine)


def resize_cache(engine: "Engine", command: c.ResizeCache, _: None) -> None:
    """Set the size of the cache. No row changes."""
    tables = engine.tables
    with tables.reading():
        engine.sessions.release_ended()
        tables.check_unheld("resize the cache", tables.by_id.values())
        engine.device.memory.check_budget(command.cache_bytes, tables.arena.memory_bytes)
        engine.storage.begin_change()
        tables.arena.resize(command.cache_bytes)
        for pool in tables.pools.values():
            if pool.level_two is not None:
                pool.level_two.fit()
    engine.hot_pins.pin_wanted()


def check_integrity(
    engine: "Engine", command: c.CheckIntegrity, progress: c.Progress | None
) -> str:
    """Return a text about the first invariant that does not hold; "" if all invariants hold."""
    try:
        engine.tables.check_integrity(Slices(engine.tables.frame, progress))
    except AssertionError as exc:
        return str(exc) or "an invariant does not hold"
    return ""


# Tables


def describe(table: TableState) -> TableDescription:
    """Return the description of a table."""
    return TableDescription(table.current_config(), table.table_id, table.t, table.update_ids)


def create_table(engine: "Engine", command: c.CreateTable, _: None) -> TableDescription:
    """Create a table, or find it if it exists."""
    with engine.tables.writing(command):
        table, is_new = engine.tables.create(command.config, command.first_id)
        if is_new:
            engine.frequencies.load(table)
        return describe(table)


def get_table(engine: "Engine", command: c.GetTable, _: None) -> TableDescription:
    """Describe a table, even if the store has failed."""
    with engine.tables.frame.looking():
        return describe(engine.tables.find(command.table, command.table_id))


def list_tables(engine: "Engine", command: c.ListTables, _: None) -> tuple[TableDescription, ...]:
    """Describe all tables."""
    with engine.tables.frame.looking():
        return tuple(describe(table) for table in engine.tables.sorted())


def drop_table(engine: "Engine", command: c.DropTable, _: None) -> Acknowledged:
    """Forget a table. Kept checkpoints still contain it."""
    tables = engine.tables
    with tables.writing(command):
        table = tables.find(command.table, command.table_id)
        engine.sessions.release_ended()
        tables.check_unheld("drop it", [table])
        engine.storage.begin_change()
        engine.storage.drop_table(table.table_id)
        engine.hot_pins.release_tables([table], are_dropped=True)
        tables.remove(table)
        engine.frequencies.forget(table)
        return _acknowledged(engine, 0)


def grow_table(engine: "Engine", command: c.GrowTable, _: None) -> Acknowledged:
    """Increase the number of rows of a table."""
    members, command = command.members, replace(command, members=())  # members are not logged
    with engine.tables.writing(command):
        table = engine.tables.find(command.table, command.table_id)
        _check_own(engine, table, members)
        if table.config.is_sparse:
            found = "a table of sparse keys, which takes any: it need not grow"
            raise refusal(table.name, "a table of dense keys", found)
        if command.rows < table.rows:
            raise refusal(table.name, f"at least the present {table.rows} rows", command.rows)
        engine.storage.begin_change()
        table.grow(command.rows)
        return _acknowledged(engine, table.t)


def _check_own(engine: "Engine", table: TableState, members: tuple[str, ...]) -> None:
    """Refuse a change of a table that a session is writing, unless a member of that session makes
    the change."""
    if table.writer:
        check_writer([table], table.writer if engine.sessions.has(table.writer, members) else "")


def set_learning_rate(engine: "Engine", command: c.SetLearningRate, _: None) -> Acknowledged:
    """Set the learning rate of a table, for updates that do not give a learning rate."""
    members, command = command.members, replace(command, members=())
    with engine.tables.writing(command):
        table = engine.tables.find(command.table, command.table_id)
        _check_own(engine, table, members)
        optimizer, what = table.config.optimizer, f"table {table.name!r}: learning_rate"
        rate = optimizer.check_learning_rate(command.learning_rate, what)
        engine.sessions.check_may_set_rate(table)
        engine.storage.begin_change()
        table.learning_rate = rate
        return _acknowledged(engine, table.t)


def get_digest(
    engine: "Engine", command: c.GetDigest, progress: c.Progress | None
) -> results.Digest:
    """Return a table's digest. This handler runs in the caller's thread."""
    return engine.digests.compute(command.table, command.table_id, progress)


def get_leaves(
    engine: "Engine", command: c.GetLeaves, progress: c.Progress | None
) -> results.Leaves:
    """Return some leaves of a table's digest. This handler runs in the caller's thread."""
    return engine.digests.leaves(command.table, command.table_id, command.low, progress)


def _acknowledged(engine: "Engine", t: int) -> Acknowledged:
    return Acknowledged(engine.tables.frame.command_number + 1, t)


# Durability


def flush(engine: "Engine", command: c.Flush, progress: c.Progress | None) -> int:
    """Write the rows that are dirty at present to the log. This handler runs in the caller's
    thread."""
    return engine.commits.flush(command.table, command.table_id, progress)


def checkpoint(engine: "Engine", command: c.Checkpoint, _: None) -> results.KeptCheckpoint:
    """Commit, and keep the commit under a label."""
    with engine.tables.reading():
        _check_checkpoint(engine, command)
        lease = engine.tables.frame.lease
        if lease is not None and lease.is_live and not may_be_made(command.metadata, lease.by):
            raise WritesPausedError(lease.why)
        engine.tables.commit(command.label, command.metadata)
        return engine.storage.catalogue.checkpoints[-1].described()


def prepare_checkpoint(
    engine: "Engine", command: c.Checkpoint, progress: c.Progress | None
) -> None:
    """Log and sync the dirty rows before a checkpoint is made, so that the checkpoint itself needs
    the engine only for a short time."""
    with engine.tables.frame.looking():
        _check_checkpoint(engine, command)
    engine.commits.prepare(progress)


def _check_checkpoint(engine: "Engine", command: c.Checkpoint) -> None:
    """Refuse a checkpoint that cannot be kept. The caller prevents concurrent changes: it has the
    engine, or is inside a `with` block of `Frame.looking`."""
    storage, limits = engine.storage, engine.tables.limits
    storage.check_usable(write=True)
    size = len(c.metadata_json(given(command.metadata)))
    if size > limits.metadata_bytes_max:
        raise InvalidArgumentError(
            f"expected at most {limits.metadata_bytes_max} bytes of metadata "
            f"(limits.metadata_bytes_max), found {size}"
        )
    if storage.catalogue.checkpoint(command.label) is not None:
        raise CheckpointExistsError(
            f"a checkpoint {command.label!r} is kept already; choose another label, or drop "
            f"that one: store.set_retention({command.label!r}, 'dropped'), or "
            f"embstore set-retention {shlex.quote(command.label)} dropped"
        )


def set_retention(engine: "Engine", command: c.SetRetention, _: None) -> results.KeptCheckpoint:
    """Protect a kept checkpoint, make it routine, or drop it."""
    with engine.tables.reading():
        engine.storage.check_usable(write=True)
        kept = engine.storage.kept(command.label)
        if command.mark not in ("", mark_of(kept.described())):
            raise CheckpointNotFoundError(
                f"checkpoint {command.label!r} was made again meanwhile, and stays as it is"
            )
        return engine.tables.set_retention(command.label, command.retention).described()


def list_checkpoints(
    engine: "Engine", command: c.ListCheckpoints, _: None
) -> tuple[results.KeptCheckpoint, ...]:
    """Return the kept checkpoints."""
    with engine.tables.reading():
        return tuple(one.described() for one in engine.storage.catalogue.checkpoints)


def backup(engine: "Engine", command: c.Backup, progress: c.Progress | None) -> results.BackupFacts:
    """Copy a state to a backup destination. This handler runs in the caller's thread."""
    return engine.backups.back_up(command.destination, command.label, progress)


def restore(engine: "Engine", command: c.Restore, _: None) -> Acknowledged:
    """Restore the tables of a kept checkpoint, with their rows and their update counts t. Newer
    changes are lost; handles stay valid."""
    tables = engine.tables
    if command.force:
        _end_sessions(engine, command)
    try:
        with tables.writing(command):
            engine.sessions.release_ended()
            tables.check_unheld("restore", tables.by_id.values())
            _check_restore(engine, command.label)
            engine.storage.end_check()
            before = list(tables.by_id.values())
            engine.hot_pins.release_tables(before, are_dropped=False)
            for pool in tables.pools.values():
                pool.finder.finish_arriving()
            frame = tables.frame
            number = frame.command_number + 1
            lives = numbered(frame.lives, frame.life, number)
            head = engine.storage.restore(command.label, number, lives, frame.part_id)
            engine.scans.end_all()
            with engine.storage.irreversible:
                tables.remove_all()
                engine.frequencies.roll_back(before, {e.table_id: e.rows for e in head.tables})
                tables.open_head()
                for table in tables.by_id.values():
                    engine.frequencies.load(table)
                engine.hot_pins.forget_missing()
            return Acknowledged(number, 0)
    finally:
        if not engine.storage.is_check:
            engine.hot_pins.pin_wanted()


def _check_restore(engine: "Engine", label: str) -> None:
    """Refuse a checkpoint that cannot be restored."""
    checkpoint = engine.storage.kept(label)
    if engine.shard is not None:
        engine.shard.check_label(checkpoint.label, checkpoint.state.commit)
    check_loses_none(engine.storage.catalogue.checkpoints, checkpoint)
    engine.tables.check_room_for(checkpoint)


def _end_sessions(engine: "Engine", command: c.Restore) -> None:
    """Check that the checkpoint can be restored, and then end all open sessions."""
    with engine.tables.reading():
        engine.storage.check_usable(write=True)
        _check_restore(engine, command.label)
        engine.storage.end_check()
    for name in engine.sessions.names():
        with suppress(SessionExpiredError):  # the session may have ended meanwhile
            engine.sessions.end(name, by="a restore")


def promote(engine: "Engine", command: c.Promote, _: None) -> None:
    """Do nothing, because the store is a leader already: on a standby, the server promotes the
    store before the command arrives here."""
    if engine.replication.replaced_by:
        raise PermissionDeniedError(engine.replication.refusal)


def clear_counts(engine: "Engine", command: c.ClearCounts, _: None) -> None:
    """Set the counts of accesses to zero. A restart does not bring the old counts back."""
    with engine.tables.reading():
        engine.frequencies.clear_counts()


PREPARATIONS: dict[Any, Callable[[Any, Any, Any], None]] = {c.Checkpoint: prepare_checkpoint}
"""For some commands, the function preparation(engine, command, progress). It does long work before
the command acquires the engine."""

HANDLERS: dict[Any, Callable[[Any, Any, Any], Any]] = {
    c.GetServerInfo: get_server_info,
    c.GetStats: get_stats,
    c.ResizeCache: resize_cache,
    c.CheckIntegrity: check_integrity,
    c.CreateTable: create_table,
    c.GetTable: get_table,
    c.ListTables: list_tables,
    c.DropTable: drop_table,
    c.GrowTable: grow_table,
    c.SetLearningRate: set_learning_rate,
    c.GetDigest: get_digest,
    c.GetLeaves: get_leaves,
    c.Flush: flush,
    c.Checkpoint: checkpoint,
    c.SetRetention: set_retention,
    c.ListCheckpoints: list_checkpoints,
    c.Backup: backup,
    c.Restore: restore,
    c.Promote: promote,
    c.ClearCounts: clear_counts,
}
