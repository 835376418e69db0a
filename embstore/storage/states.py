"""Kept states in the catalogue. Each state is written as the changes since the state before it.

If a store has 2,000 tables and 100 labels, most tables do not change between two labels. A table
that does not change is written once, and is one object in memory, however many states contain it.
Even if every table is trained between two labels, a label takes only three numbers per table,
because a table's rows, learning rate and identity stay the same. `written` is the number of the
last command that changed rows of a table.

    table   [id, updates, written]
            [id, updates, written, rows, learning_rate]
            [id, updates, written, rows, learning_rate, identity]
    place   [session, step, command]
            [session, step, command, table_ids]

`updates` is t, the number of updates of a table; for a shard it is [t, update_ids], if update_ids
is not 0. A place is the resume position of a session. A value that a shorter form omits is the same
as in the state before. New tables come after the other tables. Places have an order: first the
places that are the same as in the state before, in their old order, and then all others.
"""

import json
from collections.abc import Callable, Iterable, Iterator
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import cached_property, partial
from hashlib import blake2b
from typing import Any

from embstore.results import KeptCheckpoint, Place, State, TableEntry

NOTHING = State()
"""The state before the first one."""

as_json = partial(json.dumps, allow_nan=False, default=vars)
"""A function that returns the JSON of data classes; objects keep their order."""


@dataclass(frozen=True)
class KeptState:
    """A checkpoint: a state with its label and the metadata of its caller."""

    label: str
    metadata: dict[str, Any]
    state: State
    made_at: float | None = None
    """The same as `KeptCheckpoint.made_at`."""
    protected: bool = False

    def described(self) -> KeptCheckpoint:
        """Return the description of the checkpoint for a caller."""
        return KeptCheckpoint(
            self.label,
            deepcopy(self.metadata),
            self.state.command,
            len(self.state.tables),
            self._content,
            made_at=self.made_at,
            protected=self.protected,
        )

    @cached_property
    def _content(self) -> str:
        return _content(self.state.tables)

    def content_of(self, may_read: Callable[[str], bool]) -> str:
        """Return `KeptCheckpoint.content` for a caller that may read only some tables; `may_read`
        takes the name of a table."""
        return _content(t for t in self.state.tables if may_read(t.identity["name"]))

    def fields(self, before: State) -> dict[str, Any]:
        """Return the fields that the catalogue contains for the checkpoint. One of them is the
        checkpoint's state, as the changes since the state `before`."""
        return {
            "label": self.label,
            "metadata": self.metadata,
            "made_at": self.made_at,
            "protected": self.protected,
            "state": changes(before, self.state),
        }


def _content(tables: Iterable[TableEntry]) -> str:
    rows = [(t.table_id, t.rows, t.learning_rate, t.t) for t in tables]
    return blake2b(as_json(rows).encode(), digest_size=16).hexdigest()


def changes(before: State, state: State) -> dict[str, Any]:
    """Return the changes from one state to the next, as the catalogue contains them."""
    tables = {} if state.tables is before.tables else {t.table_id: t for t in before.tables}
    changed = []
    if state.tables is not before.tables:
        for entry in state.tables:
            old = tables.pop(entry.table_id, None)
            if old is not entry and old != entry:
                changed.append(_row(entry, old))
    same = set(_same_places(before, state))
    return {
        "commit": state.commit,
        "command": state.command,
        "dropped": list(tables),
        "tables": changed,
        "forgotten": [name for name in before.places if name not in same],
        "places": [
            _place_row(name, place, before.places.get(name))
            for name, place in list(state.places.items())[len(same) :]
        ],
    }


def _updates(entry: TableEntry) -> int | list[int]:
    return [entry.t, entry.update_ids] if entry.update_ids else entry.t


def _row(entry: TableEntry, old: TableEntry | None) -> list[Any]:
    row: list[Any] = [entry.table_id, _updates(entry), entry.written]
    row += [entry.rows, entry.learning_rate, entry.identity]
    if old is None or (old.identity is not entry.identity and old.identity != entry.identity):
        return row
    is_tuned = (old.rows, old.learning_rate) != (entry.rows, entry.learning_rate)
    return row[:5] if is_tuned else row[:3]


def _same_places(before: State, state: State) -> Iterator[str]:
    """Yield the names of the first sessions of `state`, as long as `before` has them in the same
    order and with the same resume positions. `before` can have other sessions between them."""
    left = iter(before.places.items())
    for name, place in state.places.items():
        if not any(found == (name, place) for found in left):
            return
        yield name


def _place_row(name: str, place: Place, old: Place | None) -> list[Any]:
    if old is not None and old.table_ids == place.table_ids:
        return [name, place.step, place.command]
    return [name, place.step, place.command, place.table_ids]


def changed(before: State, found: dict[str, Any]) -> State:
    """Apply the changes `found` to the state `before`, and return the state that results.

    Raises KeyError, TypeError, ValueError, EmbstoreError: the changes do not make a valid state.
    """
    return State(
        commit=found["commit"],
        command=found["command"],
        tables=_tables(before, found["dropped"], found["tables"]),
        places=_places(before, found["forgotten"], found["places"]),
    )


def _tables(before: State, dropped: list[int], rows: list[list[Any]]) -> tuple[TableEntry, ...]:
    if not dropped and not rows:
        return before.tables
    tables = {entry.table_id: entry for entry in before.tables}
    for table_id in dropped:
        del tables[table_id]
    for table_id, updates, written, *more in rows:
        t, update_ids = updates if isinstance(updates, list) else (updates, 0)
        now = int(t), int(written), int(update_ids)
        tables[table_id] = _entry(tables, table_id, now, *more)
    return tuple(tables.values())


def _entry(
    tables: dict[int, TableEntry], table_id: int, now: tuple[int, int, int], *more: Any
) -> TableEntry:
    if not more:
        t, written, update_ids = now
        return replace(tables[table_id], t=t, written=written, update_ids=update_ids)
    rows, rate, *last = more
    (identity,) = last or (tables[table_id].identity,)
    entry = TableEntry(table_id, identity, rows, rate, *now)
    entry.config()  # raises if the values are not valid
    return entry


def _places(before: State, forgotten: list[str], rows: list[list[Any]]) -> dict[str, Place]:
    if not forgotten and not rows:
        return before.places
    places = dict(before.places)
    for name in forgotten:
        del places[name]
    for name, step, command, *more in rows:
        (table_ids,) = more or (before.places[name].table_ids,)
        ids = {str(table): int(table_id) for table, table_id in table_ids.items()}
        places[str(name)] = Place(int(step), ids, int(command))
    return places
