"""Handlers of commands to a store as a shard of a cluster: its map, and writes that are held.

What a store is among the shards is durable before anybody is told (`embstore.storage.shard`). While
its writes are held, the frame of calls refuses every command that writes, in its turn: so after the
answer none is applied, whatever was queued before.
"""

from collections.abc import Callable
from time import monotonic
from typing import TYPE_CHECKING, Any

from embstore import commands as c
from embstore.engine.admin import describe
from embstore.errors import InvalidArgumentError, WritesHeldError
from embstore.results import Boundary, NamedPlace
from embstore.storage import shard as shards
from embstore.storage.shard import ShardPlace
from embstore.tables.frame import Lease

if TYPE_CHECKING:
    from embstore.engine.engine import Engine


def be(engine: "Engine", place: ShardPlace | None) -> None:
    """Have a store be this shard, or none, from now on. Inside a call, or before the first."""
    engine.shard = place
    engine.tables.frame.held = "" if place is None else place.held


def set_shard_map(engine: "Engine", command: c.SetShardMap, _: None) -> None:
    """Take the next map, once it is on the disk."""
    with engine.tables.reading():
        _become(engine, _place_of(engine).with_map(command.shard_map))


def hold_writes(engine: "Engine", command: c.HoldWrites, _: None) -> Boundary:
    """Take no writes from now on, and return where the store stands."""
    with engine.tables.reading():
        place, frame = _place_of(engine).held_by(command.holder), engine.tables.frame
        if frame.lease is not None and frame.lease.is_live and frame.lease.holder != command.holder:
            raise WritesHeldError(frame.lease.why)
        if command.lease_ms:
            until = monotonic() + command.lease_ms / 1000
            frame.lease = Lease(command.holder, place.held, until)
        else:
            _become(engine, place)
        return boundary(engine)


def release_writes(engine: "Engine", command: c.ReleaseWrites, _: None) -> None:
    """Take writes again."""
    with engine.tables.reading():
        _become(engine, _place_of(engine).released_by(command.holder))
        frame = engine.tables.frame
        if frame.lease is not None and command.holder in ("", frame.lease.holder):
            frame.lease = None


def _place_of(engine: "Engine") -> ShardPlace:
    if engine.shard is None:
        raise InvalidArgumentError(
            "this store is no shard of a cluster, and has no map: serve it with --shard-map and "
            "--shard"
        )
    return engine.shard


def _become(engine: "Engine", place: ShardPlace) -> None:
    if place != engine.shard:
        engine.storage.check_usable(write=True)
        shards.write(engine.storage.files, place)
        be(engine, place)


def boundary(engine: "Engine") -> Boundary:
    """Return where a store stands. Inside a call."""
    tables = engine.tables
    return Boundary(
        tables.frame.command_number,
        tuple(describe(table) for table in tables.sorted()),
        engine.storage.next_table_id,
        tuple(
            NamedPlace(name, place.step, dict(place.table_ids))
            for name, place in sorted(tables.places.items())
        ),
    )


HANDLERS: dict[Any, Callable[[Any, Any, Any], Any]] = {
    c.SetShardMap: set_shard_map,
    c.HoldWrites: hold_writes,
    c.ReleaseWrites: release_writes,
}
