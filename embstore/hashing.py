"""Hashes of ids of any kind: 64-bit numbers that are the same in every language (contract.md,
"Hashed ids").

Values can be arrays of NumPy, Arrow or a framework, lists, or series of pandas and polars. This
module converts the values to bytes in one buffer, or to 64-bit words, as the contract specifies;
`embstore.arithmetic.xxh3` hashes all bytes or words at once. The library of a value is loaded
already, because the value exists. The only other library that is imported is pyarrow, for values
that can export themselves as Arrow arrays.
"""

import sys
from collections.abc import Sequence, Sized
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embstore.arithmetic.xxh3 import Words, hashes_of_bytes, hashes_of_words
from embstore.arrays import ROWS_MAX, SPARSE_ROWS
from embstore.config import default_seed
from embstore.errors import InvalidArgumentError

_RESERVED = np.uint64(2**64 - 1)
"""No id has this hash: as int64 it is -1, which stands for no key."""
_INSTEAD = np.uint64(0)
_FLOAT_BYTES = 2, 4, 8
_EXPECTED = "expected ids to be integers of 64 bits, whole floats, text or bytes"


def hash_ids(
    values: Any, *, feature: str | None = None, rows: int | None = None
) -> NDArray[np.int64]:
    """Return the hash of each id (XXH3-64 of its bytes), or, with `rows`, its key in a table of
    that size.

    Equal ids have equal hashes in every process and language. Two integers never have the same
    64-bit hash under one seed; two texts hardly ever do. Modulo `rows`, two ids can share a key.

    Parameters
    ----------
    values : ids, of any shape: integers of up to 64 bits, signed or unsigned; text, whose UTF-8 is
        hashed; or bytes. `values` can be an array of NumPy, of a framework on the host, or of
        pyarrow (also chunked or dictionary-encoded); a series of pandas or polars; or a list, also
        with values of several kinds. The values 5, np.uint64(5) and 5.0 are the same id; the text
        "5" is another id. An integer is hashed as its 8 bytes. Therefore -1 and 2**64 - 1 are the
        same id, and so are an integer and a text that consists of these 8 bytes. A missing value
        (None, NaN, NA, null, masked) is hashed as empty text
    feature : name of a feature. The seed of the hash is the default seed of a table of this name,
        so that each pair (feature, id) has its own hash. None: seed 0
    rows : number of rows of the table, 1 to 2**40; None, or 2**64 - 1 as for a sparse table: all 64
        bits of the hash are kept

    Returns
    -------
    An array in the shape of `values`. Without `rows`: int64 with the bits of the hash, about half
    of them negative; a hash of -1 is replaced by 0. With `rows`: int64 in [0, rows), the unsigned
    hash modulo `rows`.

    Raises
    ------
    InvalidArgumentError : a value is of another kind, such as a bool, a date or a list; an integer
        has more than 64 bits; a float is not whole, or is so large that its type cannot represent
        odd integers.
    """
    if feature is not None and not isinstance(feature, str):
        raise InvalidArgumentError(f"expected feature to be a name, found {feature!r}")
    hashes = _hashes(values, 0 if feature is None else default_seed(feature))
    hashes[hashes == _RESERVED] = _INSTEAD
    found = hashes.view(np.int64)
    return found if rows is None else keys_of_hashes(found, _checked_rows(rows))


def keys_of_hashes(hashes: NDArray[np.int64], rows: int) -> NDArray[np.int64]:
    """Return the keys of 64-bit hashes in a table of `rows` rows, in the shape of the hashes."""
    return (hashes.view(np.uint64) % np.uint64(rows)).view(np.int64)


def _checked_rows(rows: Any) -> int:
    is_int = isinstance(rows, int | np.integer) and not isinstance(rows, bool)
    if not is_int or not (1 <= rows <= ROWS_MAX or rows == SPARSE_ROWS):
        raise InvalidArgumentError(f"expected rows from 1 to {ROWS_MAX}, found {rows!r}")
    return int(rows)


