"""Who takes part: a store, what was done with it before the first batch, and a way to its rows.

**Plain** steps are a lookup and an update. **Look-ahead** steps are those of a session, which
announces keys as far ahead as it may. **Hot/cold** steps come packed: in another order, and a few
more of them, as the last batch of a kind may be short.

Sessions work on beside the loop, and would prepare their next block while another's is timed. So a
block ends when all that is announced is ready (`settle`), at the block's expense: the steps ahead
that a block finds prepared are as many as it leaves prepared.

**Hits.** A plain store's are its pool's. A session's lookups know misses by unique key alone; where
there are any, each counts as one access. A hot step's rows are all hits, as they are at hand.
"""

import contextlib
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from embstore.arrays import Rows
from embstore.layout import Layout
from embstore.profiles.hotset import HotSet
from embstore.profiles.profile import Profile
from embstore_training.hotcold.run import HotColdRun
from embstore_training.run import Run
from tests.bench.hot.scale import Scale
from tests.bench.hot.stores import Written, pool
from tests.bench.hot.trace import Columns, Trace
from tests.bench.hot.trainer import Trainer

BOUND = "all-cached"
_LEASE_MS = 120_000
"""Longer than the others' blocks, although a thread renews it."""
_SETTLE_S = 5.0


class Step(Protocol):
    """A step of training, whatever way its rows come."""

    @property
    def batch(self) -> Any:
        """Return its samples."""

    def lookup(self) -> dict[str, Rows]:
        """Return a row for each key of the batch, by table."""

    def update(self, gradients: Mapping[str, Rows]) -> Any:
        """Apply a gradient for each key of the batch."""


@dataclass(frozen=True)
class Kind:
    """What makes a contestant."""

    policy: str = "lru"
    caches_all: bool = False
    profile: str | None = None
    """That warms the cache and ranks its rows: "whole" or "sampled"."""
    ahead: bool = False
    rate: int | None = None
    """Of hot/cold training."""


def kinds(scale: Scale) -> dict[str, Kind]:
    """Return all contestants; the bound is the first."""
    return {
        BOUND: Kind(caches_all=True),
        "lru": Kind(),
        "lfu": Kind("lfu"),
        "rank": Kind("rank", profile="whole"),
        "rank-sampled": Kind("rank", profile="sampled"),
        "ahead-lru": Kind(ahead=True),
        "ahead-rank": Kind("rank", profile="whole", ahead=True),
        **{f"hot-{rate}": Kind(rate=rate) for rate in scale.rates},
    }


@dataclass(frozen=True)
class Known:
    """What was counted before training began."""

    profiles: dict[str, Profile]
    hot_set: HotSet


class CallStep:
    """A plain step."""

    def __init__(self, contestant: "Contestant", batch: Columns) -> None:
        self._contestant = contestant
        self._keys = contestant.trace.keys_of(batch)
        self.batch = batch

    def lookup(self) -> dict[str, Rows]:
        """Return the rows of the batch."""
        self._contestant.calls += 1
        rows: dict[str, Rows] = self._contestant.store.lookup(self._keys)
        return rows

    def update(self, gradients: Mapping[str, Rows]) -> None:
        """Update them."""
        self._contestant.calls += 1
        self._contestant.store.update({t: (self._keys[t], g) for t, g in gradients.items()})


class CountedSessions:
    """A store's sessions, whose calls are counted, but not the renewals of a lease."""

    def __init__(self, sessions: Any) -> None:
        self._sessions = sessions
        self.calls = 0

    def __getattr__(self, verb: str) -> Any:
        self.calls += verb != "renew"
        return getattr(self._sessions, verb)


