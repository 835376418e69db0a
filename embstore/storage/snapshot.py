"""The rows of one table as of a commit, in key order, while the store continues to run.

For a sparse table, rows are in the order of their row numbers, and a read begins at a row number
(`low`); the keys that are returned are ids.

A state consists of files that never change: the runs of the base and the segments of the log whose
``commit`` is not higher than that of the state. The latest record of a row is valid (catalogue.py).
Therefore a snapshot is a list of these files, which a thread that has the engine makes in
microseconds. The snapshot keeps the files mapped into memory. The content of the files stays
readable as long as the snapshot exists, even if a merge, a restore or a dropped table removes the
files.

**Changes since another commit.** A commit logs every dirty row, and a merge never mixes files from
before and after a kept checkpoint. Therefore the rows that were written after the other commit are
exactly those in files whose commit number is higher. Every row whose key is in these files counts
as changed, whether or not its content differs. A row counts as deleted if these files have its
tombstone and the other commit has the row. A row that the other commit does not have, and that was
written and deleted since, is left out.

The keys of the base and of the log are merged piece by piece; a piece consists of whole groups of
keys (key_index.py). The records of the log are in the order of time, so the table's keys in the log
are sorted once. Sorting takes 24 bytes for each record of the table that the indexes of the log's
segments list. `prepare` reports this memory, and the memory of a piece, by calls of its argument
`reserve`.
"""

from bisect import bisect_right
from collections.abc import Callable, Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from embstore.arrays import KEY_BITS, KEY_MASK, Keys
from embstore.storage.base import have_rows
from embstore.storage.copying import Stored, cuts_of, group_counts, newest, rows_between
from embstore.storage.key_index import GROUP_BITS
from embstore.storage.row_numbers import RowNumbers
from embstore.storage.run import Run
from embstore.storage.segment import Segment, places_of
from embstore.storage.stored_rows import Located

_PIECE_ROWS = 1 << 18
"""Number of rows whose keys are in memory at the same time."""
_ROW_BYTES = 24
"""Number of bytes that a row takes in `Stored`, for its key and for the address and bytes of its
record."""


