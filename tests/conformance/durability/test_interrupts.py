"""Ctrl-C, signal handlers and forks: what strikes between two lines must not be committed half."""

import os

import numpy as np
import pytest

import embstore
from embstore import Constant, Sgd
from embstore.errors import StoreClosedError, StoreInUseError

ONES = np.ones((1, 4), np.float32)


def opened(path):
    store = embstore.open(path, cache_bytes=1 << 20, threads=1)
    shape = {"dim": 4, "rows": 100, "optimizer": Sgd(0.1), "initializer": Constant(0.0)}
    return store, store.create_table("a", **shape)


def intrude(store, act):
    """Have something else done when a write is noted: after the rows, before t."""
    table = store.executor.tables.find("a")
    table.pool.followers.follow(table.table_id, lambda keys: act())


def test_interrupt_fails_the_store_which_opens_at_its_last_commit(tmp_path):
    store, table = opened(tmp_path)
    table.update([1], ONES)
    store.checkpoint("c")
    digest = table.digest()

    def interrupt():
        raise KeyboardInterrupt

    intrude(store, interrupt)
    with pytest.raises(KeyboardInterrupt):
        table.update([2], ONES)
    with pytest.raises(StoreClosedError):
        table.lookup([2])
    store.close()
    store, table = opened(tmp_path)
    assert (table.t, table.digest()) == (1, digest)
    store.close()


def test_close_inside_a_call_waits_for_its_end(tmp_path):
    store, table = opened(tmp_path)
    intrude(store, store.close)
    assert table.update([2], ONES).t == 1
    with pytest.raises(StoreClosedError):
        table.lookup([2])
    store, table = opened(tmp_path)
    assert table.t == 1
    assert table.lookup([2])[0, 0] == np.float32(-0.1)
    store.close()


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")  # from Python 3.12, with threads
def test_fork_may_not_use_the_store_nor_free_its_directory(tmp_path):
    store, table = opened(tmp_path)
    table.update([1], ONES)
    child = os.fork()
    if child == 0:
        try:
            with pytest.raises(StoreClosedError, match="fork"):
                table.lookup([1])
            store.close()
        except BaseException:
            os._exit(1)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    with pytest.raises(StoreInUseError):
        embstore.open(tmp_path)
    assert table.t == 1
    store.close()
