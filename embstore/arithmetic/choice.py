"""Which `unique` and `sum_by_key` runs: those of `sums.py` (NumPy) or `compiled.py` (Numba).

Both give the same bits, so the choice is one of speed alone and nothing else may depend on it. It
is made at the first call, not at import: a client that never sums should not pay for Numba's
import, and one without Numba should not notice. Once made it holds for the process.

`_chosen` is the one global here: the implementation in use, None until a call has needed one. Two
threads that race through the first call both write the same module. Only tests write it
otherwise, with `force`.

Rejected: an environment variable (tests of one process could not run both), and an argument
passed down from the border (it would stand in every signature to select between equal results).
"""

import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal, Protocol, cast

import numpy as np
from numpy.typing import NDArray

from embstore.arrays import Keys, Rows

Name = Literal["numpy", "compiled"]

_MODULES = {"numpy": "embstore.arithmetic.sums", "compiled": "embstore.arithmetic.compiled"}


class Implementation(Protocol):
    """What `sums.py` and `compiled.py` both are; the docstrings of `sums.py` bind both."""

    def unique(self, keys: Keys) -> tuple[Keys, NDArray[np.int32]]:
        """Return the distinct keys in order of first occurrence, and the way back."""

    def sum_by_key(
        self, inverse: NDArray[np.int32], count: int, values: Rows, out: Rows | None = None
    ) -> Rows:
        """Return the rule 2 sum of each id's values."""


_chosen: Implementation | None = None


def implementation(name: Name) -> Implementation:
    """Import and return one implementation.

    Raises
    ------
    ImportError : "compiled", and Numba is absent or refuses this NumPy.
    """
    return cast(Implementation, importlib.import_module(_MODULES[name]))


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
    ImportError : as `implementation`; the choice is as before.
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
