"""The sizes of the benchmark of shards (`sizes.py`)."""

from dataclasses import dataclass

import numpy as np

from tests.bench.sizes import sized
from tests.bench.workload import Keys, Rows


@dataclass(frozen=True)
class Scale:
    """Sizes of every measurement."""

    seed: int = 20261126
    rows: int = sized(500_000, quick=20_000)
    dim: int = sized(64, quick=16)
    keys: int = sized(50_000, quick=1_000)
    """Of a step, each once."""
    shards: tuple[int, ...] = (1, 2, 3)
    counted_steps: int = sized(10, quick=2)
    rounds: int = sized(12, quick=2)
    round_steps: int = sized(5, quick=2)
    router_calls: int = sized(60, quick=3)
    written_keys: int = 1_000
    """Of each update while partitions move."""
    cache_bytes: int = sized(512 << 20, quick=16 << 20)
    """Of each server: all rows are in the cache."""

    def batches(self, count: int) -> list[Keys]:
        rng = np.random.default_rng(self.seed)
        return [rng.choice(self.rows, self.keys, replace=False) for _ in range(count)]

    def gradients(self) -> Rows:
        rng = np.random.default_rng(self.seed)
        return rng.standard_normal((self.keys, self.dim), dtype=np.float32) * np.float32(0.01)
