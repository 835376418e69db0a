"""Training through a store, with the dense check in lockstep.

One step is one batch of samples, one lookup and one update over all 26 tables:

    keys -> step.lookup -> rows -> DLRM -> gradients -> step.update
               |  equal, to the bit?               |
            check.lookup                        check.update

The way to train (ways.py) provides the steps, and the framework (frameworks) computes the model.
The loop is the same for all ways and frameworks.

The dense check looks up the same rows in each step. Therefore a difference is found and reported in
the step after the step that caused it. Training then stops, because all later steps would differ.

Held-out samples are looked up with admit=False, so evaluation does not change the cache.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from time import perf_counter
from typing import TYPE_CHECKING

import numpy as np

from embstore.config import Optimizer, TableConfig, Uniform
from embstore.errors import InvalidArgumentError
from embstore_tools.demo.columns import SPARSE_TABLE, keys_by_table, table_name
from embstore_tools.demo.criteo import Samples
from embstore_tools.demo.dense import DenseTables
from embstore_tools.demo.dlrm import area_under_curve
from embstore_tools.demo.frameworks.registry import learner_of
from embstore_tools.demo.phases import Advance
from embstore_tools.demo.steps import HeldOut, TrainingStep
from embstore_tools.demo.ways import Feed

if TYPE_CHECKING:
    from embstore.handles.store import Store

_LOSS_MEMORY = 0.95  # the shown loss is a mean over about twenty steps


@dataclass
class Trained:
    """The result of training; times are in seconds, by activity.

    "read" is the time that the loop waits for its next step. In a session another thread reads and
    announces batches, so the wait is short once that thread is ahead. If rows are exchanged, "read"
    includes the exchange.
    """

    steps: int = 0
    samples: int = 0
    loss: float = float("nan")
    first_difference: str | None = None
    """The first position at which a looked-up row differed from the row of the dense check, or
    None."""
    seconds: dict[str, float] = field(default_factory=lambda: defaultdict(float))

    @property
    def samples_per_second(self) -> float:
        """Trained samples per second, without the time of the dense check."""
        return self.samples / (sum(self.seconds.values()) - self.seconds["check"])

    @contextmanager
    def timed(self, stage: str) -> Iterator[None]:
        """Add the time of the with block to a stage."""
        started = perf_counter()
        yield
        self.seconds[stage] += perf_counter() - started


def table_configs(
    rows: tuple[int, ...], *, dim: int, optimizer: Optimizer, is_sparse: bool = False
) -> list[TableConfig]:
    """Return the configuration of each column's table, or of the one table of sparse keys.

    Initial rows are uniform within 1 / sqrt(rows), as in DLRM. For sparse keys `rows` is the sum
    over all columns.
    """
    tables = {table_name(column): count for column, count in enumerate(rows)}
    if is_sparse:
        tables = {SPARSE_TABLE: sum(rows)}
    return [
        TableConfig.checked(
            name,
            dim=dim,
            rows=None if is_sparse else count,
            key_space="sparse" if is_sparse else "dense",
            optimizer=optimizer,
            initializer=Uniform(-(count**-0.5), count**-0.5),
        )
        for name, count in tables.items()
    ]


class Trainer:
    """A DLRM whose embeddings are both in a store and in a dense check. One thread at a time."""

    def __init__(
        self,
        store: "Store",
        configs: list[TableConfig],
        *,
        framework: str = "numpy",
        device: str = "cpu",
        seed: int = 0,
    ) -> None:
        """Create the tables and the model."""
        self.check = DenseTables(configs)
        self.held_out = HeldOut()
        self.result = Trained()
        self._store = store
        self._rows = tuple(config.rows for config in configs)
        self.tables = [config.name for config in configs]
        of_table = "dim", "rows", "optimizer", "initializer", "key_space"
        for config in configs:
            store.create_table(config.name, **{name: getattr(config, name) for name in of_table})
        self.learner = learner_of(framework, store, configs, seed=seed, device=device)

    def train(self, blocks: Iterable[Samples], feed: Feed, advance: Advance) -> None:
        """Train on each block without its held-out part; stop early if a row differs from that of
        the dense check.

        Parameters
        ----------
        feed : makes steps from blocks; it may read the blocks in a separate thread
        """
        steps = feed.steps(self.held_out.without(blocks))
        while self.result.first_difference is None:
            with self.result.timed("read"):
                step = next(steps, None)
            if step is None:
                break
            self._step(step)
            advance(len(step.batch), f"loss {self.result.loss:.4f}")
        if not self.result.samples:
            raise InvalidArgumentError("expected at least two samples, one of them to hold out")

    def held_out_auc(self, advance: Advance) -> float | None:
        """Return the AUC of the held-out samples; None if all of them have the same label."""
        parts = []
        for samples in self.held_out.parts:
            keys = keys_by_table(samples.categories, self._rows)
            rows = self._store.lookup(keys, admit=False)
            parts.append(self.learner.scores(samples.integers, rows))
            advance(len(samples))
        labels = np.concatenate([samples.labels for samples in self.held_out.parts])
        return area_under_curve(labels, np.concatenate(parts))

    def _step(self, step: TrainingStep) -> None:
        result, batch, keys = self.result, step.batch, step.batch.keys
        with result.timed("lookup"):
            rows = step.lookup()
        with result.timed("check"):
            where = self.check.difference(rows, keys)
            result.first_difference = where and f"step {result.steps + 1}, {where}"
        with result.timed("model"):
            loss, gradients = self.learner.learn(batch, rows)
        with result.timed("update"):
            step.update(gradients)
        with result.timed("check"):
            self.check.update({name: (keys[name], gradients[name]) for name in keys})
        before = result.loss if result.steps else loss
        result.loss = _LOSS_MEMORY * before + (1 - _LOSS_MEMORY) * loss
        result.steps += 1
        result.samples += len(batch)
