"""The limits of one token on resources that all callers share, by name.

    queue_calls, inflight_bytes, sessions   waiting calls, bytes in flight and open sessions of the
                                            token; default: half of the server's own bound
    announced_bytes                         announced bytes of all sessions of the token; default:
                                            half of the store's bound. All sessions without an owner
                                            have one limit together
    scans, scan_bytes                       open scans of the token, and the bytes that they need;
                                            default: half of the server's bound on scans, and half
                                            of the store's bound on their bytes
    call_bytes                              bytes of the keys and rows of one call; no default.
                                            A long call delays the calls of other tokens
    cache_bytes                             bytes of the cache that the pools of the token's
                                            writable tables take while the pools are empty; default:
                                            half of the cache, or no limit for tokens that can write
                                            everything
    tables, rows, disk_bytes                tables that the token can write, and all rows and bytes
                                            of these tables; no default. disk_bytes is the most that
                                            the rows can take, which is known when a table is made

The file of tokens can contain another limit than the default. Without a default, a value is limited
only if the file contains a limit.

Pinned rows need no limit: the planner (`lookahead.planner`) divides the slots between the sessions
of several owners.

A server without tokens has only its own bounds.
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
from embstore.rights import EVERYTHING
from embstore.tables.owners import owner_of
from embstore_server.access.callers import Callers
from embstore_server.access.principals import Principal

SHARE = 0.5
"""The part of a bound that one owner (a token) can use. An owner that uses half of a bound leaves
the other half to a second owner."""


def defaults(queue_calls_max: int, inflight_bytes_max: int) -> dict[str, int]:
    """Return the default limits, by name."""
    shared = {
        "queue_calls": queue_calls_max,
        "inflight_bytes": inflight_bytes_max,
        "sessions": SESSIONS_MAX,
    }
    return {name: max(int(SHARE * most), 1) for name, most in shared.items()}


def share_of(callers: Callers, limit: str, most: int, owner: str) -> int | None:
    """Return how much of `most`, a bound of the store, one owner can use; None: any amount, because
    the server has no tokens.

    `limit` is the name of the limit. Any thread.
    """
    if not callers.known:
        return None
    default = max(int(SHARE * most), 1)
    one = callers.named(owner)
    return default if one is None else one.limits.get(limit, default)


def check_call(principal: Principal, command: Command[Any], engine: Engine) -> None:
    """Refuse a call that exceeds its caller's limit of bytes. Any thread.

    Raises InvalidArgumentError if the call is too large.
    """
    most = principal.limits.get("call_bytes")
    if most is not None:
        with suppress(TableNotFoundError):  # the engine raises it again
            check_size(command, engine.tables.config_of, most, f"call_bytes of {principal.name!r}")


def used(principal: Principal, engine: Engine) -> dict[str, int]:
    """Return a principal's present use of a store's resources, by the name of the limit. Any
    thread."""
    sessions = [n for n in engine.sessions.names() if owner_of(n) == principal.name]
    announced = engine.sessions.announcing.announced_bytes(principal.name)
    scans, scan_bytes = engine.scans.places.used(principal.name)
    of_sessions = {"sessions": len(sessions), "announced_bytes": announced}
    of_scans = {"scans": scans, "scan_bytes": scan_bytes}
    cache = {"cache_bytes": _cache_bytes(principal, engine)}
    return of_sessions | of_scans | cache | _of_tables(principal, engine)


def _cache_bytes(principal: Principal, engine: Engine) -> int:
    tables = engine.tables.by_id.copy()
    return sum(
        pool.slots.sizes.least_bytes
        for pool in engine.tables.pools.copy().values()
        if any(
            principal.right_on(tables[table_id].name) >= Right.WRITE
            for table_id in pool.tables.copy()
            if table_id in tables
        )
    )


def cache_bytes_max(principal: Principal, engine: Engine) -> int | None:
    """Return the most bytes of the cache that the pools of a principal's writable tables may take
    while the pools are empty; None: there is no limit."""
    if not principal.name or principal.right_on(EVERYTHING) >= Right.WRITE:
        return principal.limits.get("cache_bytes")
    default = int(SHARE * engine.tables.arena.budget_bytes)
    return principal.limits.get("cache_bytes", default)


def _check_cache(principal: Principal, config: TableConfig, engine: Engine) -> None:
    most, more = cache_bytes_max(principal, engine), engine.tables.least_bytes_of(config)
    if most is None or not more or (now := _cache_bytes(principal, engine)) + more <= most:
        return
    raise CapacityError(
        f"table {config.name!r}: the tables that {principal.name!r} may write take {now} bytes of "
        f"the cache before they have a row, {more} more would exceed its limit of {most} "
        "(cache_bytes): drop tables, give dense ones one row size, or ask who runs this server for "
        "more"
    )


def _of_tables(principal: Principal, engine: Engine) -> dict[str, int]:
    tables = engine.tables.by_id.copy().values()
    own = [table for table in tables if principal.right_on(table.name) >= Right.WRITE]
    return {
        "tables": len(own),
        "rows": sum(table.rows for table in own),
        "disk_bytes": sum(table.rows * table.config.layout.record_bytes for table in own),
    }


def check(principal: Principal, command: Command[Any], engine: Engine) -> None:
    """Refuse a command that would exceed a principal's limits. Call this when the engine is about
    to execute the command, so that no other command changes the usage.

    Raises CapacityError if a limit would be exceeded.
    """
    more: dict[str, int] = {}
    match command:
        case c.OpenSession(name) if name not in engine.sessions.names():
            more = {"sessions": 1}
        case c.CreateTable(config) if not engine.tables.has(config.name):
            more = {"tables": 1} | _rows(config.rows, config)
            _check_cache(principal, config, engine)
        case c.GrowTable(table, table_id, rows):
            state = engine.tables.find(table, table_id)
            more = _rows(max(rows - state.rows, 0), state.config)
    more = {name: count for name, count in more.items() if name in principal.limits}
    if not more:
        return  # adding up all tables takes longer than creating a table
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
