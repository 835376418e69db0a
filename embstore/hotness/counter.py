"""Counting accesses by key: exactly up to a number of distinct keys, beyond that by a sketch.

A counter is one hash table of (key, count), which grows until it contains `keys_max` keys. When one
more key arrives, the counter becomes a **sketch** of frequent items: the median of all counts is
subtracted from each count, and the keys whose counts reach 0, which are half of all keys, are
removed. This is the algorithm of Misra and Gries (1982) with the decrement of Anderson et al. (IMC
2017), which Apache DataSketches also uses. The sum of these decrements is the `error`:

    true count - error <= count <= true count; a key without an entry has a true count <= error

Each decrement removes at least its amount from half of the counts, so error <= 2 * accesses /
keys_max. The error can be slightly larger for a hash table of more than _SAMPLED_PLACES places,
because the median is then taken from a sample. If accesses are skewed, the error is far smaller
than this bound, because the decrements are small.

**Memory** is 16 bytes per place, and at most 3/4 of the places are in use. A counter never exceeds
`memory_bytes_max`, not even during growth, when it has two tables. Rejected: an array of counts by
key, which has a count per row of the table even if only a hundredth of the rows is ever seen; and a
Count-Min sketch, which does not contain the keys, and whose counts are too high.
"""

from dataclasses import dataclass

import numpy as np

from embstore.arrays import Keys
from embstore.host.key_table import PLACE_BYTES, carry, lower, new_table
from embstore.hotness.count_keys import count_keys, entries_of
from embstore.profiles.profile import Counts, TableProfile

_PLACES = 1 << 12
_GROWTH = 4
_SAMPLED_PLACES = 1 << 17


def _places_for(keys: int) -> int:
    """Return the smallest number of places of a hash table that `keys` keys fill to at most 3/4."""
    return max(_PLACES, 1 << (-(-4 * keys // 3) - 1).bit_length())


@dataclass(frozen=True)
class CountedKeys:
    """A copy of the counts of a counter. To copy the counts is far faster than to make a
    profile."""

    keys: Keys
    """Keys, (k,), unique, in any order."""
    counts: Counts
    accesses: int
    error: int

    def items(self) -> tuple[Keys, Counts]:
        """Return the keys, ascending, and their counts."""
        order = np.argsort(self.keys)
        return self.keys[order], self.counts[order]

    def profile(self, name: str, rows: int) -> TableProfile:
        """Return the counts as the profile of a table of `rows` rows; 0: unknown."""
        return TableProfile(name, rows, *self.items(), self.accesses, self.error)


class KeyCounter:
    """The accesses of one table by key. One thread at a time.

    Parameters
    ----------
    keys_max : maximum number of keys in the counter; up to this number, every count is exact
    """

    def __init__(self, keys_max: int = 1 << 22) -> None:
        assert keys_max >= 2, "a sketch of fewer keys tells nothing"
        self._keys_max = keys_max
        self.clear()

    def clear(self) -> None:
        """Delete all counts, and free their memory."""
        self._table = new_table(_PLACES)
        self.distinct = 0
        """Number of keys in the counter. As long as counts are exact, these are all keys that have
        occurred."""
        self.accesses = 0
        """Number of accesses that were added since the last `clear`."""
        self.error = 0
        """Bound of the error of each count: counts are too low by at most this number. A key
        without an entry was accessed at most this number of times."""

    @property
    def is_exact(self) -> bool:
        """Whether all counts are the true counts."""
        return self.error == 0

    @property
    def memory_bytes(self) -> int:
        """Bytes of the hash table."""
        return self._table.nbytes

    @property
    def memory_bytes_max(self) -> int:
        """Maximum number of bytes of the hash table, together with the smaller table during
        growth."""
        places = _places_for(self._keys_max)
        return (places + places // 2) * PLACE_BYTES

    def add(self, keys: Keys, counts: Counts | None = None) -> None:
        """Count accesses.

        Parameters
        ----------
        keys : (n,) int64, any order, repeats allowed
        counts : (n,) int64, >= 1, the number of accesses for which each key stands; None: one
            access per key
        """
        keys = np.ascontiguousarray(keys)
        if counts is None:
            counts, added = np.empty(0, np.int64), len(keys)
        else:
            assert len(counts) == len(keys), "a count a key"
            assert counts.min(initial=1) >= 1, "a key that is given was accessed"
            counts, added = np.ascontiguousarray(counts), int(counts.sum())
        self.accesses += added
        position = 0
        while True:
            position, self.distinct = count_keys(
                self._table, keys, counts, position, self.distinct, self._limit
            )
            if position == len(keys):
                break
            self._make_room()

    def copied(self) -> CountedKeys:
        """Return a copy of the counts. Further counting does not change the copy."""
        keys, counts = np.empty((2, self.distinct), np.int64)
        entries_of(self._table, keys, counts)
        return CountedKeys(keys, counts, self.accesses, self.error)

    def profile(self, name: str, rows: int) -> TableProfile:
        """Return the counts as the profile of a table of `rows` rows; 0: unknown."""
        return self.copied().profile(name, rows)

    @classmethod
    def resumed(cls, profile: TableProfile, keys_max: int = 1 << 22) -> "KeyCounter":
        """Return the counter from which a profile was made; or, if the profile has more than
        `keys_max` keys, a sketch of `keys_max` keys, made from the profile's counts."""
        counter = cls(keys_max)
        counter.add(profile.keys, profile.counts)
        counter.accesses = profile.accesses
        counter.error += profile.error
        return counter

    @property
    def _limit(self) -> int:
        return min(self._keys_max, len(self._table) * 3 // 4)

    def _make_room(self) -> None:
        if self.distinct < self._keys_max:
            table = new_table(min(_GROWTH * len(self._table), _places_for(self._keys_max)))
            carry(self._table, table)
            self._table = table
        else:
            median = self._median()
            self.distinct = lower(self._table, median, median)
            self.error += median

    def _median(self) -> int:
        """Return the upper median of the counts: at least half of the counts are at least as large
        as this median, and at least one count reaches 0 when the median is subtracted."""
        counts = self._table[:: max(1, len(self._table) // _SAMPLED_PLACES), 1]
        counts = counts[counts > 0]
        return int(np.partition(counts, len(counts) // 2)[len(counts) // 2])
