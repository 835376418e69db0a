"""Stats: the counts and measurements of a store, each declared once, where it is counted.

Each part of the store declares its stats as fields of a dataclass:

    @dataclass
    class Counters:
        accesses: int = counter("Keys of lookups, repeated ones each time.")

    @dataclass
    class StorageStats:
        log_bytes: int = gauge("Bytes of the log.", lambda storage: storage.log.bytes)

A declaration has a kind and a help text. The value of a stat is read from a **source**, the object
that is measured. If the source has no attribute of the declaration's name, the declaration also has
a function that reads the value from the source. `Counters` counts in its own fields; `StorageStats`
only says where to find the values of a `Storage`. `document` reads all stats of a source as plain
numbers and texts. The models of REST, the metrics of Prometheus and the output of `embstore stats`
are generated from the declarations (`declared`), so that no other code names a stat.

Kinds: a **counter** only grows; a **gauge** is any other number; a **ratio** is a quotient of two
counts, which Prometheus computes from the counts, so it has no metric; a **flag** is true or false;
a **text** or a list of **texts** describes something; an **info** is a text that labels an info
metric; a **label** is a text that labels all metrics of the part that contains it; a **part**
contains stats of its own, and is one object, a dict of objects by name, or a list of objects; a
**histogram** is a part that summarizes times.

A name ends with its unit: `_bytes`, `_s` (seconds). The metric of a stat is the prefix of its part
followed by its name, with `_seconds` for `_s`, unless the declaration names another metric.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields, is_dataclass, replace
from functools import cache, partial
from operator import attrgetter
from typing import Any, get_args, get_type_hints


@dataclass(frozen=True)
class Stat:
    """The declaration of one stat."""

    name: str
    type: Any
    kind: str
    help: str
    read: Callable[[Any], Any]
    """Function that returns the value, given the source."""
    metric: str
    """The metric's name without the prefix. For a part it is the prefix; for an info, the info
    metric."""
    label: str
    """For a dict, the name of the label whose values are the dict's keys; for a text, the name of
    the label whose value is the text; for a list of parts, the metric of the list's length."""
    labels: Mapping[str, str]
    """Labels of every sample of the metric."""

    @property
    def unit(self) -> str:
        """The unit: "bytes", "seconds", or ""."""
        words = f"{self.name}_{self.metric}".split("_")
        return "bytes" if "bytes" in words else "seconds" if {"s", "seconds"} & {*words} else ""

    @property
    def part(self) -> type | None:
        """The class that declares the stats of a part; None: the stat is not a part."""
        found = (one for one in (self.type, *get_args(self.type)) if is_dataclass(one))
        return next(found, None)


def _declare(
    kind: str,
    help: str,
    read: Callable[[Any], Any] | None = None,
    *,
    metric: str | None = None,
    label: str = "",
    labels: Mapping[str, str] | None = None,
    default: Any = 0,
) -> Any:
    declaration = {"kind": kind, "help": help, "read": read, "metric": metric, "label": label}
    return field(default=default, metadata=declaration | {"labels": labels or {}})


counter = partial(_declare, "counter")
gauge = partial(_declare, "gauge")
ratio = partial(_declare, "ratio", default=None)
flag = partial(_declare, "flag", default=False)
text = partial(_declare, "text", default=None)
info = partial(_declare, "info", default=None)
texts = partial(_declare, "texts", default=())
label = partial(_declare, "label", default="")
histogram = partial(_declare, "histogram", default=None)
part = partial(_declare, "part", default=None)


def inline(read: Callable[[Any], Any]) -> Any:
    """Declare a part whose stats are shown among the stats of the object that contains it."""
    return _declare("inline", "", read, default=None)


@cache
def declared(of: type) -> tuple[Stat, ...]:
    """Return the declarations of a class, in order."""
    return tuple(_declared(of))


def _declared(of: type) -> Iterator[Stat]:
    types = get_type_hints(of)
    for one in fields(of):
        given = {name: value for name, value in one.metadata.items() if value is not None}
        by_rule = {"read": attrgetter(one.name), "metric": re.sub("_s$", "_seconds", one.name)}
        stat = Stat(one.name, types[one.name], **(by_rule | given))
        if stat.kind == "inline":
            for inner in declared(stat.type):
                yield replace(inner, read=_chained(stat.read, inner.read))
        else:
            yield stat


def _chained(outer: Callable[[Any], Any], inner: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda source: inner(outer(source))


def document(of: type, source: Any) -> dict[str, Any]:
    """Return the stats of a source, by name, as numbers, texts, lists and dicts.

    A part that is a document already is returned unchanged.
    """
    return {stat.name: _value(stat, stat.read(source)) for stat in declared(of)}


def _value(stat: Stat, found: Any) -> Any:
    of = stat.part
    if of is None:
        return found
    if stat.type is of:
        return found if isinstance(found, dict) else document(of, found)
    if isinstance(found, Mapping):
        return {name: document(of, one) for name, one in found.items()}
    return [document(of, one) for one in found]


def share(count: float, whole: float, of_nothing: float | None = None) -> float | None:
    """Return count / whole, or `of_nothing` if whole is 0."""
    return count / whole if whole else of_nothing
