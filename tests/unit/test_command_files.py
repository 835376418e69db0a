"""Records of the command log: group commit, torn tails, damage, and other lives."""

import os
import threading

import numpy as np
import pytest

from embstore.errors import CapacityError, CorruptTableError
from embstore.storage import command_segments
from embstore.storage.command_files import CommandFiles
from embstore.storage.command_records import Place, RecordReader, record_bytes, segment_path
from embstore.storage.files import Files
from embstore.storage.format import PAGE_BYTES
from tests.conformance.backends import UnsyncedFiles
from tests.faults.disk import Disk, dropped, emptied, kept, torn
from tests.faults.recording import RecordingFiles

STORE_ID = bytes(range(16))
SIZES = (0, 1, 63, 64, 65, 5_000, 200_000)
LONG_S = 1e6
FIRST = Place(1, PAGE_BYTES)


class Log:
    """A log in a directory, which can be opened again as after a kill."""

    def __init__(self, root, files=None, begin=FIRST, **options):
        self.files = files or Files(root)
        begin = begin if self.files.exists(segment_path(begin.segment)) else None
        self.reader = RecordReader(self.files, STORE_ID, begin)
        self.found = [(r.command, r.body) for r in self.reader]
        self.failures = []
        self.log = CommandFiles(
            self.files, STORE_ID, self.reader, failed=self.failures.append, **options
        )

    def append(self, number, *parts, wait=True):
        self.log.reserve(sum(map(len, parts)))
        mark = self.log.append(1, number, parts)
        if wait:
            self.log.wait(mark)
        return mark

    def forget(self):
        """Do what a commit does, and return what it says."""
        place = self.log.synced
        self.log.segments.forget(place.segment)
        return place


def body(number):
    return np.random.default_rng(number).bytes(SIZES[number % len(SIZES)])


def read(root, begin=FIRST):
    return [(r.command, r.body) for r in RecordReader(Files(root), STORE_ID, begin)]


def filled(root, count):
    log = Log(root)
    for n in range(count):
        log.append(n, body(n)[:10], body(n)[10:])
    return log


def test_records_that_wait_share_a_sync(tmp_path):
    class Waiting(Files):
        may_sync = threading.Event()

        def _sync(self, file):
            assert self.may_sync.wait(300)
            super()._sync(file)

    files = Waiting(tmp_path)
    log = Log(tmp_path, files)
    log.append(0, b"first", wait=False)
    while not log.log.written:
        pass
    last = [log.append(n, body(n), wait=False) for n in range(1, 30)][-1]
    files.may_sync.set()
    log.log.wait(last)
    assert log.log.syncs == 2
    log.log.close()


def test_segments_are_written_over(tmp_path, monkeypatch):
    """What an old one had is no record of the new one."""
    monkeypatch.setattr(command_segments, "SEGMENT_BYTES", 16 << 10)
    log = filled(tmp_path, 30)
    for n in range(30, 60):
        log.log.segments.end()
        log.append(n, b"first of its segment")
        begin = log.forget()
        assert read(tmp_path, begin) == [(n, b"first of its segment")]
    spares = {path: path.stat().st_ino for path in tmp_path.glob("commands/*.spare")}
    assert spares
    again = Log(tmp_path, begin=begin)
    assert again.found == [(59, b"first of its segment")]
    again.append(60, body(60))
    (new,) = sorted(tmp_path.glob("commands/*.commands"))[1:]
    assert new.stat().st_ino in spares.values()
    again.log.close()
    again.log.close()
    assert read(tmp_path, begin) == [(59, b"first of its segment"), (60, body(60))]
    log.log.close()


