"""What a client does with keys and gradients before they are sent.

Keys travel once each, and gradients as sums: of a Zipf batch that is a third of the bytes. The
sums are those of the contract (rule 2), by the same `embstore.arithmetic` as the engine's; a sum of
one is itself, so the server may sum again, and does not trust it. Keys stay in the order of their
first occurrence, so that an error names the key it would name in the embedded store.

How many times a key stood in the call is sent beside, for the statistics by access.
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from embstore.arithmetic import sum_by_key, unique
from embstore.arrays import COUNT_MAX, AccessCounts, Keys, Rows, as_out, check_on_host
from embstore.commands import TableGradients, TableKeys
from embstore_proto.frame import Computed

_SAMPLE_KEYS = 4096
"""Of a call's keys, the first. Where rows are popular some of these are repeated: of a Zipf batch
(1.05, two million rows) 1,900 are. Where none is, a repeated key later costs its bytes once more;
to make 262,144 keys unique takes a tenth of the time of their lookup."""


class UniqueKeys(NamedTuple):
    """The keys of a call, each once, and the way back; `inverse` is None where that is nothing."""

    keys: Keys
    inverse: NDArray[np.int32] | None
    counted: AccessCounts | None = None  # accesses of each key, where the caller gave them

    @classmethod
    def of(cls, part: TableKeys | TableGradients) -> "UniqueKeys":
        """Make the keys of a command, on the host, unique, and add up their counts if any."""
        checked = part.keys
        check_on_host(checked, f"table {part.table!r}: ")
        check_on_host(getattr(part, "gradients", None), f"table {part.table!r}: ")
        counted = part.counts if isinstance(part, TableKeys) else None
        if len(checked) < 2 or _seem_unique(checked):
            return cls(checked, None, counted)
        unique_keys, inverse = unique(checked)
        if len(unique_keys) == len(checked):
            return cls(checked, None, counted)
        if counted is None:
            return cls(unique_keys, inverse)
        sums = np.zeros(len(unique_keys), np.int64)
        np.add.at(sums, inverse, counted)
        if sums.max() > COUNT_MAX:  # too large to be sent as one
            return cls(checked, None, counted)
        return cls(unique_keys, inverse, sums.astype(np.uint32))

    @property
    def call_count(self) -> int:
        """Keys of the call, before they were made unique."""
        return len(self.keys if self.inverse is None else self.inverse)

    def in_place_of(self, part: TableKeys) -> TableKeys:
        """Return a command's part with the unique keys."""
        return TableKeys(part.table, part.table_id, self.keys, self.counts)

    @property
    def counts(self) -> AccessCounts | None:
        """How many accesses each key stands for; None: one each."""
        if self.inverse is None or self.counted is not None:
            return self.counted
        return np.bincount(self.inverse, minlength=len(self.keys)).astype(np.uint32)

    def spread(self, rows: Rows, out: Rows | None, table: str) -> Rows:
        """Return the rows of the call's keys from those of the unique keys; `out` may not fit, as
        the table may be another one by now."""
        if self.inverse is None and out is None:
            return rows
        out = as_out(out, (self.call_count, rows.shape[1]), table)
        if self.inverse is None:
            out[:] = rows
        else:  # "clip", because "raise" would go through a copy of `out`
            np.take(rows, self.inverse, axis=0, out=out, mode="clip")
        return out


def _seem_unique(keys: Keys) -> bool:
    """Guess from the first of many keys that it is not worth while to look for repeated ones."""
    if len(keys) < 2 * _SAMPLE_KEYS:
        return False
    sample = keys[:_SAMPLE_KEYS]
    return len(unique(sample)[0]) == len(sample)


def summed(part: TableGradients) -> TableGradients:
    """Return the gradients of a call as one sum for each key, computed where they are sent from."""
    once = UniqueKeys.of(part)
    inverse, gradients = once.inverse, part.gradients
    if inverse is None:
        return part
    count = len(once.keys)
    sums: Any = Computed(
        (count, gradients.shape[1]), lambda out: sum_by_key(inverse, count, gradients, out)
    )
    return TableGradients(part.table, part.table_id, once.keys, sums)
