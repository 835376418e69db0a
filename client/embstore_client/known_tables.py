"""Tables as they were last seen: what a client must know of one before it sends a command.

Ids, dims and seeds do not change, so a table is asked for once. A command that names a table
without an id is sent with the id that the name had when it was last seen, so that what was worked
out by its dim or seed is right; where the name is another table's by then, the command is worked
out and sent once more.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeVar

from embstore import commands as c
from embstore.config import TableConfig
from embstore.errors import TableNotFoundError
from embstore.results import TableDescription

T = TypeVar("T")


class KnownTables:
    """The tables that one client has seen. Any thread."""

    def __init__(self, ask: Callable[[c.GetTable], TableDescription]) -> None:
        self._ask = ask
        self._seen: dict[str, TableDescription] = {}

    def find(self, name: str, table_id: int | None) -> TableDescription:
        """Return a table as it was last seen; another thread may forget it meanwhile."""
        seen = self._seen.get(name)
        if seen is None or (table_id is not None and seen.table_id != table_id):
            seen = self.look_again(name, table_id)
        return seen

    def look_again(self, name: str, table_id: int | None) -> TableDescription:
        """Return a table as it is now."""
        found = self._ask(c.GetTable(name, table_id))
        self._seen[name] = found
        return found

    def config_of(self, name: str, table_id: int | None) -> TableConfig:
        """Return the configuration of a table as it was last seen."""
        return self.find(name, table_id).config

    def note(self, described: TableDescription) -> None:
        """Remember what an answer says of a table."""
        self._seen[described.config.name] = described

    def forget(self, name: str) -> None:
        """Ask for a table anew."""
        self._seen.pop(name, None)

    def by_id(self, command: c.Command[Any], send: Callable[[Any], T]) -> T:
        """Send a command with the ids of its tables, once more where these are other tables by now.

        Raises
        ------
        TableNotFoundError : or whatever `send` raises.
        """
        try:
            return send(self._with_ids(command))
        except TableNotFoundError:
            if not self._forget_named(command):
                raise
        return send(self._with_ids(command))

    def _with_ids(self, command: Any) -> Any:
        """Return a command of several tables with the ids that their names have."""
        match command:
            case c.Lookup(tables, admit):
                return c.Lookup(tuple(map(self._with_id, tables)), admit)
            case c.Update(tables, options):
                return c.Update(tuple(map(self._with_id, tables)), options)
            case c.LookupPooled(pooled, admit):
                return c.LookupPooled(tuple(map(self._with_id, pooled)), admit)
            case c.UpdatePooled(spread, options):
                return c.UpdatePooled(tuple(map(self._with_id, spread)), options)
            case c.UpdateRanks(ranks, options):
                parts = tuple(c.Rank(tuple(map(self._with_id, rank.tables))) for rank in ranks)
                return c.UpdateRanks(parts, options)
        return command

    def _with_id(self, part: Any) -> Any:
        if part.table_id is not None:
            return part
        return replace(part, table_id=self.find(part.table, None).table_id)

    def _forget_named(self, command: Any) -> bool:
        """Forget what was seen of tables a command names without an id; say if it names any."""
        match command:
            case c.Lookup(tables) | c.Update(tables):
                parts: tuple[Any, ...] = tables
            case c.LookupPooled(pooled):
                parts = pooled
            case c.UpdatePooled(spread):
                parts = spread
            case c.UpdateRanks(ranks):
                parts = tuple(part for rank in ranks for part in rank.tables)
            case _:
                return False
        named = [part.table for part in parts if part.table_id is None]
        for name in named:
            self.forget(name)
        return bool(named)
