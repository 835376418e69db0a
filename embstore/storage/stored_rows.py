"""Rows that are not in the cache: they are read from the log, or else from the base.

A read has two halves. The first half finds the addresses of the records in the maps of the files.
The second half copies the records, and checks each record. One kernel does both halves, for one
range of the keys per thread. The second half can also be done later, in any thread (`locate`,
`collect`), concurrently with the engine. That is safe for two reasons: bytes that are records in
files of log and base never change; and located records stay mapped as long as their `Located`
exists.

Measured on one thread: to read 80,000 rows of 528 bytes, at random offsets in 816 MB of the log in
the page cache, takes 21 ms; 4 ms of this time are for finding the addresses. A plain loop that only
copies and checks these records takes 40 ms.
"""

from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from embstore.arithmetic.jit import (
    Int,
    Int64RowsIn,
    Int64sIn,
    Uint8s,
    Uint64Rows,
    Uint64s,
    Uint64sIn,
    kernel,
)
from embstore.arrays import KEY_BITS, Keys, Rows
from embstore.host.workers import Workers
from embstore.layout import record_bytes_of
from embstore.storage.base import BURIED, Base, locate
from embstore.storage.cold import absent_among, prefetch_cold_pages, will_need
from embstore.storage.contents import Contents
from embstore.storage.records import copy_rows, unpack
from embstore.storage.row_index import OFFSET_MASK, PLACE_BITS, TOMBSTONE, position_of

_LOCATED_BYTES = 128
"""Bytes of memory traffic per located key: one cache line of an index, and one cache line of
results."""
_COLD = -2
_NO_ROWS = np.empty((0, 0), np.uint64)


@kernel
def read(
    entries: Int64RowsIn,  # the log's index: row_index.py
    old: Int64RowsIn,
    places: Uint64sIn,  # (places,) addresses of the log's maps
    cuts: Int64sIn,  # this and the next six: the base, as `locate` takes it
    lows: Int64sIn,
    highs: Int64sIn,
    directories: Int64sIn,
    groups: Int64sIn,
    containers: Int64sIn,
    maps: Uint64sIn,
    keys: Int64sIn,  # (n,) row keys
    addresses: Uint64s,  # (n,) written: addresses of the records; 0: no record
    found: Uint8s,  # (n,) written: 0 not found, 1 log, 2 base
    rows: Uint64Rows,  # (n, stride / 2), written if found; of shape (0, 0): rows are not read
    low: Int,
    high: Int,
) -> int:
    """Find and read the rows of keys[low:high]. Return the first index whose record is wrong, or
    -1. If a sample of the records shows that some are not in memory, read no row, and return
    _COLD."""
    for i in range(low, high):
        position = position_of(entries, old, keys, i)
        addresses[i] = found[i] = 0
        if position >= 0 and position & TOMBSTONE:
            addresses[i] = BURIED
        elif position >= 0:
            addresses[i] = places[position >> PLACE_BITS] + np.uint64(position & OFFSET_MASK)
            found[i] = 1
    base = cuts, lows, highs, directories, groups, containers, maps
    locate(*base, keys, addresses, low, high)
    for i in range(low, high):
        if addresses[i] == BURIED:
            addresses[i] = 0
        elif found[i] == 0 and addresses[i] != np.uint64(0):
            found[i] = 2
    if rows.shape[0] == 0:
        return -1
    if absent_among(addresses, low, high, 0):
        return _COLD
    return copy_rows(addresses, keys, rows, low, high)


@dataclass(frozen=True)
class Located:
    """The addresses of the stored rows of some row keys, by which the rows can be copied later."""

    keys: Keys  # (n,) unique
    addresses: NDArray[np.uint64]  # (n,), 0: not found
    found: NDArray[np.uint8]  # (n,) 0 not found, 1 log, 2 base, 3 log or base
    maps: tuple[object, ...] | None  # the maps that contain the addresses; None: no row was found


