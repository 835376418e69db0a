"""Folds and compactions through Storage: what moves where, and that nothing kept is lost."""

import threading

import pytest

from tests.conformance.backends import UnsyncedFiles
from tests.unit.small_stores import generator
from tests.unit.storage_samples import append, open_storage, settle, table_entry, versions

SEED = 71
NEVER = {"fold_bytes": 1 << 40, "fold_segments": 1 << 20}


def opened(path, tables=1, **limits):
    storage = open_storage(path, **limits)
    entries = [table_entry(table_id) for table_id in range(tables)]
    for entry in entries:
        storage.create_table(entry)
    return storage, entries


def seal(storage):
    storage.log.seal()


def reopen(storage, path, **limits):
    storage.close()
    return open_storage(path, **limits)


# Fold


def test_runs_are_merged_once_no_checkpoint_is_kept_between_them(tmp_path):
    storage, entries = opened(tmp_path, fold_bytes=1)
    for version in range(1, 4):
        append(storage, range(100), version)
        storage.commit(entries, version, label=f"{version}")
        settle(storage)
    assert len(storage.base.runs) == 2, "two labels are kept"
    for version in range(4, 6):
        storage.commit(entries, version, label=f"{version}")
        settle(storage)
    assert len(storage.base.runs) == 1
    assert versions(storage, range(101)) == [3] * 100 + [-1]
    storage.close()


# Compaction


def test_a_compaction_keeps_the_live_records_of_uncommitted_segments(tmp_path):
    """A cache that thrashes between two commits must not fill the disk."""
    storage, entries = opened(tmp_path, **NEVER)
    append(storage, range(400, 500), version=9)
    for version in range(20):
        append(storage, range(300), version)
        seal(storage)
        settle(storage)
    assert storage.merges.compactions > 3
    assert storage.log.bytes < 6 * 300 * 48
    assert versions(storage, range(500)) == [19] * 300 + [-1] * 100 + [9] * 100
    storage.commit(entries, 1)
    storage = reopen(storage, tmp_path)
    assert versions(storage, range(500)) == [19] * 300 + [-1] * 100 + [9] * 100
    storage.close()


def test_a_segment_in_which_nothing_was_written_opens_again(tmp_path):
    """Room was reserved for victims, and all of them were clean."""
    storage, entries = opened(tmp_path)
    storage.appender.reserve(100, 32)
    storage.commit(entries, 1)
    storage = reopen(storage, tmp_path)
    append(storage, range(10), version=1)
    assert versions(storage, range(11)) == [1] * 10 + [-1]
    storage.close()


def test_merged_segments_leave_the_disk_and_only_named_files_stay(tmp_path):
    rng = generator(SEED)
    storage, entries = opened(tmp_path)
    for command in range(25):
        append(storage, rng.choice(300, 150, replace=False), command)
        storage.commit(entries, command, label=f"c{command}" if command % 8 == 0 else None)
        settle(storage)
        on_disk = {p.name for p in (tmp_path / "log").iterdir()}
        assert on_disk == {f"{s.number:012d}.log" for s in storage.catalogue.segments}
    assert storage.merges.folds > 0 and storage.merges.compactions > 0
    storage.close()


# Merges beside work


class PausedFiles(UnsyncedFiles):
    """Stops the merge's thread at a named point until it is let go."""

    def __init__(self, root, point):
        super().__init__(root)
        self.point = point
        self.there, self.go_on = threading.Event(), threading.Event()

    def reached(self, point):
        if point == self.point and not self.go_on.is_set():
            self.there.set()
            assert self.go_on.wait(300)

    def wait(self):
        assert self.there.wait(300), f"no merge reached {self.point}"


FOLD_POINTS = ["fold:rows", "fold:synced"]


@pytest.mark.parametrize("point", ["compaction:records", "compaction:synced"])
def test_a_commit_while_a_compaction_runs_keeps_both(tmp_path, point):
    files = PausedFiles(tmp_path, point)
    storage, entries = opened(tmp_path, files=files, **NEVER)
    append(storage, range(100), version=1)
    seal(storage)
    append(storage, range(80), version=2)
    storage.merges.poll()
    files.wait()
    append(storage, range(90, 120), version=3)
    storage.commit(entries, 1, label="a")
    expected = [2] * 80 + [1] * 10 + [3] * 30
    append(storage, range(120), version=4)
    files.go_on.set()
    settle(storage)
    assert storage.merges.compactions >= 1
    assert versions(storage, range(120)) == [4] * 120
    storage.restore("a", 9)
    assert versions(storage, range(120)) == expected
    storage.close()


