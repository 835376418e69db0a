"""The ways to train: they define the source of a loop's steps and rows.

    Calls     a step is a lookup and an update as usual; the store does not know the next step
    Ahead     a session: a thread reads batches ahead and announces their keys, and the store reads
              their rows into the cache before the step needs them
    HotCold   a session as well, for the batches that need the store; samples whose rows are all hot
              form separate batches, which are trained on a replica in this process

The loop does not depend on the way to train: each way has a **feed**, which yields the steps.
Neither Ahead nor any cache changes a bit of the tables. HotCold changes the order of the samples,
and therefore, slightly, the learnt weights. Any other way that trains on the samples in HotCold's
order gives the same bits as HotCold.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from embstore.checks.arguments import integer
from embstore.profiles.hotset import HotSet, choose_hot_set
from embstore.profiles.profile import Profile
from embstore_tools.demo.criteo import Samples
from embstore_tools.demo.result import HotColdResult, SessionResult, shards_of
from embstore_tools.demo.steps import Batch, TrainingStep, batches

if TYPE_CHECKING:
    from embstore.handles.store import Store
    from embstore_training.history import RunHistory


@dataclass(frozen=True)
class WayInput:
    """The input of a way to train."""

    store: "Store"
    rows: dict[str, int]
    """Number of rows of each table, in the order of the columns."""
    row_bytes: int
    """Bytes of a row of any table, weights and state."""
    batch: int
    """Number of samples per step."""
    profile: Profile | None
    """The profile, for the ways that need one."""
    keeps_history: bool = False
    """Whether a session keeps a history of its steps."""

    def batches(self, blocks: Iterable[Samples]) -> Iterator[Batch]:
        """Yield a batch for each block."""
        return batches(blocks, tuple(self.rows.values()))


def session_of(material: WayInput) -> SessionResult:
    """Return the present stats of the session that holds the tables."""
    first = next(iter(material.rows))
    open_ones = [shard["sessions"]["open"] for shard in shards_of(material.store.stats())]
    return SessionResult.of([s for of_shard in open_ones for s in of_shard if first in s["tables"]])


class Feed:
    """The source of a loop's steps. This class uses single calls; subclasses use sessions."""

    def __init__(self, material: WayInput) -> None:
        self._material = material

    def steps(self, blocks: Iterable[Samples]) -> Iterator[TrainingStep]:
        """Yield the steps that train on blocks of samples."""
        store = self._material.store
        for batch in self._material.batches(blocks):
            update = partial(self._update, batch)
            yield TrainingStep(batch, partial(store.lookup, batch.keys), update)

    def _update(self, batch: Batch, gradients: Any) -> None:
        self._material.store.update({t: (batch.keys[t], rows) for t, rows in gradients.items()})

    def session(self) -> SessionResult | None:
        """Return the present stats of the feed's session. None: it has no session."""
        return None

    def hot(self) -> HotColdResult | None:
        """Return the stats of hot/cold training. None: this way has none."""
        return None

    def history(self) -> "RunHistory | None":
        """Return the history of the session's steps. None: the session keeps no history."""
        return None


class _AheadFeed(Feed):
    def __init__(self, material: WayInput, run: Any) -> None:
        super().__init__(material)
        self._run = run
        self._history: RunHistory | None = None

    def steps(self, blocks: Iterable[Samples]) -> Iterator[TrainingStep]:
        if self._material.keeps_history:
            from embstore_training.history import RunHistory  # here, because only a run needs it

            self._history = RunHistory(self._material.store, self._run)
        for step in self._run.steps(self._material.batches(blocks), lambda batch: batch.keys):
            yield TrainingStep(step.batch, step.lookup, step.update)
            if self._history is not None:
                self._history.note()

    def history(self) -> "RunHistory | None":
        return self._history

    def session(self) -> SessionResult:
        return session_of(self._material)


