"""Checks of profiles and hot sets. Values from a caller and values from a file pass the same
checks.

Each check raises InvalidArgumentError with the expected and the found value.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from embstore.arrays import EMPTY_KEY, Keys
from embstore.errors import InvalidArgumentError

INT64_MAX = (1 << 63) - 1


def check(is_so: object, expected: str, found: object, where: str = "") -> None:
    """Raise unless `is_so` is true."""
    if not is_so:
        raise InvalidArgumentError(f"{where}expected {expected}, found {found}")


def check_name(name: object, what: str) -> None:
    """Raise unless `name` is a string that is not empty."""
    check(isinstance(name, str) and bool(name), f"{what} to have a name", repr(name))


def check_names(names: Any, what: str, one: str) -> None:
    """Raise unless `names` is a tuple of names."""
    check(isinstance(names, tuple), f"{what} to be a tuple", type(names).__name__)
    for name in names:
        check_name(name, one)


def check_int(value: object, what: str, *, low: int = 0, high: int = INT64_MAX) -> None:
    """Raise unless `value` is an integer from `low` to `high`."""
    is_so = isinstance(value, int) and not isinstance(value, bool) and low <= value <= high
    check(is_so, f"{what} to be an integer from {low} to {high}", repr(value))


def check_rate(rate: Any, what: str) -> None:
    """Raise unless `rate` is above 0 and at most 1."""
    is_number = isinstance(rate, int | float) and not isinstance(rate, bool)
    check(is_number and 0 < rate <= 1, f"{what} above 0 and at most 1", repr(rate))


def check_array(
    values: object,
    what: str,
    *,
    least: int = -INT64_MAX - 1,
    dtype: type[np.integer[Any]] = np.int64,
    ndim: int = 1,
) -> None:
    """Raise unless `values` is an array of `dtype` with `ndim` dimensions, and all values are >=
    `least`."""
    expected = f"{what} of dtype {np.dtype(dtype)} and {ndim} dimension(s)"
    if not isinstance(values, np.ndarray):
        raise InvalidArgumentError(f"expected {expected}, found {type(values).__name__}")
    is_so = values.dtype == dtype and values.ndim == ndim
    check(is_so, expected, f"{values.dtype} {values.shape}")
    found = values.min(initial=least)
    check(found >= least, f"{what} of at least {least}", found)


def check_keys(keys: Any, what: str) -> None:
    """Raise unless `keys` is an array (n,) of int64 without -1, which is no key of any table."""
    check_array(keys, what)
    is_none = (keys == EMPTY_KEY).any()
    check(not is_none, f"{what} that are not -1 (2**64 - 1), which is no key", "it")


def check_lengths(what: str, **arrays: NDArray[Any]) -> None:
    """Raise unless all arrays have the same length."""
    lengths = {name: len(values) for name, values in arrays.items()}
    check(len(set(lengths.values())) == 1, f"{what}: arrays of one length", lengths)


def check_below(values: NDArray[Any], bound: int, what: str) -> None:
    """Raise unless all values are below `bound`."""
    if values.size:
        check(values.max() < bound, f"{what} below {bound}", values.max())


def ascends(keys: Keys) -> bool:
    """Return whether keys ascend as int64, without repeats."""
    return bool((keys[1:] > keys[:-1]).all())
