"""What a store counts: copies made while counting goes on, tables that go, files that are kept."""

import numpy as np
import pytest

from embstore.cache.levels import RowLevels, levels_of
from embstore.errors import StorageError
from embstore.hotness.accesses import Accesses, TableAccess, at_rate, within
from embstore.hotness.counter import KeyCounter
from embstore.hotness.recorder import Recorder
from embstore.profiles.profile import TableProfile
from tests.conformance.backends import UnsyncedFiles
from tests.unit.profile_samples import int64s
from tests.unit.small_stores import generator, make_table, opened


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


def test_scaled_counts_fit_their_integers():
    found = at_rate(profile([4], [1 << 61]), 0.001, 1.0)
    assert found.counts[0] > 1 << 61 and found.accesses >= found.counts[0]


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


@pytest.mark.parametrize("keys", [[0, 3, 7], [-(2**63), -2, 0, 7, 2**63 - 1]])
def test_levels_of_sparse_keys(keys):
    levels = RowLevels(profile(keys, np.arange(1, len(keys) + 1)))
    asked = int64s(-(2**63), -(2**63) + 1, -3, -2, 0, 1, 7, 8, 2**63 - 2, 2**63 - 1)
    wanted = [keys.index(key) + 1 if key in keys else 0 for key in asked.tolist()]
    assert levels.of(asked).tolist() == wanted


def test_a_table_of_fewer_rows_keeps_no_counts_of_ids_beyond_it():
    found = within(profile([-(2**63), -2, 0, 7, 9], [1, 2, 3, 4, 5]), 8)
    assert (found.keys.tolist(), found.counts.tolist()) == ([0, 7], [3, 4])
    assert (found.rows, found.accesses) == (8, 7)


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
