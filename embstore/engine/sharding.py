"""A store as a shard of a cluster: the shard's map, pauses of its writes, and rows that are moved.

A store's place among the shards (its shard number and map) is durable before it is acknowledged
(`embstore.storage.shard`). During a pause, a command that writes is refused when it acquires the
engine. Therefore, once the request to pause is answered, no write is applied, not even a write that
was queued before.

**Commands by a map.** The sender of a command splits the command by the map that the sender has. A
shard executes the command if the shard's own map splits it in the same way. The shard checks this
after it has acquired the engine for the command. If the maps split the command differently, the
shard refuses the command, and the sender fetches the newest map. The commands of a session are
split by the map with which the session's ranks have joined; the session ends when that map is
replaced.

**Half executed commands.** A client of a cluster sends a part of a command to each shard, and gives
all parts the same id (`PartOf`). A shard that has answered its part, by a result or by an
error that ends the command, notes the id. A sender sends its next command after all shards have
answered its last one, so a shard keeps one id per sender. At a barrier the ids of all shards are
compared (`embstore_client.barrier`): an id that some shards have and others lack belongs to a
command that is half executed. Its client still sends the missing parts, which the shards execute
although their writes are paused. If a part never comes, for example because the client was killed
or stopped, the command is **given up**: a shard refuses the part from then on, also after a
restart, and the client gets OutcomeUnknownError. The ids are in the command log
(`embstore.tables.answers`).
"""

from collections.abc import Callable, Container
from contextlib import suppress
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from embstore import commands as c
from embstore.commands import Effect, PartOf, Trait
from embstore.engine.admin import describe
from embstore.errors import (
    EmbstoreError,
    InvalidArgumentError,
    MovedError,
    SessionExpiredError,
    WritesPausedError,
)
from embstore.results import Barrier, NamedPlace, Place
from embstore.storage import shard as shards
from embstore.storage.labels import without_old
from embstore.storage.shard import ShardPlace
from embstore.tables.frame import Lease
from embstore.tables.logged import SessionPlace
from embstore.tables.state import TableState

if TYPE_CHECKING:
    from embstore.engine.engine import Engine


def be(engine: "Engine", place: ShardPlace | None) -> None:
    """Make a store the shard that `place` describes; None: make it a store outside a cluster. This
    function must be called inside a call of the store, or before the first call."""
    engine.shard = place
    engine.scans.owns = None if place is None else place.owns
    engine.tables.frame.pause("" if place is None else place.refusal)


def _place_of(engine: "Engine") -> ShardPlace:
    if engine.shard is None:
        raise InvalidArgumentError(
            "this store is no shard of a cluster, and has no map: serve it with --shard-map and "
            "--shard"
        )
    return engine.shard


# Commands by a map


def check_version(engine: "Engine", version: int) -> None:
    """Raise MovedError if this shard's map splits commands differently from version `version` of
    the cluster's map."""
    place = engine.shard
    if place is not None and not place.is_split_as(version):
        raise MovedError(
            f"{place.name} has version {place.shard_map.version} of the map, the call was split by "
            f"version {version}: take the newest map, and split it by that"
        )


def by_map(
    engine: "Engine", command: c.Command[Any], part_of: PartOf, begin: Callable[[], Any]
) -> Any:
    """Begin a command that is a part of a cluster's command.

    `part_of.is_check`: check the command, and raise WritesPausedError if it would be executed.

    Raises
    ------
    MovedError : the shard's map splits the command in another way; nothing has changed.
    OutcomeUnknownError : the cluster's command was given up; nothing has changed.
    """
    version, command_id = part_of.map_version, part_of.command_id
    if part_of.is_check:
        _check(engine, command, version, begin)
    if Trait.JOINS in command.traits:  # runs without the engine: check again afterwards
        check_version(engine, version)
        joined = begin()
        try:
            check_version(engine, version)
        except MovedError:
            engine.sessions.close(c.CloseSession(joined.member))
            raise
        return joined
    is_in_session = getattr(command, "member", None) is not None
    if is_in_session and not command_id:
        return begin()
    if command.effect in (Effect.LONG, Effect.PROMPT):
        check_version(engine, version)
        return begin()
    with engine.tables.frame.turn():
        engine.cluster_commands.check(command_id)  # first: by a newer map it would be sent again
        if not is_in_session:
            check_version(engine, version)
        return _answered(engine, command_id, begin)


