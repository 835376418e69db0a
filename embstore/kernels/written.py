"""The loops of the base (storage/base.py): the written bitmap, record addresses, pages of records.

    bit of key k     page k // 32,768 of `pages` (sorted), bit k % 32,768, low bit first
    address of k     map of segment k // rows per segment + header page + the record's place

Pure over their arguments; host memory only: no device has a twin of this.
"""

import numpy as np

from embstore.arithmetic.jit import (
    Int,
    Int64sIn,
    Uint8Rows,
    Uint8RowsIn,
    Uint8s,
    Uint64s,
    Uint64sIn,
    kernel,
)
from embstore.arrays import KEY_MASK

PAGE_BYTES = 4096
BITMAP_PAGE_KEYS = 8 * PAGE_BYTES


@kernel
def set_bits(bits: Uint8Rows, at: Int64sIn, offsets: Int64sIn) -> None:
    """Set the bit of each key: page `at`, bit `offsets`."""
    for i in range(at.shape[0]):
        bits[at[i], offsets[i] >> 3] |= np.uint8(1 << (offsets[i] & 7))


@kernel
def locate(
    keys: Int64sIn,  # (n,) row keys
    wanted: Int64sIn,  # (m,) positions in keys that are this table's
    pages: Int64sIn,
    bits: Uint8RowsIn,
    maps: Uint64sIn,  # (segments,) addresses of the segments' maps
    per_page: Int,  # records on a page, 0 where a record takes several
    per_record: Int,  # pages that a record takes
    per_segment: Int,  # rows of a segment
    size: Int,  # bytes of a record
    addresses: Uint64s,  # (n,) written where the base has the row
) -> int:
    """Write the record address of each wanted key that has a row; return how many have."""
    found = 0
    for j in range(wanted.shape[0]):
        i = wanted[j]
        key = keys[i] & KEY_MASK
        page = key // BITMAP_PAGE_KEYS
        at = np.searchsorted(pages, page)
        if at == pages.shape[0] or pages[at] != page:
            continue
        bit = key % BITMAP_PAGE_KEYS
        if not (bits[at, bit >> 3] >> (bit & 7)) & 1:
            continue
        row = key % per_segment
        if per_page:
            offset = PAGE_BYTES * (1 + row // per_page) + (row % per_page) * size
        else:
            offset = PAGE_BYTES * (1 + row * per_record)
        addresses[i] = maps[key // per_segment] + np.uint64(offset)
        found += 1
    return found


@kernel
def overlay(
    buffer: Uint8s,  # pages from `first` on
    first: Int,
    places: Int64sIn,  # (n,) byte offset of each record in the segment file
    records: Uint8RowsIn,  # (n, record bytes)
) -> None:
    """Copy records to their places in a buffer of whole pages."""
    for i in range(places.shape[0]):
        at = places[i] - first
        buffer[at : at + records.shape[1]] = records[i]
