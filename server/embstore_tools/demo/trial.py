"""One job, from a file to a result: trains through a store, then compares it with the dense check.

If the policy or the way to train needs the rows' frequencies, the accesses in the file are counted
first. They are counted batch by batch, without held-out samples, because held-out samples do not
change a cache. So the profile records exactly the calls of the training. Under the rank policy, the
profile is then imported into the store, and the store's cache is warmed by it.
"""

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

from embstore.cache.policies import POLICIES
from embstore.profiles.profile import Profile
from embstore_tools.demo import criteo
from embstore_tools.demo.columns import keys_by_table, table_name
from embstore_tools.demo.job import Job
from embstore_tools.demo.phases import Phases
from embstore_tools.demo.result import (
    DemoResult,
    HotColdResult,
    PopularityResult,
    SessionResult,
    shards_of,
)
from embstore_tools.demo.serving import CHECKPOINT_LABEL
from embstore_tools.demo.steps import HELD_OUT_MAX, HeldOut, held_out_of
from embstore_tools.demo.training import Trainer
from embstore_tools.demo.ways import WayInput

if TYPE_CHECKING:
    from embstore.handles.store import Store
    from embstore_training.history import RunHistory

WARMED_SHARE = 0.7
"""The share of the cache's slots to fill by the warm-up; the other slots are for rows that the
profile ranks lower."""
_COUNTERS = "unique_hits", "unique_keys", "access_hits", "accesses"


def check_readable(path: Path) -> None:
    """Raise InvalidArgumentError if a file is missing, empty or begins with a malformed line."""
    for _ in criteo.read(path, limit=1, block=1):
        return


@dataclass(frozen=True)
class Counted:
    """A profile, and the seconds spent on counting it."""

    profile: Profile
    seconds: float


def count_first(job: Job, path: Path, phases: Phases) -> Counted:
    """Count the accesses of a job's training."""
    # Imported here, because these modules use the demo's reader, and only a run needs them.
    from embstore_tools.profiling.count import Counting, SampleCounter
    from embstore_tools.profiling.readers import Chunk, Column

    started = perf_counter()
    rows = {table_name(column): count for column, count in enumerate(job.rows)}
    counter = SampleCounter(Counting(tuple(rows), rows=rows, batch=job.step_samples))
    with phases.phase("counting accesses", lines_trained(job, path)) as advance:
        for block in HeldOut().without(read_samples(job, path)):
            keys = keys_by_table(block.categories, job.rows)
            counter.add(Chunk(tuple(map(Column, keys.values())), str(path)))
            advance(len(block))
    return Counted(counter.profile(), perf_counter() - started)


def read_samples(job: Job, path: Path) -> Iterator[criteo.Samples]:
    """Yield the samples of a job's file, a batch at a time."""
    return criteo.read(path, limit=job.samples, block=job.batch, as_text=job.sparse)


def lines_trained(job: Job, path: Path) -> int:
    """Return roughly the number of lines to train on, estimated from the file's size and first
    lines."""
    with path.open("rb") as file:
        lines = file.readlines(1 << 20)
    whole = path.stat().st_size * len(lines) // max(1, sum(map(len, lines)))
    count = min(job.samples, whole)
    return count - min(held_out_of(count), HELD_OUT_MAX)


def train_and_compare(
    job: Job,
    store: "Store",
    path: Path,
    phases: Phases,
    *,
    counted: Counted | None = None,
    network_bytes: Callable[[], int] | None = None,
    report: Path | None = None,
) -> DemoResult:
    """Train on a file through a store that has no tables yet, checkpoint it, and compare digests.

    Parameters
    ----------
    counted : the result of `count_first`. None: this function counts the file, if needed
    network_bytes : returns the bytes sent over the network so far. None: there is no network
    report : path of a session's report; its data is written with the suffix .json. None: no report

    Raises
    ------
    InvalidArgumentError : a line of the file is malformed; or a budget is smaller than one row.
    """
    trainer = Trainer(store, job.configs, framework=job.framework, device=job.device)
    if job.needs_profile and counted is None:
        counted = count_first(job, path, phases)
    popularity = _prepare(job, store, counted, phases)
    material = WayInput(
        store,
        {config.name: config.rows for config in job.configs},
        row_bytes=job.row_bytes,
        batch=job.step_samples,
        profile=counted.profile if counted else None,
        keeps_history=report is not None,
    )
    moved_before = network_bytes() if network_bytes else 0
    with trainer.learner.opened(job.way, material) as feed:
        with phases.phase("training", lines_trained(job, path)) as advance:
            trainer.train(read_samples(job, path), feed, advance)
        session, hot = feed.session(), feed.hot()
        _write_report(feed.history(), report)
    moved = network_bytes() - moved_before if network_bytes else None
    shards = shards_of(store.stats())  # before the evaluation, which is no part of training
    with phases.phase("evaluating", trainer.held_out.count) as advance:
        auc = trainer.held_out_auc(advance)
    trained = trainer.result
    store.checkpoint(CHECKPOINT_LABEL, {"samples": trained.samples, "auc": auc})
    return DemoResult(
        samples=trained.samples,
        samples_held_out=trainer.held_out.count,
        steps=trained.steps,
        samples_per_second=trained.samples_per_second,
        loss=trained.loss,
        auc=auc,
        network_bytes=moved,
        seconds=dict(trained.seconds),
        popularity=popularity,
        **_of_job(job, trainer.check.rows if job.sparse else sum(job.rows)),
        **_of_store(shards, session, hot),
        **_of_digests(trainer, store, phases),
    )


