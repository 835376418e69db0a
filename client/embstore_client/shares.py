"""What a client does with keys and gradients before they are sent.

Keys travel once each, and gradients as sums: of a Zipf batch that is a third of the bytes. The
sums are those of the contract (rule 2), by the same `embstore.arithmetic` as the engine's; a sum of
one is itself, so the server may sum again, and does not trust it. Keys stay in the order of their
first occurrence, so that an error names the key it would name in the embedded store.

How many times a key stood in the call is sent beside, for the statistics by access.
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from embstore.arithmetic import check_denormals, sum_by_key, unique
from embstore.arrays import Keys, Rows, as_keys, as_rows
from embstore.errors import InvalidArgumentError


class UniqueKeys(NamedTuple):
    """The keys of a call, each once, and the way back; `inverse` is None where that is nothing."""

    keys: Keys
    inverse: NDArray[np.int32] | None

    @classmethod
    def of(cls, keys: ArrayLike, table: str) -> "UniqueKeys":
        """Check a caller's keys and make them unique.

        Raises
        ------
        InvalidArgumentError : another shape or dtype.
        """
        checked = as_keys(keys, table)
        if len(checked) < 2:
            return cls(checked, None)
        unique_keys, inverse = unique(checked)
        return cls(unique_keys, inverse if len(unique_keys) < len(checked) else None)

    @property
    def call_count(self) -> int:
        """Keys of the call, before they were made unique."""
        return len(self.keys if self.inverse is None else self.inverse)

    @property
    def counts(self) -> NDArray[np.uint32] | None:
        """How many times each key stood in the call; None: once each."""
        if self.inverse is None:
            return None
        return np.bincount(self.inverse, minlength=len(self.keys)).astype(np.uint32)

    def spread(self, rows: Rows, out: Rows | None) -> Rows:
        """Return the rows of the call's keys from those of the unique keys."""
        if self.inverse is None and out is None:
            return rows
        if out is None:
            out = np.empty((self.call_count, rows.shape[1]), np.float32)
        if self.inverse is None:
            out[:] = rows
        else:  # "clip", because "raise" would go through a copy of `out`
            np.take(rows, self.inverse, axis=0, out=out, mode="clip")
        return out


class Sums(NamedTuple):
    """One table's gradients, summed by key."""

    keys: Keys
    gradients: Rows  # (len(keys), dim)

    @classmethod
    def of(cls, keys: ArrayLike, gradients: ArrayLike, dim: int, table: str) -> "Sums":
        """Check a caller's keys and gradients and sum them.

        Raises
        ------
        InvalidArgumentError : another shape or dtype.
        """
        once = UniqueKeys.of(keys, table)
        rows = as_rows(gradients, (once.call_count, dim), table, "gradients")
        if once.inverse is None:
            return cls(once.keys, rows)
        check_denormals()
        return cls(once.keys, sum_by_key(once.inverse, len(once.keys), rows))


def mapping(value: Any, what: str) -> dict[str, Any]:
    """Return a call's parts by table name.

    Raises
    ------
    InvalidArgumentError : it is no mapping of names.
    """
    try:
        parts = dict(value.items())
    except AttributeError:
        raise InvalidArgumentError(
            f"expected {what} to be a mapping by table name, found {type(value).__name__}"
        ) from None
    return parts
