"""The base: a table's folded rows by key, and the bitmap of which there are any.

Rows stand in sparse segment files at fixed places (format.BaseGeometry). A fold writes whole
records into pages (`write`), then a new file with the **written bitmap** as of that fold; the
catalogue's rename makes the bitmap current. A bitmap file never changes, so there is no torn state
to mend: before the rename the old bitmap is valid, and every row that the fold rewrote in place is
still found in the log first.

The bitmap is kept by pages of 32,768 keys, only those with a row, in key order:

    header | page numbers (int64) | pages (4 KiB each)      header: pages, checksum of what follows

so it grows with the rows written, never with the table. It is checked once, when it is loaded, and
then read through the map. Holes of the row files are never read.

Rejected: a bitmap changed in place (a torn page would need an undo record), and recognising
unwritten rows by zeros (reading a hole costs a page fault and a page of memory; a lost page would
go unnoticed).
"""

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from embstore.arrays import Keys
from embstore.errors import CorruptTableError
from embstore.kernels.written import BITMAP_PAGE_KEYS, locate, overlay, set_bits
from embstore.storage.files import File, Files
from embstore.storage.format import (
    BASE_MAGIC,
    PAGE_BYTES,
    WRITTEN_MAGIC,
    BaseGeometry,
    checksum,
    pack_header,
    unpack_header,
)

_BLOCK_KEYS = 256
_WRITE_PAGES_MAX = 256
"""Pages that a fold writes with one system call, and the size of its buffer."""


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
        file = files.create(path)
        try:
            file.write(0, head)
            file.write(PAGE_BYTES, content)
            file.sync()
        finally:
            file.close()

    @classmethod
    def load(cls, files: Files, path: str, store_id: bytes, table_id: int) -> "Written":
        """Read a bitmap file through a map and check it.

        Raises
        ------
        CorruptTableError : the file is missing or not what was written.
        """
        if not files.exists(path):
            raise CorruptTableError(f"{path}: expected a written bitmap, found none")
        file = files.open(path)
        try:
            found, counts = unpack_header(file.read(0, PAGE_BYTES), WRITTEN_MAGIC, store_id, path)
            pages, crc = counts >> 32, counts & 0xFFFFFFFF
            length = PAGE_BYTES + pages * (8 + PAGE_BYTES)
            if file.size != length or found != _own_number(path, table_id):
                raise CorruptTableError(
                    f"{path}: expected {length} bytes of table {table_id}, found {file.size}"
                )
            content = file.map(length)[PAGE_BYTES:]
        finally:
            file.close()
        if checksum(content.data) != crc:
            raise CorruptTableError(f"{path}: the written bitmap does not match its checksum")
        return cls(
            content[: 8 * pages].view(np.int64),
            content[8 * pages :].reshape(pages, PAGE_BYTES),
        )


def _own_number(path: str, table_id: int) -> int:
    """Return what a bitmap's header carries: fold and table, so that no other can take its name."""
    return int(path.rsplit("/", 1)[-1].split(".")[0]) << 24 | table_id


