"""Arrays at the API's boundary: dtypes, row keys, and the checks that every argument passes.

A **key** is the caller's id of a row in one table: dense keys are ``0 <= key < rows``, sparse keys
are the 64 bits of an int64 or a uint64. A **row key** names a row in a pool of the cache
(`embstore.row_keys`), and in the store's files as ``table_id << 40 | key``. Table ids are never
reused: a row key never has two meanings, not even after a table is dropped and created again.
EMPTY_KEY (-1) names no row.

The checks convert an argument if the conversion loses nothing (lists, other integer dtypes that
fit). They refuse everything else with InvalidArgumentError, above all arguments whose conversion
would hide a mistake: floats as keys, or float64 gradients that would be rounded silently. The
parameter `what` is the name of the argument in error messages.
"""

from typing import Annotated, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from embstore.errors import InvalidArgumentError

KEY_BITS = 40
"""The number of bits of the key in a row key; a table has at most 2**40 rows."""
KEY_MASK = (1 << KEY_BITS) - 1
TABLE_IDS_MAX = 1 << 22
"""All table ids in the life of a store are below this bound, because they index small arrays."""
ROWS_MAX = 1 << KEY_BITS
DIM_MAX = 4096
EMPTY_KEY = np.int64(-1)
SPARSE_ROWS = (1 << 64) - 1
"""The number of rows of a table of sparse keys: any 64 bits are a key, except EMPTY_KEY."""
COUNT_MAX = 2**32 - 1
"""The most accesses that one key of a lookup can stand for. A count has 32 bits on the wire, so
that the sum of a call's counts stays far below 2**63."""


class ArraySpec(NamedTuple):
    """Dtype and dimensions of an array of a command, for sending and checking it."""

    dtype: str
    dimensions: int


Keys = Annotated[NDArray[np.int64], ArraySpec("<i8", 1)]
Rows = Annotated[NDArray[np.float32], ArraySpec("<f4", 2)]
Offsets = Annotated[NDArray[np.int64], ArraySpec("<i8", 1)]
"""Bounds of the bags among the keys of a call, shape (bags + 1,)."""
Factors = Annotated[NDArray[np.float32], ArraySpec("<f4", 1)]
"""The weight of each key of a bag, shape (n,)."""
AccessCounts = Annotated[NDArray[np.uint32], ArraySpec("<u4", 1)]
"""The number of accesses that each key of a lookup stands for, shape (n,)."""
Inverse = Annotated[NDArray[np.uint32], ArraySpec("<u4", 1)]
"""The index of each occurrence among a step's announced keys, shape (n,)."""


def refusal(table: str, expected: str, found: object) -> InvalidArgumentError:
    """Return the error for an argument about a table that is not as expected."""
    return InvalidArgumentError(f"table {table!r}: expected {expected}, found {found}")


def of_other_ids(rows: int | str = "table.rows") -> str:
    """Return the advice that is part of every error about ids that are not keys."""
    advice = "for ids that cannot be keys, pass embstore.hash_ids(keys"
    if rows == SPARSE_ROWS:
        return f"{advice})"
    return f'{advice}, rows={rows}), or make the table with key_space="sparse"'


def refused_gradient(table: str, key: int, gradient: NDArray[np.float32]) -> InvalidArgumentError:
    """Return the error for an update in which the scaled gradient sum of a key is not allowed
    (contract.md, rule 9). The message shows the key as an unsigned number."""
    is_nan = np.isnan(gradient)
    worst = gradient[np.argmax(is_nan if is_nan.any() else np.abs(gradient))]
    expected = "finite gradients, whose squares have a finite sum"
    unsigned = int(key) & (1 << 64) - 1
    found = f'{worst:g} for key {unsigned}; give on_nonfinite="skip" to skip such an update'
    return refusal(table, expected, found)


