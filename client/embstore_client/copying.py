"""Large copies to shared memory, by two threads: one does not use all that memory can do.

Measured on two cores, 13.6 MB of gradients: 0.91 ms by one thread, 0.47 by two. To start a thread
takes some 60 microseconds, so smaller copies are made by the caller alone, and so are those that
get no thread, as at the end of an interpreter. Rejected: a thread that is kept, which does not
outlive the main one, and which a fork does not have.
"""

import os
import threading
from typing import Any

import numpy as np
from numpy.typing import NDArray

SHARED_BYTES = 4 << 20
"""The least bytes of a copy that is worth a second thread."""


def copy(source: NDArray[Any], target: NDArray[Any]) -> None:
    """Copy an array to one of its shape and dtype. Any thread."""
    half = len(source) // 2 if source.ndim else 0
    if source.nbytes < SHARED_BYTES or not half or (os.cpu_count() or 1) < 2:
        np.copyto(target, source)
        return
    other = threading.Thread(target=np.copyto, args=(target[:half], source[:half]), daemon=True)
    try:
        other.start()
    except RuntimeError:
        np.copyto(target, source)
        return
    try:
        np.copyto(target[half:], source[half:])
    finally:
        other.join()
