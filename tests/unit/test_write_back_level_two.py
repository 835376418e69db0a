"""Dirty rows in level two: logged by nobody's call, found by every read, lost by no refusal."""

from contextlib import contextmanager
from itertools import count

import numpy as np
import pytest

from embstore.arrays import EMPTY_KEY, KEY_MASK
from embstore.cache import writing
from embstore.device.gpu_rows import GpuRows
from embstore.engine.commits import OwnCommits
from embstore.errors import CapacityError
from embstore.tables.written_keys import WrittenKeys
from tests.unit.test_level_two import ROWS, batches_of, counts, opened, pool_of, train


@pytest.fixture(autouse=True)
def without_a_writer(monkeypatch):
    """Rows stay dirty until a call, a commit or a flush writes them."""
    monkeypatch.setattr(OwnCommits, "start", lambda self: None)


def figures(store):
    return store.stats()["cache"]["pools"][0]


def below(store):
    """Return the keys of dirty rows in level two."""
    here = pool_of(store).level_two.slots.contents()
    return here.keys[here.dirty] & KEY_MASK


@pytest.fixture
def stores(tmp_path):
    """A store whose level two has dirty rows, and one without one, both after the same updates."""
    both = opened(tmp_path / "two"), opened(tmp_path / "none", host_cache_bytes=0)
    for store in both:
        train(store, *batches_of(20))
    assert len(below(both[0])) > 500
    yield both
    for store in both:
        store.close()


def test_calls_whose_victims_have_room_below_log_nothing(stores):
    store, without = stores
    found = figures(store)
    assert found["evictions_dirty"] == 0 < found["evictions_host"]
    assert figures(without)["evictions_dirty"] > 0
    assert counts(store)[1] == 0 == store.stats()["storage"]["bytes_written"]
    assert found["dirty_rows"] == len(np.unique(np.concatenate(batches_of(20))))
    assert store.stats()["tables"]["t0"]["dirty_rows"] == found["dirty_rows"]


@pytest.mark.parametrize("how", ["checkpoint", "flush", "flush the table", "close"])
def test_dirty_rows_below_are_written(stores, tmp_path, how):
    store, without = stores
    dirty = figures(store)["dirty_rows"]
    if how == "checkpoint":
        store.checkpoint("a")
    elif how != "close":
        logged = store.flush() if how == "flush" else store.table("t0").flush()
        assert logged == dirty
    if how != "close":
        assert figures(store)["dirty_rows"] == 0
        store.check_integrity()
    store.close()
    again = opened(tmp_path / "two", host_cache_bytes=0)
    assert again.table("t0").digest() == without.table("t0").digest()
    again.close()


def test_reads_that_leave_no_trace_find_them(stores):
    store, without = stores
    keys, there = np.arange(ROWS), pool_of(store).level_two.slots.keys.copy()
    for read in (
        lambda s: s.table("t0").lookup(keys, admit=False),
        lambda s: s.table("t0").lookup_pooled(keys, np.arange(0, ROWS + 1, 4), admit=False),
        lambda s: np.hstack(s.table("t0").read_rows(keys)),
    ):
        assert read(store).tobytes() == read(without).tobytes()
    assert np.array_equal(pool_of(store).level_two.slots.keys, there)
    assert store.table("t0").digest() == without.table("t0").digest()


def test_a_row_that_comes_back_is_dirty_again(stores):
    store, without = stores
    keys = below(store)[:50]
    store.table("t0").lookup(keys)
    here = pool_of(store).slots.contents()
    assert np.isin(keys, here.keys[here.dirty] & KEY_MASK).all()
    store.check_integrity()
    store.checkpoint("a")
    for one in (store, without):
        train(one, *batches_of(5, seed=1))
    assert store.table("t0").digest() == without.table("t0").digest()


def test_written_keys_have_rows_that_rise_while_they_are_listed(stores, monkeypatch):
    store, _ = stores
    pool, written = pool_of(store), np.unique(np.concatenate(batches_of(20)))
    monkeypatch.setattr(writing, "_LOOKED_AT", 64)
    risen = []

    class Slices:
        @contextmanager
        def one(self):
            with store.executor.tables.reading():
                yield
            keys = below(store)[-40:]  # far from where the list is
            store.table("t0").lookup(keys)
            risen.append(keys)

    found = WrittenKeys(pool, 0, Slices().one)
    assert len(np.unique(np.concatenate(risen))) > 500
    blocks = found.blocks()
    assert np.array_equal(found.in_blocks(blocks) & KEY_MASK, written)
    assert pool.residency.exchange.risen is None


@pytest.mark.parametrize("nth", [1, 2, 3])
def test_without_room_in_the_log_a_lookup_is_answered_and_loses_nothing(tmp_path, monkeypatch, nth):
    """The room is for victims, for those of level two, and again for what it does not take."""
    store = opened(tmp_path / "two", host_cache_bytes=20_000)
    without = opened(tmp_path / "none", host_cache_bytes=0)
    batches = batches_of(20)
    for one in (store, without):
        train(one, *batches)
    assert figures(store)["evictions_dirty"] > 0, "level two is full"
    reserve, asked = store.executor.storage.appender.reserve, count(1)

    def full(records, record_bytes, **options):
        if records and next(asked) % nth == 0:
            refused.append(nth)
            raise CapacityError("the disk is full")
        reserve(records, record_bytes, **options)

    monkeypatch.setattr(store.executor.storage.appender, "reserve", full)
    refused: list[int] = []
    for keys in batches_of(10, seed=3):
        found = store.table("t0").lookup(keys)  # around the cache
        assert np.array_equal(found, without.table("t0").lookup(keys))
        store.check_integrity()
    assert refused
    monkeypatch.undo()
    assert store.table("t0").digest() == without.table("t0").digest()
    keys = np.concatenate([pool_of(store).slots.keys, pool_of(store).level_two.slots.keys])
    keys = keys[keys != EMPTY_KEY]
    assert len(np.unique(keys)) == len(keys)
    store.close()
    without.close()


def test_an_update_done_in_parts_needs_no_more_room_than_its_rows(tmp_path):
    """It reserves that before the first row changes; later a lack of room would fail the store."""
    store = opened(tmp_path / "two", host_cache_bytes=20_000)
    without = opened(tmp_path / "none", host_cache_bytes=0)
    log, (keys,) = store.executor.storage.log, batches_of(1, 1500, seed=3)
    for one in (store, without):
        train(one, *batches_of(20))
    assert figures(store)["evictions_dirty"] > 0, "level two is full"
    assert figures(store)["slots"] < len(keys)
    log._rows_max = log.index.size + len(keys)
    for one in (store, without):
        train(one, keys)
    assert store.table("t0").digest() == without.table("t0").digest()
    store.close()
    without.close()


def test_victims_that_cannot_be_logged_have_not_sunk(tmp_path, monkeypatch):
    """Level two has room for some of them, and the device none to send the others to the host."""
    store = opened(tmp_path / "two", host_cache_bytes=14_000)
    without = opened(tmp_path / "none", host_cache_bytes=0)
    first, second = batches_of(2, 700, seed=3)
    for one in (store, without):
        train(one, first)

    def refused(self, rows, slots):
        raise CapacityError("no memory for a piece")

    with monkeypatch.context() as patched:
        patched.setattr(GpuRows, "row_pieces", refused)
        found = store.table("t0").lookup(second)  # around the cache
    assert np.array_equal(found, without.table("t0").lookup(second))
    store.check_integrity()
    for one in (store, without):
        train(one, second)
    assert store.table("t0").digest() == without.table("t0").digest()
    store.close()
    without.close()
