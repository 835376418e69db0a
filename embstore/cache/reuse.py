"""Reuse: a measurement of how many lookups of a pool would miss with each number of slots.

The **reuse time** of a lookup is the number of keys looked up in the pool since the last lookup of
the same key. The curve of misses by size follows from the distribution of reuse times (Hu et al.,
"Kinetic modeling of data eviction in cache", ATC 2016). A row that is not used stays in an LRU
cache of c slots for a time T, which is the same for all rows on average. The row moves from the
newest position to the oldest, by one position at each lookup whose reuse time is above the time t
since the row was used. If P(t) is the share of lookups whose reuse time is above t,

    c = sum of P(t) over t in [0, T)        misses = P(T)

The formula holds for skewed traffic, and for scans and loops. Times are kept for a **spatial
sample** of the keys, chosen by a hash, so that all lookups of a sampled key are measured (SHARDS:
Waldspurger et al., FAST 2015). When the sample has too many keys, it drops the keys that were not
used for longer than a row stays in the largest possible cache: the next use of such a key is a miss
in a cache of every size. If too many keys remain, the sample is halved. The number of lookups is
counted exactly. If the sample's estimate differs from this number, a few hot keys are usually the
reason. Hot keys hit in every cache, so the difference is counted as hits (SHARDS_adj).

The curve is for LRU. Other policies miss other rows, and with look-ahead fewer rows are missed. In
these cases the curve shows which pool needs slots more, but not the number of misses.

Rejected: reuse distances (the number of distinct keys between two lookups of a key), which give the
curve of LRU exactly. They need a tree of all times of the sample, and their time per key grows with
the logarithm of the sample's size.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from embstore.arrays import KEY_BITS, Keys
from embstore.cache.note_reuses import NEVER, PLACES, note_reuses, thin
from embstore.host.key_table import lower, new_table

Floats = NDArray[np.float64]

_KEYS_MAX = 1 << 13
"""The most keys of a sample, in 256 KiB: curves of skewed traffic are right to about 1/100."""
_ALL = (1 << 63) - 1
_FADING_SHIFT = 2


def _first_times() -> Floats:
    """Return the first time of each of the histogram's places except NEVER, followed by the end of
    the last place."""
    places = np.arange(1, PLACES + 1)
    shifts = np.maximum(places // 8 - 1, 0)
    times: Floats = np.ldexp(np.where(places < 16, places, 8 + places % 8), shifts)
    return times


_TIMES = _first_times()


@dataclass(frozen=True, eq=False)
class MissCurve:
    """The number of misses of a pool as a function of its number of slots."""

    lookups: float
    """The number of keys looked up; older lookups have less weight in this number."""
    slots: Floats
    """Numbers of slots, (p,), ascending."""
    misses: Floats
    """The number of lookups that miss with each number of slots in `slots`, (p,), descending or
    equal."""

    def at(self, slots: float | Floats) -> Floats:
        """Return the numbers of misses with given numbers of slots, by interpolation."""
        return np.asarray(np.interp(slots, self.slots, self.misses))


class Reuse:
    """The reuse times of one pool. Engine thread only.

    Parameters
    ----------
    slots_max : the number of slots of the largest cache that the curve must cover
    """

    def __init__(self, slots_max: int, *, keys_max: int = _KEYS_MAX) -> None:
        self.clock = 0
        """The number of keys looked up so far."""
        self.largest_call = 0
        """The number of keys of the largest recent call."""
        self.weight = 1
        """The number of keys that a sampled key stands for."""
        self._slots_max = slots_max
        self._keys_max = keys_max
        self._table = new_table(2 * keys_max)
        self._taken = 0
        self._histogram = np.zeros(PLACES, np.int64)
        self._lookups = 0  # the lookups that `_histogram` counts
        self._call_began = 0

    def note(self, number: int, keys: Keys) -> None:
        """Measure the reuse times of a lookup's keys, (n,) in any order, with or without repeats.
        `number` is the table's number (`RowKeys`)."""
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
        """End a call: the lookups noted since the last `end_call` count as one call."""
        self.largest_call = max(self.largest_call, self.clock - self._call_began)
        self._call_began = self.clock

    def _make_room(self, now: int) -> None:
        """Drop keys whose next use will be a miss in a cache of every size. If too many keys
        remain, halve the sample."""
        oldest = now - 2 * self._longest_stay()
        if oldest > 0:
            self._taken = lower(self._table, oldest, 0)
        while 4 * self._taken > 3 * self._keys_max:
            self.weight *= 2
            self._taken = thin(self._table, _ALL // self.weight)

    def _longest_stay(self) -> int:
        """Return the time for which a row stays in the largest cache. If the measurements do not
        fill this cache yet, return the largest time of the histogram."""
        slots = self._curve()[0]
        if slots[-1] < self._slots_max:
            return int(_TIMES[-1])
        return int(np.interp(self._slots_max, slots, _TIMES[:-1]))

    def _curve(self) -> tuple[Floats, Floats]:
        """Return the slots and the misses at each of `_TIMES`."""
        uses, never = self._histogram[NEVER + 1 :], self._histogram[NEVER]
        later = np.append(uses[::-1].cumsum()[::-1], 0) + never  # with this reuse time or more
        later[0] = self._lookups
        misses = np.minimum(later, self._lookups).astype(np.float64)
        stays = (misses[1:] + misses[:-1]) / 2 * np.diff(_TIMES) / max(misses[0], 1.0)
        ends = _TIMES[1:] < max(self.clock, 2)  # nothing was measured beyond
        slots = np.append(1.0, 1.0 + np.where(ends, stays, 0.0).cumsum())
        return slots[:-1], misses[:-1]

    def curve(self) -> MissCurve:
        """Return the misses by slots, as measured in recent lookups."""
        slots, misses = self._curve()
        return MissCurve(float(misses[0]), slots, misses)

    def fade(self) -> None:
        """Reduce the weight of all measurements so far to three quarters."""
        self._histogram -= self._histogram >> _FADING_SHIFT
        self._lookups -= self._lookups >> _FADING_SHIFT
        self.largest_call -= self.largest_call >> _FADING_SHIFT