def as_array(values: Any, table: str, what: str) -> NDArray[Any]:
    """Return `values` as an array in the host's memory, without a copy if possible.

    `what` names the argument in errors. Tensors are recognized by their methods, so that no
    framework is imported.
    """
    if isinstance(values, np.ndarray):
        return values
    if is_on_device(values):
        raise refusal(table, f"{what} in the host's memory", "an array in a device's; copy it")
    if getattr(values, "requires_grad", False):
        found = "a tensor that requires grad; pass its .detach()"
        raise refusal(table, f"{what} that no graph of gradients belongs to", found)
    try:
        return np.asarray(values)
    except (TypeError, ValueError, OverflowError, RuntimeError) as exc:
        if _is_tensor(values):  # sparse, or of a dtype that NumPy lacks, as bfloat16
            found = f"a tensor of {values.dtype}; pass its .float(), dense"
            raise refusal(table, f"{what} that NumPy can read", found) from None
        raise refusal(table, f"{what} to be an array", f"{type(values).__name__}: {exc}") from exc


def _plain(array: NDArray[Any], dtype: type) -> NDArray[Any]:
    """Return an array as kernels need it: C-contiguous and aligned. Such an array is not copied."""
    array = np.ascontiguousarray(array, dtype=dtype)
    return array if array.flags.aligned else array.copy()


def _is_tensor(values: Any) -> bool:
    """Return whether values are a tensor of PyTorch, or behave like one."""
    return hasattr(values, "detach") and hasattr(values, "dtype")


def _of_dtype(values: Any, array: NDArray[Any], dtype: str) -> str:
    """Return the dtype that was found, for an error message.

    The text advises a conversion to `dtype` if the conversion at most rounds the values.
    """
    other = f"; {of_other_ids()}" if dtype == "int64" else ""
    if other and array.dtype.kind in "OSTU":
        return f"{array.dtype}{other}"
    is_whole = dtype != "int64" or _is_whole(array)
    if array.dtype.kind not in "iuf" or not is_whole:
        return str(array.dtype)
    if _is_tensor(values):
        return f"{values.dtype}; pass its .{'long' if dtype == 'int64' else 'float'}(){other}"
    hint = f"; pass its .astype({dtype!r})" if hasattr(values, "astype") else ""
    return f"{array.dtype}{hint}{other}"


def _is_whole(array: NDArray[Any]) -> bool:
    """Return whether an array contains floats, all of them integers of 64 bits."""
    if array.dtype.kind != "f":
        return False
    doubles = array.astype(np.float64)
    return bool(((doubles == np.floor(doubles)) & (np.abs(doubles) < 2.0**63)).all())


def as_keys(keys: Any, table: str) -> Keys:
    """Return (n,) integers as contiguous int64; uint64 integers keep their bits. An array that is
    already contiguous int64 is not copied."""
    if isinstance(keys, list) and all(type(key) is int for key in keys):
        keys = _bits_of(keys)
    array = as_array(keys, table, "keys")
    if array.size == 0 and array.ndim == 1:
        return np.empty(0, np.int64)
    if array.ndim != 1:
        raise refusal(table, "keys of shape (n,)", array.shape)
    if array.dtype.kind not in "iu":
        raise refusal(table, "keys of dtype int64 or uint64", _of_dtype(keys, array, "int64"))
    return _plain(array.view(np.int64) if array.dtype == np.uint64 else array, np.int64)


def _bits_of(keys: list[int]) -> Any:
    """Return integers in a form that NumPy makes int64 or uint64: NumPy would make floats of a list
    that needs both types."""
    low, high = min(keys, default=0), max(keys, default=0)
    if high >> 63 == 0 or high >> 64 or low < -(1 << 63):
        return keys
    return np.array([key & SPARSE_ROWS for key in keys], np.uint64)


def outside(keys: Keys, rows: int, table: str) -> InvalidArgumentError | None:
    """Return the error for the first key that is not below `rows` as an unsigned number; None: all
    keys are below."""
    are_outside = keys.view(np.uint64) >= np.uint64(rows)
    if not are_outside.any():
        return None
    first = int(keys[np.argmax(are_outside)])
    return refusal(table, f"keys in [0, {rows})", f"{first}; {of_other_ids(rows)}")


