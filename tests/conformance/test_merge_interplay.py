"""Folds and compactions against all that decides what they may forget: kept labels, commits without
one, drops, restores, crashes.

Merges run as they please here, beside the commands; the state machine holds them between commands.
"""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import settings

from embstore.config import Adam, Constant, RowWiseAdagrad, Sgd, Uniform
from tests.conformance.backends import TINY
from tests.conformance.cases import generator
from tests.conformance.traces import near_keys, values
from tests.conformance.twin import digests

pytestmark = pytest.mark.needs("merges", "directory", "limits")

TABLES = {
    "a": {"dim": 48, "rows": 400, "optimizer": Sgd(0.1), "initializer": Constant(0.0)},
    "b": {"dim": 48, "rows": 300, "optimizer": Sgd(0.1), "initializer": Uniform(0.0, 1.0)},
    "c": {"dim": 31, "rows": 200, "optimizer": RowWiseAdagrad(0.1), "initializer": Constant(1.0)},
    "d": {"dim": 7, "rows": 500, "optimizer": Adam(0.1), "initializer": Uniform(-1.0, 0.0)},
}
LIMITS = {
    "fold soon": TINY,
    "fold late": replace(TINY, fold_bytes=1 << 17, fold_segments=9),
    "compact": replace(TINY, fold_bytes=1 << 30, fold_segments=1000),
}
STEPS = 80
SEEDS = range(max(1, settings().max_examples // 100))
"""One; fifty with --hypothesis-profile=long."""


class Life:
    """A random life of one store; knows the digests that every label was made with."""

    def __init__(self, twin, rng):
        self.twin = twin
        self.rng = rng
        self.noted = {}
        self.merges = 0

    def step(self):
        acts = (
            *(self.write, self.write, self.write, self.wear, self.wear, self.look, self.flush),
            *(self.create, self.drop, self.checkpoint, self.checkpoint, self.restore),
            *(self.reopen, self.crash, self.settle, self.recover),
        )
        acts[self.rng.integers(len(acts))]()

    def any_name(self):
        names = self.twin.reference.tables()
        return str(self.rng.choice(names)) if names else self.create()

    def keys(self, name, count, span):
        return near_keys(self.rng, self.twin.reference.table(name).rows, count, span)

    def write(self):
        name = self.any_name()
        keys = self.keys(name, 60, 120)
        self.twin.on(name, "update", keys, values(self.rng, 60, TABLES[name]["dim"]))

    def wear(self):
        """Write a stretch of rows again and again, to the log each time."""
        name = self.any_name()
        keys = np.unique(self.keys(name, 90, 100))
        for _ in range(self.rng.integers(1, 5)):
            dim = TABLES[name]["dim"]
            self.twin.on(name, "assign", keys, values(self.rng, len(keys), dim))
            self.twin.store.flush()

    def look(self):
        name = self.any_name()
        self.twin.store.table(name).lookup(np.arange(TABLES[name]["rows"]))

    def flush(self):
        self.twin.store.flush()

    def create(self):
        name = str(self.rng.choice(sorted(TABLES)))
        self.twin.create_table(name, **TABLES[name])
        return name

    def drop(self):
        if self.rng.random() < 0.5:
            self.twin.drop_table(self.any_name())

    def checkpoint(self):
        label = f"label {len(self.noted)}"
        self.twin.checkpoint(label)
        self.noted[label] = digests(self.twin.store)

    def restore(self):
        kept = [c.label for c in self.twin.store.checkpoints()]
        if kept and self.rng.random() < 0.5:
            self.restore_and_compare(str(self.rng.choice(kept)))

    def restore_and_compare(self, label):
        self.twin.restore(label)
        assert digests(self.twin.store) == self.noted[label], f"{label} is not what it was"
        self.twin.check()

    def reopen(self):
        self.count_merges()
        self.twin.reopen()

    def crash(self):
        self.count_merges()
        self.twin.crash()

    def settle(self):
        self.twin.settle()

    def recover(self):
        self.twin.settle()
        self.twin.check_recovery()

    def count_merges(self):
        stats = self.twin.store.stats()["storage"]
        self.merges += stats["folds"] + stats["compactions"]
        assert not stats["merge_failures"], stats["merge_error"]


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("limits", LIMITS)
@pytest.mark.parametrize("keep", [1, 2, 3, 4])
def test_every_kept_label_is_what_it_was(open_twin, keep, limits, seed):
    rng = generator(1000 * seed + 10 * len(limits) + keep)
    twin = open_twin(limits=LIMITS[limits], checkpoints_keep=keep, cache_bytes=70_000, threads=1)
    life = Life(twin, rng)
    for name, config in TABLES.items():
        twin.create_table(name, **config)
    for _ in range(STEPS):
        life.step()
        twin.store.check_integrity()
    while len(twin.store.checkpoints()) < min(keep, 2):
        life.checkpoint()
    life.recover()
    for kept in reversed(twin.store.checkpoints()):
        life.restore_and_compare(kept.label)
        twin.settle()
        life.reopen()
        twin.check()
    life.count_merges()
    assert life.merges
