"""What a client does with keys and gradients before they are sent.

Keys travel once each, and gradients as sums: of a Zipf batch that is a third of the bytes. The
sums are those of the contract (rule 2), by the same `embstore.arithmetic` as the engine's; a sum of
one is itself, so the server may sum again, and does not trust it. Keys stay in the order of their
first occurrence, so that an error names the key it would name in the embedded store.

How many times a key stood in the call is sent beside, for the statistics by access.
"""

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from embstore.arithmetic import sum_by_key, unique
from embstore.arrays import COUNT_MAX, Keys, Rows, as_counts, as_keys, as_out, as_rows
from embstore.errors import InvalidArgumentError
from embstore_proto.codec import Message
from embstore_proto.v1 import embstore_pb2 as pb

Counts = NDArray[np.uint32]


class UniqueKeys(NamedTuple):
    """The keys of a call, each once, and the way back; `inverse` is None where that is nothing."""

    keys: Keys
    inverse: NDArray[np.int32] | None
    counted: Counts | None = None  # accesses of each key, where the caller gave them

    @classmethod
    def of(cls, keys: ArrayLike, table: str, counts: ArrayLike | None = None) -> "UniqueKeys":
        """Check a caller's keys, and counts if there are any, and make them unique.

        Raises
        ------
        InvalidArgumentError : another shape or dtype; counts out of range.
        """
        checked = as_keys(keys, table)
        counted = None
        if counts is not None:
            counted = as_counts(counts, len(checked), table).astype(np.uint32)
        if len(checked) < 2:
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

    def call_bytes(self, elements: int) -> int:
        """Return the bytes of the call's keys, and of rows of so many fp32."""
        return self.call_count * (8 + 4 * elements)

    @property
    def counts(self) -> Counts | None:
        """How many accesses each key stands for; None: one each."""
        if self.inverse is None or self.counted is not None:
            return self.counted
        return np.bincount(self.inverse, minlength=len(self.keys)).astype(np.uint32)

    def spread(self, rows: Rows, out: Rows | None, table: str) -> Rows:
        """Return the rows of the call's keys from those of the unique keys.

        Raises
        ------
        InvalidArgumentError : `out` does not fit, because the table is another one by now.
        """
        if self.inverse is None and out is None:
            return rows
        out = as_out(out, (self.call_count, rows.shape[1]), table)
        if self.inverse is None:
            out[:] = rows
        else:  # "clip", because "raise" would go through a copy of `out`
            np.take(rows, self.inverse, axis=0, out=out, mode="clip")
        return out


class Sums(NamedTuple):
    """One table's gradients, to be summed by key where they are sent from."""

    once: UniqueKeys
    gradients: Rows  # (n, dim), one for each key of the call

    @classmethod
    def of(cls, keys: ArrayLike, gradients: ArrayLike, dim: int, table: str) -> "Sums":
        """Check a caller's keys and gradients.

        Raises
        ------
        InvalidArgumentError : another shape or dtype.
        """
        once = UniqueKeys.of(keys, table)
        return cls(once, as_rows(gradients, (once.call_count, dim), table, "gradients"))

    @property
    def keys(self) -> Keys:
        """The keys, each once."""
        return self.once.keys

    @property
    def call_bytes(self) -> int:
        """Bytes of keys and gradients, before they are summed."""
        return self.once.call_bytes(self.gradients.shape[1])

    def add_to(self, message: Message) -> pb.Array:
        """Add the sums, (unique keys, dim), to a message, in which they are computed.

        There it raises DeviceError if the thread flushes denormals.
        """
        inverse, count, gradients = self.once.inverse, len(self.keys), self.gradients
        if inverse is None:
            return message.add(gradients)
        return message.add_written(
            pb.DTYPE_FLOAT32,
            (count, gradients.shape[1]),
            lambda out: sum_by_key(inverse, count, gradients, out),
        )


def mapping(value: Any, what: str) -> dict[str, Any]:
    """Return a call's parts by table name.

    Raises
    ------
    InvalidArgumentError : it is no mapping of names.
    """
    if not isinstance(value, Mapping):
        raise InvalidArgumentError(
            f"expected {what} to be a mapping by table name, found {type(value).__name__}"
        )
    return dict(value)


def some_of(value: Any, what: str, names: Iterable[str]) -> dict[str, Any]:
    """Return what was given for some of a call's tables; None: for none.

    Raises
    ------
    InvalidArgumentError : it is no mapping, or names others.
    """
    given = mapping({} if value is None else value, what)
    unknown = sorted(given.keys() - set(names), key=repr)
    if unknown:
        raise InvalidArgumentError(f"expected {what} to name tables of the call, found {unknown}")
    return given
