"""Copies of rows from several files to one file, for all merges.

A merge identifies its rows by key, address and record bytes. The rows are copied in pieces whose
records have one size. Each record is checked when it is copied, so that damage on the disk is never
written again with a right checksum.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from embstore.arrays import Keys
from embstore.layout import RECORD_HEADER_BYTES
from embstore.storage.base import have_rows
from embstore.storage.cold import prefetch_cold_pages
from embstore.storage.key_index import GROUP_BITS
from embstore.storage.records import copy_records
from embstore.storage.run import Run, RunWriter

_PIECE_BYTES = 8 << 20


class WrongRecordError(Exception):
    """The record of a row is not as it was written; `row_key` is the row's key."""

    def __init__(self, row_key: int) -> None:
        super().__init__(row_key)
        self.row_key = row_key


class Stored(NamedTuple):
    """Records in mapped files: the row key, address and size in bytes of each record."""

    keys: Keys
    addresses: NDArray[np.uint64]
    sizes: NDArray[np.int64]

    @classmethod
    def none(cls) -> "Stored":
        """Return a value without records."""
        return cls(np.empty(0, np.int64), np.empty(0, np.uint64), np.empty(0, np.int64))

    def at(self, where: NDArray[np.bool_] | NDArray[np.int64] | slice) -> "Stored":
        """Return the rows that `where` selects."""
        return Stored(self.keys[where], self.addresses[where], self.sizes[where])

    @property
    def are_deleted(self) -> NDArray[np.bool_]:
        """Whether each row is a tombstone, (n,)."""
        deleted: NDArray[np.bool_] = self.sizes == RECORD_HEADER_BYTES
        return deleted


def newest(parts: list[Stored]) -> Stored:
    """Return the newest record of each row key, by ascending key. `parts` are given oldest first,
    and so are the records of each part."""
    stored = Stored(*(np.concatenate(column) for column in zip(*parts, strict=True)))
    if len(parts) == 1 and (stored.keys[1:] > stored.keys[:-1]).all():
        return stored
    order = np.argsort(stored.keys, kind="stable")
    keys = stored.keys[order]
    last = np.append(keys[1:] != keys[:-1], True)[: len(keys)]
    return stored.at(order[last])


def rows_between(run: Run, low: int, high: int) -> Stored:
    """Return the rows of a run whose row keys are in [low, high)."""
    found = [Stored.none()]
    for part in run:
        a, b = max(part.entry.low, low), min(part.entry.high, high)
        if a < b:
            found.append(Stored(*part.file.rows_between(a, b)))
    return Stored(*(np.concatenate(column) for column in zip(*found, strict=True)))


def group_counts(runs: Iterable[Run], low: int, high: int) -> NDArray[np.int64]:
    """Return an array, (groups, 2): for each group with keys in [low, high), the number that
    identifies the group, and the count of its keys. A group occurs once per file that has keys of
    the group."""
    ends = [low >> GROUP_BITS, -(-high >> GROUP_BITS)]
    found = [np.empty((0, 2), np.int64)]
    for index in {id(p.file): p.file.index for run in runs for p in run}.values():
        first, last = np.searchsorted(index.directory[:, 0], ends)
        found.append(index.directory[first:last, :2])
    return np.concatenate(found)


def cuts_of(counted: NDArray[np.int64], low: int, high: int, piece_rows: int) -> Iterator[int]:
    """Yield row keys from `low` to `high` that cut the groups counted by `group_counts` into pieces
    of about `piece_rows` rows."""
    yield low
    groups, counts = counted.T
    order = np.argsort(groups, kind="stable")
    piece = np.cumsum(counts[order]) // piece_rows
    last = low
    for at in np.flatnonzero(np.diff(piece)).tolist():
        cut = int(groups[order[at]]) << GROUP_BITS
        if last < cut < high:
            yield cut
            last = cut
    yield high


def records_of(stored: Stored) -> Iterator[tuple[Keys, NDArray[np.uint64]]]:
    """Yield row keys and checked records, (n, words), in order. The records of a piece have one
    size.

    Raises
    ------
    WrongRecordError : a record is damaged.
    """
    sizes = stored.sizes
    cuts = [0, *(np.flatnonzero(np.diff(sizes)) + 1).tolist(), len(sizes)]
    for first, end in pairwise(cuts):
        step = max(1, _PIECE_BYTES // int(sizes[first])) if first < end else 1
        for low in range(first, end, step):
            piece = slice(low, min(low + step, end))
            yield (
                stored.keys[piece],
                _copy(stored.keys[piece], stored.addresses[piece], sizes[first]),
            )


def write_newest(
    stored: Stored, older: Sequence[Run], writer: RunWriter, copied: Callable[[], None]
) -> None:
    """Write the newest records of ascending row keys to a run; `copied` is called between pieces.

    older : all runs below the written run, oldest first; a tombstone is omitted if no older run has
        the row that it deletes

    Raises WrongRecordError if a record is damaged.
    """
    deleted = stored.keys[stored.are_deleted]
    writer.bury(deleted[have_rows(older, deleted)])
    for keys, records in records_of(stored.at(~stored.are_deleted)):
        writer.append(keys, records)
        copied()


def _copy(keys: Keys, addresses: NDArray[np.uint64], size: int) -> NDArray[np.uint64]:
    prefetch_cold_pages(addresses, int(size))
    records = np.empty((len(keys), size // 8), np.uint64)
    wrong = copy_records(addresses, keys, records)
    if wrong >= 0:
        raise WrongRecordError(int(keys[wrong]))
    return records
