"""The written bitmap of a table: which rows its base has, as of one fold.

It is kept by pages of 32,768 keys (a bit each, low bit first), only those with a row, in key order:

    header | page numbers (int64) | pages (4 KiB each)      header: pages, checksum of what follows

so it grows with the rows written, never with the table. It is checked once, when it is loaded, and
then read through the map. A bitmap file never changes.

Rejected: a bitmap changed in place (a torn page would need an undo record), and recognising
unwritten rows by zeros (reading a hole costs a page fault and a page of memory; a lost page would
go unnoticed).
"""

from contextlib import closing
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from embstore.arithmetic.jit import Int64sIn, Uint8Rows, kernel
from embstore.arrays import Keys
from embstore.errors import CorruptTableError
from embstore.storage.files import Files
from embstore.storage.format import (
    PAGE_BYTES,
    WRITTEN_MAGIC,
    checksum,
    pack_header,
    unpack_header,
)

BITMAP_PAGE_KEYS = 8 * PAGE_BYTES


@kernel
def set_bits(bits: Uint8Rows, at: Int64sIn, offsets: Int64sIn) -> None:
    """Set the bit of each key: page `at`, bit `offsets`."""
    for i in range(at.shape[0]):
        bits[at[i], offsets[i] >> 3] |= np.uint8(1 << (offsets[i] & 7))


@dataclass(frozen=True)
class Written:
    """Which keys of a table have a row in the base: bitmap pages by ascending page number."""

    pages: NDArray[np.int64]  # (m,)
    bits: NDArray[np.uint8]  # (m, PAGE_BYTES)

    @classmethod
    def none(cls) -> "Written":
        """Return the bitmap of a table that was never folded."""
        return cls(np.empty(0, np.int64), np.empty((0, PAGE_BYTES), np.uint8))

    def with_keys(self, keys: Keys) -> "Written":
        """Return a bitmap that also has `keys` (sorted, below 2**40)."""
        pages = np.union1d(self.pages, np.unique(keys // BITMAP_PAGE_KEYS))
        bits = np.zeros((len(pages), PAGE_BYTES), np.uint8)
        bits[np.searchsorted(pages, self.pages)] = self.bits
        at = np.searchsorted(pages, keys // BITMAP_PAGE_KEYS)
        set_bits(bits, at, keys % BITMAP_PAGE_KEYS)
        return Written(pages, bits)

    def keys_between(self, low: int, high: int) -> Keys:
        """Return the keys in [low, high) that have a row, ascending."""
        first, last = np.searchsorted(
            self.pages, [low // BITMAP_PAGE_KEYS, -(-high // BITMAP_PAGE_KEYS)]
        )
        flags = np.unpackbits(self.bits[first:last], axis=1, bitorder="little")
        page, bit = np.nonzero(flags)
        keys: Keys = self.pages[first:last][page] * BITMAP_PAGE_KEYS + bit
        return keys[(keys >= low) & (keys < high)]

    def blocks(self, block_keys: int) -> Keys:
        """Return the blocks of `block_keys` keys (dividing 32,768) that have a row, ascending."""
        per_page = BITMAP_PAGE_KEYS // block_keys
        used = self.bits.reshape(-1, per_page, block_keys // 8).any(axis=2)
        page, block = np.nonzero(used)
        blocks: Keys = self.pages[page] * per_page + block
        return blocks

    def save(self, files: Files, path: str, store_id: bytes, table_id: int) -> None:
        """Write the bitmap to a new file, durably."""
        content = self.pages.tobytes() + self.bits.tobytes()
        head = pack_header(
            WRITTEN_MAGIC,
            store_id,
            _own_number(path, table_id),
            len(self.pages) << 32 | checksum(content),
        )
        with closing(files.create(path)) as file:
            file.write(0, head)
            file.write(PAGE_BYTES, content)
            file.sync()

    @classmethod
    def load(cls, files: Files, path: str, store_id: bytes, table_id: int) -> "Written":
        """Read a bitmap file through a map and check it."""
        if not files.exists(path):
            raise CorruptTableError(f"{path}: expected a written bitmap, found none")
        with closing(files.open(path)) as file:
            found, counts = unpack_header(file.read(0, PAGE_BYTES), WRITTEN_MAGIC, store_id, path)
            pages, crc = counts >> 32, counts & 0xFFFFFFFF
            length = PAGE_BYTES + pages * (8 + PAGE_BYTES)
            if file.size != length or found != _own_number(path, table_id):
                raise CorruptTableError(
                    f"{path}: expected {length} bytes of table {table_id}, found {file.size}"
                )
            content = file.map(length)[PAGE_BYTES:]
        if checksum(content.data) != crc:
            raise CorruptTableError(f"{path}: the written bitmap does not match its checksum")
        return cls(
            content[: 8 * pages].view(np.int64),
            content[8 * pages :].reshape(pages, PAGE_BYTES),
        )


def _own_number(path: str, table_id: int) -> int:
    """Return what a bitmap's header carries: fold and table, so that no other can take its name."""
    return int(path.rsplit("/", 1)[-1].split(".")[0]) << 24 | table_id
