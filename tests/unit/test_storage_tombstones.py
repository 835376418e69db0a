"""Deleted rows in log and base: what hides them, and how their space comes back."""

import numpy as np
import pytest

from embstore.errors import CorruptTableError
from embstore.layout import RECORD_HEADER_BYTES
from embstore.storage.run import has_tombstones
from embstore.storage.verify import verify
from tests.unit.small_stores import generator
from tests.unit.storage_samples import append, bury, open_storage, settle, table_entry, versions

SEED = 101
NEVER = {"fold_bytes": 1 << 40, "fold_segments": 1 << 20}
AT_ONCE = {"fold_bytes": 1, "fold_segments": 1}


def opened(path, **limits):
    storage = open_storage(path, **limits)
    entries = [table_entry()]
    storage.create_table(entries[0])
    return storage, entries


def tombstones(storage):
    """Return how many tombstones the base has."""
    graves = [run for run in storage.base.runs if has_tombstones(run)]
    return sum(part.bytes for run in graves for part in run) // RECORD_HEADER_BYTES


def commit(storage, entries, label=None):
    storage.commit(entries, 0, label=label)
    settle(storage)


@pytest.mark.parametrize("limits", [NEVER, AT_ONCE], ids=["in the log", "folded"])
def test_a_deleted_row_is_nowhere_until_it_is_written_again(tmp_path, limits):
    storage, entries = opened(tmp_path, **limits)
    append(storage, range(100), version=1)
    commit(storage, entries)
    bury(storage, range(10, 20))
    assert versions(storage, range(100)) == [1] * 10 + [-1] * 10 + [1] * 80
    commit(storage, entries)
    assert versions(storage, range(100)) == [1] * 10 + [-1] * 10 + [1] * 80
    append(storage, range(15, 25), version=2)
    commit(storage, entries)
    assert versions(storage, range(8, 27)) == [1] * 2 + [-1] * 5 + [2] * 10 + [1] * 2
    storage.close()


def test_a_fold_keeps_no_tombstone_of_a_row_that_the_base_has_not(tmp_path):
    storage, entries = opened(tmp_path, **AT_ONCE)
    append(storage, range(50), version=1)
    bury(storage, range(40))
    commit(storage, entries)
    assert tombstones(storage) == 0
    assert versions(storage, range(50)) == [-1] * 40 + [1] * 10
    bury(storage, range(45))
    commit(storage, entries)
    assert tombstones(storage) <= 5, "five of these rows were in the base"
    storage.close()


def test_space_comes_back_by_merges(tmp_path):
    """A tombstone takes 16 bytes: it is not its own size that makes a merge due."""
    storage, entries = opened(tmp_path, base_segment_bytes=16384, **AT_ONCE)
    append(storage, range(20_000), version=1)
    commit(storage, entries)
    before = storage.base.bytes
    for low in range(0, 16_000, 1000):
        bury(storage, range(low, low + 1000))
        commit(storage, entries)
        assert len(storage.base.runs) <= 8
    assert storage.base.bytes < 0.4 * before
    expected = [-1] * 16_000 + [1] * 4_000
    assert versions(storage, range(20_000)) == expected
    bury(storage, range(16_000, 20_000))
    commit(storage, entries)
    assert storage.base.bytes == 0
    storage.close()


@pytest.mark.parametrize("side", ["before", "after"])
def test_a_kept_checkpoint_on_either_side_has_its_rows(tmp_path, side):
    storage, entries = opened(tmp_path, keep=8, **AT_ONCE)
    append(storage, range(1000), version=1)
    commit(storage, entries, label="written")
    bury(storage, range(900))
    commit(storage, entries, label="deleted" if side == "after" else None)
    append(storage, range(100), version=2)
    commit(storage, entries)
    assert versions(storage, range(1000)) == [2] * 100 + [-1] * 800 + [1] * 100
    if side == "after":
        storage.restore("deleted", 0)
        assert versions(storage, range(1000)) == [-1] * 900 + [1] * 100
    storage.restore("written", 0)
    settle(storage)
    assert versions(storage, range(1000)) == [1] * 1000
    storage.close()


