"""Kept checkpoints under a store: exact after any number of folds and compactions."""

import numpy as np
import pytest

from embstore import (
    CheckpointExistsError,
    CheckpointNotFoundError,
    RowWiseAdagrad,
    Sgd,
    Uniform,
)
from tests.unit.small_stores import (
    generator,
    make_table,
    opened,
    rows_of,
    settle,
    small_limits,
    storage_of,
)

SEED = 73
OPTIONS = {"cache_bytes": 60_000, "limits": small_limits(), "checkpoints_keep": 4}


def two_tables(store):
    return [
        make_table(store, "a", initializer=Uniform(-1, 1)),
        make_table(store, "b", dim=7, optimizer=RowWiseAdagrad(0.1)),
    ]


def train(store, rng, calls):
    for _ in range(calls):
        for name in ("a", "b"):
            table = store.table(name)
            keys = rng.choice(1_200, 150, replace=False)
            table.update(keys, rng.standard_normal((150, table.dim)).astype(np.float32))


def digests(store):
    return {name: store.table(name).digest() for name in store.tables()}


def restore_and_check(store, noted):
    """Restore every kept label, newest first, and compare with what was noted."""
    kept = [checkpoint.label for checkpoint in store.checkpoints()]
    for label in reversed(kept):
        store.restore(label)
        assert digests(store) == noted[label], label
        store.check_integrity()
    return kept


def test_every_kept_label_is_restored_after_many_merges(tmp_path):
    rng, noted = generator(SEED), {}
    with opened(tmp_path, **OPTIONS) as store:
        two_tables(store)
        for number in range(12):
            train(store, rng, 6)
            store.flush()
            train(store, rng, 6)
            label = f"step-{number}"
            store.checkpoint(label)
            noted[label] = digests(store)
            settle(store)
            store.check_integrity()
        train(store, rng, 20)
        settle(store)
        figures = store.stats()["storage"]
        assert figures["folds"] > 3 and figures["compactions"] > 3
        kept = restore_and_check(store, noted)
        assert kept == [f"step-{number}" for number in range(8, 12)]


def test_every_kept_label_is_restored_after_reopening_between_them(tmp_path):
    """Closing commits without a label; opening must know again which records are needed."""
    rng, noted = generator(SEED), {}
    for number in range(6):
        with opened(tmp_path, **OPTIONS) as store:
            two_tables(store)
            train(store, rng, 4)
            store.checkpoint(f"step-{number}")
            noted[f"step-{number}"] = digests(store)
            if number % 2:
                store.table("a").learning_rate = 0.5 + number  # a commit without a row
        with opened(tmp_path, **OPTIONS) as store:
            train(store, rng, 4)
            settle(store)
    with opened(tmp_path, **OPTIONS) as store:
        assert len(restore_and_check(store, noted)) == 4


def test_training_again_from_a_checkpoint_gives_the_same_bits(tmp_path):
    """Commit and segment numbers of the abandoned future must not come back."""
    with opened(tmp_path, **OPTIONS) as store:
        two_tables(store)
        train(store, generator(1), 5)
        store.checkpoint("start")
        futures = []
        for _ in range(3):
            train(store, generator(2), 10)
            store.checkpoint("middle")
            train(store, generator(3), 10)
            settle(store)
            futures.append(digests(store))
            store.restore("start")
            assert [c.label for c in store.checkpoints()] == ["start"]
        assert futures[0] == futures[1] == futures[2]


def test_a_checkpoint_of_nothing_new_is_one_too(tmp_path):
    with opened(tmp_path, **OPTIONS) as store:
        (table, _) = two_tables(store)
        table.assign(range(100), rows_of(range(100)))
        before = digests(store)
        for label in ("a", "b", "c"):
            store.checkpoint(label)
        table.assign(range(50), rows_of(range(50), version=1))
        store.checkpoint("d")
        settle(store)
        for label in ("c", "b", "a"):
            store.restore(label)
            assert digests(store) == before


def test_reading_between_checkpoints_leaves_a_store_that_opens(tmp_path):
    """Clean victims reserve room in the log and write nothing to it."""
    with opened(tmp_path, **OPTIONS) as store:
        (table, _) = two_tables(store)
        for start in range(0, 9_000, 300):
            table.lookup(np.arange(start, start + 300))
        store.checkpoint("read")
        settle(store)
    with opened(tmp_path, **OPTIONS) as store:
        store.restore("read")
        assert store.tables() == ["a", "b"]


def test_old_labels_are_let_go_and_refused(tmp_path):
    with opened(tmp_path, **OPTIONS) as store:
        two_tables(store)
        for number in range(6):
            store.checkpoint(f"{number}")
        with pytest.raises(CheckpointNotFoundError, match="kept are: '2', '3', '4', '5'"):
            store.restore("1")
        with pytest.raises(CheckpointExistsError, match="'5'"):
            store.checkpoint("5")
        store.checkpoint("1")  # a label that is no longer kept is free again


def test_the_log_is_bounded_by_what_the_checkpoints_need(tmp_path):
    """Records superseded between two labels go: each label needs one record a row at most."""
    rng = generator(SEED)
    with opened(tmp_path, **OPTIONS) as store:
        table = make_table(store, "a", optimizer=Sgd(0.1))
        for number in range(10):
            for _ in range(40):
                keys = rng.choice(400, 200, replace=False)
                table.update(keys, np.ones((200, 4), np.float32))
                table.flush()
                settle(store)
            store.checkpoint(f"{number}")
            settle(store)
        figures = storage_of(store).stats()
        rows_needed = 400 * (OPTIONS["checkpoints_keep"] + 1)
        assert figures["log_rows"] <= 400
        assert figures["log_records"] <= 2 * rows_needed
        assert figures["bytes_written"] > 4 * figures["log_bytes"]
