"""A copy-on-write snapshot of the rows that commands change while a long read runs.

A read in slices must see the table as of a single command. Therefore each command copies rows to
the snapshot before it changes them, if the running read has not read these rows yet. Each row is
copied once. A row that was never written is noted as absent. The reader prefers these copies to the
current rows.

This costs a command an additional search for its rows, and memory for the rows that change before
they are read. These costs end with the read. Rejected: reading in passes until few rows have
changed, as a commit does. During training every pass finds most of the table changed, and the last
pass must be in one piece.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from embstore.arrays import Keys, Rows
from embstore.cache.pool import Pool
from embstore.cache.reading import Looked
from embstore.storage.row_index import RowIndex

_ABSENT = (1 << 40) - 1
"""The number that the index has for a row that was never written."""


class RowSnapshot:
    """Copies of rows of one pool, by row key. Callers have the engine."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._index = RowIndex()  # from row keys to the numbers of copies
        self._counts = np.zeros(1, np.int64), np.zeros(1, np.uint8)  # required by the index
        self._copies: list[Rows] = []
        self._starts: list[int] = []
        """The number of the first copy in each batch."""
        self._count = 0

    def add(self, keys: Keys) -> None:
        """Copy the rows of unique row keys, unless they have a copy already.

        If it raises CorruptTableError or MemoryError, it has no effect.
        """
        keys = keys[self._index.positions_of(keys) < 0]
        if not len(keys):
            return
        rows, written = self._pool.reader.look(keys).read()
        numbers = np.where(written, self._count + np.cumsum(written) - 1, _ABSENT)
        self._starts.append(self._count)
        try:
            self._copies.append(rows)
        except MemoryError:
            self._starts.pop()
            raise
        self._count += len(rows)
        self._index.put(keys, numbers, *self._counts)  # last: a copy without an entry does no harm

    def look(self, keys: Keys) -> "SnapshotRows":
        """Find the rows of unique row keys: copies, or else the current rows."""
        return SnapshotRows(self._pool.reader.look(keys), self._of(keys))

    def _of(self, keys: Keys) -> "Copies | None":
        """Return the copies for some row keys, None if there are no copies."""
        numbers = self._index.positions_of(keys)
        if not (numbers >= 0).any():
            return None
        return Copies(numbers, np.array(self._starts), self._copies)


@dataclass(frozen=True)
class SnapshotRows:
    """The rows of some keys as they were when the long read began. Any thread."""

    looked: Looked
    copies: "Copies | None"

    def read(self) -> tuple[Rows, NDArray[np.bool_]]:
        """Return the written rows, and a bool array that is True for keys with a written row.

        Raises CorruptTableError if a record is damaged.
        """
        rows, written = self.looked.read()
        return (rows, written) if self.copies is None else self.copies.put_into(rows, written)


@dataclass(frozen=True)
class Copies:
    """The copies of some row keys. Any thread."""

    numbers: NDArray[np.int64]  # (n,); -1: no copy
    starts: NDArray[np.int64]
    batches: list[Rows]  # grows, but does not change otherwise

    def put_into(self, rows: Rows, written: NDArray[np.bool_]) -> tuple[Rows, NDArray[np.bool_]]:
        """Put copies in the place of current rows: return the rows that were written when the long
        read began, and a bool array that is True for their keys. `rows` and `written` are the
        current rows in the same form."""
        is_here = self.numbers >= 0
        was_written = np.where(is_here, self.numbers != _ABSENT, written)
        result = np.empty((int(np.count_nonzero(was_written)), *rows.shape[1:]), rows.dtype)
        place, found = np.cumsum(was_written) - 1, np.cumsum(written) - 1
        unchanged = np.flatnonzero(written & ~is_here)
        result[place[unchanged]] = rows[found[unchanged]]
        changed = np.flatnonzero(is_here & was_written)
        numbers = self.numbers[changed]
        batches = np.searchsorted(self.starts, numbers, side="right") - 1
        for batch in np.unique(batches):
            here = batches == batch
            copies = self.batches[batch]
            result[place[changed[here]]] = copies[numbers[here] - self.starts[batch]]
        return result, was_written
