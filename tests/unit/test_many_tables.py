"""Many tables under many labels: what a commit writes and computes goes by what changed."""

import sys
from contextlib import closing
from statistics import median

import numpy as np
import pytest

import embstore
from embstore.config import Limits
from embstore.storage.files import Files

TABLES, LABELS = 300, 30


def created(store, number):
    return store.create_table(
        f"table_{number}",
        dim=2,
        rows=8,
        optimizer=embstore.Sgd(learning_rate=0.5),
        initializer=embstore.Constant(0.0),
    )


def calls_of(work):
    """Return how many functions, of Python or C, this thread calls for some work."""
    count = 0

    def note(frame, event, argument):
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(None)
    return count


@pytest.fixture
def opened(tmp_path):
    def again(**more):
        return closing(embstore.open(tmp_path / "store", device="cpu", cache_bytes=1 << 22, **more))

    return again


@pytest.fixture
def written(monkeypatch):
    """Return what says how many bytes all files got during some work."""
    write, total = Files._write, 0

    def counted(self, file, offset, data):
        nonlocal total
        total += len(data)
        write(self, file, offset, data)

    monkeypatch.setattr(Files, "_write", counted)

    def of(work):
        before = total
        work()
        return total - before

    return of


def update(table, number):
    table.update(np.array([number % 8]), np.ones((1, 2), np.float32))


@pytest.mark.parametrize("changed", [1, TABLES])
def test_a_checkpoint_writes_of_older_ones_what_changed_between_them(opened, written, changed):
    no_merges = Limits(fold_segments=1 << 20)  # they commit, too
    with opened(checkpoints_keep=LABELS, limits=no_merges) as store:
        tables = [created(store, number) for number in range(TABLES)]
        sizes, calls = [], []

        def work(label):
            sizes.append(written(lambda: calls.append(calls_of(lambda: store.checkpoint(label)))))

        for number in range(LABELS):
            for table in tables[:changed]:
                update(table, number)
            work(f"label-{number}")
    few = 16 * changed + 1000  # an id and its t each; and what a label has beside its tables
    assert max(sizes) < sizes[0] + LABELS * few
    assert max(calls[1:]) < 2 * calls[0]


def test_a_table_costs_as_many_calls_as_the_first_ones(opened):
    with opened() as store:
        created(store, 0)
        calls = [calls_of(lambda: created(store, 1 + number)) for number in range(TABLES)]  # noqa: B023
    assert median(calls[-10:]) <= median(calls[:10])  # of one an array may grow, say


def test_states_come_back_with_what_they_share(opened):
    with opened(checkpoints_keep=LABELS) as store:
        tables = [created(store, number) for number in range(4)]
        store.checkpoint("none")
        update(tables[1], 0)
        tables[2].grow(16)
        tables[3].learning_rate = 0.25
        store.checkpoint("changed")
        store.drop_table("table_0")
        created(store, 0)
        store.checkpoint("again")
        before = store.executor.storage.catalogue
    with opened() as store:
        after = store.executor.storage.catalogue
        assert after == before
        none, changed, again = (kept.state.tables for kept in after.checkpoints)
        assert again is after.head.tables
        assert none[0] is changed[0]
        assert [(t.table_id, t.rows, t.learning_rate, t.t) for t in again] == [
            (1, 8, 0.5, 1), (2, 16, 0.5, 0), (3, 8, 0.25, 0), (4, 8, 0.5, 0)
        ]  # fmt: skip
        assert all(old.identity is new.identity for old, new in zip(none[1:], again, strict=False))
        assert [t.table_id for t in none] == [0, 1, 2, 3]
        store.restore("none")
        assert [t.table_id for t in store.executor.storage.catalogue.head.tables] == [0, 1, 2, 3]