class StoredRows:
    """Reads the stored rows of a store. Engine thread only, except `ask` and `collect`."""

    def __init__(self, contents: Contents, workers: Workers) -> None:
        self.bytes_read = 0
        self._contents = contents
        self._workers = workers

    def read(self, keys: Keys, rows: Rows, found: NDArray[np.uint8]) -> None:
        """Copy the stored rows of unique row keys.

        rows : (n, stride), written if found
        found : (n,) uint8, written: 0 not found, 1 log, 2 base
        """
        self._contents.files.reached("read")
        size = record_bytes_of(rows)
        wrong = self._find(keys, found, rows.view(np.uint64), size)[1]
        self._check(keys, found, wrong)
        self.bytes_read += int(np.count_nonzero(found)) * size

    def locate(self, keys: Keys) -> Located:
        """Find the addresses of the stored rows of unique row keys."""
        found = np.empty(len(keys), np.uint8)
        addresses, _ = self._find(keys, found)
        return Located(keys, addresses, found, self._contents.maps() if found.any() else None)

    def collect(self, located: Located, rows: Rows) -> None:
        """Copy located rows to `rows`, (n, stride). `rows` is written only where a row was found.
        Any thread."""
        if not located.found.any():
            return
        self._contents.files.reached("read")
        self.ask(located, rows)
        count = len(located.keys)
        wrong = unpack(located.addresses, located.keys, rows.view(np.uint64), 0, count)
        self._check(located.keys, located.found, [wrong])

    def count_read(self, located: Located, record_bytes: int) -> None:
        """Count the bytes that `collect` has copied."""
        self.bytes_read += int(np.count_nonzero(located.found)) * record_bytes

    def prefetch(self, keys: Keys, record_bytes: int) -> None:
        """Ask the disk in advance for the rows of a large call. The call reads them in pieces
        later."""
        prefetch_cold_pages(self.locate(keys).addresses, record_bytes)

    def ask(self, located: Located, rows: Rows) -> None:
        """Ask the disk in advance for located rows. They will be read into `rows`. Any thread."""
        prefetch_cold_pages(located.addresses, record_bytes_of(rows))

    def has(self, keys: Keys) -> NDArray[np.bool_]:
        """Return whether each row key has a stored row, (n,) bool. No row is read."""
        stored: NDArray[np.bool_] = self.locate(keys).found != 0
        return stored

    @property
    def logged_rows(self) -> int:
        """The number of rows in the log."""
        return self._contents.log.index.size

    def keys(self, table_id: int) -> "StoredKeys":
        """Return the keys of the rows of a table that are stored at present."""
        contents = self._contents
        return StoredKeys(table_id, contents.log.index.copied_keys(), copy(contents.base))

    def _find(
        self,
        keys: Keys,
        found: NDArray[np.uint8],
        rows: NDArray[np.uint64] = _NO_ROWS,
        moved_bytes: int = _LOCATED_BYTES,
    ) -> tuple[NDArray[np.uint64], Sequence[int]]:
        """Find rows, using all threads; read the rows, too, if `rows` is given. Return the
        addresses, and for each range the first index whose record is wrong, or -1."""
        addresses = np.empty(len(keys), np.uint64)
        where = (*self._contents.log.arrays, *self._contents.base.arrays)
        read_range = partial(read, *where, keys, addresses, found, rows)

        def work(low: int, high: int) -> int:
            wrong = read_range(low, high)
            if wrong == _COLD:
                will_need(np.sort(addresses[low:high]), moved_bytes)
                wrong = unpack(addresses, keys, rows, low, high)
            return wrong

        return addresses, self._workers.share(work, len(keys), moved_bytes)

    def _check(self, keys: Keys, found: NDArray[np.uint8], wrong: Sequence[int]) -> None:
        """Raise CorruptTableError if a range found a wrong record; `wrong` has, for each range, the
        index of its first wrong record, or a negative number."""
        first = next((i for i in wrong if i >= 0), -1)
        if first >= 0:
            where = ("", "log's", "base's", "stored")[found[first]]
            raise self._contents.wrong_record(int(keys[first]), where)


class StoredKeys:
    """The keys of a table that had a stored row at one moment. Any thread, also during merges."""

    def __init__(self, table_id: int, logged: Sequence[Keys], base: Base) -> None:
        self._table_id = table_id
        self._logged = logged
        self._base = base

    def logged(self) -> Keys:
        """Return, in ascending order, the row keys that the log had, tombstones included."""
        low, high = self._table_id << KEY_BITS, (self._table_id + 1) << KEY_BITS
        return np.sort(np.concatenate([k[(k >= low) & (k < high)] for k in self._logged]))

    def blocks_in_base(self, shift: int) -> Keys:
        """Return, in ascending order, the blocks (row key >> shift) that have a row in the base."""
        return self._base.blocks(self._table_id, shift)

    def keys_in_base(self, blocks: Keys, shift: int) -> Keys:
        """Return, in ascending order, the row keys that the base had in some blocks, tombstones
        included. The blocks are given in ascending order."""
        return self._base.keys_in(blocks, shift)
