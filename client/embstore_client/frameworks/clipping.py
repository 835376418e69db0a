"""The norm of the gradients of rows, and the factor that reduces it to a bound.

The gradient of a row is the sum over the row's occurrences, added as the store adds them
(contract.md, rule 2). If ranks share a step, the gradient is the mean of the ranks' gradients. The
norm is the L2 norm over the rows of all tables, as if rows were parameters. Sums are computed in
float32, squares in float64.
"""

from collections.abc import Mapping, Sequence
from math import isfinite, sqrt

import numpy as np

from embstore.arithmetic import sum_by_key, unique
from embstore.arrays import Keys, Rows, fp32_scalar
from embstore.errors import InvalidArgumentError
from embstore_client.frameworks.gradients import concatenated

Share = Mapping[str, tuple[Keys, Rows]]
"""One rank's gradients, by table: keys (n,) and their gradients (n, dim) float32."""
_TINY = 1e-6
"""A number that is added to the norm before `max_norm` is divided by it, as in
torch.nn.utils.clip_grad_norm_."""


def summed(share: Share) -> dict[str, tuple[Keys, Rows]]:
    """Return each key once, with the sum of the gradients over its occurrences."""
    sums = {}
    for table, (keys, rows) in share.items():
        once, inverse = unique(keys)
        sums[table] = once, sum_by_key(inverse, len(once), rows)
    return sums


def norm_of(shares: Sequence[Share]) -> float:
    """Return the norm of the mean of the ranks' gradients; each share contains a key at most
    once."""
    squares = 0.0
    for table in dict.fromkeys(table for share in shares for table in share):
        parts = [share[table] for share in shares if table in share]
        joined = concatenated([keys for keys, _ in parts]), concatenated([of for _, of in parts])
        _, rows = joined if len(parts) == 1 else summed({table: joined})[table]
        squares += float(np.square(rows, dtype=np.float64).sum())
    return sqrt(squares) / len(shares)


def clip_factor(norm: float, max_norm: float) -> float:
    """Return the factor that reduces gradients with this norm to a norm of at most `max_norm`.
    Return 1 if the norm is not finite, because other code decides whether such gradients are sent.

    Raises
    ------
    InvalidArgumentError : max_norm is not a number, or is below 0.
    """
    if not isinstance(max_norm, float | int) or not max_norm >= 0:
        raise InvalidArgumentError(f"expected max_norm to be a number >= 0, found {max_norm!r}")
    return min(1.0, max_norm / (norm + _TINY)) if isfinite(norm) else 1.0


def checked_scale(gradient_scale: float) -> float:
    """Return `gradient_scale`, the factor of gradients. Raise InvalidArgumentError if it is not a
    number, not finite in fp32, or below 0."""
    return fp32_scalar(gradient_scale, "gradient_scale")
