"""Checks of single arguments. Each check returns the value as a Python object, or raises an
error."""

from collections.abc import Callable, Mapping
from typing import Any, cast

import numpy as np

from embstore.errors import CheckpointNotFoundError, InvalidArgumentError

Checks = dict[type[Any], Callable[[Any], Any]]
"""For each class of commands, the function that returns a command in normal form."""

UINT64_MAX = 2**64 - 1
_TEXT_CHARACTERS_MAX = 255


def expect(is_so: bool, expected: str, found: object) -> None:
    """Raise InvalidArgumentError unless the condition holds."""
    if not is_so:
        raise InvalidArgumentError(f"expected {expected}, found {found!r}")


def integer(value: Any, what: str, low: int, high: int = UINT64_MAX) -> int:
    """Return an integer between two bounds, both included, as a Python int."""
    expect(is_integer(value), f"{what} to be an integer", value)
    bound = f">= {low}" if high == UINT64_MAX else f"from {low} to {high}"
    expect(low <= value <= high, f"{what} to be an integer {bound}", value)
    return int(value)


def is_integer(value: Any) -> bool:
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


def number(value: Any, what: str, low: float, high: float) -> float:
    """Return a number between two bounds, both included, as a float."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    expect(is_number and low <= value <= high, f"{what} to be from {low:g} to {high:g}", value)
    return float(value)


def flag(value: Any, what: str) -> bool:
    """Return True or False."""
    expect(isinstance(value, bool), f"{what} to be True or False", value)
    return bool(value)


def text(value: Any, what: str) -> str:
    """Return a text of 1 to 255 printable characters."""
    is_text = isinstance(value, str) and 0 < len(value) <= _TEXT_CHARACTERS_MAX
    expected = f"{what} of 1 to {_TEXT_CHARACTERS_MAX} printable characters"
    expect(is_text and value.isprintable(), expected, value)
    return cast(str, value)


def one_of(value: Any, what: str, names: tuple[str, ...]) -> Any:
    """Return a word that is one of `names`."""
    if not (isinstance(value, str) and value in names):
        quoted = " or ".join(f'"{name}"' for name in names)
        expect(False, f"{what} to be {quoted}", value)
    return value


def mapping(value: Any, what: str) -> Mapping[Any, Any]:
    """Return a mapping."""
    if not isinstance(value, Mapping):
        raise InvalidArgumentError(f"expected {what} to be a mapping, found {type(value).__name__}")
    return value


def instance(value: Any, what: str, kind: Any, called: str) -> Any:
    """Return an object of a class, or None if `kind` includes None."""
    if not isinstance(value, kind):
        found = type(value).__name__
        raise InvalidArgumentError(f"expected {what} to be a {called}, found a {found}")
    return value


def names_of_names(value: Any, what: str) -> Any:
    """Return a mapping of names to names."""
    is_so = isinstance(value, Mapping) and all(
        isinstance(name, str) and name.isprintable() for pair in value.items() for name in pair
    )
    expect(is_so, f"{what} to be a mapping of names to names", value)
    return value


def kept_label(label: Any) -> str:
    """Return a label, if it can be the label of a kept checkpoint."""
    if not isinstance(label, str) or not label.isprintable():
        raise CheckpointNotFoundError(f"no checkpoint {label!r} is kept")
    return label
