"""Commits that a store makes by itself: in pieces, when they are due, and told where they fail."""

import gc
import os
import shutil
import threading
import weakref
from dataclasses import replace
from itertools import count

import numpy as np
import pytest

import embstore
from embstore import RowWiseAdagrad, Uniform
from embstore.cache import writing
from embstore.engine import commits as own_commits
from embstore.errors import CapacityError, StorageError, StoreClosedError
from embstore.storage.files import Files
from tests.conformance.backends import TINY
from tests.copies import copy_of_open

ROWS, DIM = 4_000, 8
NEVER_S = 1e6


class Held(Files):
    """Refuses what it is told to, and stops at a sync until it may go on."""

    def __init__(self, root):
        super().__init__(root)
        self.error = None
        self.stop_at_sync = False
        self.is_syncing, self.may_sync = threading.Event(), threading.Event()

    def _allocate(self, file, offset, length):
        if isinstance(self.error, CapacityError):
            raise self.error
        super()._allocate(file, offset, length)

    def _sync(self, file):
        if isinstance(self.error, OSError):
            raise self.error
        if self.stop_at_sync and file.path.startswith("log/"):
            self.is_syncing.set()
            assert self.may_sync.wait(300)
        super()._sync(file)


def opened(path, **options):
    store = embstore.open(path, **({"cache_bytes": 1 << 20, "commit_every_s": NEVER_S} | options))
    store.create_table(
        "a", dim=DIM, rows=ROWS, optimizer=RowWiseAdagrad(0.1), initializer=Uniform(-1, 1)
    )
    return store


def train(store, low, high):
    store.table("a").update(np.arange(low, high), np.ones((high - low, DIM), np.float32))


def killed(path):
    """Return a copy of a directory as a killed process leaves it."""
    copy = path.with_name(f"{path.name}-copy")
    shutil.rmtree(copy, ignore_errors=True)
    return copy_of_open(path, copy)


def digest_after_a_kill(path, **options):
    with opened(killed(path), **options) as store:
        return store.table("a").digest()


def commits_of(store):
    return store.executor.commits


def test_rows_are_flushed_in_pieces_between_which_calls_get_on(tmp_path, monkeypatch):
    """Rows that those calls change are in the commit too, or in none of it."""
    store = opened(tmp_path / "store")
    row_bytes = store.table("a").stats()["row_bytes"]
    monkeypatch.setattr(writing, "PIECE_BYTES", 100 * row_bytes)
    train(store, 0, ROWS)
    pool, pieces = store.executor.tables.by_id[0].pool, []
    flush_range = pool.writer.flush_range

    def noted(low, table_id=None):
        found = flush_range(low)
        pieces.append(found[1])
        return found

    monkeypatch.setattr(pool.writer, "flush_range", noted)
    background, turns = store.executor.tables.frame.background, []

    def between():
        if len(turns) % 7 == 3:  # as another thread's call
            train(store, len(turns), len(turns) + 50)
        turns.append(len(pieces))
        return background()

    monkeypatch.setattr(store.executor.tables.frame, "background", between)
    assert commits_of(store).commit()
    monkeypatch.setattr(store.executor.tables.frame, "background", background)
    assert max(pieces) == 100
    assert sum(pieces) >= ROWS
    assert digest_after_a_kill(tmp_path / "store") == store.table("a").digest()
    store.check_integrity()
    store.close()