@pytest.mark.parametrize("lost", ["end", "whole", "middle"])
def test_a_torn_tail_is_no_record(tmp_path, lost):
    """The last record was in no group that was synced before another was written."""
    log = filled(tmp_path, 5)
    end = log.log.segments.newest.end
    log.log.close()
    path = tmp_path / segment_path(1)
    content = bytearray(path.read_bytes())
    first = end - record_bytes(len(body(4)))
    low, high = {"end": (end - 64, end), "whole": (first, end), "middle": (first, first + 8)}[lost]
    content[low:high] = bytes(high - low)
    path.write_bytes(content)
    if lost == "end" and len(body(4)) % 64:
        content[low : low + len(body(4)) % 64] = b"x" * (len(body(4)) % 64)
        path.write_bytes(content)
    again = Log(tmp_path)
    assert again.found == [(n, body(n)) for n in range(4)]
    again.append(4, b"another life")
    again.log.close()
    assert read(tmp_path) == [(n, body(n)) for n in range(4)] + [(4, b"another life")]


def test_each_flipped_byte_of_a_synced_record_is_damage(tmp_path):
    log = filled(tmp_path, 4)
    log.log.close()
    path = tmp_path / segment_path(1)
    content = bytearray(path.read_bytes())
    synced = PAGE_BYTES + sum(record_bytes(len(body(n))) for n in range(3))
    used = [PAGE_BYTES + i for i in range(64)]  # the first record has no body
    used += range(PAGE_BYTES + 128, synced - 1)
    tried = 0
    for at in used:
        flipped = bytearray(content)
        flipped[at] ^= 0x10
        path.write_bytes(flipped)
        try:
            found = read(tmp_path)
        except CorruptTableError as exc:
            assert "is not what was written" in str(exc)
            tried += 1
        else:
            assert found == [(n, body(n)) for n in range(4)], f"byte {at}"  # padding
    assert tried > 64
    flipped = bytearray(content)
    flipped[16] ^= 1
    path.write_bytes(flipped)
    with pytest.raises(CorruptTableError, match="header"):
        read(tmp_path)


def test_a_segment_behind_a_torn_one_is_removed(tmp_path, monkeypatch):
    """Its records were appended, and nobody was told of them."""
    monkeypatch.setattr(command_segments, "SEGMENT_BYTES", 16 << 10)

    class Unsynced(Files):
        def _sync(self, file):
            pass

    log = Log(tmp_path, Unsynced(tmp_path), sync_every_s=LONG_S)
    for n in range(30):
        log.append(n, body(n), wait=False)
    log.log.wait(30, written=True)
    paths = sorted(tmp_path.glob("commands/*"))
    first = bytearray(paths[0].read_bytes())
    first[PAGE_BYTES + 64 + 64] ^= 1  # of the second record
    paths[0].write_bytes(first)
    again = Log(tmp_path)
    assert again.found == [(0, body(0))]
    assert [p.name for p in tmp_path.glob("commands/*")] == [paths[0].name]
    again.append(1, b"anew")
    assert read(tmp_path) == [(0, body(0)), (1, b"anew")]
    again.log.close()
    log.log.close()


def test_interval_syncs_when_it_is_due_or_asked_to(tmp_path):
    log = Log(tmp_path, sync_every_s=LONG_S)
    mark = log.append(0, b"written", wait=False)
    log.log.wait(mark, written=True)
    assert (log.log.written, log.log.durable, log.log.syncs) == (1, 0, 0)
    log.log.sync()
    assert (log.log.durable, log.log.syncs) == (1, 1)
    log.append(1, b"at the end", wait=False)
    log.log.close()
    assert log.log.durable == 2
    often = Log(tmp_path, sync_every_s=1e-3)
    often.append(2, b"soon")
    often.log.close()


def test_a_segment_takes_no_more_than_it_needs_where_there_is_little_room(tmp_path):
    class Small(Files):
        def _allocate(self, file, offset, length):
            if length > 3 * PAGE_BYTES:
                raise CapacityError("no room")
            super()._allocate(file, offset, length)

    log = Log(tmp_path, Small(tmp_path))
    for n in range(4):
        log.append(n, bytes(5_000))
    assert {path.stat().st_size for path in tmp_path.glob("commands/*")} == {3 * PAGE_BYTES}
    assert read(tmp_path) == [(n, bytes(5_000)) for n in range(4)]
    log.log.close()


