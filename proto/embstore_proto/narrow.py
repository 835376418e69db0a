"""float32 values in two bytes each, as float16 or bfloat16, for links that are slower than the
machine.

    float16    10 bits of fraction, values to 65504: usual for trainers in mixed precision
    bfloat16   7 bits of fraction, values to 3.39e38: the upper half of a float32

Rounding is to nearest, ties to even, including subnormals. A value beyond the largest finite one
becomes infinity, as in IEEE 754; a NaN stays a NaN of the same sign. Widening is exact. So both
ends of a link get the same bits, whichever library computes them.

NumPy has no bfloat16, so its bits are stored as uint16. To round a float32 to its upper half, its
bits, read as an integer, are increased by half of the range of the lower bits, minus one if the
lowest remaining bit is 0. A carry increases the exponent and, beyond the largest value, gives
infinity, as it should. A carry could turn a NaN into another value, so a NaN is truncated instead,
with its quiet bit set. Values are rounded in blocks that stay in the CPU's cache.

NumPy's own cast to float16 is as fast as memory allows. Numba would not be faster, and would add a
compiler to a client.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

WIRE_DTYPES = ("float32", "float16", "bfloat16")
"""The types in which rows and gradients can be sent."""
NARROW_BYTES = 2
STORED = {"float16": np.dtype("<f2"), "bfloat16": np.dtype("<u2")}
"""The NumPy dtype of stored values, by wire type."""
LARGEST = {"float16": 65504.0, "bfloat16": float.fromhex("0x1.FEp127")}
"""The largest finite value, by wire type."""

_BLOCK = 1 << 15
_HALF_LESS_ONE = np.uint32(0x7FFF)
_SIGN_OFF, _INFINITY = np.uint32(0x7FFFFFFF), np.uint32(0x7F800000)
_QUIET = np.uint32(0x40)
_CUT = np.uint32(16)
_ONE = np.uint32(1)


def rounded(
    values: NDArray[np.float32], dtype: str, out: NDArray[Any] | None = None
) -> NDArray[Any]:
    """Return float32 values rounded to "float16" or "bfloat16".

    Parameters
    ----------
    values : float32 of any shape, C-contiguous
    out : array of the same shape, C-contiguous and of `STORED[dtype]`, to fill and return; None: a
        new array
    """
    if out is None:
        out = np.empty(values.shape, STORED[dtype])
    if dtype == "float16":
        with np.errstate(all="ignore"):
            out[...] = values
        return out
    bits, flat = values.reshape(-1).view(np.uint32), out.reshape(-1)
    for begin in range(0, len(bits), _BLOCK):
        block = bits[begin : begin + _BLOCK]
        upper = block >> _CUT
        is_nan = (block & _SIGN_OFF) > _INFINITY
        nearest = (block + (_HALF_LESS_ONE + (upper & _ONE))) >> _CUT
        flat[begin : begin + _BLOCK] = np.where(is_nan, upper | _QUIET, nearest)
    return out


def widened(stored: NDArray[Any]) -> NDArray[np.float32]:
    """Return a new float32 array from an array of one of the dtypes in `STORED`."""
    if stored.dtype == STORED["float16"]:
        return stored.astype(np.float32)
    bits = stored.astype(np.uint32)
    bits <<= _CUT
    return bits.view(np.float32)


def first_overflow(values: NDArray[np.float32], stored: NDArray[Any]) -> float | None:
    """Return the first finite value that was rounded to infinity; None: there is none."""
    if stored.dtype == STORED["float16"]:
        is_infinite = np.isinf(stored)
    else:
        is_infinite = (stored & np.uint16(0x7FFF)) == np.uint16(0x7F80)
    lost = values[is_infinite]
    lost = lost[np.isfinite(lost)]
    return float(lost[0]) if len(lost) else None