def _answered(engine: "Engine", command_id: int, begin: Callable[[], Any]) -> Any:
    """Begin a command, and note that this part of the cluster's command was answered, unless its
    sender sends it again. The caller has the engine."""
    commands, frame = engine.cluster_commands, engine.tables.frame
    frame.part_id = command_id
    try:
        result = begin()
    except WritesPausedError:
        raise
    except EmbstoreError:
        commands.answered(command_id)
        raise
    finally:
        frame.part_id = 0
    commands.answered(command_id)
    return result


def _check(
    engine: "Engine", command: c.Command[Any], version: int, begin: Callable[[], Any]
) -> NoReturn:
    """Raise the error with which a command would be refused; if it would be executed, raise
    WritesPausedError. Nothing changes.

    The command runs up to the point at which it begins to change the store
    (`Storage.begin_change`).
    """
    if not command.can_be_checked:
        raise InvalidArgumentError(
            f"{type(command).__name__} cannot be checked only: expected a command to execute"
        )
    storage = engine.storage
    with engine.tables.frame.turn():
        check_version(engine, version)
        with engine.tables.reading():  # ended sessions refuse no command
            engine.sessions.release_ended()
        storage.is_check = True
        try:
            begin()
            storage.end_check()
        finally:
            storage.is_check = False
    raise AssertionError("a check of a command ends with an error")


# The map


def set_shard_map(engine: "Engine", command: c.SetShardMap, _: None) -> None:
    """Write the next map to the disk, and use it from then on."""
    tables, place = engine.tables, _place_of(engine)
    with tables.reading():
        commit = engine.storage.catalogue.head.commit
        place = _place_of(engine).with_map(command.shard_map, commit)
        if command.barrier is not None:
            _adopt(engine, place, command.barrier)
        engine.storage.check_usable(write=True)
        shards.write(engine.storage.files, place)
        paused = tables.frame.paused
        be(engine, place)
        if place.since == place.shard_map.version:
            tables.frame.pause(paused)  # until all sessions of the previous map have ended
    if place.since == place.shard_map.version:
        _end_sessions(engine)
        with tables.reading():
            if engine.shard is not None:
                tables.frame.pause(engine.shard.refusal)


def _end_sessions(engine: "Engine") -> None:
    for name in engine.sessions.names():
        with suppress(SessionExpiredError):  # the session may have ended meanwhile
            engine.sessions.end(name, by="another map of the cluster")
    engine.scans.end_all()


def _adopt(engine: "Engine", place: ShardPlace, barrier: Barrier) -> None:
    """Give a shard without partitions the tables, update counts, resume positions and command
    number of the other shards, as `barrier` describes them. The caller has the engine."""
    own, tables, storage = _place_of(engine), engine.tables, engine.storage
    if own.partitions or place.partitions:
        raise InvalidArgumentError(
            f"{own.name} has partitions: expected a shard that has none, to begin where the others "
            "are"
        )
    engine.sessions.release_ended()
    before = list(tables.by_id.values())  # left by an earlier try or by an earlier use of the shard
    tables.check_unheld("give it the tables of a cluster", before)
    storage.begin_change()
    engine.hot_pins.release_tables(before, are_dropped=True)
    for table in before:
        storage.drop_table(table.table_id)
        tables.remove(table)
        engine.frequencies.forget(table)
    for described in sorted(barrier.tables, key=lambda one: one.table_id):  # in order of creation
        storage.next_table_id = described.table_id
        table, _ = tables.create(described.config)
        table.t, table.update_ids = described.t, described.update_ids
        table.written = barrier.command
        engine.frequencies.load(table)
    storage.next_table_id = barrier.next_table_id
    for name in list(tables.places):
        tables.drop_place(name)
    engine.cluster_commands.replace(barrier.answered)
    for one in barrier.places:
        reached = Place(one.step, dict(one.table_ids), barrier.command)
        tables.note_place(one.session, reached)
    tables.frame.stand_at(barrier.command)
    tables.commit()


