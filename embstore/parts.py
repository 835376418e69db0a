"""The tables and arrays of a command, found by the annotations of its fields.

The arrays of a command are fields of the command itself, or of its **parts**. A part belongs to one
table (`TableKeys`, for example), or is a larger part that contains such parts in turn (a `Rank`,
the keys of a step). Code that treats all tables or all arrays of a command alike uses these
functions, so that it needs no change for a new command:

    tables_of(command)               the parts that name a table, in order
    with_tables(command, change)     the command with each of these parts changed
    arrays_of(command)               all arrays, each with its dtype and shape on the wire
"""

from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from functools import cache, partial
from operator import is_
from types import UnionType
from typing import Annotated, Any, TypeVar, Union, get_args, get_origin, get_type_hints

from embstore.arrays import ArraySpec
from embstore.commands import Command, Part

C = TypeVar("C", bound=Part)


def tables_of(command: Part) -> Sequence[Any]:
    """Return the parts of a command that name a table, one for each table."""
    kind: Any = type(command)
    found: list[Any] = []
    for name, names_table in _holding_tables(kind):
        parts = getattr(command, name)
        if type(parts) is not tuple:
            parts = () if parts is None else (parts,)
        if names_table:
            found += parts
        else:
            for part in parts:
                found += tables_of(part)
    return found


def with_tables(command: C, change: Callable[[Any], Any]) -> C:
    """Return a command with `change` applied to each part that names a table.

    If no part changes, return the command itself.
    """
    kind: Any = type(command)
    changed: dict[str, Any] = {}
    for name, names_table in _holding_tables(kind):
        value = getattr(command, name)
        before = value if type(value) is tuple else () if value is None else (value,)
        changing = change if names_table else partial(with_tables, change=change)
        after = tuple(map(changing, before))
        if not all(map(is_, before, after)):
            changed[name] = after if before is value else after[0]
    whole: Any = command
    return replace(whole, **changed) if changed else command


def arrays_of(command: Part) -> Sequence[tuple[Any, ArraySpec]]:
    """Return the arrays of a command and of its parts, the command's own arrays first."""
    found: list[tuple[Any, ArraySpec]] = []
    parts: list[Any] = [command]
    for part in parts:  # the list grows during the loop
        kind: Any = type(part)
        arrays, holding = _holding_arrays(kind)
        for name, spec in arrays:
            array = getattr(part, name)
            if array is not None:
                found.append((array, spec))
        for name in holding:
            inner = getattr(part, name)
            if type(inner) is tuple:
                parts += inner
            elif inner is not None:
                parts.append(inner)
    return found


@cache
def _names_table(kind: Any) -> bool:
    return not issubclass(kind, Command) and "table" in _hints(kind)


@cache
def _holding_tables(kind: Any) -> tuple[tuple[str, bool], ...]:
    """Return the fields of a class whose parts name tables, as pairs: the name of the field, and
    whether its parts name a table themselves; if not, only smaller parts inside them do."""
    return tuple(
        (name, _names_table(part))
        for name, part in _parts(kind).items()
        if _names_table(part) or _holding_tables(part)
    )


@cache
def _holding_arrays(kind: Any) -> tuple[list[tuple[str, ArraySpec]], list[str]]:
    """Return the fields of a class that are arrays, and the fields whose parts contain arrays."""
    specs = {name: _spec(hint) for name, hint in _hints(kind).items()}
    own = [(name, spec) for name, spec in specs.items() if spec is not None]
    return own, [name for name, part in _parts(kind).items() if any(_holding_arrays(part))]


def _parts(kind: Any) -> dict[str, Any]:
    """Return the fields of a class that contain parts, with the class of the parts."""
    inner = {name: _part(hint) for name, hint in _hints(kind).items()}
    return {name: part for name, part in inner.items() if part is not None}


@cache
def _hints(kind: Any) -> dict[str, Any]:
    hints = get_type_hints(kind, include_extras=True)
    return {field.name: hints[field.name] for field in fields(kind)}


def _given(hint: Any) -> Any:
    """Return an annotation without its `| None`."""
    if get_origin(hint) in (Union, UnionType):
        return next(inner for inner in get_args(hint) if inner is not type(None))
    return hint


def _part(hint: Any) -> Any:
    """Return the class of the part, or of the tuple of parts, that a field with this annotation
    contains."""
    hint = _given(hint)
    if get_origin(hint) is tuple:
        hint = get_args(hint)[0]
    return hint if isinstance(hint, type) and issubclass(hint, Part) else None


def _spec(hint: Any) -> ArraySpec | None:
    hint = _given(hint)
    if get_origin(hint) is not Annotated:
        return None
    return next((one for one in get_args(hint) if isinstance(one, ArraySpec)), None)
