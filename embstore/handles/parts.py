"""Conversion of arguments to parts of commands: mappings and pairs are taken apart.

An argument that cannot be taken apart is refused (InvalidArgumentError). The contents of the parts
are checked with the command (`embstore.checks`).
"""

from collections.abc import Iterable, Mapping
from typing import Any

from embstore import commands as c
from embstore.arrays import Rows, refusal
from embstore.checks.arguments import mapping
from embstore.errors import InvalidArgumentError
from embstore.results import RowsRead


def some_of(value: Any, what: str, names: Iterable[str]) -> Mapping[str, Any]:
    """Return an argument {table: value} that names some or none of a call's tables; None stands for
    {}."""
    given = mapping({} if value is None else value, what)
    unknown = sorted(given.keys() - set(names), key=repr)
    if unknown:
        raise InvalidArgumentError(f"expected {what} to name tables of the call, found {unknown}")
    return given


def options(
    learning_rate: c.LearningRate | None,
    gradient_scale: float,
    on_nonfinite: c.OnNonfinite,
    names: Iterable[str] | None = None,
) -> c.UpdateOptions:
    """Return the options of an update, whose learning rates can be given by table.

    Parameters
    ----------
    names : the existing tables; None: the store checks the names

    Raises
    ------
    InvalidArgumentError : a rate is given for a table that is not in `names`.
    """
    if not isinstance(learning_rate, Mapping):
        return c.UpdateOptions(learning_rate, gradient_scale, on_nonfinite)
    rates = some_of(learning_rate, "learning_rate", learning_rate if names is None else names)
    return c.UpdateOptions(None, gradient_scale, on_nonfinite, dict(rates))


def arrays(value: Any, count: int, table: str) -> tuple[Any, ...]:
    """Return the entries of a tuple or list that must have `count` entries."""
    if not isinstance(value, tuple | list) or len(value) != count:
        raise refusal(table, f"a tuple of {count}", type(value).__name__)
    return tuple(value)


def gradients(value: Any) -> tuple[c.TableGradients, ...]:
    """Return the command parts of {table: (keys, gradients)}."""
    given = mapping(value, "gradients")
    return tuple([c.TableGradients(n, None, *arrays(pair, 2, n)) for n, pair in given.items()])


def filled(read: RowsRead, outs: Mapping[str, Any]) -> dict[str, Rows]:
    """Return the rows that were read, by table. If the caller gave an output array for a table,
    fill that array and return it."""
    own = {name: out for name, out in outs.items() if out is not None}
    return {table.table: own.get(table.table, table.rows) for table in read.tables}


def bags(value: Any, mode: Any, weights: Any) -> dict[str, tuple[Any, c.Bags]]:
    """Return {table: (keys, bags)} from {table: (keys, offsets)}; `weights` can name only some of
    the tables."""
    given = mapping(value, "bags")
    weighted, found = some_of(weights, "weights", given), {}
    for name, pair in given.items():
        keys, offsets = arrays(pair, 2, name)
        found[name] = keys, c.Bags(offsets, mode, weighted.get(name))
    return found


def check_same(given: Iterable[str], names: Iterable[str], what: str) -> None:
    """Refuse an argument that does not name exactly the tables of a call."""
    if set(names) != set(given):
        raise InvalidArgumentError(
            f"expected {what} of the tables {sorted(names)}, found {sorted(given, key=repr)}"
        )


def ranks(value: Any, table: str = "") -> list[Any]:
    """Return the contributions of the ranks, as a list."""
    if not isinstance(value, list | tuple):
        where = f"table {table!r}: " if table else ""
        raise InvalidArgumentError(
            f"{where}expected ranks to be a list, one entry a rank, found {type(value).__name__}"
        )
    return list(value)
