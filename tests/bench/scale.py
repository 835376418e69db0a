"""How much is measured. One frozen configuration for all contenders; --quick is the same, small."""

import os
from dataclasses import dataclass

ROW_OVERHEAD_BYTES = 40
"""About what a cached row costs beside its bytes: its share of index, score, pins."""
HEADROOM = 1.05
"""Where all rows are to be cached: what a row costs beside its bytes is only about known."""


def row_bytes(dim: int) -> int:
    """Return the bytes of a row with row-wise Adagrad: dim weights and one fp32, padded to 16."""
    return (4 * dim + 4 + 15) // 16 * 16


@dataclass(frozen=True)
class Scale:
    """Sizes of every measurement. A batch is 2,048 samples of 26 keys, as in Criteo's data."""

    data_dir: str = ""
    threads: int = 2
    seed: int = 20251120

    rows: int = 2_000_000
    dim: int = 64
    batch_keys: int = 53_248
    zipf_exponent: float = 1.05
    tables: int = 26

    rounds: int = 10
    round_batches: int = 8
    """Timed batches of a lane in a round; one more goes before them untimed."""
    settle_batches: int = 30
    """Batches before the first round: the caches reach their steady state."""

    cold_rows: int = 22_000_000
    """Of 272 bytes: a file of 6 GB, as where the goal comes from. The ratio depends on it:
    by read-ahead a plain map fetches nearly the whole file; a smaller one costs it less."""
    cold_reads: int = 20_000
    cold_repeats: int = 3
    fold_wait_s: float = 180.0
    write_back_rows: int = 80_000
    checkpoint_rows: int = 500_000
    digest_rows: int = 2_000_000
    storage_repeats: int = 5

    space_rows: tuple[int, ...] = (1_000_000, 10_000_000, 40_000_000)
    """Rows of 80 bytes."""

    replay_steps: int = 100
    """Logged and executed again."""

    stall_rows: int = 2_000_000
    stall_idle_s: float = 5.0
    """How long calls are looked at while nothing else runs."""

    quiet_steps: int = 500
    """Steps, and calls of one key, of a quiet caller beside each attack."""

    wire_rounds: int = 20
    one_key_calls: int = 50
    """Timed calls of a kind in a round."""
    bulk_bytes: tuple[int, ...] = (1 << 20, 4 << 20, 16 << 20, 64 << 20)
    """Payloads: rows down, or gradients up. From 1 MiB on, as the goal is stated."""
    bulk_calls: int = 3
    transport_bytes: tuple[int, ...] = tuple(64 << 2 * n for n in range(11))
    """Rows of a lookup, from 64 bytes to 64 MiB."""
    crowd_clients: int = 16
    crowd_keys: int = 2_048
    """Half a MiB of rows: between a call of one key and a trainer's whole batch."""
    crowd_s: float = 8.0

    @property
    def batches(self) -> int:
        """Distinct batches in the trace: few, repeated, would fit into the 5 % cache whole."""
        return self.rounds * (self.round_batches + 1)

    @property
    def all_cached_bytes(self) -> int:
        """A budget in which every row of the table is cached."""
        return self.cache_bytes(HEADROOM * self.rows, self.dim)

    def cache_bytes(self, rows: float, dim: int) -> int:
        """Return a budget in which about `rows` rows of `dim` are cached; never under 4 MiB."""
        return max(int(rows * (row_bytes(dim) + ROW_OVERHEAD_BYTES)), 4 << 20)


full = Scale
"""What the goals are stated for."""


def quick() -> Scale:
    """Return a scale that shows in seconds that everything runs; its figures mean nothing."""
    return Scale(
        rows=100_000,
        batch_keys=4_096,
        rounds=2,
        round_batches=3,
        settle_batches=2,
        cold_rows=100_000,
        cold_reads=1_000,
        cold_repeats=1,
        fold_wait_s=2.0,
        write_back_rows=4_000,
        checkpoint_rows=10_000,
        digest_rows=51_200,
        storage_repeats=1,
        space_rows=(20_000, 100_000),
        replay_steps=5,
        stall_rows=51_200,
        stall_idle_s=0.2,
        quiet_steps=20,
        wire_rounds=2,
        one_key_calls=20,
        bulk_bytes=(1 << 20, 4 << 20),
        bulk_calls=1,
        transport_bytes=(64, 1 << 10, 1 << 20),
        crowd_clients=3,
        crowd_s=0.5,
    )


def set_threads(scale: Scale) -> None:
    """Give this process `scale.threads` threads. Before NumPy, Numba or torch are imported."""
    for name in ("NUMBA_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        os.environ[name] = str(scale.threads)
