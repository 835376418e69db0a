"""What went wrong while a merge stood at one of its points."""

import numpy as np
import pytest

from embstore.config import Constant, Sgd
from tests.conformance.backends import TINY
from tests.conformance.gate import Gated
from tests.conformance.twin import Twin

DIM = 64


@pytest.fixture
def gated(tmp_path):
    backend = Gated(tmp_path)
    yield backend
    backend.close()


def two_tables(gated):
    """Return a store of two tables, written and committed, of which a fold is due."""
    twin = Twin(gated, limits=TINY, checkpoints_keep=1, threads=1)
    for name in ("a", "b"):
        twin.create_table(name, dim=DIM, rows=300, optimizer=Sgd(0.1), initializer=Constant(0.0))
        twin.on(name, "assign", np.arange(100), np.ones((100, DIM), np.float32))
    twin.checkpoint("first")
    return twin


@pytest.mark.parametrize("points", range(5))
def test_commit_without_a_table_while_a_fold_writes_to_its_base(gated, points):
    """The base went, and the fold found no directory to write to; or, done by then, was installed
    in a base that was gone, and the store failed.
    """
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
