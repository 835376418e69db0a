"""How much is measured. One frozen configuration; --quick is the same, small."""

from dataclasses import dataclass

import numpy as np

from tests.bench.workload import Keys, Rows


@dataclass(frozen=True)
class Scale:
    """Sizes of every measurement."""

    seed: int = 20261126
    rows: int = 500_000
    dim: int = 64
    keys: int = 50_000
    """Of a step, each once."""
    shards: tuple[int, ...] = (1, 2, 3)
    counted_steps: int = 10
    rounds: int = 12
    round_steps: int = 5
    router_calls: int = 60
    written_keys: int = 1_000
    """Of each update while partitions move."""
    cache_bytes: int = 512 << 20
    """Of each server: all rows are in the cache."""

    def batches(self, count: int) -> list[Keys]:
        rng = np.random.default_rng(self.seed)
        return [rng.choice(self.rows, self.keys, replace=False) for _ in range(count)]

    def gradients(self) -> Rows:
        rng = np.random.default_rng(self.seed)
        return rng.standard_normal((self.keys, self.dim), dtype=np.float32) * np.float32(0.01)


full = Scale
"""What the goals are stated for."""


def quick() -> Scale:
    """Return a scale that shows in a minute that everything runs; its figures mean little."""
    return Scale(
        rows=20_000,
        dim=16,
        keys=1_000,
        counted_steps=2,
        rounds=2,
        round_steps=2,
        router_calls=3,
        cache_bytes=16 << 20,
    )
