"""Converts ids and rows of other programs to the types of tables: int64 and float32.

Every reader of files passes its ids and rows through these functions, so that all formats accept
and refuse the same values.

**Ids** are integers of any width. If they are hashed to a table's rows (`embstore.hash_ids`, with
the table's name as the feature), then text, bytes, whole floats and missing values are ids too.

**Rows** are float32. float16 is converted exactly; float64 is rounded to the nearest float32.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embstore.arrays import Keys, Rows
from embstore.errors import InvalidArgumentError

_INT64_MAX = (1 << 63) - 1
_FLOAT_BYTES = 2, 4, 8

Offsets = NDArray[np.int64]
Hashing = Callable[[Any], Keys]
"""Makes keys from an array of ids of any kind."""


def keys_of(array: NDArray[Any], what: str, *, are_sparse: bool = False) -> Keys:
    """Return integers as keys; errors name them by `what`. For sparse keys, uint64 becomes int64
    with the same bits. Raises InvalidArgumentError if they are no keys."""
    if array.dtype.kind not in "iu":
        raise no_keys(f"{what} of integers", array.dtype)
    if are_sparse and array.dtype == np.uint64:
        array = array.view(np.int64)
    if array.dtype == np.uint64 and array.max(initial=0) > _INT64_MAX:
        raise no_keys(f"{what} below 2**63", array.max())
    return np.ascontiguousarray(array, np.int64)


def no_keys(expected: str, found: object) -> InvalidArgumentError:
    """Return the error for ids that are no keys, with advice on hashing them."""
    return InvalidArgumentError(
        f"expected {expected}, found {found}; to hash other ids to keys, give an import "
        'ids="hash" (--ids hash), and a profile --hash-rows'
    )


def rows_of(array: NDArray[Any], what: str) -> Rows:
    """Return floats as rows; errors name them by `what`. Raises InvalidArgumentError if they are no
    rows."""
    if array.dtype.kind != "f" or array.dtype.itemsize not in _FLOAT_BYTES:
        raise InvalidArgumentError(
            f"expected {what} of float32, float16 or float64, found {array.dtype}"
        )
    with np.errstate(over="ignore"):
        rows = array.astype(np.float32, copy=False)
    if array.dtype.itemsize > rows.itemsize:
        beyond = np.isinf(rows) & ~np.isinf(array)
        if beyond.any():
            raise InvalidArgumentError(
                f"expected {what} within the range of float32, found {array[beyond][0]}"
            )
    return rows


def is_list(kind: Any) -> bool:
    """Return whether a column of this Arrow type has a list in each row."""
    from pyarrow import types

    return bool(types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind))


def is_ids(kind: Any, *, hashed: bool) -> bool:
    """Return whether a column of this Arrow type contains ids, or lists of ids. `hashed`: ids that
    are not integers count too."""
    from pyarrow import types

    kind = kind.value_type if is_list(kind) else kind
    kind = kind.value_type if types.is_dictionary(kind) else kind
    is_more = hashed and (types.is_floating(kind) or types.is_null(kind) or _is_text(kind))
    return bool(types.is_integer(kind) or is_more)


def ids_of(array: Any, hashed: Hashing | None, place: str) -> tuple[Keys, Offsets | None]:
    """Return the ids of an Arrow array for which `is_ids` is true.

    Parameters
    ----------
    hashed : makes keys from the ids. None: the ids are integers, and are returned unchanged
    place : the array's name, for messages

    Returns
    -------
    the ids, and the offsets of the lists, (n + 1,), or None if each row has one id

    Raises
    ------
    InvalidArgumentError : an id is missing, or is of a kind that this module does not accept.
    """
    from pyarrow import compute, types

    offsets, values = None, array
    if is_list(array.type):
        values = array.flatten()
        lengths = compute.list_value_length(array).fill_null(0).to_numpy(zero_copy_only=False)
        offsets = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])
    missing = values.null_count + (0 if offsets is None else array.null_count)
    if missing and hashed is None:
        raise InvalidArgumentError(
            f"{place}: expected an integer everywhere, found {missing} missing"
        )
    try:
        if hashed is not None:
            return hashed(values), offsets
        if types.is_dictionary(values.type):
            values = values.dictionary_decode()
        return keys_of(values.to_numpy(zero_copy_only=False), "ids"), offsets
    except InvalidArgumentError as exc:
        raise InvalidArgumentError(f"{place}: {exc}") from exc


def _is_text(kind: Any) -> bool:
    from pyarrow import types

    return bool(
        types.is_string(kind)
        or types.is_large_string(kind)
        or types.is_binary(kind)
        or types.is_large_binary(kind)
    )