class _HotColdFeed(_AheadFeed):
    """Passes samples as columns to a hot/cold run, which arranges them in steps."""

    def __init__(self, material: WayInput, run: Any, chosen: HotSet, budget_bytes: int) -> None:
        super().__init__(material, run)
        self._chosen = chosen
        self._budget_bytes = budget_bytes
        self._hot_calls = self._hot_keys = 0

    def steps(self, blocks: Iterable[Samples]) -> Iterator[TrainingStep]:
        for step in self._run.steps(self._chunks(blocks)):
            batch = Batch(step.batch["labels"], step.batch["integers"], step.keys)
            before = self._run.stats()["store_calls"]
            yield TrainingStep(batch, step.lookup, step.update)
            if step.is_hot:
                self._hot_calls += self._run.stats()["store_calls"] - before
                self._hot_keys += sum(len(np.unique(keys)) for keys in batch.keys.values())

    def _chunks(self, blocks: Iterable[Samples]) -> Iterator[dict[str, Any]]:
        """Yield blocks as columns: labels and dense features are passed together with the ids."""
        for batch in self._material.batches(blocks):
            yield {"labels": batch.labels, "integers": batch.integers, **batch.keys}

    def hot(self) -> HotColdResult:
        did, chosen = self._run.stats(), self._chosen
        samples = did["hot_samples"] + did["mixed_samples"]
        same = "hot_batches", "mixed_batches", "hot_samples", "mixed_samples", "switches"
        return HotColdResult(
            budget_bytes=self._budget_bytes,
            hot_rows=chosen.row_count,
            hot_bytes=chosen.bytes,
            threshold=chosen.threshold,
            **{name: did[name] for name in same},
            hot_share=did["hot_samples"] / max(1, samples),
            rows_pulled=did["pulled_rows"],
            rows_pushed=did["pushed_rows"],
            exchanged_bytes=did["bytes"],
            calls_in_hot_batches=self._hot_calls,
            lookup_keys=self._hot_keys,
        )


@dataclass(frozen=True)
class Calls:
    """Training by single calls."""

    needs_profile = False
    """Whether accesses in the file must be counted before training."""

    @contextmanager
    def opened(self, material: WayInput) -> Iterator[Feed]:
        """Feed a loop inside the with block."""
        yield Feed(material)


@dataclass(frozen=True)
class Ahead:
    """Training in a look-ahead session."""

    lookahead: int = 16
    """The largest number of steps that are announced beyond the last finished step."""
    needs_profile = False

    def __post_init__(self) -> None:
        integer(self.lookahead, "lookahead", 1)

    @contextmanager
    def opened(self, material: WayInput) -> Iterator[Feed]:
        """Open a session, and feed a loop inside the with block."""
        with material.store.session(list(material.rows), lookahead=self.lookahead) as run:
            yield _AheadFeed(material, run)


@dataclass(frozen=True)
class HotCold:
    """Training of all-hot batches on a replica, and of other batches in a look-ahead session."""

    budget_bytes: int = 4 << 20
    """The bytes of the hot rows, weights and state. With the default, hot rows get 97 % of the
    accesses in the default demo, and four samples in ten have only ids of hot rows. With 16 MiB,
    all rows that the demo ever uses would be hot."""
    lookahead: int = Ahead.lookahead
    """The largest number of steps that the session announces beyond the last finished step."""
    needs_profile = True

    def __post_init__(self) -> None:
        integer(self.budget_bytes, "budget_bytes", 1)
        integer(self.lookahead, "lookahead", 1)

    @contextmanager
    def opened(self, material: WayInput) -> Iterator[Feed]:
        """Open a session and a replica, and feed a loop inside the with block."""
        from embstore_training.hotcold import HotColdRun  # here, because only a run needs it

        assert material.profile is not None
        costs = dict.fromkeys(material.rows, material.row_bytes)
        chosen = choose_hot_set(material.profile, self.budget_bytes, costs)
        with HotColdRun(
            material.store,
            chosen,
            {name: name for name in material.rows},
            batch_size=material.batch,
            lookahead=self.lookahead,
        ) as run:
            yield _HotColdFeed(material, run, chosen, self.budget_bytes)


Way = Calls | Ahead | HotCold
