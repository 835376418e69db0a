"""Ids in the shapes of arrays, taken apart into keys and bags.

    (bags, length)               bags of one length
    (bags,)                      bags of one id
    (ids, offsets, weights)      (n,), (bags,), (n,): bag b is ids[offsets[b]:offsets[b + 1]]; or
                                 (bags, length), None, (bags, length)
    any shape                    a row for each id, of a table that is `Ids`

An id of -1 is padding: no row of a bag, and zeros where a row for each id is wanted. So ids of one
shape, which compilers ask for, have as many in them as there are.

What is returned is the host's, and a copy: a trainer may use its arrays again before `step`.
"""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from embstore.arithmetic import bag_gradients, pool_rows
from embstore.arrays import Keys, Rows
from embstore.errors import InvalidArgumentError
from embstore_client.frameworks.rows import Found
from embstore_client.frameworks.tables import Bag, Ids, by_feature

K = TypeVar("K", bound="HasKeys")

PADDING = -1
"""An id that is none."""


class Occurrences(NamedTuple):
    """The ids of one feature in one forward. An output is a bag, or what one id gets."""

    table: str
    keys: Keys
    """(n,), one after the other, without padding."""
    offsets: NDArray[np.int64] | None
    """(outputs + 1,), from 0 to n, where the ids of each output begin; None: each has one."""
    weights: NDArray[np.float32] | None
    """(n,), or None."""
    mode: str
    """How the rows of an output are pooled."""
    shape: tuple[int, ...]
    """Of the outputs, but for dim: (bags,), or that of ids which are not pooled."""
    is_single: bool
    """No output can have more than one id, by the shape in which ids were given."""

    def pooled(self, rows: Rows) -> Rows:
        """Return the outputs, (*shape, dim), of the rows of keys, (n, dim); contract.md, rule 8."""
        if self.offsets is not None:
            mode: Any = self.mode
            rows = pool_rows(rows, self.offsets, mode, self.weights)
        return rows.reshape(*self.shape, rows.shape[-1])

    def by_key(self, gradients: Rows) -> Rows:
        """Return the gradient of each key, (n, dim), from those of outputs, (outputs, dim)."""
        if self.offsets is None:
            return gradients
        mode: Any = self.mode
        return bag_gradients(gradients, self.offsets, mode, self.weights)


Given = Mapping[str, Occurrences]
"""What one forward is given: the ids of every feature, in the order of the tables."""


class HasKeys(Protocol):
    """The ids of one feature in one forward, whatever a framework keeps with them."""

    @property
    def keys(self) -> Any:
        """(n,), one after the other."""


def given_of(tables: Mapping[str, Ids], features: Any) -> Given:
    """Return the ids of every feature from a mapping, which may have others too.

    Raises
    ------
    InvalidArgumentError : it is no mapping, one is missing, or has another shape or dtype.
    """
    return {
        name: occurrences(table, value, f"feature {name!r}")
        for name, table, value in by_feature(tables, features)
    }


def keys_by_table(tables: Mapping[str, Ids], *forwards: Mapping[str, HasKeys]) -> dict[str, Keys]:
    """Return the keys of all features of some forwards by table, repeated or not: of each forward
    one feature after the other."""
    parts = {
        name: [given[feature].keys for given in forwards for feature in table.features]
        for name, table in tables.items()
    }
    return {n: np.asarray(p[0]) if len(p) == 1 else np.concatenate(p) for n, p in parts.items()}


def places(tables: Mapping[str, Ids], given: Mapping[str, K]) -> Iterator[tuple[str, K, slice]]:
    """Yield each feature, its ids, and where they are among the keys of their table."""
    for table in tables.values():
        begin = 0
        for feature in table.features:
            end = begin + len(given[feature].keys)
            yield feature, given[feature], slice(begin, end)
            begin = end


def pooled(tables: Mapping[str, Ids], given: Given, found: Mapping[str, Found]) -> dict[str, Rows]:
    """Return the outputs of each feature, (*, dim), from the rows of `keys_by_table`."""
    return {
        feature: of.pooled(found[of.table].of(place))
        for feature, of, place in places(tables, given)
    }