def _hashes(values: Any, seed: int) -> Words:
    """Return the hashes of values, in the shape of the values."""
    if hasattr(values, "__arrow_c_array__") or hasattr(values, "__arrow_c_stream__"):
        found = _of_arrow_like(values, seed)
        if found is not None:
            return found
    array = _array(values)
    hashes = _of_array(array.reshape(-1), seed).reshape(array.shape)
    if isinstance(values, np.ma.MaskedArray):
        hashes[np.ma.getmaskarray(values)] = _of_missing(seed)
    return hashes


def _array(values: Any) -> NDArray[Any]:
    """Return values as an array. Values without a dtype become objects, so that each value keeps
    its type."""
    if isinstance(values, np.ndarray):
        return np.asarray(values)
    try:
        return np.asarray(values) if hasattr(values, "dtype") else np.array(values, object)
    except (TypeError, ValueError, RuntimeError) as exc:  # on a device, or NumPy lacks its dtype
        raise InvalidArgumentError(f"{_EXPECTED}, found {type(values).__name__}: {exc}") from exc


def _of_array(array: NDArray[Any], seed: int) -> Words:
    """Return the hashes of an array of one dimension."""
    kind = array.dtype.kind
    if kind in "iu":
        return hashes_of_words(array.astype(np.int64 if kind == "i" else np.uint64), seed)
    if kind == "f" and array.dtype.itemsize in _FLOAT_BYTES:
        return _of_floats(array, seed)
    if kind == "U":
        array = np.strings.encode(array, "utf-8")
    if array.dtype.kind == "S":
        return _of_fixed_widths(array, seed)
    if kind not in "OT":
        raise InvalidArgumentError(f"{_EXPECTED}, found {array.dtype}")
    return _of_objects(array.tolist(), seed)


def _of_floats(floats: NDArray[Any], seed: int) -> Words:
    missing = np.isnan(floats)
    hashes = hashes_of_words(_whole(np.where(missing, 0, floats)), seed)
    hashes[missing] = _of_missing(seed)
    return hashes


def _whole(floats: NDArray[Any]) -> NDArray[np.int64]:
    """Return floats as integers. Refuse floats that are not whole, or that are so large that their
    type cannot represent odd integers."""
    bits = np.finfo(floats.dtype).nmant + 1
    wrong = (floats != np.floor(floats)) | (np.abs(floats) >= 2.0**bits)
    if wrong.any():
        raise InvalidArgumentError(
            f"expected ids of {floats.dtype} to be whole numbers below 2**{bits}, found "
            f"{floats[wrong][0]}"
        )
    return floats.astype(np.int64)


def _of_fixed_widths(array: NDArray[np.bytes_], seed: int) -> Words:
    width = array.dtype.itemsize
    data = np.ascontiguousarray(array).view(np.uint8) if width else np.empty(0, np.uint8)
    return hashes_of_bytes(data, np.arange(len(array)) * width, np.strings.str_len(array), seed)


def _of_missing(seed: int) -> np.uint64:
    """Return the hash of a missing value, which is the hash of zero bytes."""
    zero = np.zeros(1, np.int64)
    return np.uint64(hashes_of_bytes(np.empty(0, np.uint8), zero, zero, seed)[0])


# Objects of Python


def _of_objects(values: list[Any], seed: int) -> Words:
    kinds = set(map(type, values))
    try:
        if kinds == {int}:
            return hashes_of_words(np.array(values, np.int64), seed)
        if kinds == {str} and (whole := "".join(values)).isascii():
            return _of_texts(whole.encode(), values, seed)
    except OverflowError:  # 2**63 or more; `_bytes_of` refuses more than 64 bits
        pass
    texts = list(map(_bytes_of, values))
    return _of_texts(b"".join(texts), texts, seed)


