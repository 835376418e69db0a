"""Distinct rows of a batch in arrays of few sizes, and their pooling within a compiled function.

Functions are compiled per shape, and the number of distinct ids differs from batch to batch. So
rows are padded to a **size**: the smallest of 8, 12, 16, 24, 32, 48, ... that has room for these
rows and a quarter more. A table keeps its size until a batch outgrows the size. For a feature with
offsets, the ids are padded in the same way. A function is compiled again only when a size grows. So
after a few batches it is not compiled any more, and 26 tables do not lead to 2**26 combinations of
sizes. At least one row of zeros follows the distinct rows.

Padding has no effect. An entry of `inverse` at a padded position points to the row of zeros after
the distinct rows. Such an entry is in no bag, or it stands for an id that is padding. Gradients of
rows after the distinct rows are cut off.

Two alternatives were rejected: sizes that are powers of two, which waste twice as much memory; and
the number of ids as the size. With that size a function is compiled once, but it moves the row of
every repeated id.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import jax  # type: ignore[import-not-found, unused-ignore]
import jax.numpy as jnp  # type: ignore[import-not-found, unused-ignore]
import numpy as np
from numpy.typing import NDArray

from embstore.arrays import Rows
from embstore_client.frameworks.occurrences import Occurrences

SMALLEST = 8
"""The smallest size."""


def size_for(count: int) -> int:
    """Return the smallest of 8, 12, 16, 24, 32, 48, ... that is at least `count`."""
    power = max(SMALLEST, 1 << max(count - 1, 0).bit_length())
    between = power * 3 // 4
    return between if count <= between and power > SMALLEST else power


class Sizes:
    """The present sizes of tables and features."""

    def __init__(self) -> None:
        self._sizes: dict[tuple[str, str], int] = {}

    def of_table(self, name: str, count: int, rows: int | None) -> int:
        """Return the size of a table with `count` distinct ids; `rows` is None for sparse keys."""
        return self._size(("table", name), count + 1, None if rows is None else rows + 1)

    def of_feature(self, name: str, count: int) -> int:
        """Return the size of a feature's ids: at least `count`."""
        return self._size(("feature", name), count, None)

    def _size(self, key: tuple[str, str], count: int, most: int | None) -> int:
        if count > self._sizes.get(key, 0):
            roomy = count + count // 4
            self._sizes[key] = size_for(roomy if most is None else min(roomy, most))
        return self._sizes.setdefault(key, SMALLEST)


@dataclass(frozen=True)
class Places:
    """The positions of a feature's ids among the padded rows of its table; a pytree of arrays."""

    inverse: Any
    """(size,) int32, the row of each id. If no output has more than one id, the array has the shape
    of the outputs instead."""
    bags: Any
    """(size,) int32, ascending: the bag of each id; the number of bags stands for padding. None: no
    output has more than one id."""
    counts: Any
    """(bags,) float32, the number of ids of each bag, or None."""
    weights: Any
    """(size,) float32, the weight of each id, or None."""
    table: str = field(metadata={"static": True})
    mode: str = field(metadata={"static": True})


def padded_rows(rows: Rows, size: int) -> Any:
    """Return rows (u, dim) padded to (size, dim) by rows of zeros."""
    padded = np.zeros((size, rows.shape[1]), np.float32)
    padded[: len(rows)] = rows
    return jnp.asarray(padded)


def places_of(
    feature: str, of: Occurrences, inverse: NDArray[np.int32], count: int, sizes: Sizes
) -> Places:
    """Return the places of a feature's ids. `inverse` (n,) contains the index of each id's row,
    below `count`."""
    if of.is_single:
        single = inverse
        if of.offsets is not None:
            single = np.full(len(of.offsets) - 1, count, np.int32)
            single[np.diff(of.offsets) == 1] = inverse
        return Places(jnp.asarray(single.reshape(of.shape)), None, None, None, of.table, of.mode)
    size = sizes.of_feature(feature, len(inverse))
    counts = np.ones(of.shape, np.int64) if of.offsets is None else np.diff(of.offsets)
    bags = np.repeat(np.arange(len(counts), dtype=np.int32), counts)
    weights = None if of.weights is None else jnp.asarray(_padded(of.weights, size, 0))
    return Places(
        jnp.asarray(_padded(inverse, size, count)),
        jnp.asarray(_padded(bags, size, len(counts))),
        jnp.asarray(counts.astype(np.float32)),
        weights,
        of.table,
        of.mode,
    )


def pool(rows: Mapping[str, Any], places: Mapping[str, Places]) -> dict[str, Any]:
    """Return the pooled rows of each feature, {feature: (bags, dim)}, or (*, dim) for ids that are
    not pooled.

    This is a pure function of `Step.rows` and `Step.places`, to be called in code that is compiled
    and differentiated. XLA chooses the order of the sums, in the forward and the backward pass.

    Parameters
    ----------
    rows : {table: (size, dim)}
    """
    return {feature: _pooled(rows[of.table], of) for feature, of in places.items()}


def _pooled(rows: Any, of: Places) -> Any:
    found = rows[of.inverse]
    if of.bags is None:
        return found
    if of.weights is not None:
        found = of.weights[:, None] * found
    bag_count = len(of.counts)
    pooled = jax.ops.segment_sum(found, of.bags, bag_count, indices_are_sorted=True)
    return pooled if of.mode == "sum" else pooled / jnp.maximum(of.counts, 1)[:, None]


def _padded(values: NDArray[Any], size: int, padding: int) -> NDArray[Any]:
    padded = np.full(size, padding, values.dtype)
    padded[: len(values)] = values
    return padded


jax.tree_util.register_dataclass(Places)
