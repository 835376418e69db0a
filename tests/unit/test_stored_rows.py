"""Rows read from log and base by several threads: which, from where, and what is refused."""

import os

import numpy as np
import pytest

from embstore.errors import CorruptTableError
from embstore.storage import stored_rows
from tests.unit.small_stores import generator
from tests.unit.storage_samples import append, open_storage, settle, table_entry, versions

ROWS = 3_000
SEED = 83


def opened(path, **limits):
    """Return a storage whose three threads share calls of any size, and its table."""
    storage = open_storage(path, keep=1, threads=3, **limits)
    storage._workers.split_bytes = 0
    storage.create_table(table_entry())
    return storage, [table_entry()]


@pytest.fixture(scope="module")
def storage(tmp_path_factory):
    """Rows [0, ROWS) of version 1 in the base; of every third, version 2 in the log."""
    storage, tables = opened(tmp_path_factory.mktemp("store"), fold_bytes=1)
    append(storage, range(ROWS), version=1)
    for label in ("first", "second"):
        storage.commit(tables, 1, label=label)
        settle(storage)
    assert storage.rows.logged_rows == 0, "expected a fold"
    append(storage, range(0, ROWS, 3), version=2)
    yield storage
    storage.close()


def test_threads_read_each_row_from_the_log_else_the_base_else_not(storage):
    keys = generator(SEED).permutation(ROWS + 500)
    expected = np.where(keys < ROWS, np.where(keys % 3 == 0, 2, 1), -1)
    assert versions(storage, keys) == expected.tolist()
    assert (storage.rows.locate(keys).found == np.where(expected > 0, 3 - expected, 0)).all()


@pytest.mark.parametrize("where, key", [("log's", 2_997), ("base's", 2_998)])
def test_a_damaged_record_is_named_whichever_thread_reads_it(storage, where, key):
    log, base = storage.log._writer.segment, storage.base.runs[0][0].file
    path, memory = {
        "log's": (log.path, log.map),
        "base's": (storage.base.runs[0][0].entry.path, base.map),
    }[where]
    at = int(storage.rows.locate(np.array([key])).addresses[0]) - memory.ctypes.data
    descriptor = os.open(storage.files.root / path, os.O_RDWR)
    byte = os.pread(descriptor, 1, at + 20)
    os.pwrite(descriptor, bytes([byte[0] ^ 4]), at + 20)
    with pytest.raises(CorruptTableError, match=rf"'t0': the {where} record of key {key} fails"):
        versions(storage, range(ROWS))
    os.pwrite(descriptor, byte, at + 20)
    os.close(descriptor)
    assert versions(storage, [key]) == [2 if where == "log's" else 1]


def test_rows_on_the_disk_are_asked_for_before_they_are_read(storage, monkeypatch):
    read, asked = stored_rows.read, []

    def cold(*arguments):
        """Find rows, and say that their pages are on the disk."""
        *where, rows, low, high = arguments
        assert read(*where, stored_rows._NO_ROWS, low, high) == -1
        return stored_rows._COLD if len(rows) else -1

    monkeypatch.setattr(stored_rows, "read", cold)
    monkeypatch.setattr(stored_rows, "will_need", lambda places, size: asked.append(places))
    assert versions(storage, range(9)) == [2, 1, 1] * 3
    places = np.concatenate(asked)
    assert np.array_equal(np.sort(places), np.sort(storage.rows.locate(np.arange(9)).addresses))
    assert all((a[1:] > a[:-1]).all() for a in asked)