def test_tombstones_go_once_no_checkpoint_needs_their_rows(tmp_path):
    storage, entries = opened(tmp_path, keep=1, **AT_ONCE)
    append(storage, range(1000), version=1)
    commit(storage, entries, label="first")
    bury(storage, range(900))
    commit(storage, entries)
    assert tombstones(storage) == 900
    commit(storage, entries, label="second")
    assert tombstones(storage) == 0
    assert versions(storage, range(1000)) == [-1] * 900 + [1] * 100
    storage.close()


def test_runs_of_tombstones_alone_stay_few(tmp_path):
    """Behind a checkpoint that needs the rows they have to be kept."""
    storage, entries = opened(tmp_path, **AT_ONCE)
    append(storage, range(1000), version=1)
    commit(storage, entries, label="kept")
    order = generator(SEED).permutation(1000)
    for keys in np.array_split(order, 25):
        bury(storage, keys)
        commit(storage, entries)
        assert len(storage.base.runs) <= 5
    assert tombstones(storage) == 1000
    assert versions(storage, range(1000)) == [-1] * 1000
    storage.close()


def test_a_compaction_carries_tombstones(tmp_path):
    """Also where each is the neighbour of a row: they come together, as two runs of a segment."""
    limits = NEVER | {"segment_bytes": 1 << 20}
    storage, entries = opened(tmp_path, **limits)
    append(storage, range(3000), version=1)
    storage.log.seal()
    bury(storage, range(1, 3000, 2))
    storage.log.seal()
    append(storage, range(0, 3000, 4), version=2)
    append(storage, [*range(1, 3000, 4), *range(3, 300, 4)], version=2)
    storage.log.seal()
    settle(storage)
    assert storage.merges.compactions == 1
    assert [len(segment.runs) for segment in storage.log.segments] == [2, 1]
    expected = [2, 2, 1, 2] * 75 + [2, 2, 1, -1] * 675
    assert versions(storage, range(3000)) == expected
    commit(storage, entries)
    storage.close()
    storage = open_storage(tmp_path, **limits)
    assert versions(storage, range(3000)) == expected
    storage.close()


def test_a_store_with_tombstones_is_verified_and_a_damaged_one_is_named(tmp_path):
    storage, entries = opened(tmp_path, **NEVER)
    append(storage, range(30), version=1)
    bury(storage, range(7, 9))
    commit(storage, entries)
    path, at = storage.log.segments[0].path, storage.log.segments[0].runs[-1][1]
    storage.close()
    found = verify(storage.files, lambda problem: None, lambda done, of: None)
    assert (found.rows, found.problems) == (32, [])
    with open(tmp_path / path, "r+b") as file:
        file.seek(at)
        file.write(b"\xff")
    found = verify(storage.files, lambda problem: None, lambda done, of: None)
    assert [(a.rows, a.first_keys) for a in found.affected] == [(1, (7,))]


def test_a_damaged_row_that_was_deleted_affects_nothing(tmp_path):
    storage, entries = opened(tmp_path, **AT_ONCE)
    append(storage, range(30), version=1)
    commit(storage, entries, label="kept")
    bury(storage, [7])
    commit(storage, entries)
    part = storage.base.runs[0][0].file
    storage.close()
    with open(tmp_path / part.path, "r+b") as file:
        file.seek(4096 + 7 * 32)
        file.write(b"\xff")
    found = verify(storage.files, lambda problem: None, lambda done, of: None)
    assert [(a.label, a.first_keys) for a in found.affected] == [("kept", (7,))]
    storage = open_storage(tmp_path, **AT_ONCE)
    assert versions(storage, range(6, 9)) == [1, -1, 1]
    storage.restore("kept", 0)
    with pytest.raises(CorruptTableError, match="key 7 "):
        versions(storage, range(6, 9))
    storage.close()
