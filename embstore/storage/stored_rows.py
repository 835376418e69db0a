"""Rows that are not in the cache, read from the log, else the base, else not found.

A read has two halves: `locate` finds the records' addresses in maps of the files, and copying them
checks every record. The second half may run in any thread (`collect`), whatever the engine does
meanwhile: files of log and base never change where they have records, and what was located stays
mapped as long as the `Located` lives.
"""

from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from embstore.arrays import KEY_BITS, KEY_MASK, Keys, Rows
from embstore.errors import CorruptTableError
from embstore.host.workers import Workers
from embstore.layout import record_bytes_of
from embstore.storage.base import Base
from embstore.storage.cold import prefetch_cold_pages
from embstore.storage.contents import Contents
from embstore.storage.records import unpack


@dataclass(frozen=True)
class Located:
    """Where the stored rows of some row keys are, until they are copied."""

    keys: Keys  # (n,) unique
    addresses: NDArray[np.uint64]  # (n,), 0: nowhere
    found: NDArray[np.uint8]  # (n,) 0 nowhere, 1 log, 2 base, 3 either
    maps: tuple[object, ...] | None  # what the addresses point into; None: there is none


class StoredRows:
    """Reads the stored rows of a store. Engine thread only, but for `collect`."""

    def __init__(self, contents: Contents, workers: Workers) -> None:
        self.bytes_read = 0
        self._contents = contents
        self._workers = workers

    def read(self, keys: Keys, rows: Rows, found: NDArray[np.uint8]) -> None:
        """Copy the stored rows of unique row keys.

        rows : (n, stride), written where found
        found : (n,) uint8, set to 0 nowhere, 1 log, 2 base
        """
        located = self.locate(keys)
        np.copyto(found, located.found)
        if not found.any():
            return
        size = record_bytes_of(rows)
        ranges = self._workers.ranges(len(keys), size)
        self._copy(located, rows, partial(self._workers.run, ranges=ranges))
        self.count_read(located, size)

    def locate(self, keys: Keys) -> Located:
        """Return where the stored rows of unique row keys are."""
        addresses = np.empty(len(keys), np.uint64)
        in_log = self._locate(keys, addresses)
        found = 2 * (addresses != 0).view(np.uint8) - in_log.view(np.uint8)
        return Located(keys, addresses, found, self._contents.maps() if found.any() else None)

    def collect(self, located: Located, rows: Rows) -> None:
        """Copy located rows, if any, to `rows`, (n, stride), written where found. Any thread."""
        if not located.found.any():
            return
        self._copy(located, rows, lambda work: [work(0, len(located.keys))])

    def count_read(self, located: Located, record_bytes: int) -> None:
        """Count the bytes that were copied."""
        self.bytes_read += int(np.count_nonzero(located.found)) * record_bytes

    def _copy(
        self,
        located: Located,
        rows: Rows,
        run: Callable[[Callable[[int, int], int]], Sequence[int]],
    ) -> None:
        self._contents.files.reached("read")
        prefetch_cold_pages(located.addresses, record_bytes_of(rows))
        words = rows.view(np.uint64)

        def work(low: int, high: int) -> int:
            return unpack(located.addresses, located.keys, words, low, high)

        wrong = next((i for i in run(work) if i >= 0), -1)
        if wrong >= 0:
            key = int(located.keys[wrong])
            where = ("", "log's", "base's", "stored")[located.found[wrong]]
            raise CorruptTableError(
                f"table {self._contents.names[key >> KEY_BITS]!r}: the {where} record of key "
                f"{key & KEY_MASK} fails its checksum"
            )

    def prefetch(self, keys: Keys, record_bytes: int) -> None:
        """Ask the disk for the rows of a large call, which will be read in pieces."""
        addresses = np.empty(len(keys), np.uint64)
        self._locate(keys, addresses)
        prefetch_cold_pages(addresses, record_bytes)

    def ask(self, located: Located, rows: Rows) -> None:
        """Ask the disk for located rows, such as `rows`, which will be read. Any thread."""
        prefetch_cold_pages(located.addresses, record_bytes_of(rows))

    def has(self, keys: Keys) -> NDArray[np.bool_]:
        """Return which row keys have a stored row. Reads no row."""
        addresses = np.empty(len(keys), np.uint64)
        self._locate(keys, addresses)
        stored: NDArray[np.bool_] = addresses != 0
        return stored

    @property
    def logged_rows(self) -> int:
        """How many rows the log has."""
        return self._contents.log.index.size

    def keys(self, table_id: int) -> "StoredKeys":
        """Return which rows of a table have a stored row now."""
        contents = self._contents
        return StoredKeys(table_id, contents.log.index.copied_keys(), copy(contents.base))

    def _locate(self, keys: Keys, addresses: NDArray[np.uint64]) -> NDArray[np.bool_]:
        """Write each record's address, 0 for none; return which are in the log."""
        found = self._contents.log.locate(keys, np.empty(len(keys), np.int64), addresses)
        in_log: NDArray[np.bool_] = addresses != 0
        if found < len(keys):
            self._contents.base.locate(keys, np.flatnonzero(~in_log), addresses)
        return in_log


class StoredKeys:
    """Which rows of a table had a stored row at one moment. Any thread; merges may go on."""

    def __init__(self, table_id: int, logged: Sequence[Keys], base: Base) -> None:
        self._table_id = table_id
        self._logged = logged
        self._base = base

    def logged(self) -> Keys:
        """Return the row keys that the log had, ascending."""
        low, high = self._table_id << KEY_BITS, (self._table_id + 1) << KEY_BITS
        return np.sort(np.concatenate([k[(k >= low) & (k < high)] for k in self._logged]))

    def blocks_in_base(self, shift: int) -> Keys:
        """Return the blocks (row key >> shift) with a row in the base, ascending."""
        return self._base.blocks(self._table_id, shift)

    def keys_in_base(self, blocks: Keys, shift: int) -> Keys:
        """Return the row keys in ascending blocks that the base had, ascending."""
        return self._base.keys_in(blocks, shift)
