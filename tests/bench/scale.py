"""The sizes of the benchmark of the store, the service and its storage, as fields of a dataclass
(`sizes.py`).
"""

import os
from dataclasses import dataclass

from tests.bench.sizes import sized

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

    rows: int = sized(2_000_000, quick=100_000)
    dim: int = 64
    batch_keys: int = sized(53_248, quick=4_096)
    zipf_exponent: float = 1.05
    tables: int = 26

    rounds: int = sized(10, quick=2)
    round_batches: int = sized(8, quick=3)
    """Timed batches of a lane in a round; one more goes before them untimed."""
    settle_batches: int = sized(30, quick=2)
    """Batches before the first round: the caches reach their steady state."""

    cold_rows: int = sized(22_000_000, quick=100_000)
    """Of 272 bytes: a file of 6 GB, as where the goal comes from. The ratio depends on it:
    by read-ahead a plain map fetches nearly the whole file; a smaller one costs it less."""
    cold_reads: int = sized(20_000, quick=1_000)
    cold_repeats: int = sized(3, quick=1)
    fold_wait_s: float = sized(180.0, quick=2.0)
    write_back_rows: int = sized(80_000, quick=4_000)
    checkpoint_rows: int = sized(500_000, quick=10_000)
    digest_rows: int = sized(2_000_000, quick=51_200)
    storage_repeats: int = sized(5, quick=1)

    space_rows: tuple[int, ...] = sized(
        (1_000_000, 10_000_000, 40_000_000), quick=(20_000, 100_000)
    )
    """Rows of 80 bytes."""

    replay_steps: int = sized(100, quick=5)
    """Logged and executed again."""

    stall_rows: int = sized(2_000_000, quick=51_200)
    stall_idle_s: float = sized(5.0, quick=0.2)
    """How long calls are looked at while nothing else runs."""

    quiet_steps: int = sized(500, quick=20)
    """Steps, and calls of one key, of a quiet caller beside each attack."""

    wire_rounds: int = sized(20, quick=2)
    one_key_calls: int = sized(50, quick=20)
    """Timed calls of a kind in a round."""
    bulk_bytes: tuple[int, ...] = sized(
        (1 << 20, 4 << 20, 16 << 20, 64 << 20), quick=(1 << 20, 4 << 20)
    )
    """Payloads: rows down, or gradients up. From 1 MiB on, as the goal is stated."""
    bulk_calls: int = sized(3, quick=1)
    transport_bytes: tuple[int, ...] = sized(
        tuple(64 << 2 * n for n in range(11)), quick=(64, 1 << 10, 1 << 20)
    )
    """Rows of a lookup, from 64 bytes to 64 MiB."""
    crowd_clients: int = sized(16, quick=3)
    crowd_keys: int = 2_048
    """Half a MiB of rows: between a call of one key and a trainer's whole batch."""
    crowd_s: float = sized(8.0, quick=0.5)

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


def set_threads(scale: Scale) -> None:
    """Give this process `scale.threads` threads. Before NumPy, Numba or torch are imported."""
    for name in ("NUMBA_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        os.environ[name] = str(scale.threads)
