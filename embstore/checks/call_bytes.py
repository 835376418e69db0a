"""How large the arrays of a call are, results included."""

from collections.abc import Callable
from math import prod
from typing import Any

from embstore import commands as c
from embstore.arrays import (
    length,
    shape_of,
)
from embstore.config import Limits, TableConfig
from embstore.errors import InvalidArgumentError
from embstore.layout import VALUE_BYTES

ConfigOf = Callable[[str, int | None], TableConfig]
"""What returns the configuration of a table, by name and id."""


def _bytes(rows: Any) -> int:
    return VALUE_BYTES * prod(shape_of(rows))


def check_call_bytes(command: c.Command[Any], config_of: ConfigOf, limits: Limits) -> None:
    """Refuse a command whose arrays, results included, are too large to be held."""
    refuse_more(_call_bytes(command, config_of), limits.call_bytes_max)


def check_size(command: c.Command[Any], config_of: ConfigOf, most: int, name: str) -> None:
    """Do the same for a bound of another name."""
    refuse_more(_call_bytes(command, config_of), most, name)


def refuse_more(size: int, most: int, name: str = "limits.call_bytes_max") -> None:
    """Refuse a call of more bytes than the bound of a name."""
    if size > most:
        raise InvalidArgumentError(
            f"expected a call of at most {most} bytes of keys and rows ({name}), found {size}; "
            "split the call"
        )


def keyed_bytes(elements: int) -> int:
    """Return the bytes of a key and of a row of so many elements."""
    return 8 + VALUE_BYTES * elements


def reply_bytes(command: c.Command[Any], config_of: ConfigOf) -> int:
    """Return the bytes of the rows that a command is answered with, if it reads rows."""
    parts: list[tuple[int, Any, bool]]
    match command:
        case c.Lookup(tables):
            parts = [(length(part.keys), part, False) for part in tables]
        case c.LookupPooled(pooled):
            parts = [(len(part.bags.offsets) - 1, part, False) for part in pooled]
        case c.ReadRows(part):
            parts = [(length(part.keys), part, True)]
        case _:
            return 0
    total = 0
    for rows, part, with_state in parts:
        config = config_of(part.table, part.table_id)
        total += VALUE_BYTES * rows * (config.dim + (config.state_dim if with_state else 0))
    return total


def _call_bytes(command: c.Command[Any], config_of: ConfigOf) -> int:
    def keyed(part: Any, *, with_state: bool = False) -> int:
        """Bytes of a part's keys, and of a row for each."""
        config = config_of(part.table, part.table_id)
        elements = config.dim + config.state_dim if with_state else config.dim
        return length(part.keys) * keyed_bytes(elements)

    match command:
        case c.Lookup(tables) | c.Update(tables):
            return sum(map(keyed, tables))
        case c.LookupPooled(pooled):
            bag_bytes = sum(8 * len(part.bags.offsets) for part in pooled)
            return sum(map(keyed, pooled)) + bag_bytes + reply_bytes(command, config_of)
        case c.ReadRows(keys):
            return keyed(keys, with_state=True)
        case c.UpdatePooled(spread):
            bag_bytes = sum(p.bags.offsets.nbytes + _bytes(p.gradients) for p in spread)
            return sum(map(keyed, spread)) + bag_bytes
        case c.UpdateRanks(ranks):
            return sum(keyed(part) for rank in ranks for part in rank.tables)
        case c.Assign(keys):
            return keyed(keys)
        case c.PutRows(keys, _, state):
            return keyed(keys) + _bytes(state)
        case c.PutStepRows(_, puts):
            return sum(p.keys.nbytes + _bytes(p.weights) + _bytes(p.state) for p in puts)
        case c.ReadStep(_, _, wanted):
            return sum(4 * length(part.positions) for part in wanted)
        case c.UpdateStep(_, _, gradients_of):
            return sum(_step_gradients_bytes(part) for part in gradients_of)
        case c.Announce(_, steps):
            return sum(part.keys.nbytes for step in steps for part in step.tables)
    return 0


def _step_gradients_bytes(part: c.StepGradients) -> int:
    places = [array for array in (part.positions, part.inverse) if array is not None]
    bag_bytes = 0 if part.bags is None else part.bags.offsets.nbytes
    return _bytes(part.gradients) + sum(4 * length(array) for array in places) + bag_bytes
