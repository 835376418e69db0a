"""The background writer: dirty rows stay below their ceiling, and calls write none of them."""

import threading

import numpy as np
import pytest

from embstore.cache import writing
from embstore.engine import write_back
from embstore.engine.commits import OwnCommits
from embstore.errors import CapacityError
from tests.unit import test_own_commits as one_level
from tests.unit.test_level_two import T1, batches_of, opened, pool_of, train

RECORD_BYTES = 64
CEILING = 200 * RECORD_BYTES


@pytest.fixture
def by_hand(monkeypatch):
    """The writer has its turns when a test gives them."""
    monkeypatch.setattr(OwnCommits, "start", lambda self: None)
    monkeypatch.setattr(writing, "PIECE_BYTES", 16 * RECORD_BYTES)


def writer_of(store):
    return store.executor.commits.write_back


def dirty_of(store):
    """Return how many rows are dirty in each level."""
    pool = pool_of(store)
    levels = (pool.slots, pool.level_two.slots)
    return [int(np.count_nonzero(level.contents().dirty)) for level in levels]


def digest_without(tmp_path, *batches):
    store = opened(tmp_path / "without", host_cache_bytes=None)
    train(store, *batches)
    digest = store.table("t0").digest()
    store.close()
    return digest


def test_dirty_bytes_exceed_a_ceiling_by_no_more_than_one_call(tmp_path, by_hand):
    """Though the writer has no turn: calls write in its place."""
    store, batches = opened(tmp_path / "store", dirty_bytes=CEILING), batches_of(12)
    assert pool_of(store).layout.record_bytes == RECORD_BYTES
    for keys in batches:
        train(store, keys)
        assert sum(dirty_of(store)) * RECORD_BYTES <= CEILING + len(keys) * RECORD_BYTES
    stats = store.stats()["commits"]
    assert stats["dirty_ceiling_bytes"] == CEILING
    assert stats["write_back_bytes"] >= (len(batches) - 4) * 100 * RECORD_BYTES
    assert stats["write_back_waited_s"] > 0
    store.check_integrity()
    assert store.table("t0").digest() == digest_without(tmp_path, *batches)
    store.close()


def test_calls_append_nothing_where_the_writer_has_its_turns(tmp_path, by_hand, monkeypatch):
    """Of a level two that is full: rows that must leave it are clean by then."""
    store, batches = opened(tmp_path / "store", host_cache_bytes=40_000), batches_of(14, 200)
    appender, writer = store.executor.storage.appender, writer_of(store)
    for keys in batches:
        before = appender.bytes_written
        train(store, keys)
        assert appender.bytes_written == before
        if writer.is_due:
            store.executor.commits.write_dirty()
            assert not writer.is_wanted
    pool = store.stats()["cache"]["pools"][0]
    assert pool["evictions_clean"] > 200 < pool["evictions_host"]
    assert pool["evictions_dirty"] == 0 == writer.waited_s
    assert dirty_of(store)[0] > 100, "rows of the first level wait for a commit"
    store.check_integrity()
    assert store.table("t0").digest() == digest_without(tmp_path, *batches)
    store.close()


def test_rows_that_have_room_in_both_levels_are_not_written(tmp_path, by_hand):
    """They go down and come up, and are dirty whenever they go down."""
    store = opened(tmp_path / "store", host_cache_bytes=600_000)
    writer = writer_of(store)
    train(store, *[np.arange(low, low + 150) for low in range(0, 1500, 150)])
    writer.end_run()
    for keys in batches_of(8, 150):
        train(store, np.unique(keys % 1500))
        assert not writer.is_due
    pool = store.stats()["cache"]["pools"][0]
    assert pool["misses_host"] > 300
    assert pool["evictions_clean"] == pool["evictions_dirty"] == 0 == writer.written_bytes
    store.close()


def test_a_pass_finds_how_many_rows_are_dirty_that_are_written_again_and_again(tmp_path, by_hand):
    store = opened(tmp_path / "store", dirty_bytes=CEILING)
    train(store, *batches_of(1, size=30) * 40)
    writer = writer_of(store)
    assert writer.dirty_bytes == 30 * RECORD_BYTES, "no more than are resident"
    train(store, *batches_of(1, size=150, seed=8), *batches_of(1, size=30) * 20)
    assert writer.is_due
    store.executor.commits.write_dirty()
    assert writer.dirty_bytes <= CEILING / 2
    assert writer.dirty_bytes >= sum(dirty_of(store)) * RECORD_BYTES
    store.check_integrity()
    store.close()


