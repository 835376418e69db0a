"""A training job: model, data, way to train, and store.

By default the cache has a fifth of the tables' bytes, so that rows are evicted and read again all
the time. With a larger cache, hit rates and the comparison with the dense check would mean little.
In a session every row is in the cache when its step needs the row, however small the cache is; the
session's stats show the cost of this.
"""

from dataclasses import dataclass, field, replace

from embstore.cache.policies import POLICIES, policy_of
from embstore.checks.arguments import integer, one_of
from embstore.config import Optimizer, RowWiseAdagrad, TableConfig
from embstore.errors import InvalidArgumentError
from embstore.layout import Layout
from embstore.profiles.checks import check_rate
from embstore_tools.demo.columns import scaled_rows
from embstore_tools.demo.frameworks.registry import PACKAGES
from embstore_tools.demo.steps import held_out_of
from embstore_tools.demo.training import table_configs
from embstore_tools.demo.ways import Ahead, Calls, HotCold, Way

DEFAULT_OPTIMIZER = RowWiseAdagrad(learning_rate=0.02)
"""An optimizer with one float32 of state per row, as is usual for this model."""


@dataclass(frozen=True)
class Job:
    """A training job. Wrong values raise InvalidArgumentError in the constructor."""

    samples: int = 300_000
    """The most lines of the file to use; training on the default number takes some ten seconds on
    two cores."""
    batch: int = 2048
    """The number of lines per step; a tenth of the lines is held out."""
    dim: int = 16
    """Dimension of all embeddings, as in DLRM's published configuration for this data."""
    scale: float = 0.02
    """The number of rows of a table divided by the number of categories of its column in Criteo
    Kaggle."""
    optimizer: Optimizer = DEFAULT_OPTIMIZER
    """The optimizer of the embeddings."""
    cache_bytes: int | None = None
    """Bytes of the cache. None: `cache_share` of the tables."""
    cache_share: float = 0.2
    """The cache's bytes as a share of the tables' bytes, unless `cache_bytes` is given."""
    policy: str = "lru"
    """The eviction policy: "lru", "lfu" or "rank"."""
    way: Way = field(default_factory=Ahead)
    """The way to train."""
    framework: str = "numpy"
    """The framework of the model: NumPy, or another framework through its adapter."""
    device: str = "cpu"
    """The model's device: "cpu", or Torch's "cuda" or "cuda:0"; on a GPU the store is in the same
    process and on the same GPU."""
    sparse: bool = False
    """Whether categories are hashed as text, into one table of sparse keys. The cache's share then
    still refers to the rows of the dense tables."""

    def __post_init__(self) -> None:
        integer(self.samples, "samples", 2)
        integer(self.batch, "batch", 2)
        if self.cache_bytes is not None:
            integer(self.cache_bytes, "cache_bytes", 1)
        check_rate(self.scale, "scale")
        check_rate(self.cache_share, "cache_share")
        policy_of(self.policy)
        one_of(self.framework, "framework", tuple(PACKAGES))
        if self.framework != "numpy" and isinstance(self.way, HotCold):
            raise InvalidArgumentError(
                f"expected hot/cold training by framework numpy, found {self.framework}"
            )
        if self.sparse and self.needs_profile:
            raise InvalidArgumentError(
                "expected sparse keys with a policy and a way that need no counts of rows, found "
                "rank or hot/cold, which do"
            )
        if self.device != "cpu" and self.framework != "torch":
            raise InvalidArgumentError(
                f"expected framework torch on device {self.device}, found {self.framework}; give "
                "--framework torch, or leave --device out"
            )
        _ = self.configs  # checks dim and optimizer

    @property
    def configs(self) -> list[TableConfig]:
        """The configurations of the columns' tables, in the order of the columns, or of the one
        table of sparse keys."""
        return table_configs(
            self.rows, dim=self.dim, optimizer=self.optimizer, is_sparse=self.sparse
        )

    @property
    def rows(self) -> tuple[int, ...]:
        """The number of rows of each column's table."""
        return scaled_rows(self.scale)

    @property
    def table_bytes(self) -> int:
        """Bytes of all rows, weights and optimizer state."""
        return self.row_bytes * sum(self.rows)

    @property
    def row_bytes(self) -> int:
        """Bytes of a row, weights and optimizer state; equal for all tables."""
        return Layout(self.dim, self.optimizer.state_dim(self.dim), self.optimizer.kind).row_bytes

    @property
    def store_cache_bytes(self) -> int:
        """The budget of the store's cache."""
        return self.cache_bytes or max(1, int(self.cache_share * self.table_bytes))

    @property
    def step_samples(self) -> int:
        """The number of trained samples per step: a block of lines without its held-out part."""
        return self.batch - held_out_of(self.batch)

    @property
    def needs_profile(self) -> bool:
        """Whether accesses in the file must be counted before training."""
        return POLICIES[self.policy].has_levels or self.way.needs_profile


def jobs_of(job: Job, hot_cold: HotCold) -> dict[str, Job]:
    """Return the jobs to compare: `job` under each policy, and with each way to train."""
    return {
        "LRU": replace(job, policy="lru", way=Calls()),
        "LFU": replace(job, policy="lfu", way=Calls()),
        "warm rank": replace(job, policy="rank", way=Calls()),
        "look-ahead": replace(job, policy="lru", way=Ahead(hot_cold.lookahead)),
        "hot/cold": replace(job, policy="lru", way=hot_cold),
    }
