"""Threads and scratch memory of the CPU's kernels: a few threads, and memory that only grows.

A large call is cut into ranges of equal work. Each element of a result is computed by one thread in
the order that the contract fixes, so the bits do not depend on the threads. Small calls run in the
calling thread, because waking another thread takes some twenty microseconds. Kernels run without
the GIL.
"""

from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embstore.host.workers import Range, Workers

_RANGES_PER_THREAD = 2


class CpuWork(Workers):
    """The threads and the scratch memory of one device. One thread calls it at a time."""

    def __init__(self, threads: int) -> None:
        super().__init__(threads, _RANGES_PER_THREAD)
        self._scratch: dict[str, NDArray[Any]] = {}

    def close(self) -> None:
        """End the threads and drop the scratch memory."""
        super().close()
        self._scratch.clear()

    def ranges_of(self, bounds: NDArray[np.int64], item_bytes: int) -> list[Range]:
        """Group the intervals between `bounds` into ranges of nearly equal total length."""
        cuts = self.ranges(int(bounds[-1]), item_bytes)
        if len(cuts) == 1:
            return [(0, len(bounds) - 1)]
        ends = np.searchsorted(bounds, [high for _, high in cuts[:-1]]).tolist()
        ends = [0, *ends, len(bounds) - 1]
        return list(pairwise(ends))

    def take(self, name: str, count: int, dtype: Any, zeroed: bool = False) -> NDArray[Any]:
        """Return (count,) scratch memory with this name. If the last array of this name was too
        short, the array is a new one.

        zeroed : a new array contains zeros; an old array keeps its last content
        """
        array = self._scratch.get(name)
        if array is None or len(array) < count:
            size = max(count, 16, 3 * len(array) // 2 if array is not None else 0)
            array = np.zeros(size, dtype) if zeroed else np.empty(size, dtype)
            self._scratch[name] = array
        return array[:count]
