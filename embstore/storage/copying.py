"""Rows from files to a file: how every merge copies records.

A merge knows its rows by key, address and record bytes. They are copied in pieces of one record
size, each record checked on the way: what is wrong on the disk is not written again with a right
checksum.
"""

from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from embstore.arrays import KEY_BITS, KEY_MASK, Keys
from embstore.errors import CorruptTableError
from embstore.storage.cold import prefetch_cold_pages
from embstore.storage.records import copy_records

_PIECE_BYTES = 8 << 20


class Stored(NamedTuple):
    """Records in mapped files: row keys, and address and bytes of each."""

    keys: Keys
    addresses: NDArray[np.uint64]
    sizes: NDArray[np.int64]

    def at(self, where: NDArray[np.bool_] | NDArray[np.int64]) -> "Stored":
        """Return some of them."""
        return Stored(self.keys[where], self.addresses[where], self.sizes[where])


def newest(parts: list[Stored]) -> Stored:
    """Return the newest record of each row key, by key; `parts` and their records oldest first."""
    stored = Stored(*(np.concatenate(column) for column in zip(*parts, strict=True)))
    if len(parts) == 1 and (stored.keys[1:] > stored.keys[:-1]).all():
        return stored
    order = np.argsort(stored.keys, kind="stable")
    keys = stored.keys[order]
    last = np.append(keys[1:] != keys[:-1], True)[: len(keys)]
    return stored.at(order[last])


def records_of(stored: Stored) -> Iterator[tuple[Keys, NDArray[np.uint64]]]:
    """Yield row keys and checked records (n, words) in order, in pieces of one record size.

    Raises
    ------
    CorruptTableError : a record is not what was written.
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


def _copy(keys: Keys, addresses: NDArray[np.uint64], size: int) -> NDArray[np.uint64]:
    prefetch_cold_pages(addresses, int(size))
    records = np.empty((len(keys), size // 8), np.uint64)
    wrong = copy_records(addresses, keys, records)
    if wrong >= 0:
        key = int(keys[wrong])
        raise CorruptTableError(
            f"the stored record of table {key >> KEY_BITS}, key {key & KEY_MASK} fails its checksum"
        )
    return records
