"""Padding: ids that stand for no row, so that bags and sequences of any lengths fit one shape.

An id of -1 is padding, and so is the `padding_idx` of its entry. It is no row of a bag, also not in
the count of a mean; where a row for each id is wanted, its row is zeros; it gets no gradient, and
its weight gets one of 0. It is left out before anything is looked up, so neither the store nor a
session sees it. Ids that are hashed are padding before they are; their keys are -1.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

PADDING = -1


def is_id(ids: Any, padding_idx: int | None) -> Any:
    """Return which of some ids, (n,) of NumPy or of a framework, are not padding, (n,) bool."""
    found = ids != PADDING
    return found if padding_idx is None else found & (ids != padding_idx)


def offsets_without(
    offsets: NDArray[np.int64] | None, are_ids: NDArray[np.bool_]
) -> NDArray[np.int64]:
    """Return where outputs begin, (outputs + 1,), when padding is left out.

    Parameters
    ----------
    offsets : the same with padding; None: each output has one id
    """
    before = np.concatenate([[0], np.cumsum(are_ids)]).astype(np.int64)
    return before if offsets is None else before[offsets]
