"""A pooled lookup of one table in one step: which announced keys lie in which bag.

The keys of a step are known once each, in announced order, so a bag is a run of indices into them:
bag b pools the rows of the keys inverse[offsets[b]:offsets[b + 1]], as contract.md, rule 8 says. A
key that occurs twice in a bag stands there twice.
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from embstore.arithmetic import Pooling
from embstore.arrays import as_offsets, as_rows
from embstore.errors import InvalidArgumentError


class StepBags(NamedTuple):
    """The bags of one table in one step."""

    inverse: NDArray[np.int32]
    """(n,), the index of each occurrence into the announced keys."""
    offsets: NDArray[np.int64]
    """(bags + 1,), rising from 0 to n."""
    mode: Pooling = "sum"
    weights: NDArray[np.float32] | None = None
    """(n,), finite, with mode "sum" only; None: no weights."""

    @classmethod
    def of(
        cls,
        inverse: NDArray[np.int32],
        offsets: Any,
        mode: Pooling = "sum",
        weights: Any = None,
        *,
        table: str,
    ) -> "StepBags":
        """Check a caller's bags of `table`; `inverse` is known to be right.

        Raises
        ------
        InvalidArgumentError : another shape, dtype or mode; weights that are not finite, or that
            stand beside another mode than "sum".
        """
        bounds = as_offsets(offsets, len(inverse), table)
        if mode not in ("sum", "mean"):
            raise InvalidArgumentError(
                f'table {table!r}: expected mode "sum" or "mean", found {mode!r}'
            )
        if weights is None:
            return cls(inverse, bounds, mode)
        if mode != "sum":
            raise InvalidArgumentError(f'table {table!r}: weights go with mode "sum" only')
        factors = as_rows(weights, (len(inverse),), table, "weights")
        if not np.isfinite(factors).all():
            raise InvalidArgumentError(f"table {table!r}: expected finite weights")
        return cls(inverse, bounds, mode, factors)
