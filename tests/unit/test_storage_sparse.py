"""Sparse tables in storage: rows by ids, whatever the store does with its files meanwhile."""

import numpy as np
import pytest

from embstore.arrays import KEY_MASK
from embstore.errors import CapacityError, CorruptTableError
from embstore.row_keys import RowKeys
from embstore.storage import id_files
from embstore.storage.id_files import Range, joined
from tests.conformance.backends import UnsyncedFiles
from tests.faults.refusing import FullDisk
from tests.unit.small_stores import generator
from tests.unit.sparse_samples import (
    DENSE,
    DIMS,
    EXTREMES,
    ONE,
    OTHER,
    TABLES,
    Model,
    copied,
    opened,
    random_ids,
)
from tests.unit.storage_samples import (
    append,
    layout_of,
    open_storage,
    rows_for,
    same_rows,
    settle,
    versions,
)

SEED = 97


def test_ids_of_all_kinds_are_read_as_they_were_written(tmp_path):
    storage, model = opened(tmp_path), Model()
    model.write(storage, ONE, EXTREMES[:5], 1)
    model.write(storage, OTHER, EXTREMES[2:], 2)
    model.write(storage, DENSE, [0, 1, 2], 3)
    model.write(storage, ONE, EXTREMES[[1, 3]], 4)
    model.check(storage)
    assert storage.ids.count == 9
    storage.close()


def test_to_look_for_ids_costs_no_number(tmp_path):
    storage = opened(tmp_path)
    border = storage.of_pool(RowKeys(ONE))
    ids = random_ids(generator(SEED), 5_000)
    located = border.rows.locate(ids)
    assert not located.found.any() and not border.rows.has(ids).any()
    assert storage.ids.count == border.rows.numbers.count == 0
    append(storage, ids[:100], 1, ONE)
    located = border.rows.locate(ids)
    assert np.flatnonzero(located.found).tolist() == list(range(100))
    rows = np.zeros((len(ids), layout_of(4).stride), np.float32)
    border.rows.collect(located, rows)
    assert same_rows(rows[:100], rows_for(ids[:100], 1)) and not rows[100:].any()
    assert storage.of_pool(RowKeys()) is storage
    storage.close()


def test_rows_are_packed_however_far_apart_their_ids_are(tmp_path):
    sizes = []
    for name, ids in (
        ("near", np.arange(20_000)),
        ("far", random_ids(generator(SEED), 20_000)),
    ):
        storage = opened(tmp_path / name, keep=1, fold_bytes=1)
        for part in np.array_split(ids, 8):
            append(storage, part, 1, ONE)
        storage.commit(TABLES, 1)
        settle(storage)
        assert storage.rows.logged_rows == 0 and storage.base.runs
        sizes.append(storage.base.bytes)
        storage.close()
    assert sizes[0] == sizes[1]


def test_random_work_is_as_the_model_has_it(tmp_path):
    """Writes, commits, labels, restores, merges, crashes: tables side by side."""
    rng, model = generator(SEED), Model()
    committed = {table_id: {} for table_id in DIMS}
    pools = {ONE: random_ids(rng, 3_000), OTHER: random_ids(rng, 2_000), DENSE: np.arange(4_000)}
    storage = opened(tmp_path, keep=2)
    merged = 0
    for version in range(160):
        table_id = int(rng.choice([*DIMS]))
        keys = rng.choice(pools[table_id], int(rng.integers(1, 300)), replace=False)
        model.write(storage, table_id, keys, version)
        kind = rng.random()
        if kind < 0.4:
            label = f"label-{version}" if kind < 0.15 else None
            model.commit(storage, label)
            committed = copied(model.now)
        elif kind < 0.5:
            settle(storage)
            merged += len(storage.base.runs) > 0
        elif kind < 0.56 and storage.catalogue.checkpoints:
            label = str(rng.choice([kept.label for kept in storage.catalogue.checkpoints]))
            model.restore(storage, label)
            committed = model.kept[label]
        elif kind < 0.62:  # a crash: what was not committed is gone
            storage.close()
            storage = opened(tmp_path, keep=2)
            model.now = copied(committed)
        if version % 8 == 0:
            model.check(storage)
    settle(storage)
    model.check(storage)
    assert merged > 3
    storage.close()


