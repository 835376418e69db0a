"""The one NaN of rows and pooled replies, 0x7fc00000 (contract.md, rule 1).

The result of an invalid operation is a negative quiet NaN on x86, and 0x7fffffff in CUDA. On x86
and in CUDA, the payload of an operand that is a NaN is passed on to the result. With two NaN
operands, even the compiler affects which payload is passed on. Therefore NaNs are made canonical
where they are stored (in a row or a pooled reply), and not before.
"""

from typing import Final

import numpy as np

from embstore.arrays import Rows

CANONICAL_NAN: Final[np.float32] = np.uint32(0x7FC00000).view(np.float32)


def canonicalize_nans(rows: Rows) -> None:
    """Replace every NaN of `rows`, of any shape, by the canonical NaN, in place."""
    # np.copyto moves the bits of one float32 to another; arithmetic might not.
    np.copyto(rows, CANONICAL_NAN, where=np.isnan(rows))
