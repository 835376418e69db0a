"""The check that this thread keeps denormals (contract.md, rule 1).

Flush-to-zero and denormals-are-zero are bits of a thread's control register (MXCSR on x86, FPCR
on ARM). A library compiled with -ffast-math sets them for whichever thread loads it, and a thread
inherits them from the one that started it. Then tiny values become zero without a trace, and two
stores drift apart. No import-time check can see this: each call that sums or applies checks
its own thread first, which costs about a microsecond.
"""

import numpy as np

from embstore.errors import DeviceError

_SMALLEST_BITS = 1


def check_denormals() -> None:
    """Add two denormals in the calling thread.

    Raises
    ------
    DeviceError : the sum was flushed to zero.
    """
    smallest = np.full(1, _SMALLEST_BITS, np.uint32).view(np.float32)
    # Bits are compared as integers: with denormals-are-zero a denormal compares equal to 0.0.
    bits = int((smallest + smallest).view(np.uint32)[0])
    if bits != 2 * _SMALLEST_BITS:
        raise DeviceError(
            "expected this thread to keep denormals, found them flushed to zero "
            "(FTZ or DAZ is set, perhaps by a library compiled with -ffast-math)"
        )