def test_the_log_is_synced_without_the_engine(tmp_path):
    files = Held(tmp_path / "store")
    store = opened(tmp_path / "store", files=files)
    train(store, 0, 1000)
    files.stop_at_sync = True
    thread = threading.Thread(target=commits_of(store).commit)
    thread.start()
    assert files.is_syncing.wait(300)
    train(store, 0, 10)  # waits for no sync
    assert not store.executor.is_prompt, "an event loop does not wait for what comes"
    files.stop_at_sync = False
    files.may_sync.set()
    thread.join()
    assert store.executor.is_prompt
    assert digest_after_a_kill(tmp_path / "store") == store.table("a").digest()
    store.close()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_an_error_that_nobody_foresaw_is_in_the_stats(tmp_path, monkeypatch):
    store = opened(tmp_path / "store", commit_every_s=1e-3)
    failed, commits = threading.Event(), commits_of(store)
    monkeypatch.setattr(commits, "_flush", lambda slices: 1 // 0)
    commits.after_each = lambda: commits.error and failed.set()
    train(store, 0, 10)
    assert failed.wait(300)
    assert "ZeroDivisionError" in store.stats()["commits"]["own_commit_error"]
    store.close()


def test_descriptors_that_run_out_leave_none_behind(tmp_path, monkeypatch):
    store = opened(tmp_path / "store", limits=TINY)
    train(store, 0, ROWS)
    store.flush()
    before, open_one, calls = len(os.listdir("/proc/self/fd")), Files.open, count()

    def some(self, path, **options):
        if path.startswith("log/") and next(calls) == 2:
            raise StorageError(24, "Too many open files")
        return open_one(self, path, **options)

    monkeypatch.setattr(Files, "open", some)
    with pytest.raises(StorageError, match="Too many open files"):
        commits_of(store).commit()
    assert len(os.listdir("/proc/self/fd")) <= before
    monkeypatch.undo()
    assert commits_of(store).commit()
    assert digest_after_a_kill(tmp_path / "store") == store.table("a").digest()
    store.close()


def test_a_commit_is_made_when_it_is_due(tmp_path):
    store = opened(tmp_path / "store", commit_every_s=1e-3)
    told = threading.Event()
    commits_of(store).after_each = told.set
    train(store, 0, 1000)
    assert told.wait(300)
    assert commits_of(store).error is None
    while not store.executor.tables.is_committed:
        told.clear()
        assert told.wait(300) or store.executor.tables.is_committed
    assert digest_after_a_kill(tmp_path / "store") == store.table("a").digest()
    assert store.stats()["commits"]["commit_age_s"] == 0
    store.close()


def test_any_commit_puts_the_next_off(tmp_path, monkeypatch):
    store = opened(tmp_path / "store", commit_every_s=100)
    storage, commits = store.executor.storage, commits_of(store)
    storage.committed_at = commits._tried_at = storage.committed_at - 90
    assert commits.due_in_s() <= 10
    train(store, 0, 10)
    assert commits.age_s >= 90
    store.checkpoint("one")
    assert commits.due_in_s() > 10
    assert commits.age_s == 0
    store.close()


def test_a_full_disk_is_told_and_tried_again(tmp_path):
    files = Held(tmp_path / "store")
    store = opened(tmp_path / "store", files=files, commit_every_s=1e-3)
    told = threading.Event()
    commits_of(store).after_each = told.set
    files.error = CapacityError("no room")
    train(store, 0, 1000)
    while not commits_of(store).error:
        told.wait(300)
        told.clear()
    assert store.stats()["commits"]["own_commit_error"] == "no room"
    files.error = None
    while commits_of(store).error or not store.executor.tables.is_committed:
        told.wait(1)
        told.clear()
    assert digest_after_a_kill(tmp_path / "store") == store.table("a").digest()
    store.close()


def test_no_commit_is_made_after_a_sync_of_another_thread_has_failed(tmp_path):
    """The system may tell the error to that thread alone."""
    is_syncing, may_fail, errors = threading.Event(), threading.Event(), []

    class Telling(Files):
        def _sync(self, file):
            if threading.current_thread().name == "own" and file.path.startswith("log/"):
                is_syncing.set()
                assert may_fail.wait(300)
                raise OSError(5, "Input/output error")
            super()._sync(file)

        def reached(self, point):
            if point == "commit:synced" and is_syncing.is_set():
                may_fail.set()
                thread.join()

    def commit():
        try:
            commits_of(store).commit()
        except StorageError as exc:
            errors.append(exc)

    store = opened(tmp_path / "store", files=Telling(tmp_path / "store"))
    train(store, 0, 1000)
    thread = threading.Thread(target=commit, name="own")
    thread.start()
    assert is_syncing.wait(300)
    with pytest.raises(StoreClosedError):
        store.checkpoint("a")
    assert errors
    store.close()
    with opened(tmp_path / "store") as store:
        assert store.checkpoints() == []


@pytest.mark.parametrize("dropped", [False, True])
def test_a_table_that_goes_meanwhile(tmp_path, monkeypatch, dropped):
    store = opened(tmp_path / "store")
    other = {"rows": ROWS, "optimizer": RowWiseAdagrad(0.1), "initializer": Uniform(-1, 1)}
    store.create_table("b", dim=40, **other)
    train(store, 0, 1000)
    store.table("b").update(np.arange(500), np.ones((500, 40), np.float32))
    pool = store.executor.tables.find("b").pool
    flush_range = pool.writer.flush_range

    def going(low, table_id):
        found = flush_range(low)
        monkeypatch.undo()
        if dropped:
            threading.Thread(target=store.drop_table, args=["b"]).start()
        return found

    monkeypatch.setattr(pool.writer, "flush_range", going)
    assert commits_of(store).commit()
    store.close()
    with opened(tmp_path / "store") as store:
        assert store.tables() == (["a"] if dropped else ["a", "b"])


def test_close_ends_a_commit(tmp_path):
    files = Held(tmp_path / "store")
    store = opened(tmp_path / "store", files=files, commit_every_s=1e-3)
    files.stop_at_sync = True
    train(store, 0, 1000)
    expected = store.table("a").digest()
    assert files.is_syncing.wait(300)
    closing = threading.Thread(target=store.close)
    closing.start()
    files.stop_at_sync = False
    files.may_sync.set()
    closing.join()
    assert not commits_of(store)._thread.is_alive()
    with opened(tmp_path / "store") as store:
        assert store.table("a").digest() == expected


def test_the_thread_keeps_no_store(tmp_path):
    store = opened(tmp_path / "store")
    ended = weakref.ref(commits_of(store))
    del store
    gc.collect()
    assert ended() is None


def test_no_thread_where_there_is_nothing_to_commit(tmp_path):
    opened(tmp_path / "store", commit_every_s=0).close()
    before = threading.active_count()
    with embstore.open(tmp_path / "store", read_only=True):
        assert threading.active_count() == before
    with embstore.open(tmp_path / "store", commit_every_s=0) as store:
        assert threading.active_count() == before
        assert store.stats()["commits"]["commit_every_s"] == 0


@pytest.mark.parametrize("long", ["time", "bytes", None])
def test_a_long_command_log_is_committed(tmp_path, monkeypatch, long):
    """Executing it again would take too long, or it takes too much room."""
    if long == "bytes":
        monkeypatch.setattr(own_commits, "LOG_BYTES_MAX", 50_000)
    options = {"durability": "commands", "recovery_s": 0.0 if long == "time" else 1e6}
    store = opened(tmp_path / "store", **options)
    done = threading.Event()
    commits_of(store).after_each = done.set
    for low in range(0, ROWS - 500, 500):
        train(store, low, low + 500)
    if long is None:
        assert commits_of(store).count == 0
        assert store.executor.log.files.segments.bytes > 50_000
    else:
        assert done.wait(300)
        assert commits_of(store).count > 0
    store.close()


def test_rows_that_left_the_cache_are_committed_when_they_are_many(tmp_path, monkeypatch):
    """So that they can be folded: else the log, and its index, would grow until a checkpoint."""
    monkeypatch.setattr(own_commits, "ROWS_BYTES_LEAST", 64 << 10)
    committed = threading.Event()
    limits = replace(TINY, segment_bytes=16 << 10)
    with opened(tmp_path / "store", limits=limits, cache_bytes=1 << 20) as store:
        commits_of(store).after_each = committed.set
        store.create_table(
            "wide", dim=64, rows=ROWS, optimizer=RowWiseAdagrad(0.1), initializer=Uniform(-1, 1)
        )
        for turn in count():
            low = turn * 200 % ROWS
            store.table("wide").update(np.arange(low, low + 200), np.ones((200, 64), np.float32))
            if committed.is_set():
                break
        assert store.stats()["commits"]["own_commits"] >= 1
        storage = store.executor.storage
        while not storage.merges.folds:
            store.table("wide").lookup([0])