def test_a_million_random_ids_are_there_again(tmp_path):
    ids = random_ids(generator(SEED), 1_000_000)
    limits = {"segment_bytes": 64 << 20, "fold_bytes": 8 << 20, "base_segment_bytes": 64 << 20}
    storage = opened(tmp_path, **limits)
    for part in np.array_split(ids, 10):
        append(storage, part, 7, ONE)
    storage.commit(TABLES, 1)
    settle(storage)
    storage.close()
    storage = opened(tmp_path, **limits)
    assert storage.ids.count == len(ids)
    assert set(versions(storage, ids, ONE)) == {7}
    assert (versions(storage, ids[:9] ^ 1, ONE)) == [-1] * 9
    storage.close()


def test_what_was_not_committed_is_forgotten_and_its_numbers_are_given_again(tmp_path):
    storage = opened(tmp_path)
    append(storage, [5, -7], 1, ONE)
    storage.commit(TABLES, 1)
    append(storage, [9, 11], 2, ONE)
    storage.close()
    storage = opened(tmp_path)
    assert storage.ids.tables[ONE].first_ids(0, 2).tolist() == [5, -7]
    assert versions(storage, [5, -7, 9, 11], ONE) == [1, 1, -1, -1]
    append(storage, [11], 3, ONE)
    assert storage.ids.tables[ONE].row_keys_of(np.array([11])) & KEY_MASK == 2
    storage.close()


def test_a_restore_forgets_the_ids_that_came_later(tmp_path):
    storage = opened(tmp_path)
    append(storage, [5], 1, ONE)
    storage.commit(TABLES, 1, label="one")
    append(storage, [6, 5], 2, ONE)
    storage.commit(TABLES, 2)
    append(storage, [7], 2, ONE)
    assert len(storage.catalogue.ids) == 2
    border = storage.of_pool(RowKeys(ONE))
    storage.restore("one", 3)
    assert versions(storage, [5, 6, 7], ONE) == [1, -1, -1]
    assert border.rows.has(np.array([5, 6])).tolist() == [True, False]
    append(storage, [8], 3, ONE)
    storage.commit(TABLES, 4)
    storage.close()
    storage = opened(tmp_path)
    assert versions(storage, [5, 6, 7, 8], ONE) == [1, -1, -1, 3]
    settle(storage)
    assert sorted(p.name for p in (tmp_path / "ids").iterdir()) == sorted(
        entry.path[4:] for entry in storage.catalogue.ids
    )
    storage.close()


def test_files_stay_few_and_each_id_is_written_few_times(tmp_path, monkeypatch):
    monkeypatch.setattr(id_files, "JOINED_MAX", 400)
    storage, written, files = opened(tmp_path, keep=1), 0, []
    for number in range(300):
        append(storage, np.arange(10) + 10 * number, 1, ONE)
        before = set(storage.catalogue.ids)
        storage.commit(TABLES, 1, label=f"label-{number}" if number % 50 == 0 else None)
        written += sum(entry.count for entry in set(storage.catalogue.ids) - before)
        files.append(len(storage.catalogue.ids))
    assert max(files) <= 2 * 3_000 // 400 + 12
    assert written <= 3_000 * 10
    assert {entry.count for entry in storage.catalogue.ids} != {10}
    storage.merges.finish()
    assert len(list((tmp_path / "ids").iterdir())) == files[-1]
    storage.close()
    storage = opened(tmp_path)
    assert set(versions(storage, np.arange(3_000), ONE)) == {1}
    storage.close()


def test_ranges_are_joined_on_one_side_of_every_checkpoint():
    def ranges(*counts_and_commits):
        firsts = np.cumsum([0, *(count for count, _ in counts_and_commits)]).tolist()
        return [Range(f, *c, None) for f, c in zip(firsts, counts_and_commits, strict=False)]

    def counts(found):
        return [(one.numbers, one.commit) for one in found]

    given = ranges((100, 1), (30, 2), (20, 3), (5, 5), (5, 6), (9, 7))
    assert counts(joined(given, lambda commit: 0)) == [(150, 3), (19, 7)]
    older = [(100, 1), (30, 2), (30, 6), (9, 7)]
    assert counts(joined(given, lambda commit: commit > 2)) == older
    assert counts(joined(given, lambda commit: commit)) == counts(given)
    assert counts(joined(ranges((100, 1), (30, 2), (10, 3)), lambda commit: 0)) == [
        (100, 1),
        (30, 2),
        (10, 3),
    ]


