"""Open files of the process: a store of thousands of tables must live with a thousand of them."""

import os

import numpy as np
import pytest

from embstore.config import Constant, Sgd
from tests.conformance.backends import TINY

pytestmark = pytest.mark.needs("merges", "directory", "limits", "process")
TABLES = 60
CONFIG = {"dim": 4, "rows": 1000, "optimizer": Sgd(0.1), "initializer": Constant(0.0)}


def descriptors():
    return len(os.listdir("/proc/self/fd"))


def folded_store(backend):
    """Return a store of many tables, all of them folded."""
    store = backend.open_store(limits=TINY, checkpoints_keep=1)
    for number in range(TABLES):
        store.create_table(f"t{number}", **CONFIG).assign([0], np.ones((1, 4), np.float32))
    store.checkpoint("c")
    backend.settle(store)
    assert store.stats()["storage"]["folds"] > 0
    return store


def test_folded_tables_keep_no_descriptors(backend):
    """Every map kept one: Python's mmap duplicates the descriptor that it is made from."""
    before = descriptors()
    folded_store(backend)
    assert descriptors() - before < TABLES // 2


def test_close_gives_every_descriptor_back(backend):
    """They stayed until the garbage collector came by."""
    before = descriptors()
    folded_store(backend).close()
    assert descriptors() <= before
