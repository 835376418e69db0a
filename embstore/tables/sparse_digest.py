"""The digest of a sparse table (contract.md, rule 11): one pass over all rows, in stored order.

Leaves are sums of hashes, so rows can be read in any order, but each row must be read only once.
Files store rows by row number. An id (a sparse key) gets its row number when its row is logged for
the first time, and keeps this number. The rows are read in two parts:

    first   ids that had a number when the search of the cache for dirty rows ended, in the order
            of the numbers
    second  dirty rows whose ids had no number at that time

A row that was written when the digest began is in one of these parts: it was dirty and was found in
the cache, or it was logged before and has a number. Other rows that are found were written since
the digest began; the snapshot notes them as rows that did not exist (`row_snapshot.py`). The slices
are the same as for a dense table.

Leaves are kept until a row is written. Rejected: keeping the leaves of partitions without a written
row. The files mix the rows of all partitions, so the rows of each partition would have to be read
in any case, and during training every partition changes. Also rejected: subtracting a row's old
hash and adding its new hash, which would cost each write two hashes and a read of the old row.
"""

from collections.abc import Iterator
from contextlib import suppress

import numpy as np
from numpy.typing import NDArray

from embstore.arithmetic import leaf_records, root
from embstore.arithmetic.compiled_digest import Sums, add_row_hashes, leaves_of_sums, row_sums
from embstore.arrays import KEY_MASK, Keys
from embstore.cache.pool import Pool
from embstore.errors import StoreClosedError
from embstore.storage.sparse import SparseRows
from embstore.tables.hashing import HASH_THREADS, hashing, slice_rows
from embstore.tables.row_snapshot import RowSnapshot, SnapshotRows
from embstore.tables.slices import Slices
from embstore.tables.written_keys import dirty_keys

Leaves = tuple[Keys, NDArray[np.uint8]]
"""Blocks with a written row, (m,) ascending, and the leaf of each block, (m, 32)."""


class SparseDigest:
    """The leaves of one sparse table. All methods but `compute` are called with the engine."""

    def __init__(self) -> None:
        self._leaves: Leaves = np.empty(0, np.int64), np.empty((0, 32), np.uint8)
        self._is_changed = True  # since leaves were computed; True if they never were
        self.reading: SparseReading | None = None
        """The rows that the running digest still has to read; None: no digest runs, or the kept
        leaves are current."""

    def note_written(self, keys: Keys) -> None:
        """Remember that row keys of the table were written."""
        self._is_changed |= len(keys) > 0

    def begin(self, pool: Pool, table_id: int) -> None:
        """Begin a digest of the present state of the table. The pool must have no other table."""
        pool.followers.download()
        pool.followers.follow(table_id, self.note_written)
        if self._is_changed:
            self.reading = SparseReading(pool)
            self._is_changed = False

    def compute(self, slices: Slices, identity: bytes, t: int) -> str:
        """Return the digest that was begun, as 64 hexadecimal digits. An error from `slices` ends
        the digest."""
        if self.reading is None:
            return root(identity, t, *self._leaves)
        found = None
        try:
            found = self.reading.leaves(slices)
        finally:
            with suppress(StoreClosedError), slices.last():
                self.reading = None
                if found is None:
                    self._is_changed = True
                else:
                    self._leaves = found
        return root(identity, t, *found)

    def records(self, table_id: int, low: int, count: int) -> bytes:
        """Return the first `count` leaves of blocks >= low, in the form that the root hashes. Call
        this after `compute`, and before the next digest is computed."""
        blocks, leaves = self._leaves
        begin = int(np.searchsorted(blocks, low))
        page = slice(begin, begin + count)
        return leaf_records(blocks[page], leaves[page]).tobytes()


class SparseReading:
    """The rows of a pool as they were when this object was made. Each row is read once, and
    hashed."""

    def __init__(self, pool: Pool) -> None:
        assert isinstance(pool.storage.rows, SparseRows)
        self._pool = pool
        self._numbers = pool.storage.rows.numbers
        self._seed = int(pool.parameters.seeds[0])
        self._next = 0  # all lower row numbers have been read
        self._aside = RowSnapshot(pool)
        self._deleted: list[Keys] = []

    def preserve(self, keys: Keys, *, are_deleted: bool = False) -> None:
        """Copy the rows of `keys` that the digest still has to read, before a command changes or
        deletes these rows. Call this with the engine."""
        if are_deleted:
            self._deleted.append(keys)
        self._aside.add(keys[self._numbers_of(keys) >= self._next])

    def leaves(self, slices: Slices) -> Leaves:
        """Return the leaves of the table."""
        self._count = 0
        dirty = dirty_keys(self._pool, slices.one, self._note_count, self._deleted)
        slices.of = self._count + len(dirty)
        sums = [row_sums() for _ in range(HASH_THREADS)]
        spare = [*sums]
        with hashing() as submit:
            for keys, earlier in self._pieces(dirty, slices):
                earlier.looked.ask()
                submit(self._hash, keys, earlier, spare)
        return leaves_of_sums(sums)

    def _note_count(self) -> None:
        self._count = self._numbers.count

    def _pieces(self, dirty: Keys, slices: Slices) -> Iterator[tuple[Keys, SnapshotRows]]:
        """Yield the ids of each slice, and the rows of these ids."""
        rows_max, low = slice_rows(self._pool.layout), 0
        while low < slices.of:
            end = self._count if low < self._count else slices.of
            high = min(low + max(rows_max >> slices.halvings, 1), end)
            with slices.one():
                if low < self._count:
                    keys = self._numbers.first_ids(low, high)
                    self._next = high
                else:
                    keys = dirty[low - self._count : high - self._count]
                    keys = keys[self._numbers_of(keys) >= self._count]
                earlier = self._aside.look(keys)
            yield keys, earlier
            slices.done = low = high

    def _hash(self, keys: Keys, earlier: SnapshotRows, spare: list[Sums]) -> None:
        """Read rows, and add their hashes to sums that no other thread uses."""
        rows, was_written = earlier.read()
        used = self._pool.layout.dim + self._pool.layout.state_dim
        sums = spare.pop()
        add_row_hashes(self._seed, keys[was_written], rows, used, sums)
        spare.append(sums)

    def _numbers_of(self, ids: Keys) -> Keys:
        """Return the row number of each id; an id without a row number gets one that is greater
        than all others."""
        return self._numbers.row_keys_of(ids) & KEY_MASK
