"""The layer of unique keys, with two bytes per value, for links that are slower than the machine.

Each unique key is sent once. Keys are sent in ascending order, as deltas (`embstore_proto.deltas`);
rows, gradients and counts are sent in the order of the keys. Gradients are first summed by key in
float32, as always (rule 2), and then the sums are rounded (`embstore_proto.narrow`). Gradients of
bags and of a step are rounded without a sum. The server widens all gradients to float32, and treats
them as if the caller had passed these values.

If several keys are bad, an error may name another key than with float32: the server checks keys in
ascending order.

Rounding a large finite gradient to infinity would silently change the caller's gradient. Such a
gradient is refused, and the call is not sent. A gradient that was not finite is sent as such, and
the server refuses or skips the update.
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
    """The layer that sends rows and gradients with two bytes per value, even where memory is
    shared."""

    def __init__(self, dtype: str) -> None:
        """`dtype` is "float16" or "bfloat16"."""
        super().__init__(None)
        self._dtype = dtype

    def __call__(self, call: Call, below: Below) -> Any:
        """Execute a call whose arrays are on the host.

        Raises InvalidArgumentError if a finite gradient, or a sum of gradients, is too large for
        the dtype, or if the server does not accept arrays of this dtype.
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
        """Return the keys to send, and the index of each original key among them."""
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
        """Return rounded gradients. Gradients by key are first added to one sum per key."""
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
    """Return keys in the form in which they are sent. If a key is negative, all keys are sent
    without deltas, and the server refuses them."""
    if len(ascending) and ascending[0] < 0:
        return ascending
    return deltas.encode(ascending)
