"""Columns of ids: one id per sample, a fixed number of ids, or any number of ids (ragged).

In each form, a column's ids are stored one sample after the other. The **bounds** of a column are
the positions where the ids of each sample begin and end. A table's keys are the ids of its columns,
one column after the other, and the bags of its samples have the same order.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embstore.arrays import Keys
from embstore.errors import InvalidArgumentError

Bounds = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Ragged:
    """A column of ids, with any number of ids per sample, including none.

    Indexing by a slice, or by positions of samples, returns the column of these samples.

    Raises
    ------
    InvalidArgumentError : on construction, if a field differs from its description.
    """

    values: NDArray[Any]
    """The ids, one sample after the other: (m,) integers."""
    offsets: Bounds
    """The start of each sample's ids, and m at the end: (n + 1,) int64, ascending."""

    def __post_init__(self) -> None:
        values, offsets = self.values, self.offsets
        if not isinstance(values, np.ndarray) or values.ndim != 1:
            found = f"{type(values).__name__} {np.shape(values)}"
            raise InvalidArgumentError(f"expected ragged ids of shape (m,), found {found}")
        if not isinstance(offsets, np.ndarray) or offsets.ndim != 1 or offsets.dtype != np.int64:
            found = f"{getattr(offsets, 'dtype', type(offsets).__name__)} {np.shape(offsets)}"
            raise InvalidArgumentError(f"expected offsets of shape (n + 1,), int64, found {found}")
        ends = [*offsets[:1], *offsets[-1:]]
        if ends != [0, len(values)] or (np.diff(offsets) < 0).any():
            raise InvalidArgumentError(
                f"expected offsets that rise from 0 to the {len(values)} ids, found {offsets}"
            )

    @classmethod
    def joined(cls, parts: Iterable["Ragged"]) -> "Ragged":
        """Return one column with the samples of several columns, in their order."""
        whole = [*parts]
        counts = [np.diff(part.offsets) for part in whole]
        values = [part.values for part in whole] or [np.empty(0, np.int64)]
        return cls(np.concatenate(values), _ends_of(np.concatenate(counts or [np.empty(0, int)])))

    def __len__(self) -> int:
        """Return the number of samples."""
        return len(self.offsets) - 1

    def __getitem__(self, samples: slice | NDArray[Any]) -> "Ragged":
        starts, counts = self.offsets[:-1][samples], np.diff(self.offsets)[samples]
        ends = _ends_of(counts)
        places = np.arange(ends[-1]) + np.repeat(starts - ends[:-1], counts)
        return Ragged(self.values[places], ends)

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype of the ids."""
        return self.values.dtype

    @property
    def size(self) -> int:
        """The number of ids."""
        return self.values.size


def _ends_of(counts: NDArray[Any]) -> Bounds:
    return np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)


def _ids_of(column: Any) -> Keys:
    ids = column.values if isinstance(column, Ragged) else column
    return np.asarray(ids, np.int64).reshape(-1)


def bounds_of(column: Any) -> Bounds:
    """Return the start of each sample's ids, and the end of the last sample's ids, (n + 1,)."""
    if isinstance(column, Ragged):
        return column.offsets
    return np.arange(len(column) + 1) * int(np.prod(column.shape[1:]))


def keys_of(batch: Mapping[str, Any], columns: Mapping[str, str]) -> dict[str, Keys]:
    """Return a batch's keys by table; `columns` maps each column of ids to its table."""
    parts: dict[str, list[Keys]] = {table: [] for table in columns.values()}
    for column, table in columns.items():
        parts[table].append(_ids_of(batch[column]))
    return {t: p[0] if len(p) == 1 else np.concatenate(p) for t, p in parts.items()}


def offsets_of(batch: Mapping[str, Any], columns: Mapping[str, str]) -> dict[str, Bounds]:
    """Return, by table, the offsets of the bags: one bag per sample and column of the table."""
    counts: dict[str, list[Bounds]] = {table: [] for table in columns.values()}
    for column, table in columns.items():
        counts[table].append(np.diff(bounds_of(batch[column])))
    return {table: _ends_of(np.concatenate(parts)) for table, parts in counts.items()}
