"""The base: a table's folded rows by key, and the bitmap of which there are any.

Rows are in sparse segment files at fixed places (format.BaseGeometry). A fold writes whole
records into pages (`write`), then a new file with the **written bitmap** as of that fold; the
catalogue's rename makes the bitmap current. A bitmap file never changes, so there is no torn state
to mend: before the rename the old bitmap is valid, and every row that the fold rewrote in place is
still found in the log first.

Holes of the row files are never read.
"""

from collections.abc import Iterable
from contextlib import closing
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from embstore.arithmetic.jit import (
    Int,
    Int64sIn,
    Uint8RowsIn,
    Uint8s,
    Uint64s,
    Uint64sIn,
    kernel,
)
from embstore.arrays import KEY_MASK, Keys
from embstore.errors import CorruptTableError
from embstore.storage.files import File, Files
from embstore.storage.format import (
    BASE_MAGIC,
    PAGE_BYTES,
    BaseGeometry,
    pack_header,
    unpack_header,
)
from embstore.storage.written import BITMAP_PAGE_KEYS, Written

_BLOCK_KEYS = 256
_WRITE_PAGES_MAX = 256
"""Pages that a fold writes with one system call, and the size of its buffer."""


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
        """Make the table's directory and its first segment, sparse."""
        self._files.make_directory(self.directory)
        self._open_segment(0, min(rows, self.geometry.rows_per_segment)).close()

    def load(self, written_path: str) -> None:
        """Make a bitmap file the current one, checked, and map the segments it needs."""
        written = Written.load(self._files, written_path, self._store_id, self._table_id)
        self.map_rows(written)
        self.use(written, written_path)

    def map_rows(self, written: Written) -> None:
        """Map the segments that a bitmap needs, which must be there and long enough."""
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

        A page is written whole, with its other rows, so that a fold costs one write for a run of
        neighbouring pages.
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
                with closing(self._files.open(self._path(number), write=True)) as file:
                    file.sync()
        self._files.sync_directory(self.directory)

    def _last_rows(self, written: Written) -> list[tuple[int, int]]:
        """Return (segment, rows it must have) for every segment with a written row."""
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
        with closing(self._open_segment(number, int(rows[-1]) + 1)) as file:
            for low, high in pairwise(_runs(pages, last_pages)):
                first = int(pages[low]) * PAGE_BYTES
                length = (int(last_pages[high - 1]) + 1) * PAGE_BYTES - first
                buffer = np.frombuffer(bytearray(file.read(first, length)), np.uint8)
                overlay(buffer, first, places[low:high], records[low:high].view(np.uint8))
                file.write(first, buffer.data)

    def _map(self, number: int, length: int) -> None:
        if number in self._maps and len(self._maps[number]) >= length:
            return
        path = self._path(number)
        if not self._files.exists(path):
            raise CorruptTableError(f"{path}: expected {length} bytes of rows, found no file")
        with closing(self._files.open(path)) as file:
            if file.size < length:
                raise CorruptTableError(
                    f"{path}: expected {length} bytes of rows, found {file.size}"
                )
            head = file.read(0, PAGE_BYTES)
            found = unpack_header(head, BASE_MAGIC, self._store_id, path)
            if found != (self._table_id, number):
                raise CorruptTableError(f"{path}: has rows of another table or segment")
            self._maps[number] = file.map(file.size)
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
