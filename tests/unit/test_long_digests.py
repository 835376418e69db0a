"""A digest goes in slices, between which calls get on; it is of the table as it began."""

import threading

import numpy as np
import pytest

from embstore import commands as c
from embstore.errors import StoreClosedError, TableNotFoundError
from embstore.tables import digest as digests
from embstore.tables import hashing
from tests.unit.small_stores import (
    generator,
    make_table,
    opened,
    pool_of,
    rows_of,
    settle,
    small_limits,
)

SEED = 97
ROWS = 12_000
OPTIONS = {"cache_bytes": 120_000, "limits": small_limits()}


class Between:
    """Does something between the slices of what is long: in the place of another thread's calls.

    The store's own thread of commits takes slices too. Those count for nothing: what it did between
    them would go on beside the test, also after the end of what is long.
    """

    def __init__(self, store, monkeypatch, act):
        self.slices = 0
        self._act, self._acts = act, False
        self._thread = threading.current_thread()
        self._background = store.executor.tables.frame.background
        monkeypatch.setattr(store.executor.tables.frame, "background", self)

    def __call__(self):
        if threading.current_thread() is not self._thread:
            return self._background()
        if self.slices and not self._acts:
            self._acts = True
            self._act(self.slices)
            self._acts = False
        self.slices += not self._acts
        return self._background()


@pytest.fixture
def slices(monkeypatch):
    """Slices of a few blocks."""
    monkeypatch.setattr(hashing, "SLICE_ROWS", 600)


def long_digest(store, table, progress=None):
    return store.executor.execute(c.GetDigest(table.name), progress=progress)


def filled(path, **options):
    """Return a store whose rows are dirty, logged, folded, or not there, and its table."""
    store = opened(path, **OPTIONS | options)
    table = make_table(store, rows=ROWS)
    for low in range(0, ROWS // 2, 500):
        table.assign(np.arange(low, low + 500), rows_of(np.arange(low, low + 500)))
    store.checkpoint("folded")
    settle(store)
    keys = np.arange(0, ROWS // 2, 5)
    table.assign(keys, rows_of(keys, version=1))
    return store, table


@pytest.mark.parametrize("is_first", [True, False], ids=["first", "later"])
def test_updates_between_slices_are_not_in_it(tmp_path, monkeypatch, slices, is_first):
    """Those of rows that were passed, and that were not, of rows that were never written, and calls
    larger than the cache; merges and commits too."""
    rng = generator(SEED)
    with filled(tmp_path / "a")[0] as store, filled(tmp_path / "b")[0] as other:
        table, twin = store.table("t"), other.table("t")
        if not is_first:
            table.digest()
            changed = rng.integers(0, ROWS // 2, 300)
            for one in (table, twin):
                one.assign(changed, rows_of(changed, version=2))
        expected, command, t = twin.digest(), store.command, table.t

        def update(number):
            keys = rng.integers(0, ROWS, 3_000 if number % 7 == 0 else 40)
            table.update(keys, np.ones((len(keys), 4), np.float32))
            if number % 5 == 0:
                store.checkpoint(f"at {number}")

        between = Between(store, monkeypatch, update)
        found = long_digest(store, table)
        assert between.slices > 5
        assert (found.digest, found.command, found.t) == (expected, command, t)
        assert store.command > command
        monkeypatch.undo()
        now = table.digest()
        assert now == digest_afresh(store, table) != expected
        store.check_integrity()


def digest_afresh(store, table):
    """Return the digest as it is found when nothing is kept of one before."""
    state = store.executor.tables.find(table.name)
    kept, state.digest = state.digest, digests.TableDigest()
    try:
        return table.digest()
    finally:
        state.digest = kept


def test_a_slice_reads_so_many_rows_at_most(tmp_path, monkeypatch, slices):
    """By count, so that no clock is asked how long a call waits."""
    store, table = filled(tmp_path)
    pool, asked = pool_of(table), []
    look = pool.reader.look
    monkeypatch.setattr(pool.reader, "look", lambda keys: asked.append(len(keys)) or look(keys))
    with store:
        found = long_digest(store, table)
        assert found.digest == digest_afresh(store, table)
    assert sum(asked) >= ROWS // 2
    assert max(asked) <= hashing.SLICE_ROWS + 256


def test_it_ends_between_slices_and_the_next_one_is_right(tmp_path, monkeypatch, slices):
    store, table = filled(tmp_path)

    def ended(done, of):
        if done:
            raise StoreClosedError("enough")

    with store:
        with pytest.raises(StoreClosedError, match="enough"):
            long_digest(store, table, ended)
        first = table.digest()
        keys = np.arange(0, ROWS // 2, 100)
        table.update(keys, np.ones((len(keys), 4), np.float32))
        with pytest.raises(StoreClosedError, match="enough"):
            long_digest(store, table, ended)
        second = table.digest()
        assert second == digest_afresh(store, table) != first


def test_of_a_table_that_is_dropped_or_restored_meanwhile(tmp_path, monkeypatch, slices):
    store, table = filled(tmp_path)
    with store:
        restored = []

        def restore(number):
            if not restored:
                restored.append(number)
                store.restore("folded")

        Between(store, monkeypatch, restore)
        found = long_digest(store, table)
        assert restored and found.command == store.command
        assert found.digest == table.digest() == digest_afresh(store, table)
        monkeypatch.undo()
        monkeypatch.setattr(hashing, "SLICE_ROWS", 600)
        store.executor.tables.find("t").digest = digests.TableDigest()
        Between(store, monkeypatch, lambda number: "t" in store.tables() and store.drop_table("t"))
        with pytest.raises(TableNotFoundError):
            long_digest(store, table)
