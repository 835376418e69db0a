"""The sizes of the benchmark of frequencies (`sizes.py`)."""

from dataclasses import dataclass

from embstore_tools.demo.columns import CARDINALITIES, scaled_rows
from tests.bench.sizes import sized


@dataclass(frozen=True)
class Scale:
    """Sizes of every measurement. Each field is the issue's, or is kept small for the time."""

    seed: int = 20261121
    rows: tuple[int, ...] = sized(CARDINALITIES, quick=scaled_rows(0.002))
    dim: int = 16
    learning_rate: float = 0.02
    threads: int = 2

    batch_samples: int = sized(2_048, quick=128)
    rounds: int = sized(5, quick=2)
    round_steps: int = sized(64, quick=8)
    """A block, and a window of the packer: so a block of hot/cold has phases of both kinds. With
    five of them the trace has 320 batches."""
    held_out_samples: int = sized(40_960, quick=512)

    cached_share: float = sized(0.015, quick=0.05)
    """Of the rows: in the cache, and in the hot set."""
    warm_up: float = 0.7
    lookahead_steps: int = sized(16, quick=4)
    sample_rate: float = 0.05
    """Of the samples that the sampled profile counts."""
    rates: tuple[int, ...] = (50, 100)
    """Of FAE's scheduler, in percent."""

    cost_repeats: int = sized(5, quick=1)
    count_rates: tuple[float, ...] = (0.0, 0.1, 1.0)
    count_rounds: int = sized(10, quick=1)
    count_calls: int = sized(20, quick=10)
    """Lookups of each store in a round; a tenth of them is a whole number."""
    count_batches: int = sized(16, quick=4)
    """Different ones, which the cache holds: what counting adds is more beside faster lookups."""

    @property
    def samples(self) -> int:
        return self.rounds * self.round_steps * self.batch_samples

    @property
    def slots(self) -> int:
        """Rows that the cache holds."""
        return int(self.cached_share * sum(self.rows))

    @property
    def row_bytes(self) -> int:
        """Bytes of a row's weights and state."""
        return 4 * (self.dim + 1)