class Base:
    """The base files of one table. Reads on the engine thread, `write` on the thread of a fold."""

    def __init__(
        self, files: Files, store_id: bytes, table_id: int, geometry: BaseGeometry
    ) -> None:
        self.written = Written.none()
        self.written_path = ""
        self.geometry = geometry
        self.directory = f"base/{table_id}"
        self._files = files
        self._store_id = store_id
        self._table_id = table_id
        self._maps: dict[int, NDArray[np.uint8]] = {}
        self._addresses = np.zeros(0, np.uint64)

    def create(self, rows: int) -> None:
        """Make the table's directory and its first segment, sparse.

        Raises
        ------
        CapacityError : the file system cannot hold a segment of this length.
        """
        self._files.make_directory(self.directory)
        self._open_segment(0, min(rows, self.geometry.rows_per_segment)).close()

    def load(self, written_path: str) -> None:
        """Make a bitmap file the current one and map the segments it needs.

        Raises
        ------
        CorruptTableError : the bitmap or a segment is not what was written.
        """
        written = Written.load(self._files, written_path, self._store_id, self._table_id)
        self.map_rows(written)
        self.use(written, written_path)

    def map_rows(self, written: Written) -> None:
        """Map the segments that a bitmap needs; nothing else changes.

        Raises
        ------
        CapacityError : no room in the address space.
        CorruptTableError : a segment is missing or too short.
        """
        for number, rows in self._last_rows(written):
            self._map(number, self.geometry.file_bytes(rows))

    def use(self, written: Written, path: str) -> None:
        """Make `written`, whose rows are mapped, the current bitmap."""
        self.written, self.written_path = written, path

    @property
    def maps(self) -> Iterable[NDArray[np.uint8]]:
        """The maps of its segments."""
        return self._maps.values()

    def locate(self, keys: Keys, wanted: NDArray[np.int64], addresses: NDArray[np.uint64]) -> int:
        """Write the record addresses of keys[wanted] that the base has; return how many."""
        if not len(self.written.pages):
            return 0
        g = self.geometry
        return locate(
            keys,
            wanted,
            self.written.pages,
            self.written.bits,
            self._addresses,
            g.records_per_page,
            g.pages_per_record,
            g.rows_per_segment,
            g.record_bytes,
            addresses,
        )

    def write(self, keys: Keys, records: NDArray[np.uint64]) -> None:
        """Write records (n, words) of ascending keys (below 2**40) in page order. Not yet durable.

        A page is written whole, with what else stands on it, so that a fold costs one write a run
        of neighbouring pages.
        """
        per_segment = self.geometry.rows_per_segment
        cuts = np.searchsorted(
            keys,
            np.arange(keys[0] // per_segment, keys[-1] // per_segment + 2) * per_segment,
        )
        for low, high in pairwise(cuts.tolist()):
            if low < high:
                number = int(keys[low]) // per_segment
                self._write_segment(
                    number, keys[low:high] - number * per_segment, records[low:high]
                )

    def save_written(self, keys: Keys, path: str) -> tuple[Written, str]:
        """Save the bitmap that also has `keys` (ascending); return it, read back, and its path.

        Read back, because the map costs no memory of the process, whatever the size of the table.
        """
        written = self.written.with_keys(keys)
        written.save(self._files, path, self._store_id, self._table_id)
        self._files.sync_directory(self.directory)
        return Written.load(self._files, path, self._store_id, self._table_id), path

    def sync(self, low_key: int, high_key: int) -> None:
        """Return once the segments of the keys in [low_key, high_key] are on the disk."""
        per_segment = self.geometry.rows_per_segment
        for number in range(low_key // per_segment, high_key // per_segment + 1):
            if self._files.exists(self._path(number)):
                file = self._files.open(self._path(number), write=True)
                try:
                    file.sync()
                finally:
                    file.close()
        self._files.sync_directory(self.directory)

    def _last_rows(self, written: Written) -> list[tuple[int, int]]:
        """Return (segment, rows it must hold) for every segment with a written row."""
        per_segment = self.geometry.rows_per_segment
        starts = written.blocks(_BLOCK_KEYS) * _BLOCK_KEYS
        firsts, lasts = starts // per_segment, (starts + _BLOCK_KEYS - 1) // per_segment
        spans = lasts - firsts + 1  # above 1 where a block reaches into other segments
        numbers = np.repeat(firsts - np.cumsum(spans) + spans, spans) + np.arange(spans.sum())
        result = []
        for number in np.unique(numbers).tolist():
            end = (number + 1) * per_segment
            # The last block before the end may have only keys beyond it; the one before has none.
            last_two = starts[max(int(np.searchsorted(starts, end)) - 2, 0)]
            keys = written.keys_between(max(int(last_two), number * per_segment), end)
            if len(keys):
                result.append((number, int(keys[-1]) - number * per_segment + 1))
        return result

    def _path(self, number: int) -> str:
        return f"{self.directory}/{number:06d}.rows"

    def _open_segment(self, number: int, rows: int) -> File:
        path = self._path(number)
        length = self.geometry.file_bytes(rows)
        exists = self._files.exists(path)
        file = self._files.open(path, write=True) if exists else self._files.create(path)
        try:
            # Again at every fold: an unfinished creation may have lost it.
            file.write(0, pack_header(BASE_MAGIC, self._store_id, self._table_id, number))
            if file.size < length:
                file.truncate(length)
        except BaseException:
            file.close()
            raise
        return file

    def _write_segment(self, number: int, rows: Keys, records: NDArray[np.uint64]) -> None:
        geometry = self.geometry
        if geometry.records_per_page:
            pages = 1 + rows // geometry.records_per_page
            places = pages * PAGE_BYTES + rows % geometry.records_per_page * geometry.record_bytes
            last_pages = pages
        else:
            pages = 1 + rows * geometry.pages_per_record
            places = pages * PAGE_BYTES
            last_pages = pages + geometry.pages_per_record - 1
        file = self._open_segment(number, int(rows[-1]) + 1)
        try:
            cuts = _runs(pages, last_pages)
            for low, high in pairwise(cuts):
                first = int(pages[low]) * PAGE_BYTES
                length = (int(last_pages[high - 1]) + 1) * PAGE_BYTES - first
                buffer = np.frombuffer(bytearray(file.read(first, length)), np.uint8)
                overlay(buffer, first, places[low:high], records[low:high].view(np.uint8))
                file.write(first, buffer.data)
        finally:
            file.close()

    def _map(self, number: int, length: int) -> None:
        if number in self._maps and len(self._maps[number]) >= length:
            return
        path = self._path(number)
        if not self._files.exists(path):
            raise CorruptTableError(f"{path}: expected {length} bytes of rows, found no file")
        file = self._files.open(path)
        try:
            if file.size < length:
                raise CorruptTableError(
                    f"{path}: expected {length} bytes of rows, found {file.size}"
                )
            head = file.read(0, PAGE_BYTES)
            if unpack_header(head, BASE_MAGIC, self._store_id, path) != (
                self._table_id,
                number,
            ):
                raise CorruptTableError(f"{path}: holds rows of another table or segment")
            self._maps[number] = file.map(file.size)
        finally:
            file.close()
        addresses = np.zeros(max(number + 1, len(self._addresses)), np.uint64)
        addresses[: len(self._addresses)] = self._addresses
        addresses[number] = self._maps[number].ctypes.data
        self._addresses = addresses


def _runs(pages: NDArray[np.int64], last_pages: NDArray[np.int64]) -> list[int]:
    """Cut ascending records into runs of neighbouring pages, of bounded length."""
    apart = np.flatnonzero(pages[1:] > last_pages[:-1] + 1) + 1
    cuts = [0, *apart.tolist(), len(pages)]
    runs = [0]
    for low, high in pairwise(cuts):
        while low < high:
            low += max(1, int(np.searchsorted(pages[low:high], pages[low] + _WRITE_PAGES_MAX)))
            low = min(low, high)
            runs.append(low)
    return runs