def test_ids_of_a_dropped_table_stay_while_a_checkpoint_names_it(tmp_path):
    storage = opened(tmp_path, keep=1)
    append(storage, [5, 6], 1, ONE)
    append(storage, [5, 6], 1, OTHER, 8)
    storage.commit(TABLES, 1, label="with")
    storage.drop_table(ONE)
    left = [TABLES[0], TABLES[2]]
    storage.commit(left, 2)
    assert {entry.table_id for entry in storage.catalogue.ids} == {ONE, OTHER}
    assert storage.catalogue.waiting_bytes > 0
    storage.close()
    storage = opened(tmp_path, keep=1)
    assert storage.ids.tables.keys() == {OTHER}
    storage.restore("with", 3)
    assert versions(storage, [5, 6, 7], ONE) == [1, 1, -1]
    storage.drop_table(ONE)
    storage.commit(left, 4, label="without")
    assert {entry.table_id for entry in storage.catalogue.ids} == {OTHER}
    settle(storage)
    assert len(list((tmp_path / "ids").iterdir())) == 1
    assert versions(storage, [5, 6], OTHER, 8) == [1, 1]
    storage.close()


def test_a_full_disk_refuses_the_commit_and_nothing_is_lost(tmp_path):
    for nth in range(1, 4):
        path = tmp_path / str(nth)
        files = FullDisk(path)
        storage = opened(path, files=files)
        append(storage, [5, -6], 1, ONE)
        files.fill(nth)
        with pytest.raises(CapacityError):
            storage.commit(TABLES, 1)
        assert storage.failure is None and not storage.catalogue.ids
        files.relent()
        append(storage, [7], 2, ONE)
        storage.commit(TABLES, 1)
        storage.close()
        storage = opened(path)
        assert versions(storage, [5, -6, 7, 8], ONE) == [1, 1, 2, -1]
        assert len(list((path / "ids").iterdir())) == 1
        storage.close()


def test_a_snapshot_is_in_the_order_of_row_numbers_and_has_ids(tmp_path):
    rng = generator(SEED)
    ids = random_ids(rng, 3_000)
    storage = opened(tmp_path, fold_bytes=1)
    for version, part in enumerate(np.array_split(ids, 6)):
        append(storage, part, version, ONE)
        storage.commit(TABLES, 1, label="half" if version == 2 else None)
        settle(storage)
    append(storage, ids[:10], 9, ONE)
    storage.commit(TABLES, 2)
    storage.commit(TABLES, 2)
    commit, half = storage.catalogue.head.commit, storage.kept("half").state.commit
    assert read(storage, storage.snapshot(ONE, commit)) == ids.tolist()
    assert read(storage, storage.snapshot(ONE, half)) == ids[:1_500].tolist()
    since = storage.snapshot(ONE, commit, half)
    assert read(storage, since) == [*ids[:10].tolist(), *ids[1_500:].tolist()]
    even = storage.snapshot(ONE, commit, 0, lambda keys: keys % 2 == 0)
    assert read(storage, even) == ids[ids % 2 == 0].tolist()
    assert read(storage, storage.snapshot(OTHER, commit)) == []
    late = storage.snapshot(ONE, commit)
    storage.restore("half", 3)
    assert read(storage, late) == ids.tolist()
    storage.close()


def read(storage, snapshot):
    """Return the keys of a snapshot, page by page; each row is that of its key."""
    count, _ = snapshot.prepare(lambda: None)
    keys, low = [], 0
    while True:
        located = snapshot.rows_from(low, 700)
        found = snapshot.keys_of(located.keys)
        rows = np.zeros((len(found), layout_of(4).stride), np.float32)
        storage.rows.collect(located, rows)
        assert np.array_equal(rows.view(np.uint64)[:, 0], found.view(np.uint64))
        keys += found.tolist()
        if len(found) < 700:
            assert len(keys) == count
            return keys
        low = int(located.keys[-1] & KEY_MASK) + 1


