"""Columns of ids: one of a sample, as many of each, or of each as many as there are (ragged).

In each form, a column's ids lie end to end, sample after sample, and its **bounds** give the end of
each sample's ids. A table's keys are the ids of its columns, one column after the other; so are the
bags of its samples.
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
    """A column of ids, with any number of ids in a sample; none, too.

    Indexed by samples, a slice or their places, it is the column of these.

    Raises
    ------
    InvalidArgumentError : on construction, if a field is not as its description says.
    """

    values: NDArray[Any]
    """(m,) integers: the ids, sample after sample."""
    offsets: Bounds
    """(n + 1,) int64, from 0 to m, none below the one before: where the ids of a sample begin."""

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
        """Return one column of the samples of several, in their order."""
        whole = [*parts]
        counts = [np.diff(part.offsets) for part in whole]
        values = [part.values for part in whole] or [np.empty(0, np.int64)]
        return cls(np.concatenate(values), _ends_of(np.concatenate(counts or [np.empty(0, int)])))

    def __len__(self) -> int:
        """Return how many samples it has."""
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
        """How many ids there are."""
        return self.values.size


def _ends_of(counts: NDArray[Any]) -> Bounds:
    return np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)


def _ids_of(column: Any) -> Keys:
    ids = column.values if isinstance(column, Ragged) else column
    return np.asarray(ids, np.int64).reshape(-1)


def bounds_of(column: Any) -> Bounds:
    """Return where the ids of each of a column's samples begin, and the last's end, (n + 1,)."""
    if isinstance(column, Ragged):
        return column.offsets
    return np.arange(len(column) + 1) * int(np.prod(column.shape[1:]))


def keys_of(batch: Mapping[str, Any], columns: Mapping[str, str]) -> dict[str, Keys]:
    """Return a batch's keys by table; `columns` names the table of each column of ids."""
    parts: dict[str, list[Keys]] = {table: [] for table in columns.values()}
    for column, table in columns.items():
        parts[table].append(_ids_of(batch[column]))
    return {t: p[0] if len(p) == 1 else np.concatenate(p) for t, p in parts.items()}


def offsets_of(batch: Mapping[str, Any], columns: Mapping[str, str]) -> dict[str, Bounds]:
    """Return by table the offsets of a bag for each sample of each of its columns."""
    counts: dict[str, list[Bounds]] = {table: [] for table in columns.values()}
    for column, table in columns.items():
        counts[table].append(np.diff(bounds_of(batch[column])))
    return {table: _ends_of(np.concatenate(parts)) for table, parts in counts.items()}
