"""What the storage tests share: records, and a storage without the cache above it."""

from types import SimpleNamespace

import numpy as np

from embstore import Constant, Sgd
from embstore.arrays import SPARSE_ROWS
from embstore.config import TableConfig
from embstore.host.workers import Workers
from embstore.layout import RECORD_HEADER_BYTES, Layout, record_bytes_of
from embstore.results import TableEntry
from embstore.row_keys import RowKeys
from embstore.storage.base import Base
from embstore.storage.log import Log
from embstore.storage.records import pack, unpack
from embstore.storage.storage import Storage
from embstore.storage.stored_rows import StoredRows
from tests.conformance.backends import UnsyncedFiles
from tests.unit.small_stores import small_limits

STORE_ID = bytes(range(16))
STRIDE = 4


def layout_of(dim):
    return Layout(dim, 0, "sgd")


def rows_for(keys, version=0, stride=STRIDE):
    """Return rows, (n, stride) float32, that tell row key and version."""
    keys = np.asarray(keys, np.int64)
    rows = np.zeros((len(keys), stride), np.float32)
    words = rows.view(np.uint64)
    words[:, 0] = keys.view(np.uint64)
    words[:, 1:] = version
    return rows


def packed(keys, rows):
    """Return the records of rows, (n, words) uint64."""
    keys = np.asarray(keys, np.int64)
    records = np.empty((len(keys), record_bytes_of(rows) // 8), np.uint64)
    pack(rows.view(np.uint64), np.arange(len(keys)), keys, records, 0, len(keys))
    return records


def records_for(keys, version=0, stride=STRIDE):
    return packed(keys, rows_for(keys, version, stride))


def unpacked(addresses, keys, stride=STRIDE):
    """Return the rows at the addresses, each checked; zeros where there is no address."""
    rows = np.zeros((len(keys), stride), np.float32)
    assert unpack(addresses, np.asarray(keys), rows.view(np.uint64), 0, len(keys)) == -1
    return rows


def addresses_of(keys, log=None, base=None):
    """Return where the rows of some keys are, (n,) uint64, 0: nowhere."""
    log = log or Log(None, STORE_ID, segment_bytes=0, rows_max=0)
    contents = SimpleNamespace(log=log, base=base or Base(None, STORE_ID), maps=tuple)
    return StoredRows(contents, Workers(1)).locate(np.asarray(keys, np.int64)).addresses


def same_rows(found, expected):
    return np.array_equal(found.view(np.uint32), expected.view(np.uint32))


def table_entry(table_id=0, dim=4, rows=None, t=0, key_space="dense"):
    """Return a table of rows without state."""
    rows = rows or {"dense": 1 << 40, "sparse": SPARSE_ROWS}[key_space]
    config = TableConfig.checked(
        f"t{table_id}",
        dim=dim,
        rows=rows,
        optimizer=Sgd(1.0),
        initializer=Constant(0.5),
        key_space=key_space,
    )
    return TableEntry(table_id, config.identity(), rows, 1.0, t)


def open_storage(path, *, keep=2, files=None, threads=1, **limits):
    limits = small_limits(**{"base_segment_bytes": 2 << 20} | limits)
    return Storage(
        files or UnsyncedFiles(path),
        read_only=False,
        checkpoints_keep=keep,
        limits=limits,
        threads=threads,
    )


def pool_keys(storage, keys, table_id):
    """Return the storage that a pool of a table has, and by which keys it asks."""
    row_keys = RowKeys(table_id if table_id in storage.ids.tables else None)
    return storage.of_pool(row_keys), row_keys.of(table_id, np.asarray(keys, np.int64))


def append(storage, keys, version=0, table_id=0, dim=4):
    """Log rows of one table."""
    border, row_keys = pool_keys(storage, keys, table_id)
    layout = layout_of(dim)
    border.appender.reserve(len(row_keys), layout.record_bytes)
    border.appender.append(
        row_keys, rows_for(row_keys, version, layout.stride), np.arange(len(row_keys))
    )


def bury(storage, keys, table_id=0):
    """Log that rows of one table were deleted."""
    border, row_keys = pool_keys(storage, keys, table_id)
    border.appender.reserve(len(row_keys), RECORD_HEADER_BYTES)
    border.appender.bury(row_keys)


def versions(storage, keys, table_id=0, dim=4):
    """Return the stored version of each key of a table, -1 where none is stored."""
    border, row_keys = pool_keys(storage, keys, table_id)
    rows = np.zeros((len(row_keys), layout_of(dim).stride), np.float32)
    found = np.empty(len(row_keys), np.uint8)
    border.rows.read(row_keys, rows, found)
    assert np.array_equal(border.rows.has(row_keys), found != 0)
    words = rows.view(np.uint64)
    assert np.array_equal(words[found != 0, 0], row_keys[found != 0].view(np.uint64))
    return np.where(found != 0, words[:, 1].astype(np.int64), -1).tolist()


def settle(storage):
    """Do every merge that is due; none may fail."""
    storage.merges.finish()
    assert storage.merges.failures == 0, storage.merges.error
    storage.check_integrity()
