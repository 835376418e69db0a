"""The trace: batches of unique keys by a bounded Zipf law, one seed for each locality.

The key of rank r (1 is the hottest) has probability r**-s / sum(k**-s); s = 0 is uniform. A seeded
permutation scatters the ranks over the keys, the same for all localities, as in workload.py. A
batch has the distinct keys of its draws, in the order of the keys.
"""

import numpy as np
from numpy.typing import NDArray

from tests.bench.lookahead.scale import UNIFORM, Scale

Keys = NDArray[np.int64]


class Trace:
    """Batches of one locality, made when they are first asked for, and the same for everybody."""

    def __init__(self, scale: Scale, exponent: float, draws: int | None = None) -> None:
        """Have no batch yet; `draws` are those of a batch, where they are not the scale's."""
        self._batch_keys = scale.batch_keys if draws is None else draws
        permuted = np.random.default_rng(scale.seed).permutation(scale.rows)
        self.keys_by_rank: Keys = permuted.astype(np.int64)
        self._rng = np.random.default_rng([scale.seed, int(1000 * exponent)])
        weights = np.arange(1, scale.rows + 1, dtype=np.float64) ** -exponent
        self._cumulated = np.cumsum(weights)
        self._batches: list[Keys] = []

    def _draw(self, count: int) -> Keys:
        draws = self._rng.random(count) * self._cumulated[-1]
        ranks = np.searchsorted(self._cumulated, draws, side="right")
        keys: Keys = self.keys_by_rank[ranks.clip(max=len(self.keys_by_rank) - 1)]
        return keys

    def batch(self, index: int) -> Keys:
        """Return batch `index` of the trace, (u,) int64, unique, ascending."""
        self.prepare(index + 1)
        return self._batches[index]

    def prepare(self, count: int) -> None:
        """Make the first `count` batches, so that no timed step has to."""
        while len(self._batches) < count:
            self._batches.append(self._make())

    def _make(self) -> Keys:
        return np.unique(self._draw(self._batch_keys))

    def working_set(self) -> int:
        """Return the unique keys of a batch, the mean over the first ones."""
        return int(np.mean([len(self.batch(index)) for index in range(16)]))

    def hottest(self, count: int) -> Keys:
        """Return the `count` keys of the highest probability, the coldest first."""
        return np.ascontiguousarray(self.keys_by_rank[:count][::-1])


class WholeBatches(Trace):
    """A trace of which every batch has `batch_keys` unique keys."""

    def _make(self) -> Keys:
        found = np.unique(self._draw(2 * self._batch_keys))
        while len(found) < self._batch_keys:
            found = np.union1d(found, self._draw(2 * self._batch_keys))
        return np.sort(self._rng.permutation(found)[: self._batch_keys])


def locality(exponent: float) -> str:
    return "uniform" if exponent == UNIFORM else f"Zipf {exponent:g}"