# Paused writes


def pause_writes(engine: "Engine", command: c.PauseWrites, _: None) -> Barrier:
    """Pause the shard's writes, and return the point that the store has reached (`barrier`)."""
    with engine.tables.reading():
        place, frame = _place_of(engine).paused(command.by), engine.tables.frame
        if frame.lease is not None and frame.lease.is_live and frame.lease.by != command.by:
            raise WritesPausedError(frame.lease.why)
        if command.given_up:
            engine.cluster_commands.give_up(command.given_up)
            if engine.log is not None:
                engine.log.append_answers(frame.command_number)
        if command.lease_ms:
            ends = monotonic() + command.lease_ms / 1000
            be(engine, engine.shard)  # resets `may_pass`: only commands up to `until` will pass
            frame.lease = Lease(command.by, place.refusal, ends)
        else:
            _become(engine, place)
        if command.until is not None:
            answered = frozenset(command.until.answered)
            frame.may_pass = partial(_is_before, engine, command.until, answered)
        return barrier(engine)


def _is_before(
    engine: "Engine", until: Barrier, answered: Container[int], place: SessionPlace | None
) -> bool:
    """Return whether this store must still apply the running command, which writes, to reach the
    barrier `until`. The caller has the engine.

    A step of a session must be applied if its number is not higher than the session's step in the
    barrier. Any other command must be applied if another shard has answered its part of it.
    """
    if place is not None:
        return any(
            one.session == place.session and place.place.step <= one.step for one in until.places
        )
    return engine.tables.frame.part_id in answered


def resume_writes(engine: "Engine", command: c.ResumeWrites, _: None) -> None:
    """Accept writes again."""
    with engine.tables.reading():
        _become(engine, _place_of(engine).resumed(command.by))
        lease, kept = engine.tables.frame.lease, engine.storage.catalogue.checkpoints
        if lease is None or command.by not in ("", lease.by):
            return
        engine.tables.frame.lease = None
        stay = without_old(kept, frozenset(command.complete), engine.storage.keep)
        if command.complete and lease.is_live and stay != kept:  # else the list may be outdated
            with suppress(EmbstoreError):  # else the next checkpoint pushes out one more
                engine.tables.keep_labels(stay)


def _become(engine: "Engine", place: ShardPlace) -> None:
    if place != engine.shard:
        engine.storage.check_usable(write=True)
        shards.write(engine.storage.files, place)
    be(engine, place)


def barrier(engine: "Engine") -> Barrier:
    """Return the point that a store has reached: its command number, its tables with their update
    counts, and the resume positions of sessions. The caller has the engine."""
    tables = engine.tables
    return Barrier(
        tables.frame.command_number,
        tuple(describe(table) for table in tables.sorted()),
        engine.storage.next_table_id,
        tuple(
            NamedPlace(name, place.step, dict(place.table_ids))
            for name, place in sorted(tables.places.items())
        ),
        tuple(sorted(engine.cluster_commands.ids)),
    )


# Moved rows


def check_moved(engine: "Engine", table: TableState, keys: Any) -> None:
    """Check the keys of rows that are being moved to this shard: raise InvalidArgumentError if one
    of the keys is in a partition that this shard owns already.

    The caller has the engine.
    """
    place = _place_of(engine)
    own = np.flatnonzero(place.owns(table.config, np.asarray(keys)))
    if len(own):
        raise InvalidArgumentError(
            f"table {table.name!r}: expected rows of partitions that {place.name} has not, found "
            f"key {keys[own[0]]}, which it has"
        )


HANDLERS: dict[Any, Callable[[Any, Any, Any], Any]] = {
    c.SetShardMap: set_shard_map,
    c.PauseWrites: pause_writes,
    c.ResumeWrites: resume_writes,
}
