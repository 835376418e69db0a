"""Large copies to shared memory, by two threads: one does not use all that memory can do.

Measured on two cores, 13.6 MB of gradients: 0.91 ms by one thread, 0.47 by two. To have a second
thread take part costs a few dozen microseconds, so smaller copies are made by the caller alone.
"""

import os
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from numpy.typing import NDArray

SHARED_BYTES = 4 << 20
"""Of a copy that is worth two threads."""


class Copier:
    """Copies arrays of one shape, dtype and layout. Any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._helper: ThreadPoolExecutor | None = None
        self._process = 0

    def copy(self, source: NDArray[Any], target: NDArray[Any]) -> None:
        """Copy an array."""
        half = len(source) // 2 if source.ndim else 0
        if source.nbytes < SHARED_BYTES or not half or (os.cpu_count() or 1) < 2:
            np.copyto(target, source)
            return
        other = self._started().submit(np.copyto, target[:half], source[:half])
        try:
            np.copyto(target[half:], source[half:])
        finally:
            other.result()

    def _started(self) -> ThreadPoolExecutor:
        with self._lock:
            if self._helper is None or self._process != os.getpid():  # a fork has no threads
                self._helper = ThreadPoolExecutor(1, "embstore-copies")
                self._process = os.getpid()
            return self._helper

    def close(self) -> None:
        """End the thread."""
        with self._lock:
            if self._helper is not None and self._process == os.getpid():
                self._helper.shutdown(wait=False)
            self._helper = None