class Snapshot:
    """A snapshot of the rows of one table. The thread that makes it has the engine; afterwards any
    thread can use it.

    Parameters
    ----------
    commit : the commit whose rows are read; it must be that of the head or of a kept checkpoint
    since : an earlier commit, which must also be that of the head or of a kept checkpoint; only
        rows that were logged after it are read; 0: all rows are read
    wanted : a function that returns whether each of some keys belongs to the snapshot, (n,) bool;
        None: all keys do
    numbers : the row numbers of a sparse table
    """

    def __init__(
        self,
        table_id: int,
        runs: Sequence[Run],
        segments: Sequence[Segment],
        commit: int,
        since: int = 0,
        wanted: Callable[[Keys], NDArray[np.bool_]] | None = None,
        numbers: RowNumbers | None = None,
    ) -> None:
        self._wanted = wanted
        self._numbers = numbers
        self._low, self._high = table_id << KEY_BITS, (table_id + 1) << KEY_BITS
        self._runs = [run for run in runs if since < run[0].entry.commit <= commit]
        self._segments = [s for s in segments if since < s.commit <= commit]
        self._runs_before = [run for run in runs if run[0].entry.commit <= since]
        self._segments_before = [s for s in segments if 0 < s.commit <= since]
        self._maps = (
            [segment.map for segment in self._segments],
            [part.file.map for run in (*self._runs, *self._runs_before) for part in run],
        )
        self._log: Stored | None = None
        self._log_before = Stored.none()
        self._cuts: list[int] = []
        self._piece: tuple[int, Stored] | None = None  # the last merged piece, and its number

    def prepare(
        self, between: Callable[[], None], reserve: Callable[[int], None] = lambda _: None
    ) -> tuple[int, int]:
        """Sort the log's keys, and return the number of rows and the number of deleted rows.
        `between` is called between pieces of this work. `reserve` is called with each number of
        bytes that the snapshot keeps from then on. An exception of either function ends the
        work."""
        self._log = self._logged(self._segments, between, reserve)
        self._log_before = self._logged(self._segments_before, between, reserve) or Stored.none()
        counted = group_counts(self._runs, self._low, self._high)
        if self._log is not None:
            groups = np.unique(self._log.keys >> GROUP_BITS, return_counts=True)
            counted = np.concatenate([counted, np.stack(groups, axis=1)])
        self._cuts = list(cuts_of(counted, self._low, self._high, _PIECE_ROWS))
        count = deleted = most = 0
        for low, high in pairwise(self._cuts):
            between()
            of_them_deleted = self._merged(low, high).are_deleted
            if len(of_them_deleted) > most:
                reserve((len(of_them_deleted) - most) * _ROW_BYTES)
                most = len(of_them_deleted)
            deleted += int(np.count_nonzero(of_them_deleted))
            count += int(np.count_nonzero(~of_them_deleted))
        return count, deleted

    def rows_from(self, low: int, count: int) -> Located:
        """Locate at most `count` rows: the first rows whose key (or row number) is at least `low`.
        `keys_of` returns the keys of these rows."""
        found = self._from(low, count, are_deleted=False)
        return Located(
            found.keys, found.addresses, np.full(len(found.keys), 3, np.uint8), self._maps
        )

    def deleted_from(self, low: int, count: int) -> Keys:
        """Return at most `count` row keys, from `low` on, whose rows were deleted after the earlier
        commit (`since`)."""
        return self._from(low, count, are_deleted=True).keys

    def _from(self, low: int, count: int, *, are_deleted: bool) -> Stored:
        low = min(self._low + low, self._high)
        number = bisect_right(self._cuts, low) - 1
        found = [Stored.none()]
        while count > 0 and number < len(self._cuts) - 1:
            piece = self._piece_of(number)
            begin = int(np.searchsorted(piece.keys, low))
            wanted = np.flatnonzero(piece.are_deleted[begin:] == are_deleted)[:count]
            found.append(piece.at(begin + wanted))
            count -= len(found[-1].keys)
            number += 1
        return Stored(*(np.concatenate(column) for column in zip(*found, strict=True)))

    def keys_of(self, row_keys: Keys) -> Keys:
        """Return the keys (for a sparse table, ids) of rows of the table that have the given row
        keys."""
        numbers: Keys = row_keys & KEY_MASK
        return numbers if self._numbers is None else self._numbers.ids_of(numbers)

    def _piece_of(self, number: int) -> Stored:
        kept = self._piece  # another thread may replace `_piece`
        if kept is None or kept[0] != number:
            kept = self._piece = number, self._merged(*self._cuts[number : number + 2])
        return kept[1]

    def _merged(self, low: int, high: int) -> Stored:
        """Return the newest record of each row in a range, by row key. A tombstone is included only
        if the row existed at the earlier commit (`since`)."""
        parts = [rows_between(run, low, high) for run in self._runs]
        if self._log is not None:
            begin, end = np.searchsorted(self._log.keys, [low, high])
            parts.append(self._log.at(slice(begin, end)))
        parts = [part for part in parts if len(part.keys)] or parts[:1]
        if not parts:
            return Stored.none()
        found = newest(parts)
        if (gone := found.are_deleted).any():
            found = found.at(~gone | self._had_row(found.keys))
        return found if self._wanted is None else found.at(self._wanted(self.keys_of(found.keys)))

    def _had_row(self, keys: Keys) -> NDArray[np.bool_]:
        """Return whether each row key had a row at the earlier commit (`since`), (n,) bool."""
        had, log = have_rows(self._runs_before, keys), self._log_before
        if len(log.keys):
            at = np.minimum(np.searchsorted(log.keys, keys), len(log.keys) - 1)
            had = np.where(log.keys[at] == keys, ~log.are_deleted[at], had)
        return had

    def _logged(
        self,
        segments: Sequence[Segment],
        between: Callable[[], None],
        reserve: Callable[[int], None],
    ) -> Stored | None:
        """Return the table's newest records in segments, by row key; None if there are no
        segments."""
        logged = []
        for segment in segments:
            between()
            keys, positions = segment.keys_and_positions()
            own = (keys >= self._low) & (keys < self._high)
            reserve(int(np.count_nonzero(own)) * _ROW_BYTES)
            sizes, addresses = places_of([segment], positions[own])
            logged.append(Stored(keys[own], addresses, sizes))
        return newest(logged) if logged else None
