"""What a client makes of a command for a link that is slower than the machine.

Keys travel in ascending order, as deltas (`embstore_proto.deltas`), each once; rows, gradients and
counts in the order of the keys. Gradients are summed by key in float32 first, as ever (rule 2), and
the sums are rounded (`embstore_proto.narrow`): those of bags and of a step are rounded as they are.
The server widens them, and all else is as of gradients that were given so.

An error that names a key may name another of several bad ones than it would without: the server
looks at them in ascending order.

A finite gradient that is rounded to infinity would be a silent change of what was meant, so it is
refused, and nothing is sent. What was not finite stays so, for the server to refuse or to skip.
"""

from dataclasses import replace
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from embstore import commands as c
from embstore.arithmetic import sum_by_key
from embstore.arrays import COUNT_MAX, Keys, check_on_host
from embstore.errors import InvalidArgumentError
from embstore.parts import with_tables
from embstore_client.shares import UniqueKeys
from embstore_proto import deltas, narrow

Part = TypeVar("Part", c.TableGradients, c.PooledGradients, c.StepGradients)


def narrower(command: Any, dtype: str) -> tuple[Any, list[UniqueKeys] | None] | None:
    """Return a command as it is sent with rows and gradients of `dtype`, "float16" or "bfloat16",
    and the way back to its keys if it reads rows of them; None: it is sent as ever.

    Raises InvalidArgumentError: a finite gradient, or sum of gradients, is too large for the dtype;
    an array in a device's memory.
    """
    if isinstance(command, c.Lookup):
        parts = [_keys(part) for part in command.tables]
        lookup = replace(command, tables=tuple(sent for sent, _ in parts))
        return lookup, [once for _, once in parts]
    sent = with_tables(command, lambda part: _smaller(part, dtype))
    return None if sent is command else (sent, None)


def _smaller(part: Any, dtype: str) -> Any:
    """Return a part with its gradients rounded, if it has some."""
    if isinstance(part, c.TableGradients):
        return _sums(part, dtype)
    if isinstance(part, c.PooledGradients):
        check_on_host(part.keys, f"table {part.table!r}: ")
    return _rounded(part, dtype) if hasattr(part, "gradients") else part


def _keys(part: c.TableKeys) -> tuple[c.TableKeys, UniqueKeys]:
    """Return the keys of a lookup as they are sent, and the way back."""
    check_on_host(part.keys, f"table {part.table!r}: ")
    ascending, inverse = _ascending(part.keys)
    is_shorter = len(ascending) < len(part.keys)
    counts = None
    if part.counts is not None or is_shorter:
        sums = np.zeros(len(ascending), np.int64)
        np.add.at(sums, inverse, 1 if part.counts is None else part.counts)
        if sums.max(initial=0) > COUNT_MAX:  # too large to be sent as one
            return part, UniqueKeys(part.keys, None, part.counts)
        counts = sums.astype(np.uint32)
    sent: Any = _sent(ascending)
    is_same = not is_shorter and np.array_equal(ascending, part.keys)
    once = UniqueKeys(ascending, None if is_same else inverse, counts)
    return c.TableKeys(part.table, part.table_id, sent, counts), once


def _sums(part: c.TableGradients, dtype: str) -> c.TableGradients:
    """Return gradients as one rounded sum for each key."""
    check_on_host(part.keys, f"table {part.table!r}: ")
    check_on_host(part.gradients, f"table {part.table!r}: ")
    ascending, inverse = _ascending(part.keys)
    sums = sum_by_key(inverse, len(ascending), part.gradients)
    keys: Any = _sent(ascending)
    return _rounded(c.TableGradients(part.table, part.table_id, keys, sums), dtype)


def _ascending(keys: Keys) -> tuple[Keys, NDArray[np.int32]]:
    ascending, inverse = np.unique(keys, return_inverse=True)
    return ascending, inverse.astype(np.int32)


def _sent(ascending: Keys) -> Keys | deltas.Deltas:
    """Return keys as they travel: a negative one, which the server refuses, as it is."""
    if len(ascending) and ascending[0] < 0:
        return ascending
    return deltas.encode(ascending)


def _rounded(part: Part, dtype: str) -> Part:
    """Return a part of an update with its gradients rounded, if each finite one stays so."""
    gradients = part.gradients
    check_on_host(gradients, f"table {part.table!r}: ")
    stored = narrow.rounded(gradients, dtype)
    lost = narrow.first_overflow(gradients, stored)
    if lost is not None:
        raise InvalidArgumentError(
            f"table {part.table!r}: expected gradients that {dtype} can have, found {lost:g}: its "
            f'largest finite value is {narrow.LARGEST[dtype]:.9g}; wire_dtype="float32" sends any'
        )
    return replace(part, gradients=stored)
