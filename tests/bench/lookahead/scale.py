"""The sizes of the look-ahead benchmark (`sizes.py`)."""

from dataclasses import dataclass

from tests.bench.sizes import sized

UNIFORM = 0.0
"""The Zipf exponent of no locality."""


@dataclass(frozen=True)
class Scale:
    """Sizes of every measurement. Each field is the issue's, or is kept small for the time."""

    seed: int = 20261121
    rows: int = sized(1_000_000, quick=60_000)
    """1.5 % of them are 3.7 working sets of uniform keys: the smallest cache holds some steps."""
    dim: int = 64
    batch_keys: int = sized(4_096, quick=1_024)
    """Drawn for a batch; its working set is the unique ones of them."""
    threads: int = 2
    lookahead_steps: int = 8

    exponents: tuple[float, ...] = sized((UNIFORM, 0.6, 1.05, 1.2), quick=(UNIFORM, 1.05))
    cache_shares: tuple[float, ...] = sized((0.015, 0.05, 0.2), quick=(0.05, 0.2))
    latencies_ms: tuple[float, ...] = sized((0.0, 0.1, 1.0), quick=(0.0, 1.0))
    computations_ms: tuple[float, ...] = sized((5.0, 20.0, 50.0), quick=(5.0, 20.0))

    rounds: int = sized(2, quick=1)
    """Blocks of each contestant and combination."""
    block_ms: float = 120.0
    """Of computation in a block's measured steps."""
    block_steps: tuple[int, int] = sized((4, 10), quick=(3, 6))
    """At least and at most so many measured steps in a block."""
    settle_steps: int = sized(40, quick=4)
    """Before the first block of a locality and cache, without computation."""

    sweep_exponents: tuple[float, ...] = sized((UNIFORM, 1.05), quick=(1.05,))
    sweep_sets: tuple[float, ...] = sized(
        (1.0, 1.25, 1.5, 2.0, 2.5, 3.0, 4.0, 6.0, 8.0), quick=(1.0, 2.0, 4.0)
    )
    sweep_latency_ms: float = 1.0
    sweep_computation_ms: float = 5.0

    planner_keys: int = sized(50_000, quick=10_000)
    """Unique keys of a step whose planning is timed."""
    planner_exponent: float = 1.05
    planner_share: float = 0.2
    planner_steps: int = sized(24, quick=4)

    network_draws: tuple[int, ...] = sized((1_024, 8_192), quick=(512,))
    """Of a batch."""
    network_exponent: float = 1.05
    network_delays_ms: tuple[float, ...] = sized((0.0, 1.0, 5.0), quick=(0.0, 1.0))
    """Each way."""
    network_steps: int = sized(80, quick=16)
    network_warm_steps: int = sized(20, quick=8)

    @property
    def warm_steps(self) -> int:
        """Unmeasured steps of each block: what was prepared while others ran is used up."""
        return self.lookahead_steps

    def measured_steps(self, computation_ms: float) -> int:
        low, high = self.block_steps
        return max(low, min(high, int(self.block_ms / computation_ms)))