class Contestant:
    """One store, trained by one model with plain calls. Steps are taken once, in order."""

    def __init__(
        self, name: str, kind: Kind, written: Written, trace: Trace, scale: Scale, known: Known
    ) -> None:
        self.name, self.kind, self.trace, self.scale = name, kind, trace, scale
        self.trainer = Trainer(trace, scale)
        self.calls = 0
        self.warmed: dict[str, float] = {}
        # A budget gives a slab more than was asked for, and slabs are a sixty-fourth of it.
        slots = sum(scale.rows) if kind.caches_all else scale.slots - scale.slots // 64
        self.store: Any = written.open(name, slots, kind.policy)
        if kind.caches_all:
            written.bring_all(self.store)
        if kind.profile is not None:
            self._warm(known.profiles[kind.profile])
        self._stack = contextlib.ExitStack()
        self.steps: Iterator[Step] = self._steps(known)
        self._before = self._counts()
        self._stages_before: dict[str, float] = self.store.executor.tables.stages.seconds()

    def _warm(self, profile: Profile) -> None:
        self.store.import_profile(profile)
        begin = time.perf_counter()
        rows = self.store.warm_cache(self.scale.warm_up)
        self.warmed = {"rows": rows, "seconds": time.perf_counter() - begin}

    def _steps(self, known: Known) -> Iterator[Step]:
        return (CallStep(self, batch) for batch in self.trace.batches())

    def settle(self) -> None:
        """Wait until nothing is prepared any more for steps to come."""

    def note_step(self, step: Step) -> None:
        """Count what only the loop sees of a step. Not timed."""

    def end(self) -> dict[str, Any]:
        """Leave what was entered, and return the figures of all steps."""
        figures = self._figures()
        self._stack.close()
        return figures

    def close(self) -> None:
        """Close the store."""
        self._stack.close()
        self.store.close()

    def _counts(self) -> dict[str, int]:
        """Return numbers that only grow."""
        storage, found = self.store.stats()["storage"], pool(self.store)
        names = ("accesses", "access_hits", "unique_keys", "unique_hits", "misses_initializer")
        record = Layout(self.scale.dim, 1, "rowwise_adagrad").record_bytes
        return {name: found[name] for name in names} | {
            "bytes_read": storage["bytes_read"],
            "bytes_written": storage["bytes_written"],
            "rows_read": storage["bytes_read"] // record,
            "rows_written": storage["bytes_written"] // record,
        }

    def _figures(self) -> dict[str, Any]:
        after = self._counts()
        grown = {name: after[name] - self._before[name] for name in after}
        stages, before = self.store.executor.tables.stages.seconds(), self._stages_before
        return {
            **grown,
            **self._hit_rates(grown),
            "slots": pool(self.store)["slots"],
            "store_calls": self._store_calls(),
            "replica_bytes": 0,
            "warmed": self.warmed,
            "stages_s": {stage: stages[stage] - before.get(stage, 0.0) for stage in stages},
        }

    def _store_calls(self) -> int:
        return self.calls

    def _hit_rates(self, grown: dict[str, int]) -> dict[str, float]:
        return {
            "hit_rate_by_access": grown["access_hits"] / grown["accesses"],
            "hit_rate_by_unique": grown["unique_hits"] / grown["unique_keys"],
        }


class Announcing(Contestant):
    """Look-ahead."""

    _hot_unique = 0
    """Unique keys of steps that the session had nothing to do with."""

    def _steps(self, known: Known) -> Iterator[Step]:
        self._port: Any = CountedSessions(self.store.sessions)
        run = Run(
            self._port,
            self.trace.tables,
            lookahead=self.scale.lookahead_steps,
            lease_ms=_LEASE_MS,
        )
        self._stack.enter_context(run)
        return run.steps(self.trace.batches(), self.trace.keys_of)

    def settle(self) -> None:
        """Wait until what is announced is ready, or nothing more can be made so."""
        deadline = time.monotonic() + _SETTLE_S
        while time.monotonic() < deadline:
            told = self._session()
            announced = told["announced_step"] - told["last_step"]
            if told["held_back"] or told["ready_steps"] >= announced:
                return
            time.sleep(1e-3)

    def _session(self) -> dict[str, Any]:
        (told,) = self.store.sessions.stats()
        return dict(told)

    def _figures(self) -> dict[str, Any]:
        told = self._session()
        names = ("steps_in_parts", "steps_planned_again", "stalls", "stall_s", "held_back_s")
        session = {name: told[name] for name in (*names, "prefetch_coverage")}
        return super()._figures() | {"session": session, "stages_s": told["stage_seconds"]}

    def _store_calls(self) -> int:
        calls: int = self._port.calls
        return calls

    def _hit_rates(self, grown: dict[str, int]) -> dict[str, float]:
        told = self._session()
        keys, missing = told["lookup_keys"], told["lookup_keys"] - told["lookup_hits"]
        accesses = self.scale.samples * len(self.trace.tables)
        return {
            "hit_rate_by_access": 1 - missing / accesses,
            "hit_rate_by_unique": 1 - missing / (keys + self._hot_unique),
        }


class HotCold(Announcing):
    """Hot/cold training."""

    def _steps(self, known: Known) -> Iterator[Step]:
        columns = {table: table for table in self.trace.tables}
        self._run = HotColdRun(
            self.store,
            known.hot_set,
            columns,
            batch_size=self.scale.batch_samples,
            window_batches=self.scale.round_steps,
            rate=self.kind.rate or 0,
            lookahead=self.scale.lookahead_steps,
            lease_ms=_LEASE_MS,
        )
        self._stack.enter_context(self._run)
        return self._run.steps(self.trace.chunks())

    def note_step(self, step: Any) -> None:
        """Count the unique keys of a hot step, which no store sees."""
        if step.is_hot:
            self._hot_unique += sum(len(np.unique(keys)) for keys in step.keys.values())

    def _figures(self) -> dict[str, Any]:
        told = self._run.stats()
        return super()._figures() | {
            "replica_bytes": told["bytes"],
            "hot_sample_share": told["hot_samples"] / self.scale.samples,
            "replica": told,
        }

    def _store_calls(self) -> int:
        return self._run.stats()["store_calls"]


def make(
    name: str, kind: Kind, written: Written, trace: Trace, scale: Scale, known: Known
) -> Contestant:
    """Return a contestant that is ready for its first step."""
    way = HotCold if kind.rate is not None else Announcing if kind.ahead else Contestant
    return way(name, kind, written, trace, scale, known)
