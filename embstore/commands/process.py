"""Commands about the process: its facts, its stats and its settings."""

from typing import Any

from embstore import results
from embstore.commands import joins
from embstore.commands.base import Command, Effect, Right, Trait


class GetServerInfo(Command[results.ServerInfo], effect=Effect.PROMPT, traits=Trait.OF_ANY_MAP):
    """Return the store's version, device and limits."""


class GetStats(
    Command[dict[str, Any]], effect=Effect.READS, traits=Trait.OF_ANY_MAP | Trait.WITHOUT_COMMIT
):
    """Return the stats of one table, or of the store if no table is named."""

    table: str = ""
    table_id: int | None = None


class ResizeCache(Command[None], effect=Effect.TUNES):
    """Set the size of the cache."""

    cache_bytes: int


class SetPolicy(Command[None], effect=Effect.LONG, join=joins.nothing):
    """Evict rows by another policy from now on, until the store is opened again."""

    policy: str


class CheckIntegrity(Command[str], effect=Effect.LONG, right=Right.ADMIN, join=joins.first_found):
    """Check the invariants of cache and storage. The result is a text about the first violation; ""
    if there is none."""