def flip_record(storage, path, number):
    """Change a bit of a record of the segment that is appended to."""
    file = path / storage.log._writer.segment.path
    content = bytearray(file.read_bytes())
    at = 4096 + number * layout_of(4).record_bytes + 20
    with file.open("r+b") as opened_file:
        opened_file.seek(at)
        opened_file.write(bytes([content[at] ^ 4]))


def test_an_error_names_the_id_unsigned(tmp_path):
    storage = opened(tmp_path)
    append(storage, EXTREMES, 1, ONE)
    flip_record(storage, tmp_path, 2)
    text = "'t1': the log's record of key 18446744073709551614 fails its checksum"
    with pytest.raises(CorruptTableError, match=text):
        versions(storage, EXTREMES, ONE)
    assert versions(storage, EXTREMES[:2], ONE) == [1, 1]
    storage.close()


@pytest.mark.parametrize(
    ("table", "row"),
    [
        (ONE, "'t1': the stored record of key 9223372036854775813"),
        (DENSE, "'t0': the stored record of key 5"),
    ],
)
def test_a_merge_names_the_id_of_a_wrong_record(tmp_path, table, row):
    storage = opened(tmp_path, fold_segments=1)
    keys = np.array([2**63 + 5, 9], np.uint64).view(np.int64) if table == ONE else np.array([5, 9])
    append(storage, keys, 1, table)
    flip_record(storage, tmp_path, 0)
    storage.commit(TABLES, 1)
    storage.merges.finish()
    assert f"{row} fails its checksum" in storage.merges.error
    storage.close()


def test_a_merge_names_the_number_of_a_row_whose_id_is_forgotten(tmp_path):
    storage = opened(tmp_path, fold_segments=1)
    append(storage, np.array([77, -7, 5]), 1, ONE)
    flip_record(storage, tmp_path, 1)
    storage.commit(TABLES, 1, label="kept")
    storage.drop_table(ONE)
    storage.commit([TABLES[0], TABLES[2]], 2)
    storage.merges.finish()
    assert "'t1': the stored record of row number 1 fails" in storage.merges.error
    storage.close()


def test_ids_that_leave_no_memory_are_refused_before_anything_changes(tmp_path, monkeypatch):
    storage = opened(tmp_path)
    monkeypatch.setattr("embstore.storage.row_numbers.NUMBERS_MAX", 1_000)
    append(storage, np.arange(900) * 7, 1, ONE)
    with pytest.raises(CapacityError, match="at most 1000 rows"):
        storage.of_pool(RowKeys(ONE)).appender.reserve(101, 48)
    append(storage, np.arange(50) - 5_000, 1, ONE)
    assert storage.failure is None
    storage.close()


@pytest.mark.parametrize("damage", ["flip", "cut", "remove", "other", "header"])
def test_a_damaged_file_of_ids_is_refused_when_the_store_is_opened(tmp_path, damage):
    storage = opened(tmp_path)
    append(storage, EXTREMES, 1, ONE)
    append(storage, EXTREMES, 1, OTHER, 8)
    storage.commit(TABLES, 1)
    first, second = (tmp_path / entry.path for entry in storage.catalogue.ids)
    storage.close()
    content = first.read_bytes()
    if damage == "remove":
        first.unlink()
    else:
        flipped = bytearray(content)
        flipped[{"flip": 4096 + 17, "header": 30}.get(damage, 0)] ^= 2
        changed = {"cut": content[:-8], "other": second.read_bytes()}
        first.write_bytes(changed.get(damage, bytes(flipped)))
    with pytest.raises(CorruptTableError, match=f"ids/{first.name}"):
        open_storage(tmp_path, files=UnsyncedFiles(tmp_path))
    first.write_bytes(content)
    storage = opened(tmp_path)
    assert versions(storage, EXTREMES, ONE) == [1] * 6
    storage.close()


def test_stats_tell_ids_their_files_and_their_memory(tmp_path):
    storage = opened(tmp_path)
    append(storage, EXTREMES, 1, ONE)
    storage.commit(TABLES, 1)
    found = storage.stats()
    assert (found["ids"], found["ids_files"], found["ids_bytes"]) == (6, 1, 4096 + 48)
    assert found["ids_memory_bytes"] == storage.ids.memory_bytes > 0
    storage.close()
