"""Which versions of `unique`, `sum_by_key`, `update_rows` and `by_shard` run: NumPy's, in
`sums.py`, `optimizers.py` and `partitions.py`, or Numba's, in the modules whose names begin with
`compiled`.

The two versions give the same bits, so the choice affects speed alone, and no other code may depend
on it. The choice is made at the first call, not at import: a client that never sums should not wait
for the import of Numba, and a client without Numba should work as well. After that the choice holds
for the process.

`_chosen` is the only global variable here: the implementation in use, None before the first call.
If two threads make the first call at the same time, both write the same functions to it. Otherwise
only tests write the variable, with `force`.

Rejected: an environment variable, because the tests of one process could not run both versions; and
an argument that the public functions pass down, because it would be in every signature only to
choose between equal results.
"""

import importlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from embstore.arrays import Keys, Rows

Name = Literal["numpy", "compiled"]

_MODULES = {
    "numpy": ("sums", "optimizers", "partitions"),
    "compiled": ("compiled", "compiled_update", "compiled_partitions"),
}
"""The modules with sums, with updates, and with the distribution of keys to shards."""


class _SumByKey(Protocol):
    def __call__(
        self, inverse: NDArray[np.int32], count: int, values: Rows, out: Rows | None = None
    ) -> Rows: ...


_ByShard = Callable[
    [int, Keys, NDArray[np.int32], int, str],
    tuple[NDArray[np.int32], NDArray[np.int64], NDArray[np.int32]],
]


class Implementation(NamedTuple):
    """The functions that exist in both versions; NumPy's docstrings apply to both."""

    unique: Callable[[Keys], tuple[Keys, NDArray[np.int32]]]
    """Return the distinct keys in order of first occurrence, and the index of each key in the
    distinct keys."""
    sum_by_key: _SumByKey
    """Return the sum of the values of each id, by rule 2 of the contract."""
    update_rows: Callable[[str, Rows, Rows, Keys, Rows, Any], None]
    """Apply one update to the rows of distinct slots."""
    by_shard: _ByShard
    """Return the shard of each key, and the keys' positions by shard."""


_chosen: Implementation | None = None


def implementation(name: Name) -> Implementation:
    """Import and return one implementation.

    Raises
    ------
    ImportError : `name` is "compiled", and Numba is not installed or refuses this NumPy.
    """
    modules = (importlib.import_module(f"embstore.arithmetic.{m}") for m in _MODULES[name])
    sums, updates, shards = modules
    return Implementation(sums.unique, sums.sum_by_key, updates.update_rows, shards.by_shard)


def _in_use() -> Implementation:
    global _chosen
    if _chosen is None:
        try:
            _chosen = implementation("compiled")
        except ImportError:
            _chosen = implementation("numpy")
    return _chosen


@contextmanager
def force(name: Name) -> Iterator[None]:
    """Make the whole process use one implementation inside a with block. For tests.

    Raises
    ------
    ImportError : as for `implementation`; the choice does not change.
    """
    global _chosen
    before = _chosen
    _chosen = implementation(name)
    try:
        yield
    finally:
        _chosen = before


def unique(keys: Keys) -> tuple[Keys, NDArray[np.int32]]:
    """`sums.unique`, by the implementation in use."""
    return _in_use().unique(keys)


def sum_by_key(
    inverse: NDArray[np.int32], count: int, values: Rows, out: Rows | None = None
) -> Rows:
    """`sums.sum_by_key`, by the implementation in use."""
    return _in_use().sum_by_key(inverse, count, values, out)


def update_rows(
    kind: str, weights: Rows, state: Rows, slots: Keys, gradients: Rows, scalars: Any
) -> None:
    """`optimizers.update_rows`, by the implementation in use."""
    _in_use().update_rows(kind, weights, state, slots, gradients, scalars)


def by_shard(
    seed: int, keys: Keys, owners: NDArray[np.int32], count: int, key_space: str
) -> tuple[NDArray[np.int32], NDArray[np.int64], NDArray[np.int32]]:
    """`partitions.by_shard`, by the implementation in use."""
    return _in_use().by_shard(seed, keys, owners, count, key_space)