def test_a_store_of_one_level_has_no_ceiling_unless_one_is_given(tmp_path, by_hand):
    """Its rows are changed where they are, and logged by commits."""
    store = one_level.opened(tmp_path / "store")
    one_level.train(store, 0, one_level.ROWS)
    writer = writer_of(store)
    assert not writer.is_due
    assert writer.ceiling_bytes == writer.written_bytes == 0
    assert writer.commit_bytes > one_level.ROWS * 32
    store.close()


def test_the_thread_of_commits_writes_what_is_dirty(tmp_path):
    store = one_level.opened(tmp_path / "store", dirty_bytes=50_000, commit_every_s=0)
    slept = threading.Event()
    for low in range(0, one_level.ROWS, 50):
        one_level.train(store, low, low + 50)
    writer = writer_of(store)
    while writer.is_due:
        slept.wait(0.01)
    assert writer.written_bytes > one_level.ROWS * 32
    assert not store.executor.tables.is_committed
    store.close()


def test_a_commit_that_is_due_goes_first(tmp_path, by_hand):
    store = opened(tmp_path / "store", dirty_bytes=CEILING, commit_every_s=3600)
    train(store, *batches_of(2))
    commits = store.executor.commits
    commits.every_s = 1e-9
    commits.write_dirty()
    assert writer_of(store).written_bytes == 0
    store.close()


def test_a_full_disk_refuses_no_call_and_is_told(tmp_path, by_hand, monkeypatch):
    store = opened(tmp_path / "store", dirty_bytes=CEILING)
    commits, log = store.executor.commits, store.executor.storage.log

    def full(*arguments, **options):
        raise CapacityError("the disk is full")

    with monkeypatch.context() as patched:
        patched.setattr(log, "reserve", full)
        train(store, *batches_of(5))
        with pytest.raises(CapacityError, match="the disk is full"):
            commits.write_dirty()
        commits.error = "the disk is full"  # as its thread does
        assert not commits.may_write, "it is tried again after a while"
    train(store, *batches_of(5, seed=8))
    commits.error = None
    assert commits.may_write
    commits.write_dirty()
    assert sum(dirty_of(store)) * RECORD_BYTES <= CEILING / 2
    store.check_integrity()
    store.close()


def test_tables_may_go_while_their_rows_are_written(tmp_path, by_hand):
    store = opened(tmp_path / "store", dirty_bytes=CEILING)
    store.create_table("wide", **(T1 | {"dim": 40}))
    train(store, *batches_of(2), table="wide")
    train(store, *batches_of(2))
    with store.executor.tables.reading():
        writer_of(store).write()
    store.drop_table("wide")
    store.executor.commits.write_dirty()
    assert writer_of(store).dirty_bytes <= CEILING / 2
    store.check_integrity()
    store.close()


def test_the_writer_waits_for_merges_like_calls(tmp_path, by_hand, monkeypatch):
    store = opened(tmp_path / "store", dirty_bytes=CEILING)
    train(store, *batches_of(4))
    commits, waited = store.executor.commits, []
    before = writer_of(store).written_bytes
    monkeypatch.setattr(store.executor.storage.merges, "delay_s", lambda written: written * 1e-9)
    monkeypatch.setattr(commits._stopping, "wait", waited.append)
    commits.write_dirty()
    assert sum(waited) == pytest.approx((writer_of(store).written_bytes - before) * 1e-9)
    store.close()


def test_the_ceiling_is_what_storage_writes_in_half_a_minute(tmp_path, by_hand, monkeypatch):
    monkeypatch.setattr(write_back, "_MEASURED_BYTES", 100 * RECORD_BYTES)
    monkeypatch.setattr(write_back, "_RATE_LEAST", 0)
    store = opened(tmp_path / "store")
    train(store, *batches_of(10))
    writer = writer_of(store)
    before = writer.bytes_per_s
    store.flush()
    writer.synced(1.0)
    measured = 2 * writer.bytes_per_s - before
    assert 0 < measured <= store.stats()["storage"]["bytes_written"]
    assert writer.ceiling_bytes == int(30 * writer.bytes_per_s)
    writer.synced(1.0)
    assert writer.bytes_per_s == (measured + before) / 2, "nothing was written since"
    store.close()


def test_a_crash_loses_what_was_written_and_no_commit_has(tmp_path, by_hand):
    store = opened(tmp_path / "store", dirty_bytes=CEILING)
    train(store, *batches_of(5))
    store.checkpoint("a")
    digest = store.table("t0").digest()
    train(store, *batches_of(5, seed=8))
    store.executor.commits.write_dirty()
    assert writer_of(store).written_bytes > 0
    copy = one_level.killed(tmp_path / "store")
    store.close()
    store = opened(copy, host_cache_bytes=None)
    assert store.table("t0").digest() == digest
    store.check_integrity()
    store.close()