def as_rows(rows: Any, shape: tuple[int, ...], table: str, what: str) -> Rows:
    """Return float32 or float16 `rows` as a C-contiguous float32 array. Refuse rows of a shape
    other than `shape`."""
    array = as_array(rows, table, what)
    if array.size == 0 and 0 in shape and array.dtype == np.float64:
        array = array.astype(np.float32)  # an empty list has no dtype of its own
    if array.dtype not in (np.float32, np.float16):
        found = _of_dtype(rows, array, "float32")
        raise refusal(table, f"{what} of dtype float32", found)
    if array.shape != shape:
        raise refusal(table, f"{what} of shape {shape}", array.shape)
    return _plain(array, np.float32)


def keys_of(keys: Any, table: str) -> Keys:
    """Return keys as `as_keys` does; keys in a device's memory are returned unchanged."""
    return keys if is_on_device(keys) else as_keys(keys, table)


def rows_of(rows: Any, count: int, table: str, what: str) -> Rows:
    """Return (count, any) rows. Their width is not compared with the width of the table here.

    Rows on a device are returned unchecked; their shape is checked where they are used.
    """
    if is_on_device(rows):
        there: Rows = rows
        return there
    array = as_array(rows, table, what)
    shape = array.shape
    if len(shape) != 2 or shape[0] != count:
        raise refusal(table, f"{what} of shape ({count}, dim)", f"{array.dtype} {shape}")
    return as_rows(rows, (count, shape[1]), table, what)


def length(array: Any) -> int:
    """Return the number of elements of an array, in any memory."""
    if isinstance(array, np.ndarray):
        return array.shape[0] if array.ndim else 0
    return (*shape_of(array), 0)[0]


def as_out(out: Any, shape: tuple[int, ...], table: str) -> Rows:
    """Return the array to write to: `out`, or a new array if `out` is None.

    `out` must be a writable C-contiguous float32 array of `shape`, or a tensor with these
    properties in the host's memory, which is returned as an array that shares the tensor's memory.
    """
    if out is None:
        return np.empty(shape, np.float32)
    array = out
    if _is_tensor(out) and str(out.dtype).endswith("float32"):
        array = as_array(out, table, "out")
    if (
        not isinstance(array, np.ndarray)
        or array.dtype != np.float32
        or array.shape != shape
        or not (array.flags.c_contiguous and array.flags.writeable)
    ):
        expected = f"out to be a writable C-contiguous float32 array of shape {shape}"
        dtype, found = getattr(out, "dtype", type(out).__name__), getattr(out, "shape", "")
        strided = isinstance(array, np.ndarray) and not array.flags.c_contiguous
        how = ", not contiguous" if strided else ""
        raise refusal(table, expected, f"{dtype} {tuple(found) if found else ''}{how}")
    return array


def is_on_device(array: Any) -> bool:
    """Return whether an array is in a device's memory, and not in the host's memory."""
    try:
        return not isinstance(array, np.ndarray) and hasattr(array, "__cuda_array_interface__")
    except MemoryError:
        raise
    except Exception:
        return True  # on a device, though its library fails; code that uses it gets the error


def on_host(array: Any) -> Any:
    """Return a copy on the host of an array in a device's memory, made by the array's library.
    Return any other array unchanged.

    The copy is made after the work of the stream that the library uses in this thread.
    """
    if is_on_device(array):
        for copy in ("get", "cpu", "copy_to_host"):  # methods of CuPy, PyTorch, Numba
            if hasattr(array, copy):
                return getattr(array, copy)()
    return array


def device_address(interface: dict[str, Any], dtype: np.dtype[Any]) -> int:
    """Return the address of the elements of a contiguous array, from its
    `__cuda_array_interface__`.

    Raises InvalidArgumentError if the array has another dtype, has a mask, is not C-contiguous, or
    is not 1-D or 2-D.
    """
    found = np.dtype(interface["typestr"])
    if found != dtype or interface.get("mask") is not None:
        raise InvalidArgumentError(f"expected an array of {dtype} without a mask, found {found}")
    shape = interface["shape"]
    if len(shape) not in (1, 2):
        raise InvalidArgumentError(f"expected one or two dimensions, found shape {shape}")
    strides = interface.get("strides")
    if strides is not None and 0 not in shape:
        row = found.itemsize * (shape[1] if len(shape) == 2 else 1)
        wanted = (row, found.itemsize)[: len(shape)]
        if any(s != w and n > 1 for s, w, n in zip(strides, wanted, shape, strict=True)):
            raise InvalidArgumentError(
                f"expected a C-contiguous array, found strides {strides} of shape {shape}"
            )
    return int(interface["data"][0])


