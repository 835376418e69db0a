"""The trace: batches of keys by a bounded Zipf law, and gradients. One seed always gives the same
trace.

The key of rank r (1 is the hottest) has probability r**-s / sum(k**-s, k = 1..rows). Keys are drawn
by the inverse of the cumulative probabilities. ``numpy.random.zipf`` is not used: it is unbounded,
and the draws in its tail would have to be rejected one by one. A seeded permutation scatters the
ranks over the keys: as in a hashed table, neighbouring keys are not equally hot.
"""

import numpy as np
from numpy.typing import NDArray

from tests.bench.scale import Scale

Keys = NDArray[np.int64]
Rows = NDArray[np.float32]

GRADIENTS_KEPT = 2
"""Distinct gradient arrays: nothing depends on their values, and each takes 13.6 MB."""


class Workload:
    """Batches of one table of `scale.rows` rows.

    ``batches`` is (batches, batch_keys) int64, ``keys_by_rank`` (rows,) int64, hottest first.
    """

    def __init__(self, scale: Scale, batch_count: int | None = None) -> None:
        rng = np.random.default_rng(scale.seed)
        self.keys_by_rank: Keys = rng.permutation(scale.rows).astype(np.int64)
        weights = np.arange(1, scale.rows + 1, dtype=np.float64) ** -scale.zipf_exponent
        cumulated = np.cumsum(weights)
        shape = (batch_count or scale.batches, scale.batch_keys)
        draws = rng.random(shape) * cumulated[-1]
        ranks = np.searchsorted(cumulated, draws, side="right").clip(max=scale.rows - 1)
        self.batches: Keys = self.keys_by_rank[ranks]
        self.gradients = gradients(scale.batch_keys, scale.dim, scale.seed)

    def gradients_of(self, batch_index: int) -> Rows:
        """Return the (batch_keys, dim) gradients that go with a batch."""
        return self.gradients[batch_index % GRADIENTS_KEPT]

    def coldest_first(self) -> list[Keys]:
        """Return the whole table in chunks of a batch, hottest last: LRU keeps the hot part."""
        reverse = self.keys_by_rank[::-1]
        step = self.batches.shape[1]
        return [np.ascontiguousarray(reverse[i : i + step]) for i in range(0, len(reverse), step)]


def gradients(keys: int, dim: int, seed: int) -> list[Rows]:
    """Return GRADIENTS_KEPT arrays (keys, dim), small and all different."""
    rng = np.random.default_rng(seed + 1)
    return [
        rng.standard_normal((keys, dim), dtype=np.float32) * np.float32(0.01)
        for _ in range(GRADIENTS_KEPT)
    ]
