"""Ids in arrays of several shapes, split into keys and bags.

    (bags, length)               bags of one length
    (bags,)                      bags of one id
    (ids, offsets, weights)      (n,), (bags,), (n,): bag b is ids[offsets[b]:offsets[b + 1]]; or
                                 (bags, length), None, (bags, length)
    any shape                    a row for each id, of a table that is `Ids`

Ids are keys, or are hashed to keys if the table has ids="hash". Ids that are hashed can be text,
also in lists. For sparse keys, an id of uint64 is the int64 of the same bits. Padding is left out
(`padding`), so an array of one fixed shape, which compilers require, can contain any number of ids.
A weighted mean becomes a weighted sum here: weights are divided by their bag's total.

The result is a copy in host memory, so a trainer can overwrite its arrays before `step`.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from embstore.arithmetic import bag_gradients, pool_rows
from embstore.arithmetic.denormals import kept
from embstore.arrays import Keys, Rows
from embstore.errors import InvalidArgumentError
from embstore_client.frameworks.padding import is_id, offsets_without
from embstore_client.frameworks.rows import Found
from embstore_client.frameworks.tables import Bag, FeatureLookup, Ids, by_feature, refused_ids

K = TypeVar("K", bound="HasKeys")


class Occurrences(NamedTuple):
    """The ids of one feature in one forward. An output is a bag, or the row of one id."""

    table: str
    keys: Keys
    """The keys of all ids, (n,), in order, without padding."""
    offsets: NDArray[np.int64] | None
    """The indices at which the ids of each output begin, (outputs + 1,), from 0 to n. None: each
    output has one id."""
    weights: NDArray[np.float32] | None
    """The weight of each id, (n,), or None."""
    mode: str
    """How the rows of an output are pooled."""
    shape: tuple[int, ...]
    """The shape of the outputs, without dim: (bags,), or, if ids are not pooled, the shape of the
    ids."""
    is_single: bool
    """Whether the shape of the given ids implies that no output has more than one id."""

    def pooled(self, rows: Rows) -> Rows:
        """Return the outputs, (*shape, dim), from the rows of the keys, (n, dim), by rule 8 of
        contract.md."""
        if self.offsets is not None:
            mode: Any = self.mode
            rows = pool_rows(rows, self.offsets, mode, self.weights)
        return rows.reshape(*self.shape, rows.shape[-1])

    def by_key(self, gradients: Rows) -> Rows:
        """Return the gradient of each key, (n, dim), from gradients of outputs, (outputs, dim)."""
        if self.offsets is None:
            return gradients
        mode: Any = self.mode
        return bag_gradients(gradients, self.offsets, mode, self.weights)

    def without_padding(self, padding_idx: int | None) -> Self:
        """Return these ids without their padding."""
        are_ids = is_id(self.keys, padding_idx)
        if are_ids.all():
            return self
        return self._replace(
            keys=self.keys[are_ids],
            offsets=offsets_without(self.offsets, are_ids),
            weights=None if self.weights is None else self.weights[are_ids],
        )

    def as_sum(self) -> Self:
        """Return a weighted mean as an equivalent weighted sum; return any other mode as it is."""
        if self.mode != "mean" or self.weights is None or self.offsets is None:
            return self
        return self._replace(mode="sum", weights=shares_of(self.weights, self.offsets))

    @property
    def counts(self) -> NDArray[np.int64]:
        """The number of ids of each output; only with `offsets`."""
        assert self.offsets is not None
        return np.diff(self.offsets)


def totals_of(weights: NDArray[np.float32], offsets: NDArray[np.int64]) -> NDArray[np.float32]:
    """Return the sum of the weights of each bag, (bags,), added by rule 2 of the contract."""
    return pool_rows(weights[:, None], offsets)[:, 0]


@kept
def shares_of(weights: NDArray[np.float32], offsets: NDArray[np.int64]) -> NDArray[np.float32]:
    """Return weights (n,), each divided by the total of its bag, or by 1 if the total is 0."""
    totals = totals_of(weights, offsets)
    shares: NDArray[np.float32] = weights / np.repeat(
        np.where(totals == 0, np.float32(1), totals), np.diff(offsets)
    )
    return shares


Given = Mapping[str, Occurrences]
"""The input of one forward: the ids of every lookup by the lookup's name, in the order of the
lookups."""


class HasKeys(Protocol):
    """The ids of one lookup in one forward, in any framework's form."""

    @property
    def table(self) -> str:
        """The table's name."""

    @property
    def keys(self) -> Any:
        """The keys of all ids, (n,), in order."""


def given_of(lookups: Sequence[FeatureLookup], features: Any) -> Given:
    """Return the ids of every lookup from a mapping; the mapping may contain other features too.

    Raises
    ------
    InvalidArgumentError : `features` is no mapping; or a feature is missing, or has a wrong shape
        or dtype.
    """
    return {
        name: occurrences(table, value, f"feature {name!r}")
        for name, table, value in by_feature(lookups, features)
    }