def go_on_once_it_waits(files, storage, work):
    """Run `work` while the merge is paused, which goes on when `work` is done or waits for it."""
    errors = []

    def run():
        try:
            work()
        except BaseException as exc:  # raised again below, on the test's thread
            errors.append(exc)

    thread = threading.Thread(target=run)
    thread.start()
    while thread.is_alive() and not storage.merges._stop.is_set():
        thread.join(0.001)
    files.go_on.set()
    thread.join()
    for error in errors:
        raise error


@pytest.mark.parametrize("point", FOLD_POINTS)
def test_a_restore_while_a_fold_runs_sees_the_checkpoint(tmp_path, point):
    files = PausedFiles(tmp_path, point)
    storage, entries = opened(tmp_path, files=files, fold_bytes=1)
    append(storage, range(100), version=1)
    storage.commit(entries, 1, label="a")
    append(storage, range(100), version=2)
    files.wait()
    go_on_once_it_waits(files, storage, lambda: storage.restore("a", 2))
    assert versions(storage, range(100)) == [1] * 100
    settle(storage)
    assert versions(storage, range(100)) == [1] * 100
    storage.close()


# Behind


def test_a_command_waits_a_little_where_merges_are_far_behind(tmp_path):
    files = PausedFiles(tmp_path, "fold:rows")
    storage, entries = opened(tmp_path, files=files, fold_bytes=1 << 12)
    append(storage, range(100), version=1)
    storage.commit(entries, 1)  # starts the fold
    files.wait()
    append(storage, range(10), version=1)
    assert storage.merges.waited_s == 0, "one fold is not far"
    for version in range(2, 6):
        append(storage, range(1_000), version)
        storage.commit(entries, version)
    before = storage.merges.waited_s
    append(storage, range(1_000), version=6)
    assert storage.merges.waited_s > before
    storage.commit(entries, 7)
    files.go_on.set()
    settle(storage)
    after = storage.merges.waited_s
    append(storage, range(1_000), version=7)
    assert storage.merges.waited_s == after, "nothing is behind"
    storage.close()


class BrokenFiles(UnsyncedFiles):
    """Raises what no disk does, in the merge."""

    def reached(self, point):
        if point == "fold:rows":
            raise MemoryError


def test_a_merge_that_ends_with_any_error_is_reported_and_harms_no_command(tmp_path):
    storage, entries = opened(tmp_path, files=BrokenFiles(tmp_path), fold_bytes=1)
    append(storage, range(100), version=1)
    storage.commit(entries, 1)
    storage.merges.finish()
    assert (storage.merges.failures, storage.merges.folds) == (1, 0)
    assert versions(storage, range(100)) == [1] * 100
    assert not list((tmp_path / "base").glob("*"))
    storage.close()


def test_a_damaged_row_of_the_base_does_not_end_folds(tmp_path):
    limits = {"fold_bytes": 1 << 14, "fold_segments": 4}
    storage, entries = opened(tmp_path, **limits)
    append(storage, range(2_000), version=1)
    storage.commit(entries, 1)
    settle(storage)
    storage.close()
    (file,) = (tmp_path / "base").iterdir()
    content = bytearray(file.read_bytes())
    content[4096 + 20] ^= 1
    file.write_bytes(content)
    storage = open_storage(tmp_path, **limits)
    for version in range(2, 30):
        append(storage, range(500, 2_000), version)
        storage.commit(entries, version)
        storage.merges.finish()
    assert "checksum" in storage.merges.error
    assert storage.merges.folds > 10
    assert len(storage.log.segments) < 8
    assert versions(storage, range(500, 2_001)) == [29] * 1_500 + [-1]
    storage.close()


def test_merges_that_are_stopped_again_and_again_do_not_keep_folds_from_their_turn(tmp_path):
    """Sessions that are shorter than a merge of the base."""
    limits = {"fold_bytes": 1 << 14, "fold_segments": 4}
    storage, entries = opened(tmp_path, **limits)
    append(storage, range(2_000), version=1)
    storage.commit(entries, 1)
    settle(storage)
    storage.close()
    for version in range(2, 40):
        files = PausedFiles(tmp_path, "base_merge:rows")
        storage = open_storage(tmp_path, files=files, **limits)
        append(storage, range(0, 2_000, 2), version)
        storage.commit(entries, version)
        while storage.merges.running and not files.there.is_set():
            storage.merges.poll()
        files.go_on.set()
        storage.close()
    storage = open_storage(tmp_path, **limits)
    assert len(storage.log.segments) <= 5 * 4 + 2
    assert versions(storage, range(3)) == [39, 1, 39]
    storage.close()
