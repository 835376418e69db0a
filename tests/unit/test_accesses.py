"""What a store counts: copies made while counting goes on, tables that go, files that are kept."""

import numpy as np
import pytest

from embstore.cache.levels import RowLevels, levels_of
from embstore.errors import StorageError
from embstore.hotness.accesses import Accesses, TableAccess, at_rate, within
from embstore.hotness.counter import KeyCounter
from embstore.hotness.recorder import Recorder
from embstore.profiles.profile import TableProfile
from tests.unit.profile_samples import int64s
from tests.unit.small_stores import UnsyncedFiles, generator, make_table, opened


def profile(keys, counts, rows=0, **given):
    counts = np.asarray(counts, np.int64)
    return TableProfile("a", rows, np.asarray(keys), counts, int(counts.sum()), **given)


# Copies


def test_a_copy_of_a_counter_stays_as_it_was_when_counting_goes_on():
    """A profile was sorted and checked while every call waited."""
    counter = KeyCounter()
    counter.add(int64s(7, 3, 7))
    copy = counter.copied()
    counter.add(int64s(3, 9))
    found = copy.profile("a", 10)
    assert (found.keys.tolist(), found.counts.tolist(), found.accesses) == ([3, 7], [1, 2], 3)
    assert counter.profile("a", 10).keys.tolist() == [3, 7, 9]


def test_a_table_that_was_not_asked_for_takes_no_memory():
    """Each table got a counter of 64 KiB when the store was closed."""
    accesses = Accesses(1.0)
    before = accesses.memory_bytes
    assert accesses.copied(5) is None
    assert accesses.table_profile(5, "a", 10).accesses == 0
    assert accesses.memory_bytes == before


# Tables that go


def test_a_recorder_forgets_a_table_and_what_it_had_of_the_totals():
    """A new table had the trace of the one before it, of the same name."""
    recorder, rng = Recorder(events_max=400), generator(81)
    calls = [
        [(n, rng.integers(0, 1000, 60), rng.integers(1, 9, 60)) for n in "vw"] for _ in range(20)
    ]
    for call in calls:
        recorder.record(call)
    assert recorder.rate < 1
    recorder.forget("v")
    left = [(keys, counts) for call in calls for name, keys, counts in call if name == "w"]
    trace = recorder.trace()
    assert (trace.tables, trace.calls) == (("w",), 20)
    assert trace.unique_total == sum(len(np.unique(keys)) for keys, _ in left)
    assert trace.access_total == sum(int(counts.sum()) for _, counts in left)
    recorder.record([("x", int64s(1), None), ("v", int64s(2), None)])
    assert recorder.trace().tables == ("w", "x", "v")
    assert recorder.trace().access_total == trace.access_total + 2


def test_tables_made_and_dropped_without_end_do_not_end_a_recording(monkeypatch):
    monkeypatch.setattr("embstore.hotness.recorder._TABLES_MAX", 2)
    recorder = Recorder()
    for i in range(10):
        recorder.record([("kept", int64s(i), None), (f"t{i}", int64s(1), None)])
        recorder.forget(f"t{i}")
    assert not recorder.is_full
    assert (recorder.trace().tables, recorder.trace().keys.tolist()) == (("kept",), [*range(10)])


def test_counts_of_rows_that_are_gone_are_cut():
    accesses = Accesses(1.0)
    accesses.note([TableAccess(3, "a", int64s(1, 400, 1))])
    accesses.cut(3, "a", 100)
    found = accesses.table_profile(3, "a", 100)
    assert (found.keys.tolist(), found.accesses) == ([1], 2)
    assert accesses.recorder.copied()["tables"] == ()


# Rates and rows


@pytest.mark.parametrize(
    ("counted", "rate", "counts", "error"),
    [(0.1, 1.0, [10, 30], 20), (1.0, 0.5, [1, 2], 1), (0.5, 0.5, [1, 3], 2)],
)
def test_counts_of_another_rate_are_scaled(counted, rate, counts, error):
    found = at_rate(profile([4, 5], [1, 3], error=2), counted, rate)
    assert (found.counts.tolist(), found.error) == (counts, error)


def test_scaled_counts_fit_their_integers():
    found = at_rate(profile([4], [1 << 61]), 0.001, 1.0)
    assert found.counts[0] > 1 << 61 and found.accesses >= found.counts[0]


def test_a_profile_within_fewer_rows_loses_what_is_beyond():
    found = within(profile([1, 99, 100], [5, 6, 7], rows=200), 100)
    assert (found.keys.tolist(), found.accesses, found.rows) == ([1, 99], 11, 100)
    same = profile([1, 99], [5, 6])
    assert within(same, 100) is same


# Levels


@pytest.mark.parametrize("bound", [1 << 31, 1 << 40])
def test_levels_of_a_few_rows_of_many_take_little_memory(bound):
    """1,000 keys over 2**31 took 1.5 GiB: an array by key, on huge pages."""
    keys = np.unique(np.append(generator(82).integers(0, bound, 1000), bound - 1))
    given = profile(keys, np.arange(1, len(keys) + 1))
    levels = RowLevels(given)
    assert levels.memory_bytes < 32 << 10
    asked = np.concatenate([keys[::-1], (keys[:-1] + 1)[np.diff(keys) > 1], [bound]])
    wanted = np.zeros(len(asked), np.int64)
    wanted[: len(keys)] = levels_of(given.counts)[::-1]
    assert levels.of(asked).tolist() == wanted.tolist()


# Files


class Refusing(UnsyncedFiles):
    """Refuses to write one file."""

    refused = ""
    replaced: list[str]

    def replace(self, path, content):
        self.replaced.append(path)
        if path == self.refused:
            raise StorageError(5, f"refused: {path}")
        super().replace(path, content)


def test_closing_keeps_what_changed_and_goes_on_where_the_disk_refuses_a_file(tmp_path):
    """Each table got a synced file, counted or not; one failure dropped all tables after it."""
    files = Refusing(tmp_path)
    files.replaced, files.refused = [], "frequency/0.counted"
    store = opened(tmp_path, files=files, count_rate=1.0)
    for name in "abcd":
        make_table(store, name)
    store.lookup({"a": [1], "c": [2]})
    store.close()
    assert [p for p in files.replaced if "counted" in p] == [
        "frequency/0.counted",
        "frequency/2.counted",
    ]
    store = opened(tmp_path, count_rate=1.0)
    tables = store.export_profile().tables
    assert {name: table.accesses for name, table in tables.items()} == dict.fromkeys("abd", 0) | {
        "c": 1
    }
    store.close()