def _of_job(job: Job, rows: int) -> dict[str, Any]:
    return {
        "framework": job.framework,
        "policy": job.policy,
        "tables": len(job.configs),
        "rows": rows,
        "dim": job.dim,
        "optimizer": job.optimizer.kind,
        "table_bytes": rows * job.row_bytes,
    }


def _of_digests(trainer: Trainer, store: "Store", phases: Phases) -> dict[str, Any]:
    """Return how the store's tables differ from the tables of the dense check."""
    found, expected = {}, {}
    with phases.phase("comparing digests", len(trainer.tables)) as advance:
        for name in trainer.tables:
            found[name] = store.table(name).digest()
            expected[name] = trainer.check.digest(name)
            advance(1)
    return {
        "digest": _joined(found),
        "digest_of_check": _joined(expected),
        "differing_tables": tuple(name for name in found if found[name] != expected[name]),
        "first_difference": trainer.result.first_difference,
    }


def _prepare(
    job: Job, store: "Store", counted: Counted | None, phases: Phases
) -> PopularityResult | None:
    """Import the profile into the store and warm its cache, if the policy uses a profile."""
    if counted is None:
        return None
    rows = sum(len(table.keys) for table in counted.profile.tables.values())
    if not POLICIES[job.policy].has_levels:
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


def _of_store(
    shards: Sequence[Mapping[str, Any]], session: SessionResult | None, hot: HotColdResult | None
) -> dict[str, Any]:
    """Return the stats of a store's shards, and of its session, during training."""
    pools = [pool for shard in shards for pool in shard["cache"]["pools"]]
    hits_unique, hits_access = _hit_rates(pools, session, hot)
    return {
        "session": session,
        "hot": hot,
        "hit_rate_unique": hits_unique,
        "hit_rate_access": hits_access,
        "cache_bytes": sum(shard["cache"]["budget_bytes"] for shard in shards),
        "bytes_read": sum(shard["storage"]["bytes_read"] for shard in shards),
        "bytes_written": sum(shard["storage"]["bytes_written"] for shard in shards),
    }


def _hit_rates(
    pools: Sequence[Mapping[str, int]], session: SessionResult | None, hot: HotColdResult | None
) -> tuple[float, float | None]:
    """Return the hit rates by unique key and by access of all lookups, in the store and in a
    replica.

    In a session the rates are the session's hit rates; lookups in a replica count as hits.
    """
    if session is None:
        sums = {name: sum(pool[name] for pool in pools) for name in _COUNTERS}
        unique = sums["unique_hits"] / max(1, sums["unique_keys"])
        return unique, sums["access_hits"] / max(1, sums["accesses"])
    here = hot.lookup_keys if hot else 0
    missed = (1 - session.hit_rate) * session.lookup_keys
    return 1 - missed / max(1, session.lookup_keys + here), None if missed else 1.0


def _write_report(history: "RunHistory | None", path: Path | None) -> None:
    if history is None or path is None:
        return
    from embstore.profiles.archive import replace_file
    from embstore_tools.report.page import page
    from embstore_tools.report.reading import read

    kept = path.with_suffix(".json")
    history.save(kept)
    replace_file(path, page(read(kept)).encode())


def _joined(digests: dict[str, str]) -> str:
    """Return one hash of the digests of all tables, in the order of the columns."""
    return hashlib.blake2b("".join(digests.values()).encode(), digest_size=32).hexdigest()