def _of_texts(whole: bytes, parts: Sequence[Sized], seed: int) -> Words:
    """Return the hash of each of the consecutive parts of `whole`, which have the lengths of
    `parts`."""
    lengths = np.fromiter(map(len, parts), np.int64, len(parts))
    data = np.frombuffer(whole, np.uint8)
    return hashes_of_bytes(data, np.cumsum(lengths) - lengths, lengths, seed)


def _bytes_of(value: Any) -> bytes:
    """Return the bytes that are hashed for a value."""
    try:
        match value:
            case str():
                return value.encode()
            case bytes():
                return value
            case bool() | np.bool_():
                pass
            case int() | np.integer():
                return int(value).to_bytes(8, "little", signed=bool(value < 0))
            case float() | np.floating():
                return b"" if np.isnan(value) else _whole(np.array([value], float)).tobytes()
            case _ if _is_missing(value):
                return b""
    except (OverflowError, UnicodeEncodeError) as exc:
        raise InvalidArgumentError(f"{_EXPECTED}, found {value!r}: {exc}") from exc
    raise InvalidArgumentError(f"{_EXPECTED}, found {value!r} of type {type(value).__name__}")


def _is_missing(value: Any) -> bool:
    """Return whether a value is a missing value of Python or pandas."""
    pandas: Any = sys.modules.get("pandas")  # if `value` is of pandas, pandas is loaded
    return value is None or (pandas is not None and (value is pandas.NA or value is pandas.NaT))


# Arrow


def _of_arrow_like(values: Any, seed: int) -> Words | None:
    """Return the hashes of an object that can export itself as Arrow arrays.

    Return None if pyarrow is not installed, or has no type for the object's values, for example
    because they are of several kinds.
    """
    try:
        import pyarrow as pa
    except ModuleNotFoundError:
        return None
    if isinstance(values, pa.ChunkedArray | pa.Array):
        whole = values
    else:
        try:
            whole = pa.chunked_array(values)
        except (pa.ArrowException, TypeError, OverflowError):
            return None
    chunks = whole.chunks if isinstance(whole, pa.ChunkedArray) else [whole]
    parts = [_of_arrow(chunk, seed) for chunk in chunks]
    return parts[0] if len(parts) == 1 else np.concatenate([*parts, np.empty(0, np.uint64)])


def _of_arrow(array: Any, seed: int) -> Words:
    from pyarrow import types

    kind = array.type
    if types.is_dictionary(kind):
        of_values = np.append(_of_arrow(array.dictionary, seed), _of_missing(seed))
        indices = array.indices.cast("int64").fill_null(len(array.dictionary))
        found: Words = of_values[indices.to_numpy()]
        return found
    if types.is_null(kind):
        array = array.cast("string")
    if types.is_integer(kind):
        hashes = _of_array(array.fill_null(0).to_numpy(zero_copy_only=False), seed)
    elif types.is_floating(kind):
        return _of_floats(array.to_numpy(zero_copy_only=False), seed)
    else:
        return _of_arrow_text(array, seed)
    if array.null_count:
        hashes[array.is_null().to_numpy(zero_copy_only=False)] = _of_missing(seed)
    return hashes


def _of_arrow_text(array: Any, seed: int) -> Words:
    """Return the hashes of text or bytes, without copying the text."""
    from pyarrow import lib

    try:
        array = array.cast("large_binary")
    except lib.ArrowException as exc:
        raise InvalidArgumentError(f"{_EXPECTED}, found {array.type}") from exc
    _, offsets, data = array.buffers()
    bounds = np.frombuffer(offsets, np.int64)[array.offset : array.offset + len(array) + 1]
    lengths = np.diff(bounds)
    if array.null_count:
        lengths[array.is_null().to_numpy(zero_copy_only=False)] = 0
    values = np.empty(0, np.uint8) if data is None else np.frombuffer(data, np.uint8)
    return hashes_of_bytes(values, bounds[:-1], lengths, seed)
