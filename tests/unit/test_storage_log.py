"""The log: appended, located, sealed, opened again, merged; what it counts as live and keeps."""

import numpy as np
import pytest

from embstore.storage.catalogue import SegmentEntry
from embstore.storage.log import Log
from tests.conformance.backends import UnsyncedFiles
from tests.unit.storage_samples import (
    STORE_ID,
    addresses_of,
    records_for,
    rows_for,
    same_rows,
    unpacked,
)


def new_log(path, segment_bytes=1 << 16, rows_max=10_000):
    files = UnsyncedFiles(path)
    files.make_directory("log")
    return Log(files, STORE_ID, segment_bytes=segment_bytes, rows_max=rows_max)


def append(log, keys, version=0):
    keys = np.asarray(keys, np.int64)
    log.reserve(len(keys), 32)
    log.place(keys, 32)(records_for(keys, version))


def seal(log):
    """Seal the current segment as the next commit would; return it."""
    log.seal()
    segment = log.segments[-1]
    segment.commit = segment.number
    return segment


def reopened(path, log):
    again = new_log(path)
    for s in log.segments:
        again.load(SegmentEntry(s.number, s.commit, s.bytes, s.checksum))
    again.check_integrity()
    return again


def check(log, versions):
    """Check that the log has exactly these versions: {key: version or None}."""
    keys = np.array([*versions])
    addresses = addresses_of(keys, log)
    have = np.array([version is not None for version in versions.values()])
    assert np.array_equal(addresses != 0, have)
    expected = [rows_for([k], v if v is not None else 0)[0] for k, v in versions.items()]
    found = unpacked(addresses, keys)
    assert same_rows(found[have], np.array(expected)[have])
    log.check_integrity()


def live(log):
    return [int(log.live[segment.place]) for segment in log.segments]


def newest(*segments):
    """The newest record of each key of some segments, as merges choose them, by a dictionary."""
    where = {}
    for segment in segments:
        for key, position in zip(*segment.keys_and_positions(), strict=True):
            where[int(key)] = int(position)
    keys = np.array(sorted(where))
    return keys, np.array([where[int(key)] for key in keys])


def merged(log, old, keep=None):
    """Replace sealed segments by one with their newest records, as a compaction does."""
    keys, positions = newest(*old)
    kept = np.isin(keys, keys if keep is None else keep)
    keys, positions = keys[kept], positions[kept]
    rows = unpacked(addresses_of(keys, log), keys)
    writer = log.new_writer(1 << 16)
    writer.reserve(len(keys), 32)
    writer.append(keys, np.stack([records_for([k], rows[i].view(np.uint64)[1])[0]
                                  for i, k in enumerate(keys)]))  # fmt: skip
    result = writer.seal()
    result.commit = old[-1].commit
    list(log.replace(old, result, keys, positions))
    return result


def test_replace_puts_the_merged_segment_where_the_newest_was(tmp_path):
    """Opening again reads segments in order, so their order decides which record of a key wins."""
    log = new_log(tmp_path)
    segments = []
    for version, keys in enumerate([range(20), range(10), range(5), [0, 20]]):
        append(log, keys, version)
        segments.append(seal(log))
    first, *middle, last = segments
    result = merged(log, middle)
    assert log.segments == [first, result, last]
    expected = {0: 3, 1: 2, 4: 2, 5: 1, 9: 1, 10: 0, 19: 0, 20: 3}
    check(log, expected)
    assert live(log) == [10, 9, 2]
    log.close()
    check(reopened(tmp_path, log), expected)


def test_a_frozen_segment_stays_frozen_when_merged(tmp_path):
    log = new_log(tmp_path)
    append(log, range(10))
    first = seal(log)
    append(log, range(5), version=1)
    second = seal(log)
    log.freeze()
    append(log, range(10), version=2)
    result = merged_frozen(log, first, second)
    assert log.is_frozen(result)
    assert live(log) == [10]
    log.check_integrity()


def merged_frozen(log, *old):
    """Merge segments of which memory needs nothing any more, and a kept checkpoint all."""
    keys, positions = newest(*old)
    writer = log.new_writer(1 << 16)
    writer.reserve(len(keys), 32)
    writer.append(keys, records_for(keys))
    result = writer.seal()
    list(log.replace(list(old), result, keys, positions))
    return result


def test_places_are_used_again_and_never_twice_at_a_time(tmp_path):
    """More segments than there were places at first, merged and written again."""
    log = new_log(tmp_path)
    for version in range(200):
        append(log, range(version, version + 3), version)
        seal(log)
        if len(log.segments) > 70:
            merged(log, log.segments[:40])
        places = [segment.place for segment in log.segments]
        assert len(set(places)) == len(places)
    check(log, {key: min(key, 199) for key in range(202)})
    assert len(log.live) == 128


def test_forgotten_tables_leave_the_index_and_the_counts(tmp_path):
    log = new_log(tmp_path)
    append(log, [1, 2, 1 << 40, 1 << 40 | 5, 2 << 40])
    seal(log)
    log.forget_table(1 << 40, 2 << 40)
    check(log, {1: 0, 1 << 40: None, 1 << 40 | 5: None, 2 << 40: 0})
    assert live(log) == [3]


def test_an_abandoned_writer_leaves_nothing(tmp_path):
    log = new_log(tmp_path)
    writer = log.new_writer(1 << 16)
    path = tmp_path / writer.segment.path
    assert path.exists()
    log.abandon(writer)
    assert not path.exists()
    append(log, [1])
    check(log, {1: 0})
    assert log.next_number == 3, "numbers are never given again"


def test_a_damaged_count_is_noticed(tmp_path):
    log = new_log(tmp_path)
    append(log, [1, 2, 3])
    seal(log)
    log.live[log.segments[0].place] -= 1
    with pytest.raises(AssertionError, match="2 live of 3 records, the index has 3"):
        log.check_integrity()
