"""How much is measured. One frozen configuration; --quick is the same, small."""

from dataclasses import dataclass

from embstore_tools.demo.columns import CARDINALITIES, scaled_rows


@dataclass(frozen=True)
class Scale:
    """Sizes of every measurement. Each field is the issue's, or is kept small for the time."""

    seed: int = 20261121
    rows: tuple[int, ...] = CARDINALITIES
    dim: int = 16
    learning_rate: float = 0.02
    threads: int = 2

    batch_samples: int = 2_048
    rounds: int = 5
    round_steps: int = 64
    """A block, and a window of the packer: so a block of hot/cold has phases of both kinds. With
    five of them the trace has 320 batches."""
    held_out_samples: int = 40_960

    cached_share: float = 0.015
    """Of the rows: in the cache, and in the hot set."""
    warm_up: float = 0.7
    lookahead_steps: int = 16
    sample_rate: float = 0.05
    """Of the samples that the sampled profile counts."""
    rates: tuple[int, ...] = (50, 100)
    """Of FAE's scheduler, in percent."""

    cost_repeats: int = 5
    count_rates: tuple[float, ...] = (0.0, 0.1, 1.0)
    count_rounds: int = 10
    count_calls: int = 20
    """Lookups of each store in a round; a tenth of them is a whole number."""
    count_batches: int = 16
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


full = Scale
"""What the goals are stated for."""


def quick() -> Scale:
    """Return a scale that shows in a minute that everything runs; its figures mean little."""
    return Scale(
        rows=scaled_rows(0.002),
        batch_samples=128,
        rounds=2,
        round_steps=8,
        held_out_samples=512,
        cached_share=0.05,
        lookahead_steps=4,
        cost_repeats=1,
        count_rounds=1,
        count_calls=10,
        count_batches=4,
    )
