"""Padding: ids that stand for no row, so that bags and sequences of any lengths fit one shape.

An id of -1 is padding, and so is the `padding_idx` of the entry. In a bag, padding adds no row, and
a mean does not count padding. If each id gets a row, the row of padding is zeros. Padding gets no
gradient, and the gradient of its weight is 0. Padding is removed before the lookup, so neither the
store nor a session sees padding. If ids are hashed, an id is compared with padding before the hash;
the key of padding is -1.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

PADDING = -1


def is_id(ids: Any, padding_idx: int | None) -> Any:
    """Return a bool mask (n,) of the ids that are not padding. `ids` (n,) is an array of NumPy or
    of a framework."""
    found = ids != PADDING
    return found if padding_idx is None else found & (ids != padding_idx)


def offsets_without(
    offsets: NDArray[np.int64] | None, are_ids: NDArray[np.bool_]
) -> NDArray[np.int64]:
    """Return the indices at which outputs begin, (outputs + 1,), after padding is removed.

    Parameters
    ----------
    offsets : the indices at which outputs begin, padding included. None: each output has one id
    """
    before = np.concatenate([[0], np.cumsum(are_ids)]).astype(np.int64)
    return before if offsets is None else before[offsets]