def occurrences(table: Ids, value: Any, what: str) -> Occurrences:
    """Return the ids of a feature of a table; `what` names it in errors.

    Raises
    ------
    InvalidArgumentError : another shape or dtype.
    """
    if not isinstance(value, tuple):
        value = (value,)
    elif not isinstance(table, Bag) or not 1 <= len(value) <= 3:
        raise InvalidArgumentError(
            f"{what}: expected ids, or of a Bag (ids, offsets, weights), found {len(value)} arrays"
        )
    ids, offsets, weights = (*value, None, None)[:3]
    ids = _integers(ids, f"{what}: ids")
    is_single = not isinstance(table, Bag) or (
        ids.ndim == 1 and offsets is None and weights is None
    )
    if offsets is not None:
        offsets = _integers(offsets, f"{what}: offsets")
    bounds = np.arange(ids.size + 1) if is_single else bounds_of(ids.shape, offsets, what)
    shape = ids.shape if is_single else (len(bounds) - 1,)
    mode = table.mode if isinstance(table, Bag) else "sum"
    factors = None if weights is None else _factors(weights, ids.shape, mode, what)
    keys = np.array(ids, np.int64).reshape(-1)
    is_id = keys != PADDING
    if not is_id.all():
        bounds = np.concatenate([[0], np.cumsum(is_id)])[bounds]
        keys, factors = keys[is_id], None if factors is None else factors[is_id]
    is_plain = factors is None and bool((np.diff(bounds) == 1).all())
    offsets = None if is_plain else bounds.astype(np.int64)
    return Occurrences(table.name, keys, offsets, factors, mode, shape, is_single)


def bounds_of(
    shape: tuple[int, ...], offsets: NDArray[Any] | None, what: str, *, has_last: bool = False
) -> NDArray[np.int64]:
    """Return where bags begin and end, (bags + 1,), from 0 to the number of ids.

    Parameters
    ----------
    shape : of the ids: (bags, length), or (n,) with offsets
    offsets : where each bag begins; with `has_last` one more, the end of the last one

    Raises
    ------
    InvalidArgumentError : any of that does not hold.
    """
    if len(shape) not in (1, 2) or (len(shape) == 1) != (offsets is not None):
        raise InvalidArgumentError(
            f"{what}: expected ids of shape (bags, length), or (n,) and offsets, found {shape} and "
            f"{'no offsets' if offsets is None else 'offsets'}"
        )
    if offsets is None:
        every: NDArray[np.int64] = np.arange(shape[0] + 1, dtype=np.int64) * shape[1]
        return every
    bounds = offsets if has_last else np.append(offsets, shape[0])
    is_whole = offsets.ndim == 1 and len(bounds) and not bounds[0] and bounds[-1] == shape[0]
    if not is_whole or (np.diff(bounds) < 0).any():
        raise InvalidArgumentError(
            f"{what}: expected offsets of one dimension to rise from 0 to the number of ids, "
            f"{shape[0]}, found {offsets.tolist() if offsets.size < 9 else offsets}"
        )
    return bounds.astype(np.int64)


def _factors(weights: Any, shape: tuple[int, ...], mode: str, what: str) -> NDArray[np.float32]:
    """Return a copy of the ids' weights, (n,)."""
    if mode != "sum":
        raise InvalidArgumentError(f'{what}: weights go with mode "sum" only')
    array = np.asarray(weights)
    if array.shape != shape or array.dtype != np.float32 or not np.isfinite(array).all():
        raise InvalidArgumentError(
            f"{what}: expected finite float32 weights of shape {shape}, found {array.dtype} of "
            f"shape {array.shape}"
        )
    return np.array(array).reshape(-1)


def _integers(values: Any, what: str) -> NDArray[Any]:
    array = np.asarray(values)
    if array.dtype not in (np.int32, np.int64):
        found = getattr(values, "dtype", type(values).__name__)
        raise InvalidArgumentError(f"{what}: expected an array of int32 or int64, found {found}")
    return array
