"""Checkpoints, flushes and checks go in slices: how much one does is counted, not timed."""

import numpy as np
import pytest

from embstore import commands as c
from embstore.cache import integrity, writing
from embstore.errors import StoreClosedError
from embstore.storage import log as logs
from embstore.storage.row_index import RowIndex
from tests.copies import copy_of_open
from tests.unit.small_stores import (
    generator,
    make_table,
    opened,
    pool_of,
    rows_of,
    settle,
    small_limits,
    storage_of,
)
from tests.unit.test_long_digests import Between

SEED = 101
ROWS, PIECE = 6_000, 128
OPTIONS = {"cache_bytes": 1 << 20, "limits": small_limits(fold_bytes=1 << 30)}


def dirty(path):
    """Return a store with a table whose rows are all dirty in the cache."""
    store = opened(path, **OPTIONS)
    table = make_table(store, rows=ROWS)
    table.assign(np.arange(ROWS), rows_of(np.arange(ROWS)))
    return store, table


@pytest.fixture
def pieces(monkeypatch):
    """Have a slice log few rows, and check few slots."""
    monkeypatch.setattr(writing, "PIECE_BYTES", PIECE * 16)
    monkeypatch.setattr(integrity, "SLICE_SLOTS", PIECE)


def logged_in_turns(store, monkeypatch):
    """Return a list that gets how many rows each slice, and each command, logs."""
    frame, turns = store.executor.tables.frame, []
    check, append = frame._check_open, storage_of(store).appender.append

    def begun():
        turns.append(0)
        check()

    def appended(keys, rows, slots):
        turns[-1] += len(keys)
        append(keys, rows, slots)

    monkeypatch.setattr(frame, "_check_open", begun)
    monkeypatch.setattr(storage_of(store).appender, "append", appended)
    return turns


