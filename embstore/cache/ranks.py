"""The ranks of a pool's rows: what the profiles of its tables say they are worth in the cache."""

from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from embstore.arrays import KEY_BITS, KEY_MASK, Keys
from embstore.frequency.levels import RowLevels


class Ranks:
    """The levels of row keys, over all tables of a pool. Engine thread only."""

    def __init__(self) -> None:
        self.tables: dict[int, RowLevels] = {}
        """By id, of the tables that have a profile."""

    def of(self, keys: Keys) -> NDArray[np.int64]:
        """Return the levels of row keys, (n,), 0 without a profile; in runs of one table."""
        found = np.zeros(len(keys), np.int64)
        ids = keys >> KEY_BITS
        bounds = [0, *(np.flatnonzero(np.diff(ids)) + 1).tolist(), len(keys)]
        for low, high in pairwise(bounds):
            levels = self.tables.get(int(ids[low])) if high > low else None
            if levels is not None:
                found[low:high] = levels.of(keys[low:high] & KEY_MASK)
        return found
