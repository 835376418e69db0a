"""The size of a call's arrays, results included.

Two things count: the arrays that a command contains, and the rows in the command's answer, if the
command `reads` rows (one row per key, or one per bag). Pooled calls also need memory for a row per
key during their execution.
"""

from collections.abc import Callable
from math import prod
from typing import Any

import numpy as np

from embstore import commands as c
from embstore.arrays import length, shape_of
from embstore.config import Limits, TableConfig
from embstore.errors import InvalidArgumentError
from embstore.layout import VALUE_BYTES
from embstore.parts import arrays_of, tables_of

ConfigOf = Callable[[str, int | None], TableConfig]
"""A function that returns the configuration of a table, which is given by name and id."""


def check_call_bytes(command: c.Command[Any], config_of: ConfigOf, limits: Limits) -> int:
    """Refuse a command if its arrays, results included, take too much memory.

    Returns the bytes of the rows in the command's answer, as `reply_bytes` does.
    """
    rows = reply_bytes(command, config_of)
    size = rows + _brought_bytes(command, config_of)
    if size > limits.call_bytes_max:
        refuse_more(size, limits.call_bytes_max)
    return rows


def check_size(command: c.Command[Any], config_of: ConfigOf, most: int, name: str) -> None:
    """Refuse a command if its arrays take more than `most` bytes, a bound that is called `name`."""
    size = reply_bytes(command, config_of) + _brought_bytes(command, config_of)
    refuse_more(size, most, name)


def refuse_more(size: int, most: int, name: str = "limits.call_bytes_max") -> None:
    """Refuse a call if `size` exceeds `most` bytes; the message contains the bound's name."""
    if size > most:
        raise InvalidArgumentError(
            f"expected a call of at most {most} bytes of keys and rows ({name}), found {size}; "
            "split the call"
        )


def keyed_bytes(elements: int) -> int:
    """Return the bytes of a key and a row of `elements` elements together."""
    return 8 + VALUE_BYTES * elements


def reply_bytes(command: c.Command[Any], config_of: ConfigOf) -> int:
    """Return the bytes of the rows in a command's answer, as far as the command's arguments show
    them.

    For a command of a step the result is 0, because only the session knows the step's rows.
    """
    reads, total = command.reads, 0
    if reads is c.Reads.ROWS or reads is c.Reads.RECORDS:
        for part in tables_of(command):
            config, bags = config_of(part.table, part.table_id), getattr(part, "bags", None)
            rows = length(part.keys) if bags is None else len(bags.offsets) - 1
            state = config.state_dim if reads is c.Reads.RECORDS else 0
            total += VALUE_BYTES * rows * (config.dim + state)
    return total


def _brought_bytes(command: c.Command[Any], config_of: ConfigOf) -> int:
    """Return the bytes of a command's arrays, and of the rows that it pools."""
    total = 0
    for array, spec in arrays_of(command):
        is_plain = type(array) is np.ndarray
        total += array.nbytes if is_plain else prod(shape_of(array)) * np.dtype(spec.dtype).itemsize
    for part in tables_of(command):
        is_of_step = not hasattr(part, "table_id")  # only the session knows the part's rows
        if not is_of_step and getattr(part, "bags", None) is not None:
            dim = config_of(part.table, part.table_id).dim
            total += VALUE_BYTES * dim * length(part.keys)
    return total