@pytest.mark.parametrize("choose", [dropped, emptied, kept, "torn"])
@pytest.mark.parametrize("level", [0.0, LONG_S])
def test_two_new_segments_that_no_sync_has_seen(tmp_path, monkeypatch, choose, level):
    """Their names may be lost one without the other."""
    monkeypatch.setattr(command_segments, "SEGMENT_BYTES", 8 << 10)
    for seed in range(8):
        files = RecordingFiles(tmp_path / f"log-{seed}")
        log = Log(files.root, files, sync_every_s=level)
        for n in range(20):
            log.append(n, body(n)[:3000], wait=not level)
            if not n:
                log.log.sync()  # what a catalogue names is durable
        log.log.wait(log.log.appended, written=True)
        durable = 20 if not level else 1
        disk = Disk()
        for call in files.calls:
            disk.apply(call)
        chosen = torn([seed]) if choose == "torn" else choose
        disk.write_to(tmp_path / f"found-{seed}", chosen)
        found = read(tmp_path / f"found-{seed}")
        assert found == [(n, body(n)[:3000]) for n in range(len(found))]
        assert len(found) >= durable
        log.log.close()


def test_a_record_is_read_whole_though_a_call_of_the_system_reads_less(tmp_path, monkeypatch):
    log = filled(tmp_path, 7)
    pread = os.pread
    monkeypatch.setattr(os, "pread", lambda fd, size, at: pread(fd, min(size, 50_000), at))
    assert read(tmp_path) == [(n, body(n)) for n in range(7)]
    log.log.close()


@pytest.mark.parametrize("lives", [1, 2])
def test_a_segment_whose_first_record_never_came_has_not_begun(tmp_path, lives):
    """A crash came between its header and its record."""
    logs = [filled(tmp_path, 2)]
    for _ in range(lives):
        logs[-1].log.segments.end()
        logs[-1].log.reserve(64)
        logs.append(Log(tmp_path))
        assert logs[-1].found == [(n, body(n)) for n in range(2)]
    logs[-1].append(2, b"another life")
    assert read(tmp_path) == [(n, body(n)) for n in range(2)] + [(2, b"another life")]
    for log in logs:
        log.log.close()


@pytest.mark.parametrize("choose", [dropped, emptied, kept, "torn"])
@pytest.mark.parametrize("level", [0.0, LONG_S])
def test_each_call_may_be_the_last_of_a_life_that_another_goes_on(
    tmp_path, monkeypatch, choose, level
):
    """What the second life appends is there in the third, behind what the first had promised."""
    monkeypatch.setattr(command_segments, "SEGMENT_BYTES", 8 << 10)
    files = RecordingFiles(tmp_path / "log")
    log, first, promises = Log(files.root, files, sync_every_s=level), 0, {}
    for n in range(20):
        is_commit = n % 7 == 0
        if is_commit:
            log.log.segments.end()
        log.append(n, body(n)[:3000], wait=False)
        log.log.wait(log.log.appended, written=bool(level))
        if is_commit:
            log.log.sync()
            begin, first = log.log.synced, n
        promises[len(files.calls)] = begin, first, log.log.durable
        if is_commit:
            log.forget()
    log.log.close()
    disk, promise = Disk(), None
    for calls, call in enumerate(files.calls, 1):
        disk.apply(call)
        promise = promises.get(calls, promise)
        if promise is None:
            continue
        begin, first, durable = promise
        root = tmp_path / f"found-{calls}"
        disk.write_to(root, torn([calls]) if choose == "torn" else choose)
        again = Log(root, UnsyncedFiles(root), begin)
        assert again.found == [(n, body(n)[:3000]) for n in range(first, first + len(again.found))]
        assert first + len(again.found) >= durable
        again.append(20, b"another life")
        again.log.close()
        assert read(root, begin) == [*again.found, (20, b"another life")], f"call {calls}"
