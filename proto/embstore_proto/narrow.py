"""Two bytes for a float32: float16 and bfloat16, for links that are slower than the machine.

    float16    10 bits of fraction, values to 65504: what a trainer in mixed precision uses anyway
    bfloat16   7 bits of fraction, values to 3.39e38: the upper half of a float32

Rounding is to nearest, ties to even, subnormals included; what is beyond the largest value becomes
infinity, as IEEE 754 has it; a NaN stays a NaN of its sign. Widening is exact. So both ends of a
link agree to the bit, whatever computes them.

NumPy has no bfloat16: here its bits stand in uint16. Rounded to the upper half, a float32's bits
are increased by a half of what is cut off, less one unless the bit that stays is odd; a carry runs
into the exponent, and beyond the largest value into infinity, as it should. A NaN could be carried
away, and is cut off with its quiet bit set instead. This is done in blocks that stay in a cache.

NumPy's own cast of float16 is as fast as memory allows; Numba would add a compiler to a client, and
nothing else.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

WIRE_DTYPES = ("float32", "float16", "bfloat16")
"""What rows and gradients may travel as."""
NARROW_BYTES = 2
STORED = {"float16": np.dtype("<f2"), "bfloat16": np.dtype("<u2")}
"""The arrays that stand for each."""
LARGEST = {"float16": 65504.0, "bfloat16": float.fromhex("0x1.FEp127")}
"""The largest finite value of each."""

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
        new one
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
    """Return what an array of one of the types `STORED` stands for, as new float32."""
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
