"""`embstore stats`: shows every stat that is declared."""

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from embstore.stats import Stat, declared
from embstore_server.cli import output
from embstore_server.cli.connection import Connect, on_server
from embstore_server.cli.output import Shown
from embstore_server.setup.parsing import bytes_text

if TYPE_CHECKING:
    from rich.console import RenderableType


@on_server(is_watched=True, of_one=True)
def stats(connect: Connect) -> Shown:
    """Show the store's state, and its counters since it was opened."""
    from embstore.engine.stats import StoreStats

    with connect() as store:
        found = store.stats()
    return found, partial(shown, "store", StoreStats, found)


def shown(title: str, of: type, document: Mapping[str, Any]) -> "RenderableType":
    """Return a drawing of a document of stats: first the single values, by part, then a table for
    each part that is repeated."""
    from rich.console import Group
    from rich.text import Text

    drawn: list[RenderableType] = [output.parts(_parts(title, of, document))]
    for name, stat, value in _several(of, document):
        assert stat.part is not None
        if value:
            drawn.append(Text(f"\n{name}"))
            if isinstance(value, dict):
                drawn.append(by_name(stat.label, stat.part, value))
            else:
                drawn.append(side_by_side(stat.part, value))
    return Group(*drawn)


def by_name(label: str, of: type, documents: Mapping[str, Mapping[str, Any]]) -> "RenderableType":
    """Return documents as the rows of a table; each row begins with the document's name."""
    stats = declared(of)
    return output.rows(
        (label, *map(_name, stats)),
        [(name, *(_shown(s, one[s.name]) for s in stats)) for name, one in documents.items()],
    )


def side_by_side(of: type, documents: Sequence[Mapping[str, Any]]) -> "RenderableType":
    """Return documents as the columns of a table; at the top of each column are the document's
    labels."""
    stats = declared(of)
    labels = [stat.name for stat in stats if stat.kind == "label"]
    return output.rows(
        ("", *(" ".join(str(one[name]) for name in labels) for one in documents)),
        [
            (_name(s), *(_shown(s, one[s.name]) for one in documents))
            for s in stats
            if s.name not in labels
        ],
    )


def _parts(
    title: str, of: type, document: Mapping[str, Any]
) -> Iterator[tuple[str, list[tuple[str, Any]]]]:
    """Yield the title and the lines of each part that is not repeated."""
    single = [stat for stat in declared(of) if stat.part is None and stat.name in document]
    yield title, [(_name(stat), _shown(stat, document[stat.name])) for stat in single]
    for stat in declared(of):
        if stat.part is not None and stat.type is stat.part:
            yield from _parts(_name(stat), stat.part, document[stat.name])


def _several(of: type, document: Mapping[str, Any]) -> Iterator[tuple[str, Stat, Any]]:
    """Yield the name, declaration and value of each part that is repeated."""
    for stat in declared(of):
        if stat.part is None:
            continue
        if stat.type is stat.part:
            for name, inner, value in _several(stat.part, document[stat.name]):
                yield f"{_name(stat)}: {name}", inner, value
        else:
            yield _name(stat), stat, document[stat.name]


def _name(stat: Stat) -> str:
    return re.sub("_s$", "_time", stat.name).replace("_", " ")


def _shown(stat: Stat, value: Any) -> Any:
    """Return a value with its unit, in a form for people."""
    if isinstance(value, dict):
        return ", ".join(f"{key} {_shown(stat, one)}" for key, one in value.items())
    if isinstance(value, list):
        return ", ".join(value) or None
    if value is None or isinstance(value, bool | str):
        return value
    if stat.kind == "ratio":
        return f"{value:.1%}"
    match stat.unit:
        case "bytes":
            return bytes_text(value)
        case "seconds":
            return f"{value:,.3f} s"
    return value