def by_table(*forwards: Mapping[str, K]) -> dict[str, list[K]]:
    """Return, for each table, the ids of the lookups in these forward passes, in the order of the
    passes."""
    found: dict[str, list[K]] = {}
    for given in forwards:
        for of in given.values():
            found.setdefault(of.table, []).append(of)
    return found


def keys_by_table(*forwards: Mapping[str, HasKeys]) -> dict[str, Keys]:
    """Return, for each table, the keys that these forward passes looked up. A key can occur several
    times."""
    parts = {name: [of.keys for of in of_table] for name, of_table in by_table(*forwards).items()}
    return {n: np.asarray(p[0]) if len(p) == 1 else np.concatenate(p) for n, p in parts.items()}


def places(given: Mapping[str, K]) -> Iterator[tuple[str, K, slice]]:
    """Yield each lookup's name, its ids, and the slice that they occupy among the keys of their
    table."""
    ends: dict[str, int] = {}
    for name, of in given.items():
        begin = ends.get(of.table, 0)
        ends[of.table] = begin + len(of.keys)
        yield name, of, slice(begin, ends[of.table])


def pooled(given: Given, found: Mapping[str, Found]) -> dict[str, Rows]:
    """Return the outputs of each lookup, (*, dim), from the rows of `keys_by_table`."""
    return {name: of.pooled(found[of.table].of(place)) for name, of, place in places(given)}


def occurrences(table: Ids, value: Any, what: str) -> Occurrences:
    """Return the ids of a feature of a table; errors name the feature by `what`.

    Raises
    ------
    InvalidArgumentError : the value has a wrong shape or dtype.
    """
    if not isinstance(value, tuple):
        value = (value,)
    elif not isinstance(table, Bag) or not 1 <= len(value) <= 3:
        raise InvalidArgumentError(
            f"{what}: expected ids, or (ids, offsets, weights) for a Bag, found {len(value)} arrays"
        )
    ids, offsets, weights = (*value, None, None)[:3]
    ids = table.hashed(ids) if table.hashes else _keys(table, ids, f"{what}: ids")
    is_single = not isinstance(table, Bag) or (
        ids.ndim == 1 and offsets is None and weights is None
    )
    if offsets is not None:
        offsets = _integers(offsets, f"{what}: offsets")
    bounds = (
        np.arange(ids.size + 1, dtype=np.int64)
        if is_single
        else bounds_of(ids.shape, offsets, what)
    )
    shape = ids.shape if is_single else (len(bounds) - 1,)
    mode = table.mode if isinstance(table, Bag) else "sum"
    factors = None if weights is None else _factors(weights, ids.shape, what)
    keys = np.array(ids, np.int64).reshape(-1)
    whole = Occurrences(table.name, keys, bounds, factors, mode, shape, is_single)
    found = whole.without_padding(table.padding_key).as_sum()
    is_plain = factors is None and bool((found.counts == 1).all())
    return found._replace(offsets=None) if is_plain else found


def bounds_of(
    shape: tuple[int, ...], offsets: NDArray[Any] | None, what: str, *, has_last: bool = False
) -> NDArray[np.int64]:
    """Return the indices at which bags begin and end, (bags + 1,), from 0 to the number of ids.

    Parameters
    ----------
    shape : shape of the ids: (bags, length), or (n,) with offsets
    offsets : the index at which each bag begins; with `has_last` one more entry, the end of the
        last bag

    Raises
    ------
    InvalidArgumentError : an argument is wrong.
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


def _factors(weights: Any, shape: tuple[int, ...], what: str) -> NDArray[np.float32]:
    """Return a copy of the ids' weights, (n,)."""
    array = np.asarray(weights)
    if array.shape != shape or array.dtype != np.float32 or not np.isfinite(array).all():
        raise InvalidArgumentError(
            f"{what}: expected finite float32 weights of shape {shape}, found {array.dtype} of "
            f"shape {array.shape}"
        )
    return np.array(array).reshape(-1)


def _keys(table: Ids, values: Any, what: str) -> NDArray[Any]:
    array = np.asarray(values)
    if table.is_sparse and array.dtype == np.uint64:
        return array.view(np.int64)
    if array.dtype not in (np.int32, np.int64):
        raise refused_ids(what, "an array of int32 or int64", values)
    return array


def _integers(values: Any, what: str) -> NDArray[Any]:
    array = np.asarray(values)
    if array.dtype not in (np.int32, np.int64):
        found = getattr(values, "dtype", type(values).__name__)
        raise InvalidArgumentError(f"{what}: expected an array of int32 or int64, found {found}")
    return array
