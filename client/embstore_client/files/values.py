"""Ids and rows of other programs, in the forms that tables have: int64 and float32.

Every reader of files brings what it has read through these functions, so that each format takes the
same and refuses the same.

**Ids** are integers of any width. Where a table's rows are given to hash to, they are taken modulo
these, as Python's % does (so -1 is the last row), and more is taken:

    an integer, also as a double or as decimal text    itself: 7, 7.0, "7" and "7.0" are one id
    other text, or bytes                               their first 8 bytes, little-endian, of
                                                       BLAKE2b of 8 bytes over the text in UTF-8
    a missing one: null, NaN, an empty field           0, as in Criteo's TSV

What comes of an id depends on the id alone, not on the type that a file has chosen for its column.

**Rows** are float32. float16 is exact there, float64 is rounded to the nearest.
"""

import re
from hashlib import blake2b
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from embstore.arrays import Keys, Rows
from embstore.errors import InvalidArgumentError

_INT64_MAX = (1 << 63) - 1
_DOUBLE_MAX = 1 << 53
"""From here on a double has not every integer."""
_DECIMAL = re.compile(rb"(0|-?[1-9][0-9]{0,19})(\.0*)?")
_FLOAT_BYTES = 2, 4, 8

Offsets = NDArray[np.int64]


def keys_of(array: NDArray[Any], what: str) -> Keys:
    """Return integers as keys; messages say `what` they are. Raises InvalidArgumentError."""
    if array.dtype.kind not in "iu":
        raise InvalidArgumentError(f"expected {what} of integers, found {array.dtype}")
    if array.dtype == np.uint64 and array.max(initial=0) > _INT64_MAX:
        raise InvalidArgumentError(f"expected {what} below 2**63, found {array.max()}")
    return np.ascontiguousarray(array, np.int64)


def rows_of(array: NDArray[Any], what: str) -> Rows:
    """Return floats as rows; messages say `what` they are. Raises InvalidArgumentError."""
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
                f"expected {what} that float32 can have, found {array[beyond][0]}"
            )
    return rows


def is_list(kind: Any) -> bool:
    """Return whether a column of this Arrow type has a list a row."""
    from pyarrow import types

    return bool(types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind))


def is_ids(kind: Any, *, hashed: bool) -> bool:
    """Return whether a column of this Arrow type has ids, or lists of them."""
    from pyarrow import types

    kind = kind.value_type if is_list(kind) else kind
    kind = kind.value_type if types.is_dictionary(kind) else kind
    is_more = hashed and (types.is_floating(kind) or types.is_null(kind) or _is_text(kind))
    return bool(types.is_integer(kind) or is_more)


def ids_of(array: Any, rows: int | None, place: str) -> tuple[Keys, Offsets | None]:
    """Return the ids of an Arrow array that `is_ids`.

    Parameters
    ----------
    rows : of the table, where ids are hashed to them
    place : of the array, for messages

    Returns
    -------
    ids, and offsets (n + 1,) of the lists; None: it has an id a row

    Raises
    ------
    InvalidArgumentError : an id is missing, or is none; see above.
    """
    from pyarrow import compute, types

    offsets, values = None, array
    if is_list(array.type):
        values = array.flatten()
        lengths = compute.list_value_length(array).fill_null(0).to_numpy(zero_copy_only=False)
        offsets = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])
    if types.is_dictionary(values.type):
        values = values.dictionary_decode()
    if rows is not None:
        return _hashed(values, rows, place), offsets
    missing = values.null_count + (0 if offsets is None else array.null_count)
    if missing:
        raise InvalidArgumentError(
            f"{place}: expected an integer everywhere, found {missing} missing"
        )
    try:
        return keys_of(values.to_numpy(zero_copy_only=False), "ids"), offsets
    except InvalidArgumentError as exc:
        raise InvalidArgumentError(f"{place}: {exc}") from exc


def id_of_text(text: bytes) -> int:
    """Return the id that a text is, before it is taken modulo the rows of a table."""
    if not text:
        return 0
    decimal = _DECIMAL.fullmatch(text)
    if decimal is not None:
        return int(decimal[1])
    return int.from_bytes(blake2b(text, digest_size=8).digest(), "little")


def hash_ids(ids: ArrayLike, rows: int) -> Keys:
    """Return the keys that ids have in a table of so many rows, as `embstore profile --hash-rows`
    takes them; of equal ids the same, others may share one.

    Parameters
    ----------
    ids : of any shape: integers of any width and sign, whole floats, text or bytes; a missing one
        is NaN, None or empty. Lists of several kinds are objects of NumPy.
    rows : of the table

    Returns
    -------
    (...) int64 in [0, rows): integers modulo `rows`, text hashed first, a missing one 0.

    Raises
    ------
    InvalidArgumentError : a float is not whole, or from 2**53 on.
    """
    array = np.asarray(ids)
    if array.dtype.kind in "iuf":
        return _hashed_numbers(array, rows, "ids")
    keys = [id_of_text(_text_of(one)) % rows for one in array.reshape(-1).tolist()]
    return np.array(keys, np.int64).reshape(array.shape)


def _text_of(one: Any) -> bytes:
    """Return the text that has the id of a value."""
    if one is None or one != one:  # NaN
        return b""
    if isinstance(one, float):
        _check_whole(np.array([one]), "ids")
        one = int(one)
    return one if isinstance(one, bytes) else str(one).encode()


def _hashed(values: Any, rows: int, place: str) -> Keys:
    from pyarrow import types

    if _is_text(values.type):
        found = values.dictionary_encode()
        texts = found.dictionary.cast("large_binary").to_pylist()
        of_text = [id_of_text(text) % rows for text in texts]
        indices = found.indices.fill_null(len(of_text)).to_numpy(zero_copy_only=False)
        return keys_of(np.array([*of_text, 0])[indices], "ids")
    if types.is_null(values.type):
        values = values.cast("int64")
    if types.is_integer(values.type):
        values = values.fill_null(0)
    return _hashed_numbers(values.to_numpy(zero_copy_only=False), rows, place)


def _hashed_numbers(numbers: NDArray[Any], rows: int, place: str) -> Keys:
    if numbers.dtype.kind in "iu":
        wide = np.uint64 if numbers.dtype == np.uint64 else np.int64
        return keys_of(numbers.astype(wide) % rows, "ids")
    doubles = np.nan_to_num(numbers.astype(np.float64), nan=0)
    _check_whole(doubles, place)
    return keys_of(doubles.astype(np.int64) % rows, "ids")


def _check_whole(doubles: NDArray[np.float64], place: str) -> None:
    wrong = (doubles != np.floor(doubles)) | (np.abs(doubles) >= _DOUBLE_MAX)
    if wrong.any():
        raise InvalidArgumentError(
            f"{place}: expected whole numbers below 2**53, found {doubles[wrong][0]}"
        )


def _is_text(kind: Any) -> bool:
    from pyarrow import types

    return bool(
        types.is_string(kind)
        or types.is_large_string(kind)
        or types.is_binary(kind)
        or types.is_large_binary(kind)
    )
