"""The one NaN of rows and pooled replies, 0x7fc00000 (contract.md, rule 1).

x86 answers an invalid operation with a negative quiet NaN, CUDA with 0x7fffffff, and both pass a
payload on when an operand was a NaN already. Which of two NaN operands wins is even up to the
compiler. So NaNs are made alike where they come to rest (a row, a pooled reply) and are not
looked at on the way.
"""

from typing import Final

import numpy as np

from embstore.arrays import Rows

CANONICAL_NAN: Final[np.float32] = np.uint32(0x7FC00000).view(np.float32)


def canonicalize_nans(rows: Rows) -> None:
    """Give every NaN of `rows`, of any shape, its canonical bits, in place."""
    # np.copyto moves the bits of one float32 to another; arithmetic might not.
    np.copyto(rows, CANONICAL_NAN, where=np.isnan(rows))
