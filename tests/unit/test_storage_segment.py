"""A log segment: what is appended is read back, and a file that was touched is refused."""

import errno
import os

import numpy as np
import pytest

from embstore.errors import CapacityError
from embstore.storage.catalogue import SegmentEntry
from embstore.storage.row_index import PLACE_BITS
from embstore.storage.segment import SegmentWriter, read_segment
from tests.conformance.backends import UnsyncedFiles
from tests.unit.storage_samples import STORE_ID, records_for, rows_for, same_rows, unpacked

NUMBER, PLACE, COMMIT = 7, 3, 11
PIECES = [([5, 1 << 41, 9], 4), ([8], 4), ([1, 2], 12), ([5, 3], 4)]


def write_segment(path, pieces=PIECES, capacity=1 << 16):
    """Append pieces, (keys, stride) each, and seal; return the segment and where each piece is."""
    files = UnsyncedFiles(path)
    files.make_directory("log")
    writer = SegmentWriter(files, STORE_ID, NUMBER, PLACE, capacity)
    places = []
    for version, (keys, stride) in enumerate(pieces):
        records = records_for(keys, version, stride)
        writer.reserve(len(keys), records.strides[0])
        places.append(writer.append(np.array(keys), records))
    sealed = writer.seal()
    sealed.file.close()
    return sealed, places


def read(path, sealed):
    entry = SegmentEntry(NUMBER, COMMIT, sealed.bytes, sealed.checksum)
    return read_segment(UnsyncedFiles(path), STORE_ID, PLACE, entry)


def file_of(path):
    return path / "log" / f"{NUMBER:012d}.log"


def addresses_in(segment, positions):
    offsets = (positions & ((1 << PLACE_BITS) - 1)).astype(np.uint64)
    return np.uint64(segment.map.ctypes.data) + offsets


def test_a_sealed_segment_is_read_back(tmp_path):
    sealed, places = write_segment(tmp_path)
    segment = read(tmp_path, sealed)
    assert (segment.number, segment.place, segment.commit) == (NUMBER, PLACE, COMMIT)
    assert segment.records == sum(len(keys) for keys, _ in PIECES)
    assert segment.bytes == file_of(tmp_path).stat().st_size == sealed.bytes
    keys, positions = segment.keys_and_positions()
    assert keys.tolist() == [key for keys, _ in PIECES for key in keys]
    assert np.array_equal(positions, np.concatenate(places))
    assert (positions >> PLACE_BITS == PLACE).all()
    for version, ((keys, stride), where) in enumerate(zip(PIECES, places, strict=True)):
        found = unpacked(addresses_in(segment, where), np.array(keys), stride)
        assert same_rows(found, rows_for(keys, version, stride))


def test_what_fits_after_reserving_fits_with_its_index(tmp_path):
    """`fits` is exact: one record less than refused can be written, indexed and sealed."""
    files = UnsyncedFiles(tmp_path)
    files.make_directory("log")
    writer = SegmentWriter(files, STORE_ID, NUMBER, PLACE, 1 << 16)
    count = next(n for n in range(1, 10_000) if not writer.fits(n, 32)) - 1
    keys = np.arange(count)
    writer.reserve(count, 32)
    writer.append(keys, records_for(keys))
    sealed = writer.seal()
    sealed.file.close()
    assert sealed.bytes <= 1 << 16
    assert read(tmp_path, sealed).records == count


class FullDisk(UnsyncedFiles):
    """Creates files, and has no room for anything in them."""

    def __init__(self, root):
        super().__init__(root)
        self.descriptors = []

    def _create(self, path):
        self.descriptors.append(super()._create(path))
        return self.descriptors[-1]

    def _truncate(self, file, length):
        raise OSError(errno.ENOSPC, "no space left")


def test_a_segment_that_cannot_be_begun_leaves_no_file_open(tmp_path):
    """A trainer on a full disk tries again and again: descriptors must not run out."""
    files = FullDisk(tmp_path)
    files.make_directory("log")
    with pytest.raises(CapacityError, match="no room for log/"):
        SegmentWriter(files, STORE_ID, NUMBER, PLACE, 1 << 16)
    for descriptor in files.descriptors:
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(descriptor)
