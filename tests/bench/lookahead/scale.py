"""How much is measured. One frozen configuration; --quick is the same, small."""

from dataclasses import dataclass

UNIFORM = 0.0
"""The Zipf exponent of no locality."""


@dataclass(frozen=True)
class Scale:
    """Sizes of every measurement. Each field is the issue's, or is kept small for the time."""

    seed: int = 20261121
    rows: int = 1_000_000
    """1.5 % of them are 3.7 working sets of uniform keys: the smallest cache holds some steps."""
    dim: int = 64
    batch_keys: int = 4_096
    """Drawn for a batch; its working set is the unique ones of them."""
    threads: int = 2
    lookahead_steps: int = 8

    exponents: tuple[float, ...] = (UNIFORM, 0.6, 1.05, 1.2)
    cache_shares: tuple[float, ...] = (0.015, 0.05, 0.2)
    latencies_ms: tuple[float, ...] = (0.0, 0.1, 1.0)
    computations_ms: tuple[float, ...] = (5.0, 20.0, 50.0)

    rounds: int = 2
    """Blocks of each contestant and combination."""
    block_ms: float = 120.0
    """Of computation in a block's measured steps."""
    block_steps: tuple[int, int] = (4, 10)
    """At least and at most so many measured steps in a block."""
    settle_steps: int = 40
    """Before the first block of a locality and cache, without computation."""

    sweep_exponents: tuple[float, ...] = (UNIFORM, 1.05)
    sweep_sets: tuple[float, ...] = (1.0, 1.25, 1.5, 2.0, 2.5, 3.0, 4.0, 6.0, 8.0)
    sweep_latency_ms: float = 1.0
    sweep_computation_ms: float = 5.0

    planner_keys: int = 50_000
    """Unique keys of a step whose planning is timed."""
    planner_exponent: float = 1.05
    planner_share: float = 0.2
    planner_steps: int = 24

    network_draws: tuple[int, ...] = (1_024, 8_192)
    """Of a batch."""
    network_exponent: float = 1.05
    network_delays_ms: tuple[float, ...] = (0.0, 1.0, 5.0)
    """Each way."""
    network_steps: int = 80
    network_warm_steps: int = 20

    @property
    def warm_steps(self) -> int:
        """Unmeasured steps of each block: what was prepared while others ran is used up."""
        return self.lookahead_steps

    def measured_steps(self, computation_ms: float) -> int:
        low, high = self.block_steps
        return max(low, min(high, int(self.block_ms / computation_ms)))


full = Scale
"""What the goals are stated for."""


def quick() -> Scale:
    """Return a scale that shows in a minute that everything runs; its figures mean little."""
    return Scale(
        rows=60_000,
        batch_keys=1_024,
        exponents=(UNIFORM, 1.05),
        cache_shares=(0.05, 0.2),
        latencies_ms=(0.0, 1.0),
        computations_ms=(5.0, 20.0),
        rounds=1,
        block_steps=(3, 6),
        settle_steps=4,
        sweep_exponents=(1.05,),
        sweep_sets=(1.0, 2.0, 4.0),
        planner_keys=10_000,
        planner_steps=4,
        network_draws=(512,),
        network_delays_ms=(0.0, 1.0),
        network_steps=16,
        network_warm_steps=8,
    )
