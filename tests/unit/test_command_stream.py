"""The command log as a stream: what a standby takes apart is what its leader wrote, or an error."""

from pathlib import Path

import numpy as np
import pytest

from embstore.errors import CorruptTableError
from embstore.storage.command_files import CommandFiles
from embstore.storage.command_records import ANSWERS, COMMAND, Place, Record, RecordReader
from embstore.storage.command_stream import START, RecordStream, SegmentReader
from embstore.storage.files import Files

STORE_ID = bytes(16)
BYTES_MAX = 1 << 20


def written(root: Path, *, begin_after: int) -> tuple[Files, Place]:
    """Write answers and ten commands, in two segments; return where they end."""
    files = Files(root)
    reader = RecordReader(files, STORE_ID, None)
    log = CommandFiles(files, STORE_ID, reader, failed=lambda _: None)
    log.reserve(1 << 10)
    log.append(ANSWERS, 0, [b"answers"])
    for n in range(1, 11):
        if n == begin_after:
            log.segments.end()
        log.reserve(1 << 10)
        log.append(COMMAND, n, [bytes([n]) * 40 * n])
    log.sync()
    end = log.synced
    log.close()
    return files, end


def read(files: Files, place: Place, end: Place, size: int) -> list[Record]:
    """Return the records that come from a place on, in pieces of a size."""
    reader, stream = SegmentReader(files, STORE_ID, place), RecordStream(BYTES_MAX)
    records = []
    while (found := reader.read(end, size)) is not None:
        records += stream.add(*found)
    reader.close()
    assert stream.place == end
    return records


@pytest.mark.parametrize("size", [1, 63, 64, 1000, 1 << 20])
def test_records_come_as_they_were_written(tmp_path, size):
    files, end = written(tmp_path, begin_after=5)
    records = read(files, Place(1, START), end, size)
    assert [r.command for r in records] == list(range(11))
    assert [r.body for r in records[1:]] == [bytes([n]) * 40 * n for n in range(1, 11)]


@pytest.mark.parametrize("command", range(11))
def test_a_standby_goes_on_after_its_command(tmp_path, command):
    files, end = written(tmp_path, begin_after=5)
    reader = SegmentReader(files, STORE_ID, Place(1, START))
    assert reader.first_command() == 0
    reader.skip(end, command)
    reader.close()
    records = read(files, reader.place, end, 1 << 20) if reader.place != end else []
    first = 0 if command == 0 else command + 1  # answers that were given before the first command
    assert [r.command for r in records] == list(range(first, 11))


def test_nothing_comes_that_is_not_synced(tmp_path):
    files, end = written(tmp_path, begin_after=99)
    reader = SegmentReader(files, STORE_ID, Place(1, START))
    assert reader.read(Place(1, START), 1 << 20) is None
    assert reader.read(end, 1 << 20) is not None
    assert reader.read(end, 1 << 20) is None
    reader.close()


def test_a_flipped_byte_is_an_error(tmp_path):
    """But for the padding behind a body."""
    files, end = written(tmp_path, begin_after=99)
    whole = read(files, Place(1, START), end, 1 << 20)
    content = files.read_all("commands/000000000001.commands")[START : end.offset]
    rng = np.random.default_rng(1)
    for at in rng.choice(len(content), 300, replace=False):
        flipped = bytearray(content)
        flipped[at] ^= 1 << int(rng.integers(8))
        try:
            found = list(RecordStream(BYTES_MAX).add(Place(1, START), bytes(flipped)))
        except CorruptTableError:
            continue
        assert found == whole


@pytest.mark.parametrize(
    "begin", [Place(1, START), Place(1, START + 128), Place(2, START + 64), Place(3, START)]
)
def test_a_piece_that_does_not_follow_is_an_error(tmp_path, begin):
    files, _ = written(tmp_path, begin_after=99)
    content = files.read_all("commands/000000000001.commands")[START:]
    stream = RecordStream(BYTES_MAX)
    assert list(stream.add(Place(1, START), content[:64])) == []
    with pytest.raises(CorruptTableError, match="expected the log to go on at"):
        list(stream.add(begin, content[64:128]))


def test_a_record_that_is_too_long_is_an_error(tmp_path):
    files, _ = written(tmp_path, begin_after=99)
    content = files.read_all("commands/000000000001.commands")[START:]
    with pytest.raises(CorruptTableError, match="expected a record"):
        list(RecordStream(3).add(Place(1, START), content[:64]))


def test_segments_that_are_needed_are_kept(tmp_path):
    files = Files(tmp_path)
    reader = RecordReader(files, STORE_ID, None)
    log = CommandFiles(files, STORE_ID, reader, failed=lambda _: None)
    needed: list[int | None] = [2]
    log.segments.needed = lambda numbers: needed[0]
    for n in range(1, 5):
        log.segments.end()
        log.reserve(10)
        log.append(COMMAND, n, [b"x"])
    log.sync()
    log.segments.forget(4)
    assert log.segments.numbers == [2, 3, 4]
    needed[0] = None
    log.segments.forget(4)
    assert log.segments.numbers == [4]
    log.close()
