"""The contestants: each is a store, its preparation before the first batch, and a way to its rows.

**Plain** steps are a lookup and an update. **Look-ahead** steps are those of a session, which
announces keys as far ahead as it may. **Hot/cold** steps come packed: in another order, and there
are a few steps more, because the last batch of each kind may be short.

Sessions work in parallel to the loop, and would prepare their next block while another contestant's
block is timed. So a block ends when everything that is announced is ready (`settle`), and the time
until then is part of the block. A block finds as many steps prepared as it leaves prepared.

**Hits.** The hits of a plain store are those of its pool. The lookups of a session count misses by
unique key only; each such miss counts as one access. All rows of a hot step are hits, because they
are at the trainer.

Each contestant trains a model of its own, the demo's DLRM, and all begin with the same parameters.
"""

import contextlib
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from embstore.arrays import Rows
from embstore.layout import Layout
from embstore.profiles.hotset import HotSet
from embstore.profiles.profile import Profile
from embstore_tools.demo.criteo import INTEGERS
from embstore_tools.demo.dlrm import Adam, Dlrm, area_under_curve
from embstore_training.hotcold.run import HotColdRun
from embstore_training.run import Run
from tests.bench.hot.scale import Scale
from tests.bench.hot.stores import Written, pool
from tests.bench.hot.trace import FEATURES, LABELS, Columns, Trace

_DENSE_LEARNING_RATE = 2e-3


class Trainer:
    """The dense part, and what it does with a batch's rows."""

    def __init__(self, trace: Trace, scale: Scale) -> None:
        self._trace = trace
        self._model = Dlrm(integers=INTEGERS, columns=len(trace.tables), dim=scale.dim)
        self._optimizer = Adam(self._model.parameters, _DENSE_LEARNING_RATE)

    def gradients(self, batch: Columns, rows: dict[str, Rows]) -> dict[str, Rows]:
        """Train the dense part on a batch, and return the gradients of its rows by table."""
        found = self._model.gradients(batch[FEATURES], self._stacked(rows), batch[LABELS])
        self._optimizer.step(found.dense)
        return {
            table: np.ascontiguousarray(found.embeddings[:, column])
            for column, table in enumerate(self._trace.tables)
        }

    def held_out_auc(self, store: Any) -> float | None:
        """Return the AUC of the held-out samples. The cache stays as training left it."""
        held_out, scores = self._trace.held_out, []
        for batch in self._trace.batches(held_out):
            rows = store.lookup(self._trace.keys_of(batch), admit=False)
            scores.append(self._model.scores(batch[FEATURES], self._stacked(rows)))
        return area_under_curve(held_out[LABELS].astype(np.float32), np.concatenate(scores))

    def _stacked(self, rows: dict[str, Rows]) -> Rows:
        return np.stack([rows[table] for table in self._trace.tables], axis=1)


BOUND = "all-cached"
_LEASE_MS = 120_000
"""Longer than the others' blocks, although a thread renews it."""
_SETTLE_S = 5.0


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
    """A plain step, with what a session's steps have too."""

    def __init__(self, contestant: "Contestant", batch: Columns) -> None:
        self._store = contestant.store
        self._keys = contestant.trace.keys_of(batch)
        self.batch = batch

    def lookup(self) -> dict[str, Rows]:
        rows: dict[str, Rows] = self._store.lookup(self._keys)
        return rows

    def update(self, gradients: Mapping[str, Rows]) -> None:
        self._store.update({t: (self._keys[t], g) for t, g in gradients.items()})


class Contestant:
    """One store, trained by one model with plain calls. Steps are taken once, in order."""

    def __init__(
        self, name: str, kind: Kind, written: Written, trace: Trace, scale: Scale, known: Known
    ) -> None:
        self.name, self.kind, self.trace, self.scale = name, kind, trace, scale
        self.trainer = Trainer(trace, scale)
        self.warmed: dict[str, float] = {}
        # A budget gives a slab more than was asked for, and slabs are a sixty-fourth of it.
        slots = sum(scale.rows) if kind.caches_all else scale.slots - scale.slots // 64
        self.store: Any = written.open(name, slots, kind.policy)
        if kind.caches_all:
            written.bring_all(self.store)
        if kind.profile is not None:
            self._warm(known.profiles[kind.profile])
        self._stack = contextlib.ExitStack()
        self.steps: Iterator[Any] = self._steps(known)
        self._before = self._counts()

    def _warm(self, profile: Profile) -> None:
        self.store.import_profile(profile)
        begin = time.perf_counter()
        rows = self.store.warm_cache(self.scale.warm_up)
        seconds = time.perf_counter() - begin
        self.warmed = {"rows": rows, "seconds": seconds, "rows_per_s": rows / seconds}

    def _steps(self, known: Known) -> Iterator[Any]:
        return (CallStep(self, batch) for batch in self.trace.batches())

    def settle(self) -> None:
        """Wait until nothing is prepared any more for steps to come."""

    def note_step(self, step: Any) -> None:
        """Count what only the loop sees of a step. Not timed."""

    def end(self) -> dict[str, Any]:
        """Leave what was entered, and return the figures of all steps."""
        figures = self._figures()
        self._stack.close()
        return figures

    def close(self) -> None:
        self._stack.close()
        self.store.close()

    def _counts(self) -> dict[str, int]:
        """Return numbers that only grow."""
        storage, found = self.store.stats()["storage"], pool(self.store)
        names = ("accesses", "access_hits", "unique_keys", "unique_hits")
        record = Layout(self.scale.dim, 1, "rowwise_adagrad").record_bytes
        return {name: found[name] for name in names} | {
            "rows_read": storage["bytes_read"] // record,
            "rows_written": storage["bytes_written"] // record,
        }

    def _figures(self) -> dict[str, Any]:
        after = self._counts()
        grown = {name: after[name] - self._before[name] for name in after}
        slots = pool(self.store)["slots"]
        return {**grown, **self._hit_rates(grown), "slots": slots, "warmed": self.warmed}

    def _hit_rates(self, grown: dict[str, int]) -> dict[str, float]:
        return {
            "hit_rate_by_access": grown["access_hits"] / grown["accesses"],
            "hit_rate_by_unique": grown["unique_hits"] / grown["unique_keys"],
        }


class Announcing(Contestant):
    """Look-ahead."""

    _hot_unique = 0
    """Unique keys of steps that the session had nothing to do with."""

    def _steps(self, known: Known) -> Iterator[Any]:
        run = Run(
            self.store.sessions,
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

    def _steps(self, known: Known) -> Iterator[Any]:
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
        }


def make(
    name: str, kind: Kind, written: Written, trace: Trace, scale: Scale, known: Known
) -> Contestant:
    way = HotCold if kind.rate is not None else Announcing if kind.ahead else Contestant
    return way(name, kind, written, trace, scale, known)
