"""The job, from a file to a result: train through a store, then compare it with the dense check.

The cache is made smaller than the tables (by default a fifth), so that rows leave it and come back
all the time: hit rates then mean something, and so does the comparison. In a session every row is
there when its step asks, however small the cache; what that took is in its figures.
"""

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from embstore.arrays import row_stride
from embstore.config import Optimizer, RowWiseAdagrad, TableConfig
from embstore.errors import InvalidArgumentError
from embstore_server.demo import criteo
from embstore_server.demo.columns import scaled_rows
from embstore_server.demo.phases import Advance, Phases
from embstore_server.demo.result import DemoResult
from embstore_server.demo.stores import TrainingStore
from embstore_server.demo.training import Trained, Trainer, table_configs

CACHED_SHARE = 0.2
CHECKPOINT_LABEL = "trained"
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
    """None: CACHED_SHARE of the tables."""
    lookahead: int | None = 16
    """Steps that a session announces ahead; None: train without a session."""

    def __post_init__(self) -> None:
        _check_count(self.samples, "samples", least=2)
        _check_count(self.batch, "batch", least=2)
        if self.cache_bytes is not None:
            _check_count(self.cache_bytes, "cache_bytes", least=1)
        if self.lookahead is not None:
            _check_count(self.lookahead, "lookahead", least=1)
        if not (isinstance(self.scale, int | float) and 0 < self.scale <= 1):
            raise InvalidArgumentError(f"expected scale in (0, 1], found {self.scale!r}")
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
        return sum(4 * row_stride(c.dim + c.state_dim) * c.rows for c in self.configs)

    @property
    def store_cache_bytes(self) -> int:
        """What the store's cache is to be given."""
        return self.cache_bytes or int(CACHED_SHARE * self.table_bytes)


def _check_count(value: Any, name: str, *, least: int) -> None:
    if not isinstance(value, int) or value < least:
        raise InvalidArgumentError(f"expected {name} to be an integer >= {least}, found {value!r}")


def check_readable(path: Path) -> None:
    """Raise InvalidArgumentError if a file is missing, empty or begins with a malformed line."""
    for _ in criteo.read(path, limit=1, block=1):
        return


def train_and_compare(job: Job, store: TrainingStore, path: Path, phases: Phases) -> DemoResult:
    """Train on a file through a store that has no tables yet, checkpoint it, and compare digests.

    Raises
    ------
    InvalidArgumentError : a line of the file is malformed.
    """
    trainer = Trainer(store, job.configs, lookahead=job.lookahead)
    with phases.phase("training", _lines(path, job.samples)) as advance:
        trainer.train(criteo.read(path, limit=job.samples, block=job.batch), advance)
    pools = store.stats()["cache"]["pools"]  # now: the hits of what follows are no training
    held_out = sum(map(len, trainer.held_out))
    with phases.phase("evaluating", held_out) as advance:
        auc = trainer.held_out_auc(advance)
    trained = trainer.result
    store.checkpoint(CHECKPOINT_LABEL, {"samples": trained.samples, "auc": auc})
    with phases.phase("comparing digests", len(job.configs)) as advance:
        digests = _Digests.of(trainer, store, advance)
    stats = store.stats()
    return DemoResult(
        samples=trained.samples,
        samples_held_out=held_out,
        steps=trained.steps,
        samples_per_second=_rate(trained),
        loss=trained.loss,
        auc=auc,
        hit_rate_unique=_share(pools, "unique_hits", "unique_keys"),
        hit_rate_access=_share(pools, "access_hits", "accesses"),
        tables=len(job.configs),
        rows=sum(job.rows),
        dim=job.dim,
        optimizer=job.optimizer.kind,
        table_bytes=job.table_bytes,
        cache_bytes=stats["cache"]["budget_bytes"],
        bytes_read=stats["storage"]["bytes_read"],
        bytes_written=stats["storage"]["bytes_written"],
        seconds=dict(trained.seconds),
        session=trained.session,
        digest=_joined(digests.store),
        digest_of_check=_joined(digests.check),
        differing_tables=digests.differing,
        first_difference=trained.first_difference,
    )


@dataclass(frozen=True)
class _Digests:
    """Digests by table name, of the store and of the dense check."""

    store: dict[str, str]
    check: dict[str, str]

    @classmethod
    def of(cls, trainer: Trainer, store: TrainingStore, advance: Advance) -> "_Digests":
        digests = cls({}, {})
        for name in trainer.tables:
            digests.store[name] = store.table(name).digest()
            digests.check[name] = trainer.check.digest(name)
            advance(1)
        return digests

    @property
    def differing(self) -> tuple[str, ...]:
        return tuple(name for name, digest in self.store.items() if digest != self.check[name])


def _lines(path: Path, limit: int) -> int:
    """Return about how many lines will be read: from the file's size and its first lines."""
    with path.open("rb") as file:
        lines = file.readlines(1 << 20)
    whole = path.stat().st_size * len(lines) // max(1, sum(map(len, lines)))
    return min(limit, whole)


def _rate(trained: Trained) -> float:
    spent = sum(trained.seconds.values()) - trained.seconds["check"]
    return trained.samples / spent


def _share(pools: Iterable[dict[str, Any]], part: str, whole: str) -> float:
    parts, wholes = (sum(int(pool[key]) for pool in pools) for key in (part, whole))
    return parts / max(1, wholes)


def _joined(digests: dict[str, str]) -> str:
    """Return one hash of the digests of all tables, in the order of the columns."""
    return hashlib.blake2b("".join(digests.values()).encode(), digest_size=32).hexdigest()
