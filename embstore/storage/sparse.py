"""A sparse table's rows by their ids: storage as a cache pool of such a table sees it.

For the pool, the key of a row is its id, any 64 bits; for storage, the key is the row key
(row_numbers.py). The classes of this module have the methods of `Storage`, `StoredRows` and
`Appender` that a pool calls. They take ids in place of row keys, translate the ids, and call the
original methods. An id gets its row number when its row is logged. An id without a row number has
no stored row; a lookup assigns no number.
"""

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from embstore.arrays import Keys, Rows
from embstore.host.workers import Workers
from embstore.storage.appender import Appender
from embstore.storage.contents import Contents
from embstore.storage.row_numbers import RowNumbers
from embstore.storage.stored_rows import Located, StoredRows

if TYPE_CHECKING:
    from embstore.storage.storage import Storage


class SparseRows:
    """Reads the stored rows of a sparse table by id. Engine thread only, except `ask` and
    `collect`."""

    def __init__(
        self, contents: Contents, rows: StoredRows, workers: Workers, table_id: int
    ) -> None:
        self._contents = contents
        self._rows = rows
        self._workers = workers
        self._table_id = table_id
        self.collect = rows.collect
        self.count_read = rows.count_read
        self.ask = rows.ask

    @property
    def numbers(self) -> RowNumbers:
        """The row numbers of the table; a new object after a restore."""
        return self._contents.ids.tables[self._table_id]

    def _row_keys(self, ids: Keys) -> Keys:
        return self.numbers.row_keys_of(ids, self._workers)

    def read(self, ids: Keys, rows: Rows, found: NDArray[np.uint8]) -> None:
        """Copy the stored rows of unique ids, as `StoredRows.read` does."""
        self._rows.read(self._row_keys(ids), rows, found)

    def locate(self, ids: Keys) -> Located:
        """Locate the stored rows of unique ids; the result contains their row keys."""
        return self._rows.locate(self._row_keys(ids))

    def prefetch(self, ids: Keys, record_bytes: int) -> None:
        """Ask the disk in advance for the rows of a large call. The call reads them in pieces
        later."""
        self._rows.prefetch(self._row_keys(ids), record_bytes)

    def has(self, ids: Keys) -> NDArray[np.bool_]:
        """Return whether each id has a stored row, (n,) bool. No row is read."""
        return self._rows.has(self._row_keys(ids))

    @property
    def logged_rows(self) -> int:
        """The number of rows of all tables that are in the log."""
        return self._rows.logged_rows


class SparseAppender:
    """Appends rows of a sparse table to the log by id. Engine thread only."""

    def __init__(
        self, contents: Contents, appender: Appender, workers: Workers, table_id: int
    ) -> None:
        self._contents = contents
        self._appender = appender
        self._workers = workers
        self._table_id = table_id

    def reserve(self, records: int, record_bytes: int, *, bounded: bool = True) -> None:
        """Reserve space for records, as `Appender.reserve` does, and for the row numbers of their
        ids."""
        if records:
            self._make_room(records)
            self._appender.reserve(records, record_bytes, bounded=bounded)

    def expect(self, records: int) -> None:
        """Grow the log index and the row numbers once for `records` more rows."""
        self._make_room(records)
        self._appender.expect(records)

    def append(self, ids: Keys, rows: Rows, slots: NDArray[np.int64]) -> None:
        """Log rows[slots] under unique ids. Space must have been reserved."""
        with self._contents.irreversible:
            numbers = self._contents.ids.tables[self._table_id]
            row_keys = numbers.assign(ids, self._workers)
        self._appender.append(row_keys, rows, slots)

    def bury(self, ids: Keys) -> None:
        """Log that the rows of unique ids were deleted, as `Appender.bury` does. The rows must be
        stored."""
        numbers = self._contents.ids.tables[self._table_id]
        self._appender.bury(numbers.row_keys_of(ids, self._workers))

    def _make_room(self, records: int) -> None:
        self._contents.ids.tables[self._table_id].make_room(records)


class SparseStorage:
    """The storage as a pool of a sparse table uses it."""

    def __init__(
        self, storage: "Storage", contents: Contents, workers: Workers, table_id: int
    ) -> None:
        self._storage = storage
        self.rows = SparseRows(contents, storage.rows, workers, table_id)
        self.appender = SparseAppender(contents, storage.appender, workers, table_id)
        self.irreversible = storage.irreversible
        self.files = storage.files
        self.segment_bytes = storage.segment_bytes
        self.read_only = storage.read_only
        self.begin_change, self.end_check = storage.begin_change, storage.end_check
        self.check_usable = storage.check_usable

    @property
    def is_check(self) -> bool:
        """Whether the running call only checks its command."""
        return self._storage.is_check

    @property
    def is_changing(self) -> bool:
        """Whether the running call has begun a change that must not be left incomplete."""
        return self._storage.is_changing

    @is_changing.setter
    def is_changing(self, is_changing: bool) -> None:
        self._storage.is_changing = is_changing
