"""What is to be trained, how, and through what kind of store.

The cache is made smaller than the tables (by default a fifth), so that rows leave it and come back
all the time: hit rates then mean something, and so does the comparison with the check. In a session
every row is there when its step asks, however small the cache; what that took is in its figures.
"""

from dataclasses import dataclass, field
from typing import Any

from embstore.arrays import row_stride
from embstore.cache.policy import POLICIES
from embstore.config import Optimizer, RowWiseAdagrad, TableConfig
from embstore.errors import InvalidArgumentError
from embstore_server.demo.columns import scaled_rows
from embstore_server.demo.steps import held_out_of
from embstore_server.demo.training import table_configs
from embstore_server.demo.ways import Ahead, Way, check_count

DEFAULT_OPTIMIZER = RowWiseAdagrad(learning_rate=0.02)
"""One fp32 of state for each row, as is usual for this model."""


@dataclass(frozen=True)
class Job:
    """What to train. Wrong values raise InvalidArgumentError when it is made."""

    samples: int = 300_000
    """Lines of the file to use at most: some ten seconds of training on two cores."""
    batch: int = 2048
    """Lines of a step; a tenth of them is held out."""
    dim: int = 16
    """Of all embeddings: DLRM's published configuration for this data."""
    scale: float = 0.02
    """Rows of a table for each category that its column has in Criteo Kaggle."""
    optimizer: Optimizer = DEFAULT_OPTIMIZER
    """Of the embeddings."""
    cache_bytes: int | None = None
    """None: `cache_share` of the tables."""
    cache_share: float = 0.2
    """The cache's bytes for each byte of the tables, unless `cache_bytes` says how many."""
    policy: str = "lru"
    """Which rows leave the cache first: "lru", "lfu" or "rank"."""
    way: Way = field(default_factory=Ahead)
    """How it is trained."""

    def __post_init__(self) -> None:
        check_count(self.samples, "samples", least=2)
        check_count(self.batch, "batch", least=2)
        if self.cache_bytes is not None:
            check_count(self.cache_bytes, "cache_bytes", least=1)
        _check_share(self.scale, "scale")
        _check_share(self.cache_share, "cache_share")
        if self.policy not in POLICIES:
            raise InvalidArgumentError(
                f"expected policy to be one of {', '.join(POLICIES)}, found {self.policy!r}"
            )
        _ = self.configs  # dim and optimizer are checked where tables are

    @property
    def configs(self) -> list[TableConfig]:
        """What each column's table is, in the order of the columns."""
        return table_configs(self.rows, dim=self.dim, optimizer=self.optimizer)

    @property
    def rows(self) -> tuple[int, ...]:
        """Rows of each column's table."""
        return scaled_rows(self.scale)

    @property
    def table_bytes(self) -> int:
        """Bytes of all rows, weights and optimizer state."""
        return self.row_bytes * sum(self.rows)

    @property
    def row_bytes(self) -> int:
        """Bytes of a row, weights and optimizer state, of any of the tables."""
        return 4 * row_stride(self.dim + self.optimizer.state_dim(self.dim))

    @property
    def store_cache_bytes(self) -> int:
        """What the store's cache is to be given."""
        return self.cache_bytes or max(1, int(self.cache_share * self.table_bytes))

    @property
    def step_samples(self) -> int:
        """Samples of a step: of a block of lines, what is not held out."""
        return self.batch - held_out_of(self.batch)

    @property
    def needs_profile(self) -> bool:
        """Whether the file is to be counted before."""
        return self.policy == "rank" or self.way.needs_profile


def _check_share(value: Any, name: str) -> None:
    if isinstance(value, bool) or not (isinstance(value, int | float) and 0 < value <= 1):
        raise InvalidArgumentError(f"expected {name} in (0, 1], found {value!r}")
