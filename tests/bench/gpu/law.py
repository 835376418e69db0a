"""Keys by a bounded Zipf law: rank r (1 is the hottest) has probability r**-s / sum(k**-s).

A call of a million keys has 350,000 unique keys only if the law has far more ranks: 2**28 ranks at
s = 1.05. The cumulative probabilities of so many ranks would take gigabytes. So they are exact only
for the first ranks. For the following ranks the sum is replaced by the integral from r - 1/2 to r +
1/2, which differs by less than one part in 10**12 there, and is inverted. Ranks are scattered over
[0, ranks) by an odd factor: neighbouring keys of a table are not equally hot.

The **footprint** of a run is the set of its unique keys. If the cache is smaller than the
footprint, keys must be drawn by a law over the footprint: each access of the run is drawn again
with the same probability. A batch then has about as many unique keys as a batch of the run (95 % of
them for eight batches).
"""

import numpy as np
from numpy.typing import NDArray

from tests.bench.gpu.scale import Scale

Keys = NDArray[np.int64]

HEAD_RANKS = 1 << 22
SCATTER = 0x9E3779B1


class Zipf:
    """Draws of one seed. `ranks` is a power of two."""

    def __init__(self, scale: Scale) -> None:
        self._rng = np.random.default_rng(scale.seed)
        self._ranks = scale.ranks
        self._fall = scale.zipf_exponent - 1.0
        self._head = min(scale.ranks, HEAD_RANKS)
        weights = np.arange(1, self._head + 1, dtype=np.float64) ** -scale.zipf_exponent
        self._cumulated = np.cumsum(weights)
        self._begin = (self._head + 0.5) ** -self._fall
        end = (self._ranks + 0.5) ** -self._fall
        self._total = self._cumulated[-1] + (self._begin - end) / self._fall

    def batch(self, count: int) -> Keys:
        draws = self._rng.random(count) * self._total
        ranks = np.searchsorted(self._cumulated, draws, side="right") + 1
        tail = np.flatnonzero(draws >= self._cumulated[-1])
        powers = self._begin - (draws[tail] - self._cumulated[-1]) * self._fall
        ranks[tail] = np.rint(powers ** (-1.0 / self._fall)).clip(self._head, self._ranks)
        return ranks * SCATTER & (self._ranks - 1)

    def batches(self, count: int, keys: int) -> list[Keys]:
        return [self.batch(keys) for _ in range(count)]


class Footprint:
    """The unique keys of a run, numbered 0..rows in a random order, and the law of its accesses."""

    def __init__(self, batches: list[Keys], seed: int) -> None:
        self._rng = np.random.default_rng(seed)
        unique, inverse = np.unique(np.concatenate(batches), return_inverse=True)
        self.rows = len(unique)
        order = self._rng.permutation(self.rows)
        self._accesses = order[inverse]
        self.batches = np.split(self._accesses, np.cumsum([len(b) for b in batches])[:-1])

    def batch(self, count: int) -> Keys:
        """Draw `count` keys of the run again."""
        return self._accesses[self._rng.integers(0, len(self._accesses), count)]
