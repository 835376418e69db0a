"""The layer of unique keys for a link that is slower than the machine.

Keys travel in ascending order, as deltas (`embstore_proto.deltas`), each once; rows, gradients and
counts in the order of the keys. Gradients are summed by key in float32 first, as ever (rule 2), and
the sums are rounded (`embstore_proto.narrow`); gradients of bags and of a step are rounded as they
are. The server widens them, and then treats them as gradients that were given so.

An error that names a key may name another of several bad ones than it would without: the server
looks at them in ascending order.

A finite gradient that is rounded to infinity would silently change the caller's gradient, so it is
refused, and the call is not sent. A gradient that was not finite stays so, for the server to refuse
or to skip.
"""

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embstore.arithmetic import sum_by_key
from embstore.arrays import Keys
from embstore.commands import TableGradients, TableKeys
from embstore.errors import InvalidArgumentError
from embstore.results import ServerInfo
from embstore_client.call import Below, Call
from embstore_client.shares import Inverse, Unique, accesses
from embstore_proto import deltas, narrow


class Narrow(Unique):
    """The layer: rows and gradients of two bytes a value, also where memory is shared."""

    def __init__(self, dtype: str) -> None:
        """`dtype` is "float16" or "bfloat16"."""
        super().__init__(None)
        self._dtype = dtype

    def __call__(self, call: Call, below: Below) -> Any:
        """Execute a call, whose arrays are the host's.

        Raises InvalidArgumentError: a finite gradient, or sum of gradients, is too large for the
        dtype; the server says that it knows no such arrays.
        """
        answer = super().__call__(call, below)
        if isinstance(answer, ServerInfo) and not {self._dtype, "int64_delta"} <= {
            *answer.wire_dtypes
        }:
            raise InvalidArgumentError(
                f'the server is too old for wire_dtype="{self._dtype}": it has version '
                f"{answer.version}, and takes arrays of {', '.join(answer.wire_dtypes)}"
            )
        return answer

    def keys(self, part: TableKeys) -> tuple[TableKeys, Inverse]:
        """Return the keys of a table as they are sent, and the way back."""
        ascending, inverse = _ascending(part.keys)
        is_shorter, counts = len(ascending) < len(part.keys), None
        if is_shorter or part.counts is not None:
            counts = accesses(part.counts, inverse, len(ascending))
            if counts is None:
                return part, None
        is_same = not is_shorter and np.array_equal(ascending, part.keys)
        sent = TableKeys(part.table, part.table_id, _sent(ascending), counts)
        return sent, None if is_same else inverse

    def gradients(self, part: Any) -> Any:
        """Return gradients rounded, those by key as one sum for each."""
        if not hasattr(part, "gradients"):
            return part
        if not hasattr(part, "bags"):
            keys, inverse = _ascending(part.keys)
            sums = sum_by_key(inverse, len(keys), part.gradients)
            part = TableGradients(part.table, part.table_id, _sent(keys), sums)
        gradients = part.gradients
        stored = narrow.rounded(gradients, self._dtype)
        lost = narrow.first_overflow(gradients, stored)
        if lost is None:
            return replace(part, gradients=stored)
        raise InvalidArgumentError(
            f"table {part.table!r}: expected gradients within the range of {self._dtype}, found "
            f"{lost:g}: its largest finite value is {narrow.LARGEST[self._dtype]:.9g}; "
            'wire_dtype="float32" sends any'
        )


def _ascending(keys: Keys) -> tuple[Keys, NDArray[np.int32]]:
    ascending, inverse = np.unique(keys, return_inverse=True)
    return ascending, inverse.astype(np.int32)


def _sent(ascending: Keys) -> Any:
    """Return keys as they travel: a negative one, which the server refuses, as it is."""
    if len(ascending) and ascending[0] < 0:
        return ascending
    return deltas.encode(ascending)