def check_on_host(array: Any, where: str = "") -> None:
    """Refuse an array in a device's memory, because it cannot be sent; `where` begins the
    message."""
    if is_on_device(array):
        raise InvalidArgumentError(
            f"{where}expected arrays of the host, found one in a device's memory, which only an "
            "embedded store takes, or lookups and updates that share the memory of a server's GPU"
        )


def shape_of(array: Any) -> tuple[int, ...]:
    """Return an array's shape, also for an array on a device."""
    if not is_on_device(array):
        return np.shape(array)
    try:
        return tuple(map(int, array.__cuda_array_interface__["shape"]))
    except Exception as exc:  # any error of its library
        raise InvalidArgumentError(f"expected an array that can be read: {exc}") from exc


def as_counts(counts: Any, key_count: int, table: str) -> AccessCounts:
    """Return the number of accesses, 1 to COUNT_MAX, of each key: (key_count,) uint32."""
    expected = (
        f"table {table!r}: expected counts of shape ({key_count},), integers from 1 to {COUNT_MAX}"
    )
    try:
        array = np.asarray(counts)
    except (TypeError, ValueError, OverflowError) as exc:
        raise InvalidArgumentError(f"{expected}: {exc}") from exc
    if array.shape != (key_count,) or (key_count and array.dtype.kind not in "iu"):
        raise InvalidArgumentError(f"{expected}, found {array.dtype} {array.shape}")
    wrong = array[(array < 1) | (array > COUNT_MAX)]
    if len(wrong):
        raise InvalidArgumentError(f"{expected}, found {wrong[0]}")
    return array.astype(np.uint32, copy=False)


def as_offsets(offsets: Any, key_count: int, table: str) -> NDArray[np.int64]:
    """Return bag bounds as (bags + 1,) int64: first 0, last `key_count`, never decreasing."""
    array = as_array(offsets, table, "offsets")
    if array.ndim != 1 or array.shape[0] < 1 or array.dtype.kind not in "iu":
        found = f"{array.dtype} {array.shape}"
        raise refusal(table, "offsets of shape (bags + 1,), int64", found)
    array = _plain(array, np.int64)
    if array[0] != 0 or array[-1] != key_count or (array[1:] < array[:-1]).any():
        expected = f"offsets to rise from 0 to the number of keys ({key_count})"
        raise refusal(table, expected, f"{array[0]} to {array[-1]}")
    return array


def as_pair(pair: Any, table: str) -> tuple[Any, Any]:
    """Return the two parts of (keys, gradients), or of (weights, state)."""
    if not isinstance(pair, tuple | list) or len(pair) != 2:
        raise refusal(table, "a pair of arrays", type(pair).__name__)
    return pair[0], pair[1]


def fp32_scalar(value: Any, name: str, *, minimum: float | None = 0.0) -> float:
    """Return `value` as a float that is finite in fp32 and at least `minimum`."""
    if type(value) is float and value == 1.0:  # the scale of most updates
        return value
    try:
        if isinstance(value, str | bytes):
            raise TypeError("text")
        number = float(value)
    except (TypeError, ValueError, OverflowError) as exc:
        raise InvalidArgumentError(f"expected {name} to be a number, found {value!r}") from exc
    with np.errstate(over="ignore"):
        finite = bool(np.isfinite(np.float32(number)))
    if not finite or (minimum is not None and number < minimum):
        bound = "" if minimum is None else f" and >= {minimum:g}"
        raise InvalidArgumentError(f"expected {name} to be finite in fp32{bound}, found {value!r}")
    return number
