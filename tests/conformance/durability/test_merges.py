"""Folds and compactions: what they may forget, seen by crash and restore; and merges that stand at
one of their points while something else happens. All but those with a source are reviews' findings.

A compaction keeps the records that the log index points to. That is right only for records that
neither the last commit nor a kept checkpoint needs.
"""

import numpy as np
import pytest

from embstore.config import Constant, Limits, Sgd
from tests.conformance.backends import TINY
from tests.conformance.cases import OPTIMIZERS, assert_same, batch, config, generator, ones
from tests.conformance.gate import Gated
from tests.conformance.twin import Twin

pytestmark = pytest.mark.needs("one_store")

DIM = 64
TABLE = {"dim": DIM, "rows": 1000, "optimizer": Sgd(0.1), "initializer": Constant(0.0)}
UNFOLDED = Limits(segment_bytes=8192, fold_bytes=1 << 30, fold_segments=100)
"""Segments are compacted where most of their records are dead, and never folded."""


def create(twin, *names):
    for name in names:
        twin.create_table(name, **TABLE)


def assign(twin, name, keys, value):
    twin.on(name, "assign", keys, ones(len(keys), DIM, value))


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
    store.create_table("a", **TABLE)
    store.table("a").assign(np.arange(25), ones(25, DIM, 1.0))
    store.close()
    store = backend.open_store(limits=UNFOLDED)
    store.table("a").assign(np.arange(25), ones(25, DIM, 2.0))
    store.close()  # commits, and then finds the first segment dead
    store = backend.open_store(limits=UNFOLDED)
    backend.settle(store)
    store.close()
    store = backend.open_store(limits=UNFOLDED)
    assert (store.table("a").lookup([0]) == 2.0).all()


@pytest.fixture
def filled(open_twin):
    """Rows 0..199 of "a" and 0..9 of "b" in ten segments, each with rows of both."""
    twin = open_twin(limits=UNFOLDED)
    create(twin, "a", "b")
    for i in range(10):
        assign(twin, "a", np.arange(20 * i, 20 * i + 20), 1.0)
        assign(twin, "b", [i], 1.0)
        twin.store.flush()
    return twin


def test_compaction_after_a_drop_keeps_rows_that_the_last_commit_has(filled):
    filled.reopen()
    filled.drop_table("a")
    filled.settle()
    filled.crash()
    filled.check()


def test_compaction_after_reopening_keeps_dropped_rows_that_a_checkpoint_has(filled):
    filled.checkpoint("kept")
    filled.drop_table("a")
    filled.reopen()
    filled.settle()
    filled.restore("kept")


def test_compaction_after_reopening_keeps_overwritten_rows_that_a_checkpoint_has(filled):
    filled.checkpoint("kept")
    for store in (filled.store, filled.reference):  # a commit without a segment
        store.table("a").learning_rate = 0.5
    filled.reopen()
    assign(filled, "a", np.arange(200), 2.0)  # of each segment a row of "b" stays live
    filled.checkpoint("later")
    filled.settle()
    filled.restore("kept")


def test_fold_then_reopening_with_another_base_segment_size(open_twin):
    twin = open_twin(limits=TINY, checkpoints_keep=1)
    create(twin, "a")
    assign(twin, "a", np.arange(900), 1.0)
    twin.checkpoint("c")
    twin.settle()
    assert twin.store.stats()["storage"]["folds"] > 0
    twin.reopen(limits=Limits(segment_bytes=8192, base_segment_bytes=1 << 30))


def test_a_fold_keeps_the_newest_of_several_records_of_a_row(open_twin):
    """Each segment has three rows of all the others, and more of its own: it is not compacted."""
    twin = open_twin(limits=TINY, checkpoints_keep=1)
    create(twin, "a")
    for number in range(1, 9):
        keys = [0, 1, 2, *range(10 * number, 10 * number + 5)]
        assign(twin, "a", keys, float(number))
        twin.store.flush()
    twin.checkpoint("c")
    twin.settle()
    assert twin.store.stats()["storage"]["folds"] > 0
    twin.reopen()


# Merges that are held


@pytest.fixture
def gated(tmp_path):
    backend = Gated(tmp_path)
    yield backend
    backend.close()


def two_tables(gated):
    """Return a store of two tables, written and committed, of which a fold is due."""
    twin = Twin(gated, limits=TINY, checkpoints_keep=1, threads=1)
    for name in ("a", "b"):
        twin.create_table(name, **TABLE)
        twin.on(name, "assign", np.arange(100), ones(100, DIM))
    twin.checkpoint("first")
    return twin


@pytest.mark.parametrize("points", range(5))
def test_commit_without_a_table_while_a_fold_writes_to_its_base(gated, points):
    """The base went, and the fold found no directory to write to; or, done by then, was installed
    in a base that was gone, and the store failed."""
    twin = two_tables(gated)
    twin.drop_table("a")
    twin.store.flush()
    twin.checkpoint("second")
    gated.advance(twin.store, points)
    twin.checkpoint("third")
    twin.settle()
    assert twin.store.stats()["storage"]["merge_error"] is None
    twin.check()
    twin.reopen()
    twin.check()


def test_merge_that_a_drop_stopped_is_done_later(gated):
    """It was looked for again only when the log had changed."""
    twin = two_tables(gated)
    assert gated.advance(twin.store) == "fold:rows"
    twin.drop_table("b")
    twin.settle()
    assert twin.store.stats()["storage"]["folds"] > 0


def test_closing_while_a_merge_is_writing(gated):
    """Source: "shutdown with async write-back/back-fill pending": FBGEMM's DRAM+SSD C++ tests."""
    twin = two_tables(gated)
    assert gated.advance(twin.store) == "fold:rows"
    assign(twin, "a", np.arange(50), 2.0)
    twin.reopen()
    twin.check()


@pytest.mark.parametrize("seed", [231, 232])
def test_rows_written_back_late_are_not_read_early(gated, seed):
    """Source: cDLRM, "stale prefetch vs queued eviction: random trace, delayed write-back
    injected". A merge stands still with old rows in its hands while newer ones are written and
    evicted."""
    rng = generator(seed)
    twin = Twin(gated, limits=TINY, cache_bytes=40 << 10, checkpoints_keep=1)
    twin.create_table("a", **config(dim=32, rows=600, optimizer=OPTIMIZERS["adagrad"]))
    stood = set()
    for step in range(40):
        twin.on("a", "update", *batch(rng, 80, 600, 32))
        keys = rng.integers(0, 600, 200)
        assert_same(twin.store.table("a").lookup(keys), twin.reference.table("a").lookup(keys))
        if step % 5 == 0:
            twin.checkpoint(f"c{step}")
        stood.add(gated.advance(twin.store, int(rng.integers(3))).partition(":")[0])
    assert {"fold"} <= stood
    for act in (twin.settle, twin.reopen):
        act()
        twin.check()
