"""Reuse: the number of a pool's lookups that would miss with each number of slots, as measured.

The **reuse time** of a lookup is the number of keys looked up in the pool since the last lookup of
the same key. From their distribution follows the curve of misses by size (Hu et al., "Kinetic
modeling of data eviction in cache", ATC 2016): a row that is not used stays in an LRU cache of c
slots for a time T, the same for all rows on average, and while it moves from the newest place to
the oldest, each place behind it is taken by a row that is reused later than that. With P(t) for the
share of lookups whose reuse time is above t,

    c = sum of P(t) over t in [0, T)        misses = P(T)

That holds for skewed traffic, and for scans and loops. Times are kept for a **spatial sample** of
the keys, chosen by a hash, so that a key of the sample has all of its lookups (SHARDS: Waldspurger
et al., FAST 2015). When there are too many keys, keys are dropped that were not used for longer
than a row stays in the largest possible cache: their next use is a miss in any. If that is not
enough, the sample is halved. The number of lookups is counted exactly; the difference of the
sample's number is usually due to a few hot keys, which hit in any cache (SHARDS_adj).

Other policies miss other rows than LRU does, and look-ahead fewer: there the curve shows which pool
needs slots more, and not the number of misses.

Rejected: reuse distances (distinct keys in between), which give the curve of LRU exactly. They take
a tree of all times of the sample, and time that grows with its logarithm.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from embstore.arrays import KEY_BITS, Keys
from embstore.cache.note_reuses import NEVER, PLACES, note_reuses, thin
from embstore.host.key_table import lower, new_table

Floats = NDArray[np.float64]

_KEYS_MAX = 1 << 13
"""Keys of a sample, in 256 KiB: curves of skewed traffic are right to about a hundredth."""
_ALL = (1 << 63) - 1
_FADING_SHIFT = 2


def _first_times() -> Floats:
    """Return the first time of each place but NEVER, and the end of the last (note_reuses.py)."""
    places = np.arange(1, PLACES + 1)
    shifts = np.maximum(places // 8 - 1, 0)
    times: Floats = np.ldexp(np.where(places < 16, places, 8 + places % 8), shifts)
    return times


_TIMES = _first_times()


@dataclass(frozen=True, eq=False)
class MissCurve:
    """The misses of a pool at each number of slots."""

    lookups: float
    """Keys looked up; older ones count for less."""
    slots: Floats
    """(p,) ascending."""
    misses: Floats
    """(p,) never rising: the number of lookups that miss in a cache, by its slots."""

    def at(self, slots: float | Floats) -> Floats:
        """Return the misses at some numbers of slots."""
        return np.asarray(np.interp(slots, self.slots, self.misses))


class Reuse:
    """The reuse times of one pool. Engine thread only.

    Parameters
    ----------
    slots_max : slots of the largest cache of the curve
    """

    def __init__(self, slots_max: int, *, keys_max: int = _KEYS_MAX) -> None:
        self.clock = 0
        """Keys looked up so far."""
        self.largest_call = 0
        """Keys of the largest call lately."""
        self.weight = 1
        """Keys that one of the sample stands for."""
        self._slots_max = slots_max
        self._keys_max = keys_max
        self._table = new_table(2 * keys_max)
        self._taken = 0
        self._histogram = np.zeros(PLACES, np.int64)
        self._lookups = 0  # in `_histogram`
        self._call_began = 0

    def note(self, number: int, keys: Keys) -> None:
        """Take up the keys of the table of a number (`RowKeys`) in a lookup, (n,) in any order,
        repeated or not."""
        start, prefix = 0, number << KEY_BITS
        while True:
            start, self._taken = note_reuses(
                keys, prefix, self.clock, start, self._table, self._taken, self._keys_max,
                _ALL // self.weight, self.weight, self._histogram,
            )  # fmt: skip
            if start == len(keys):
                break
            self._make_room(self.clock + start)
        self.clock += start
        self._lookups += start

    def end_call(self) -> None:
        """End a call: the lookups noted since the last end were one."""
        self.largest_call = max(self.largest_call, self.clock - self._call_began)
        self._call_began = self.clock

    def _make_room(self, now: int) -> None:
        """Drop keys whose next use is a miss in any cache, or half of all keys."""
        oldest = now - 2 * self._longest_stay()
        if oldest > 0:
            self._taken = lower(self._table, oldest, 0)
        while 4 * self._taken > 3 * self._keys_max:
            self.weight *= 2
            self._taken = thin(self._table, _ALL // self.weight)

    def _longest_stay(self) -> int:
        """Return how long a row stays in the largest cache; more than all times if it is not full
        yet."""
        slots = self._curve()[0]
        if slots[-1] < self._slots_max:
            return int(_TIMES[-1])
        return int(np.interp(self._slots_max, slots, _TIMES[:-1]))

    def _curve(self) -> tuple[Floats, Floats]:
        """Return slots and misses at each of `_TIMES`."""
        uses, never = self._histogram[NEVER + 1 :], self._histogram[NEVER]
        later = np.append(uses[::-1].cumsum()[::-1], 0) + never  # at each time, or later
        later[0] = self._lookups
        misses = np.minimum(later, self._lookups).astype(np.float64)
        stays = (misses[1:] + misses[:-1]) / 2 * np.diff(_TIMES) / max(misses[0], 1.0)
        ends = _TIMES[1:] < max(self.clock, 2)  # beyond, nothing was seen
        slots = np.append(1.0, 1.0 + np.where(ends, stays, 0.0).cumsum())
        return slots[:-1], misses[:-1]

    def curve(self) -> MissCurve:
        """Return the misses by slots, of the lookups lately."""
        slots, misses = self._curve()
        return MissCurve(float(misses[0]), slots, misses)

    def fade(self) -> None:
        """Weight the measurements so far by three quarters."""
        self._histogram -= self._histogram >> _FADING_SHIFT
        self._lookups -= self._lookups >> _FADING_SHIFT
        self.largest_call -= self.largest_call >> _FADING_SHIFT
