"""The layer of known ids: it adds a table's id to its name, and remembers the descriptions of
tables.

A client needs some facts of a table before it sends a command. Ids, dims and seeds do not change,
so a client asks for a table only once. A command that names a table without an id is sent with the
id that the name had when the server last described the table, so that arrays computed from the
table's dim or seed are right. If the name belongs to another table by now, the command is prepared
again and sent once more.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeVar

from embstore import commands as c
from embstore.config import TableConfig
from embstore.errors import TableNotFoundError
from embstore.parts import tables_of, with_tables
from embstore.results import TableDescription
from embstore_client.call import Below, Call

T = TypeVar("T")
C = TypeVar("C", bound=c.Command[Any])


class KnownTables:
    """The tables that one client has seen. Any thread may use it."""

    def __init__(self, ask: Callable[[c.GetTable], TableDescription]) -> None:
        self._ask = ask
        self._seen: dict[str, TableDescription] = {}

    def find(self, name: str, table_id: int | None) -> TableDescription:
        """Return the description of a table as this client last saw it; ask the server if the
        client has not seen the table, or has seen another id. (Another thread can forget the table
        concurrently.)"""
        seen = self._seen.get(name)
        if seen is None or (table_id is not None and seen.table_id != table_id):
            seen = self.look_again(name, table_id)
        return seen

    def look_again(self, name: str, table_id: int | None) -> TableDescription:
        """Ask the server for the present description of a table; remember and return it."""
        found = self._ask(c.GetTable(name, table_id))
        self._seen[name] = found
        return found

    def config_of(self, name: str, table_id: int | None) -> TableConfig:
        """Return the configuration of a table as it was last seen."""
        seen = self._seen.get(name)
        if seen is None or seen.table_id != table_id:
            seen = self.find(name, table_id)
        return seen.config

    def note(self, described: TableDescription) -> None:
        """Remember the description of a table from an answer."""
        self._seen[described.config.name] = described

    def forget(self, name: str) -> None:
        """Forget a table, so that it is requested again."""
        self._seen.pop(name, None)

    def forget_all(self) -> None:
        """Forget every table."""
        self._seen.clear()

    def by_id(self, command: C, send: Callable[[C], T]) -> T:
        """Send a command with the ids of its tables; retry once if a name belongs to another table
        by now.

        Raises
        ------
        TableNotFoundError : no such table exists. Any other error of `send` is raised, too.
        """
        named = with_tables(command, self._with_id)
        try:
            return send(named)
        except TableNotFoundError:
            for before, after in zip(tables_of(command), tables_of(named), strict=True):
                if before is not after:
                    self.forget(before.table)
            again = with_tables(command, self._with_id)
            if again == named:
                raise
        return send(again)

    def _with_id(self, part: Any) -> Any:
        if getattr(part, "table_id", 0) is not None:  # the id is given, or the session knows it
            return part
        return replace(part, table_id=self.find(part.table, None).table_id)


class KnownIds:
    """The layer that sends commands with the ids of their tables."""

    def __init__(self, tables: KnownTables) -> None:
        self._tables = tables

    def __call__(self, call: Call, below: Below) -> Any:
        """Execute a call. If its answer describes a table, remember the table."""
        command = call.command
        for part in tables_of(command):
            if getattr(part, "table_id", 0) is None:
                return self._tables.by_id(command, lambda c: below(replace(call, command=c)))
        value = below(call)
        if isinstance(value, TableDescription):
            self._tables.note(value)
        return value