def test_a_checkpoint_logs_little_in_its_turn(tmp_path, monkeypatch, pieces):
    """What is dirty at its begin is logged before, a piece at a time; it is of its turn's state."""
    store, table = dirty(tmp_path / "a")
    with store:
        turns = logged_in_turns(store, monkeypatch)

        def update(number):
            table.update([number % ROWS], np.ones((1, 4), np.float32))

        Between(store, monkeypatch, update)
        kept = store.checkpoint("one")
        assert sum(turns) >= ROWS
        assert max(turns) <= PIECE
        assert store.command >= kept.command > 2 * (ROWS // PIECE) // 3
        monkeypatch.undo()
        at_the_label = digest_of(store, table, kept)
        table.update(np.arange(50), np.ones((50, 4), np.float32))
        assert table.digest() != at_the_label
        store.restore("one")
        assert store.table("t").digest() == at_the_label
        store.check_integrity()


def digest_of(store, table, kept):
    """Return the digest of the table as of a checkpoint after which no command came."""
    assert store.command == kept.command
    return table.digest()


@pytest.mark.parametrize("of_table", [True, False], ids=["table", "store"])
def test_a_flush_logs_a_piece_at_a_time_what_is_dirty(tmp_path, monkeypatch, pieces, of_table):
    store, table = dirty(tmp_path)
    with store:
        other = make_table(store, "other")
        other.assign([1, 2], rows_of([1, 2]))
        turns = logged_in_turns(store, monkeypatch)
        assert (table if of_table else store).flush() == (ROWS if of_table else ROWS + 2)
        assert max(turns) <= PIECE
        left = np.count_nonzero(pool_of(table).slots.contents().dirty)
        assert left == (2 if of_table else 0)
        assert store.flush() == left


def test_a_flush_and_a_checkpoint_end_between_pieces(tmp_path, pieces):
    store, table = dirty(tmp_path)
    with store:
        before = table.digest()
        for command in (c.Flush(), c.Checkpoint("one", {})):
            calls = []

            def ended(done, of, calls=calls):
                calls.append(done)
                if len(calls) == 5:
                    raise StoreClosedError("enough")

            with pytest.raises(StoreClosedError, match="enough"):
                store.executor.execute(command, progress=ended)
        assert store.checkpoints() == []
        assert 0 < np.count_nonzero(pool_of(table).slots.contents().dirty) < ROWS
        store.check_integrity()
        assert table.digest() == before
        store.checkpoint("one")


def test_a_check_looks_at_so_many_slots_at_once(tmp_path, monkeypatch, pieces):
    """While rows come, change and leave."""
    store, table = dirty(tmp_path)
    with store:
        pool, asked = pool_of(table), []
        locate = pool.finder.locate
        monkeypatch.setattr(
            pool.finder, "locate", lambda keys: asked.append(len(keys)) or locate(keys)
        )

        def update(number):
            keys = np.arange(number, ROWS, 400)
            table.update(keys, np.ones((len(keys), 4), np.float32))

        between = Between(store, monkeypatch, update)
        store.check_integrity()
        assert between.slices > ROWS // PIECE
        assert sum(asked) >= ROWS
        assert max(asked) <= PIECE


FAULTS = {
    "free list": lambda pool, slots: pool.slots._free.__setitem__(0, slots[5]),
    "key's slot": lambda pool, slots: pool.slots.memory.keys.__setitem__(
        slots[5], pool.slots.memory.keys[slots[4]]
    ),
    "pinned": lambda pool, slots: setattr(pool.pins, "known_count", 1),
    "dirty": lambda pool, slots: setattr(pool.evictor, "dirty_max", 3),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_check_finds_what_is_wrong(tmp_path, pieces, fault):
    store, table = dirty(tmp_path)
    pool = pool_of(table)
    assert pool.slots.free_count > 0
    FAULTS[fault](pool, np.flatnonzero(pool.slots.keys >= 0))
    with pytest.raises(AssertionError, match=fault):
        store.check_integrity()
    store.executor.abandon()


@pytest.mark.parametrize("kind", ["fold", "compaction"])
def test_a_merge_is_installed_so_many_entries_at_a_time(tmp_path, monkeypatch, kind):
    """Between the slices all rows are what they are, also after a kill, and may change."""
    monkeypatch.setattr(logs, "SLICE_KEYS", 16)
    limits = {
        "fold": {"fold_bytes": 64 << 10},
        "compaction": {"fold_bytes": 1 << 30, "fold_segments": 1 << 20},
    }[kind]
    store = opened(tmp_path / "a", cache_bytes=1 << 16, limits=small_limits(**limits))
    twin = opened(tmp_path / "b", cache_bytes=1 << 20)
    with store, twin:
        tables = [make_table(one, rows=ROWS) for one in (store, twin)]
        merges, slices, asked = storage_of(store).merges, 0, []

        def do(verb, *arguments):
            for table in tables:
                getattr(table, verb)(*arguments)

        repoint = RowIndex.repoint
        monkeypatch.setattr(
            RowIndex, "repoint", lambda self, *a: asked.append(len(a[0])) or repoint(self, *a)
        )
        rng = generator(SEED)
        for number in range(40):
            keys = rng.integers(0, ROWS // 2, 900)
            do("assign", keys, rows_of(keys, version=number))
            if number % 16 == 15:
                store.executor.commits.commit()
            while merges._thread is not None:
                merges._thread.join()
                merges.poll()
                while merges._installing is not None:
                    slices += 1
                    do("update", [slices % ROWS], np.ones((1, 4), np.float32))
                    if slices % 100 == 9:
                        store.executor.commits.commit()
                        check_copy(store, tmp_path / f"killed {slices}")
                    if slices % 200 == 0:
                        assert tables[0].digest() == tables[1].digest()
                        check_copy(store, tmp_path / f"killed {slices}")
        assert slices > 20 and max(asked) <= 16
        assert {"fold": merges.folds, "compaction": merges.compactions}[kind] > 0
        assert tables[0].digest() == tables[1].digest()
        store.check_integrity()
        settle(store)


def check_copy(store, path):
    """Check that what a killed process leaves is a store at its last commit."""
    with opened(copy_of_open(storage_of(store).files.root, path)) as killed:
        killed.check_integrity()
        assert killed.command == storage_of(store).catalogue.head.command
        killed.table("t").digest()
