"""Folds and compactions: what they may forget, seen by crash and restore.

A compaction keeps the records that the log index points to. That is right only for records that
neither the last commit nor a kept checkpoint needs.
"""

import numpy as np
import pytest

from embstore.config import Constant, Limits, Sgd
from tests.conformance.backends import TINY

pytestmark = pytest.mark.needs("merges", "directory", "limits")
DIM = 64
UNFOLDED = Limits(segment_bytes=8192, fold_bytes=1 << 30, fold_segments=100)
"""Segments are compacted where most of their records are dead, and never folded."""


def create(twin, *names):
    for name in names:
        twin.create_table(name, dim=DIM, rows=1000, optimizer=Sgd(0.1), initializer=Constant(0.0))


def assign(twin, name, keys, value):
    twin.on(name, "assign", keys, np.full((len(keys), DIM), value, np.float32))


def fill_segments(twin):
    """Write rows 0..199 of "a" and 0..9 of "b" into ten segments, each with rows of both."""
    for i in range(10):
        assign(twin, "a", np.arange(20 * i, 20 * i + 20), 1.0)
        assign(twin, "b", [i], 1.0)
        twin.store.flush()


def test_compaction_of_a_segment_without_live_records_leaves_nothing(open_twin):
    twin = open_twin(limits=UNFOLDED)
    create(twin, "a")
    for value in (1.0, 2.0, 3.0):
        assign(twin, "a", np.arange(25), value)
        twin.store.flush()
    twin.settle()
    assert twin.store.stats()["storage"]["compactions"] > 0


def test_store_opens_after_compaction_of_a_committed_segment_without_live_records(backend):
    """The catalogue named the empty result; no opening could read it."""
    store = backend.open_store(limits=UNFOLDED)
    store.create_table("a", dim=DIM, rows=1000, optimizer=Sgd(0.1), initializer=Constant(0.0))
    store.table("a").assign(np.arange(25), np.full((25, DIM), 1.0, np.float32))
    store.close()
    store = backend.open_store(limits=UNFOLDED)
    store.table("a").assign(np.arange(25), np.full((25, DIM), 2.0, np.float32))
    store.close()  # commits, and then finds the first segment dead
    store = backend.open_store(limits=UNFOLDED)
    backend.settle(store)
    store.close()
    store = backend.open_store(limits=UNFOLDED)
    assert (store.table("a").lookup([0]) == 2.0).all()


def test_compaction_after_a_drop_keeps_rows_that_the_last_commit_has(open_twin):
    twin = open_twin(limits=UNFOLDED)
    create(twin, "a", "b")
    fill_segments(twin)
    twin.reopen()
    twin.drop_table("a")
    twin.settle()
    twin.crash()
    twin.check()


def test_compaction_after_reopening_keeps_dropped_rows_that_a_checkpoint_has(open_twin):
    twin = open_twin(limits=UNFOLDED)
    create(twin, "a", "b")
    fill_segments(twin)
    twin.checkpoint("kept")
    twin.drop_table("a")
    twin.reopen()
    twin.settle()
    twin.restore("kept")


def test_compaction_after_reopening_keeps_overwritten_rows_that_a_checkpoint_has(open_twin):
    twin = open_twin(limits=UNFOLDED)
    create(twin, "a", "b")
    fill_segments(twin)
    twin.checkpoint("kept")
    twin.store.table("a").learning_rate = 0.5  # a commit without a segment
    twin.reference.table("a").learning_rate = 0.5
    twin.reopen()
    assign(twin, "a", np.arange(200), 2.0)  # of each segment a row of "b" stays live
    twin.checkpoint("later")
    twin.settle()
    twin.restore("kept")


def test_fold_then_reopening_with_another_base_segment_size(open_twin):
    twin = open_twin(limits=TINY, checkpoints_keep=1)
    create(twin, "a")
    assign(twin, "a", np.arange(900), 1.0)
    twin.checkpoint("c")
    twin.settle()
    assert twin.store.stats()["storage"]["folds"] > 0
    twin.reopen(limits=Limits(segment_bytes=8192, base_segment_bytes=1 << 30))
