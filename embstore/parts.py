"""What a command holds, found by the annotations of its fields.

A command's arrays lie in itself, or in **parts**: of one table each (`TableKeys`, say), or of what
holds such parts in turn (a `Rank`, the keys of a step). Whoever treats all tables of a command
alike, or all its arrays, asks here, so that a new verb needs no line of theirs:

    tables_of(command)               the parts that name a table, in order
    with_tables(command, change)     the command with each of these changed
    arrays_of(command)               all arrays, each with what the wire takes it for
"""

from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from functools import cache
from types import UnionType
from typing import Annotated, Any, TypeVar, Union, get_args, get_origin, get_type_hints

from embstore.arrays import ArraySpec
from embstore.commands import Command, Part

C = TypeVar("C", bound=Part)


def tables_of(command: Part) -> Iterator[Any]:
    """Yield the parts of a command that name a table each."""
    for name in _fields(_kind(command), of_tables=True):
        for part in _each(getattr(command, name)):
            if _names_table(_kind(part)):
                yield part
            else:
                yield from tables_of(part)


def with_tables(command: C, change: Callable[[Any], Any]) -> C:
    """Return a command with the parts that name a table changed; itself, if none is."""
    changed: dict[str, Any] = {}
    for name in _fields(_kind(command), of_tables=True):
        value = getattr(command, name)
        before = _each(value)
        after = tuple(
            change(part) if _names_table(_kind(part)) else with_tables(part, change)
            for part in before
        )
        if any(one is not other for one, other in zip(before, after, strict=True)):
            changed[name] = after if before is value else after[0]
    whole: Any = command
    return replace(whole, **changed) if changed else command


def arrays_of(command: Part) -> Iterator[tuple[Any, ArraySpec]]:
    """Yield the arrays of a command and of its parts that are given."""
    for name, spec in _arrays(_kind(command)):
        array = getattr(command, name)
        if array is not None:
            yield array, spec
    for name in _fields(_kind(command), of_tables=False):
        for part in _each(getattr(command, name)):
            yield from arrays_of(part)


def _each(value: Any) -> tuple[Any, ...]:
    """Return the parts that a field has: several, one or none."""
    if isinstance(value, tuple):
        return value
    return () if value is None else (value,)


def _kind(part: Part) -> Any:
    return type(part)


@cache
def _names_table(kind: Any) -> bool:
    return not issubclass(kind, Command) and "table" in _hints(kind)


@cache
def _fields(kind: Any, *, of_tables: bool) -> tuple[str, ...]:
    """Return the fields of a kind that hold parts; or of these, those in which tables are named."""
    inner = {name: _part(hint) for name, hint in _hints(kind).items()}
    return tuple(
        name
        for name, part in inner.items()
        if part is not None
        and (not of_tables or _names_table(part) or bool(_fields(part, of_tables=True)))
    )


@cache
def _arrays(kind: Any) -> tuple[tuple[str, ArraySpec], ...]:
    """Return the fields of a kind that are arrays."""
    specs = ((name, _spec(hint)) for name, hint in _hints(kind).items())
    return tuple((name, spec) for name, spec in specs if spec is not None)


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
    """Return the kind of part that a field holds, or each of its elements is."""
    hint = _given(hint)
    if get_origin(hint) is tuple:
        hint = get_args(hint)[0]
    return hint if isinstance(hint, type) and issubclass(hint, Part) else None


def _spec(hint: Any) -> ArraySpec | None:
    hint = _given(hint)
    if get_origin(hint) is not Annotated:
        return None
    return next((one for one in get_args(hint) if isinstance(one, ArraySpec)), None)
