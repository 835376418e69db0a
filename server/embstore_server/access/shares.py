"""The limits of one token on resources that all share, by name.

    queue_calls, inflight_bytes, sessions   at any time; half of the server's own bound, unless the
                                            file of tokens says otherwise
    announced_bytes                         of all sessions of the token; half of the store's bound.
                                            Tokens that may write everything have one share
                                            together: their sessions have no owner
    call_bytes                              keys and rows of one call, bounded where the file says
                                            so: calls of other tokens may wait for one to end
    tables, rows, disk_bytes                of the tables that it may write, together; bounded where
                                            the file says so. disk_bytes is what those rows take at
                                            most, so that it is known when a table is made

Pins need no limit: sessions of several owners divide the slots among them (`lookahead.planner`).

A server without tokens has its own bounds alone.
"""

from contextlib import suppress
from typing import Any

from embstore import commands as c
from embstore.checks.call_bytes import check_size
from embstore.commands import Command, Right
from embstore.config import TableConfig
from embstore.engine.engine import Engine
from embstore.errors import CapacityError, TableNotFoundError
from embstore.lookahead.registry import SESSIONS_MAX
from embstore.tables.owners import owner_of
from embstore_server.access.callers import Callers
from embstore_server.access.principals import Principal

SHARE = 0.5
"""A second owner finds as much as the first one has."""


def defaults(queue_calls_max: int, inflight_bytes_max: int) -> dict[str, int]:
    """Return the default limits, by name."""
    shared = {
        "queue_calls": queue_calls_max,
        "inflight_bytes": inflight_bytes_max,
        "sessions": SESSIONS_MAX,
    }
    return {name: max(int(SHARE * most), 1) for name, most in shared.items()}


def announced_bytes_max(callers: Callers, most: int, owner: str) -> int | None:
    """Return how many of the `most` bytes of keys that may be announced are for the sessions of one
    owner; None: there are no owners. Any thread."""
    if not callers.known:
        return None
    default = max(int(SHARE * most), 1)
    one = callers.named(owner)
    return default if one is None else one.limits.get("announced_bytes", default)


def check_call(principal: Principal, command: Command[Any], engine: Engine) -> None:
    """Refuse a call that is larger than its caller's may be. Any thread.

    Raises InvalidArgumentError.
    """
    most = principal.limits.get("call_bytes")
    if most is not None:
        with suppress(TableNotFoundError):  # the engine says so
            check_size(command, engine.tables.config_of, most, f"call_bytes of {principal.name!r}")


def used(principal: Principal, engine: Engine) -> dict[str, int]:
    """Return a principal's usage of a store. With the engine, or for a look at it."""
    sessions = [n for n in engine.sessions.names() if owner_of(n) == principal.name]
    announced = engine.sessions.announcing.announced_bytes(principal.name)
    of_sessions = {"sessions": len(sessions), "announced_bytes": announced}
    return of_sessions | _of_tables(principal, engine)


def _of_tables(principal: Principal, engine: Engine) -> dict[str, int]:
    tables = engine.tables.by_id.copy().values()
    own = [table for table in tables if principal.right_on(table.name) >= Right.WRITE]
    return {
        "tables": len(own),
        "rows": sum(table.rows for table in own),
        "disk_bytes": sum(table.rows * table.config.layout.record_bytes for table in own),
    }


def check(principal: Principal, command: Command[Any], engine: Engine) -> None:
    """Refuse a command that would take more than a principal's share of a store. With the engine.

    Raises CapacityError.
    """
    more: dict[str, int] = {}
    match command:
        case c.OpenSession(name) if name not in engine.sessions.names():
            more = {"sessions": 1}
        case c.CreateTable(config) if not engine.tables.has(config.name):
            more = {"tables": 1} | _rows(config.rows, config)
        case c.GrowTable(table, table_id, rows):
            state = engine.tables.find(table, table_id)
            more = _rows(max(rows - state.rows, 0), state.config)
    more = {name: count for name, count in more.items() if name in principal.limits}
    if not more:
        return  # to look at all tables takes longer than to make one
    now = used(principal, engine)
    for name, count in more.items():
        most = principal.limits[name]
        if now[name] + count > most:
            raise CapacityError(
                f"{principal.name!r} has {now[name]} {name.replace('_', ' ')}, {count} more would "
                f"exceed its limit of {most}; ask the operator of this server for more"
            )


def _rows(count: int, config: TableConfig) -> dict[str, int]:
    return {"rows": count, "disk_bytes": count * config.layout.record_bytes}
