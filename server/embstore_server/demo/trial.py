"""One job, from a file to a result: train through a store, then compare it with the dense check.

Where the policy or the way wants to know which rows are frequent, the file is counted first. Under
the rank policy the store is then given the profile, and its cache is warmed by it.
"""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from embstore_server.demo import criteo
from embstore_server.demo.counting import Counted, count_first, lines_trained
from embstore_server.demo.job import Job
from embstore_server.demo.phases import Advance, Phases
from embstore_server.demo.result import DemoResult, HotColdResult, PopularityResult, SessionResult
from embstore_server.demo.stores import TrainingStore
from embstore_server.demo.training import Trained, Trainer
from embstore_server.demo.ways import Material

CHECKPOINT_LABEL = "trained"
WARMED_SHARE = 0.7
"""Of the cache's slots; the others are for rows that the profile does not rank so high."""


def check_readable(path: Path) -> None:
    """Raise InvalidArgumentError if a file is missing, empty or begins with a malformed line."""
    for _ in criteo.read(path, limit=1, block=1):
        return


def train_and_compare(
    job: Job,
    store: TrainingStore,
    path: Path,
    phases: Phases,
    *,
    counted: Counted | None = None,
    network_bytes: Callable[[], int] | None = None,
) -> DemoResult:
    """Train on a file through a store that has no tables yet, checkpoint it, and compare digests.

    Parameters
    ----------
    counted : by `count_first`; None: it is counted here, if that is needed
    network_bytes : returns how many bytes went over the network so far; None: there is none

    Raises
    ------
    InvalidArgumentError : a line of the file is malformed; a budget of less than one row.
    """
    trainer = Trainer(store, job.configs)
    if job.needs_profile and counted is None:
        counted = count_first(job, path, phases)
    popularity = _prepare(job, store, counted, phases)
    material = Material(
        store,
        {config.name: config.rows for config in job.configs},
        row_bytes=job.row_bytes,
        batch=job.step_samples,
        profile=counted.profile if counted else None,
    )
    moved_before = network_bytes() if network_bytes else 0
    with job.way.opened(material) as feed:
        with phases.phase("training", lines_trained(job, path)) as advance:
            trainer.train(criteo.read(path, limit=job.samples, block=job.batch), feed, advance)
        session, hot = feed.session(), feed.hot()
    moved = network_bytes() - moved_before if network_bytes else None
    stats = store.stats()  # now: what follows is no training
    with phases.phase("evaluating", trainer.held_out.count) as advance:
        auc = trainer.held_out_auc(advance)
    trained = trainer.result
    store.checkpoint(CHECKPOINT_LABEL, {"samples": trained.samples, "auc": auc})
    with phases.phase("comparing digests", len(job.configs)) as advance:
        digests = _Digests.of(trainer, store, advance)
    hits = _Hits.of(stats["cache"]["pools"], session, hot)
    return DemoResult(
        samples=trained.samples,
        samples_held_out=trainer.held_out.count,
        steps=trained.steps,
        samples_per_second=_rate(trained),
        loss=trained.loss,
        auc=auc,
        policy=job.policy,
        hit_rate_unique=hits.unique,
        hit_rate_access=hits.access,
        tables=len(job.configs),
        rows=sum(job.rows),
        dim=job.dim,
        optimizer=job.optimizer.kind,
        table_bytes=job.table_bytes,
        cache_bytes=stats["cache"]["budget_bytes"],
        bytes_read=stats["storage"]["bytes_read"],
        bytes_written=stats["storage"]["bytes_written"],
        network_bytes=moved,
        seconds=dict(trained.seconds),
        popularity=popularity,
        session=session,
        hot=hot,
        digest=_joined(digests.store),
        digest_of_check=_joined(digests.check),
        differing_tables=digests.differing,
        first_difference=trained.first_difference,
    )


def _prepare(
    job: Job, store: TrainingStore, counted: Counted | None, phases: Phases
) -> PopularityResult | None:
    """Give the store the profile and warm its cache, under the policy that goes by it."""
    if counted is None:
        return None
    rows = sum(len(table.keys) for table in counted.profile.tables.values())
    if job.policy != "rank":
        return PopularityResult(counted.seconds, rows, warmed_rows=0)
    store.import_profile(counted.profile)
    with phases.phase("warming the cache") as advance:
        done = 0

        def tell(rows: int, of: int) -> None:
            nonlocal done
            advance(rows - done, f"of {of:,} rows")
            done = rows

        warmed = store.warm_cache(WARMED_SHARE, progress=tell)
    return PopularityResult(counted.seconds, rows, warmed)


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


def _rate(trained: Trained) -> float:
    spent = sum(trained.seconds.values()) - trained.seconds["check"]
    return trained.samples / spent


@dataclass(frozen=True)
class _Hits:
    """Hit rates of all lookups, wherever they were answered."""

    unique: float
    access: float | None

    @classmethod
    def of(
        cls,
        pools: Sequence[Mapping[str, int]],
        session: SessionResult | None,
        hot: HotColdResult | None,
    ) -> "_Hits":
        """Return the rates of the cache, or of a session; what a replica answers hits as well."""
        if session is None:
            return cls(
                _share(pools, "unique_hits", "unique_keys"),
                _share(pools, "access_hits", "accesses"),
            )
        here = hot.lookup_keys if hot else 0
        missed = (1 - session.hit_rate) * session.lookup_keys
        unique = 1 - missed / max(1, session.lookup_keys + here)
        return cls(unique, None if missed else 1.0)


def _share(pools: Sequence[Mapping[str, int]], part: str, whole: str) -> float:
    parts, wholes = (sum(pool[key] for pool in pools) for key in (part, whole))
    return parts / max(1, wholes)


def _joined(digests: dict[str, str]) -> str:
    """Return one hash of the digests of all tables, in the order of the columns."""
    return hashlib.blake2b("".join(digests.values()).encode(), digest_size=32).hexdigest()
