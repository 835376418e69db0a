"""Levels: the profiled access counts of rows, reduced to eleven bits for the cache.

The score of a slot has room for a count of 0 to `LEVEL_MAX`. Profiled counts reach billions, so
they are made smaller without changing their order. Counts up to `_EXACT` are kept exactly; above
`_EXACT`, an octave has `_PER_OCTAVE` steps of 1.4 % each. For a cache, the counts within one step
are as good as equal; among rows of one step the row used longest ago is evicted first. A row that
no profile names has level 0.

Levels are on the host, and the level of a missed key is sent to the device with the key. So the
device stores nothing whose size depends on a table's length. If a table has at most
`_DENSE_ROWS_A_KEY` rows for each profiled key, its levels are in an array that is indexed by key,
two bytes per row. For other tables a sorted array of the profiled keys is searched; a key and its
level take ten bytes. Rejected: an array indexed by key for all tables, in which only pages with
profiled rows would take memory. On a system with huge pages, such an array took 1.5 GiB for a
thousand profiled keys of a long table.
"""

from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from embstore.arrays import Keys
from embstore.profiles.profile import TableProfile
from embstore.row_keys import DENSE, RowKeys

LEVEL_MAX = 2047
_EXACT = 64
_PER_OCTAVE = 50
_DENSE_ROWS_MAX = 1 << 31
_DENSE_ROWS_A_KEY = 64
_SHORT_ROWS = 1 << 12
"""The number of rows up to which a table always has an array that is indexed by key."""


def levels_of(counts: NDArray[np.int64] | NDArray[np.float64]) -> NDArray[np.int64]:
    """Return the levels of counts >= 0, (n,). A higher count has no lower level; the level of 0 is
    0."""
    numbers = np.asarray(counts, np.float64)
    octaves = np.log2(np.maximum(numbers, _EXACT) / _EXACT)
    levels = np.minimum(np.ceil(numbers), _EXACT) + np.floor(_PER_OCTAVE * octaves)
    found: NDArray[np.int64] = np.minimum(levels, LEVEL_MAX).astype(np.int64)
    return found


class RowLevels:
    """The levels of one table's rows. Any thread."""

    def __init__(self, profile: TableProfile, rate: float = 1.0) -> None:
        """Compute the levels from a profile.

        rate : the share of accesses that the profile counted; counts are divided by it, so that
            profiles of several tables are comparable
        """
        levels = levels_of(profile.counts / rate).astype(np.uint16)
        self._bound = profile.seen_bound
        dense_rows = min(_DENSE_ROWS_A_KEY * len(profile.keys), _DENSE_ROWS_MAX)
        self._is_dense = self._bound <= max(dense_rows, _SHORT_ROWS)
        if self._is_dense:
            self._keys = np.empty(0, np.int64)
            self._levels = np.zeros(self._bound + 1, np.uint16)  # the last is for keys beyond
            self._levels[profile.keys] = levels
        else:
            self._keys = profile.keys
            self._levels = np.append(levels, np.uint16(0))

    @property
    def memory_bytes(self) -> int:
        """Bytes of the arrays of levels and keys."""
        return self._levels.nbytes + self._keys.nbytes

    def of(self, keys: Keys) -> NDArray[np.int64]:
        """Return the levels of keys, (n,), in any order."""
        if self._is_dense:
            places = np.minimum(keys.view(np.uint64), np.uint64(self._bound)).view(np.int64)
        else:
            places = np.searchsorted(self._keys, keys)
            found = self._keys[np.minimum(places, len(self._keys) - 1)] == keys
            places = np.where(found, places, len(self._keys))
        return self._levels[places].astype(np.int64)


class Ranks:
    """The levels of row keys over all tables of a pool. Engine thread only."""

    def __init__(self, row_keys: RowKeys = DENSE) -> None:
        self._row_keys = row_keys
        self.tables: dict[int, RowLevels] = {}
        """The levels of each table that has a profile, by table id."""

    def of(self, keys: Keys) -> NDArray[np.int64]:
        """Return the levels of row keys, (n,); a key of a table without a profile has level 0. The
        search is fastest if the keys are grouped by table."""
        found = np.zeros(len(keys), np.int64)
        ids = self._row_keys.table_ids(keys)
        bounds = [0, *(np.flatnonzero(np.diff(ids)) + 1).tolist(), len(keys)]
        for low, high in pairwise(bounds):
            levels = self.tables.get(int(ids[low])) if high > low else None
            if levels is not None:
                found[low:high] = levels.of(self._row_keys.keys(keys[low:high]))
        return found
