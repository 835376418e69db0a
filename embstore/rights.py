"""The names that a command concerns, and the right that its sender needs on them.

A command has one **right** (`Command.right`), which its sender needs on these names:

    tables     the tables that the command names, or gives a learning rate for; to create a table,
               its future name
    a label    commands with the trait `ON_ITS_LABEL` need their right on the label, as if it were
               a table's name; commands that read a table as of a label need the right on both
    a session  commands of a session need their right on the session's tables, which the server
               knows
    everything a command that names none of these concerns all tables

Rights are granted for **patterns** of names, in which * stands for any characters, slashes too:
`team/*` matches the tables of a namespace, and * matches everything.
"""

import re
from dataclasses import fields
from fnmatch import fnmatchcase
from functools import cache
from typing import Any, cast

from embstore.commands import Command, Part, Trait

EVERYTHING = "*"
"""As a pattern, "*" matches every name. As a name, "*" stands for all names, and only this pattern
matches it."""

_NAMING = {"table", "config", "tables", "ranks", "keys", "gradients", "options", "learning_rates"}
_LABELS = "label", "since"
_PATTERN = re.compile(r"[A-Za-z0-9_.*/-]{1,255}", re.ASCII)


def is_pattern(text: object) -> bool:
    """Return whether a text is a pattern by which rights can be granted."""
    return isinstance(text, str) and _PATTERN.fullmatch(text) is not None


def matches(name: str, pattern: str) -> bool:
    """Return whether a pattern matches a name."""
    return fnmatchcase(name, pattern)


def concerned(command: Command[Any]) -> tuple[str, ...]:
    """Return the names on which a command's right is needed; EVERYTHING if the command has no
    names."""
    if Trait.ON_ITS_LABEL in command.traits:
        return (cast(Any, command).label,)
    names: dict[str, None] = {}
    _add_names(command, names)
    if names:  # else it concerns all tables
        labels = (getattr(command, field, None) for field in _LABELS)
        names |= {label: None for label in labels if isinstance(label, str)}
    return tuple(names) or (EVERYTHING,)


def _add_names(part: Part, names: dict[str, None]) -> None:
    for field in _naming(cast(Any, type(part))):
        value = getattr(part, field)
        if field == "table":
            names[value or EVERYTHING] = None
        elif field == "config":
            names[value.name] = None
        elif isinstance(value, dict):
            names |= dict.fromkeys(value)
        else:
            for one in value if isinstance(value, tuple) else (value,):
                if isinstance(one, str):
                    names[one] = None
                elif isinstance(one, Part):
                    _add_names(one, names)


@cache
def _naming(kind: Any) -> tuple[str, ...]:
    """Return the fields of a command, or of a part, that name the objects it concerns."""
    return tuple(field.name for field in fields(kind) if field.name in _NAMING)
