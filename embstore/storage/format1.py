"""Stores of format 1, which versions before 0.2 wrote: opened for writing, one becomes format 2.

In format 1 each table had a directory, `base/T`, with its rows at fixed places of sparse files
`S.rows`, and a bitmap `G.written` of which there are any. The other files are those of format 2. So
the rows of all bases are written to one run, then the catalogue of format 2 is put in the place of
the old one, then store.json; last, the old files go. A crash before the end is done again.
"""

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from embstore.arrays import KEY_BITS, Keys
from embstore.errors import CorruptTableError
from embstore.storage import catalogue as catalogues
from embstore.storage.catalogue import Catalogue
from embstore.storage.copying import Stored, records_of
from embstore.storage.files import Files
from embstore.storage.format import BASE_MAGIC, PAGE_BYTES, checksum, unpack_header
from embstore.storage.run import RunWriter

_WRITTEN_MAGIC = b"EMBSWRIT"
_PAGE_KEYS = 8 * PAGE_BYTES


def migrate(files: Files, store_id: str, content: bytes, part_bytes: int) -> Catalogue:
    """Replace a catalogue of format 1, whose file has `content`, and remove the base it names.

    Raises
    ------
    CapacityError : no room for the base a second time; the store is as it was.
    CorruptTableError : a file is not what was written.
    """
    if catalogues.format_of(content) != "1":  # cut off behind the catalogue
        new = catalogues.decode(content)
    else:
        fields = catalogues.fields_of(content, 1)
        try:
            segment_bytes, bitmaps = fields.pop("base_segment_bytes"), fields.pop("written")
        except KeyError as exc:
            raise CorruptTableError(f"{catalogues.PATH}: has no base") from exc
        old = catalogues.of_fields(fields | {"runs": ()})
        states = [old.head, *(c.state for c in old.checkpoints)]
        commit = min(state.commit for state in states)  # it folded no further
        writer = RunWriter(files, bytes.fromhex(store_id), old.next_segment, commit, part_bytes)
        try:
            for base in _bases(files, store_id, old, segment_bytes, bitmaps):
                for stored in base.pages():
                    for keys, records in records_of(stored):
                        writer.append(keys, records)
            writer.close()
        except BaseException:
            writer.abandon()
            raise
        runs = (tuple(writer.entries),) if writer.entries else ()
        new = replace(old, next_segment=old.next_segment + 1, runs=runs)
        files.replace(catalogues.PATH, catalogues.encode(new))
    for name in files.list("base"):
        if name.isdigit():
            files.discard(f"base/{name}", directory=True)
    return new


def _bases(
    files: Files, store_id: str, old: Catalogue, segment_bytes: int, bitmaps: dict[str, str]
) -> Iterator["_Base"]:
    states = [old.head, *(c.state for c in old.checkpoints)]
    tables = {t.table_id: t for state in states for t in state.tables}
    for table_id in sorted(map(int, bitmaps)):
        size = tables[table_id].config().layout.record_bytes
        path = bitmaps[str(table_id)]
        yield _Base(files, bytes.fromhex(store_id), table_id, size, segment_bytes, path)


@dataclass
class _Base:
    """The base of one table."""

    files: Files
    store_id: bytes
    table_id: int
    record_bytes: int
    segment_bytes: int
    bitmap: str

    def pages(self) -> Iterator[Stored]:
        """Yield the rows of each page of the bitmap, in key order."""
        numbers, bits = self._read_bitmap()
        maps: dict[int, NDArray[np.uint8]] = {}
        for number, page in zip(numbers.tolist(), bits, strict=True):
            keys = number * _PAGE_KEYS + np.flatnonzero(np.unpackbits(page, bitorder="little"))
            segments, offsets = self._places(keys)
            for segment in np.unique(segments).tolist():
                if segment not in maps:
                    maps = {segment: self._map(segment)}  # keys ascend: the last is not needed
                here = segments == segment
                if int(offsets[here][-1]) + self.record_bytes > maps[segment].nbytes:
                    raise CorruptTableError(f"{self._path(segment)}: too short for its rows")
                addresses = offsets[here].astype(np.uint64)
                addresses += np.uint64(maps[segment].ctypes.data)
                row_keys: Keys = keys[here] | self.table_id << KEY_BITS
                sizes = np.full(len(row_keys), self.record_bytes, np.int64)
                yield Stored(row_keys, addresses, sizes)

    def _places(self, keys: Keys) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return segment and offset of each key: no record crosses a page that it fits on."""
        pages, per_page = self.segment_bytes // PAGE_BYTES - 1, PAGE_BYTES // self.record_bytes
        if per_page:
            segments, rows = np.divmod(keys, pages * per_page)
            return segments, (
                PAGE_BYTES * (1 + rows // per_page) + rows % per_page * self.record_bytes
            )
        each = -(-self.record_bytes // PAGE_BYTES)
        segments, rows = np.divmod(keys, pages // each)
        return segments, PAGE_BYTES * (1 + rows * each)

    def _read_bitmap(self) -> tuple[NDArray[np.int64], NDArray[np.uint8]]:
        path = self.bitmap
        if not self.files.exists(path):
            raise CorruptTableError(f"{path}: expected a written bitmap, found none")
        content = self.files.read_all(path)
        head = unpack_header(content[:PAGE_BYTES], _WRITTEN_MAGIC, self.store_id, path, 1)
        number = int(path.rsplit("/", 1)[-1].split(".")[0]) << 24 | self.table_id
        pages, body = head[1] >> 32, memoryview(content)[PAGE_BYTES:]
        if len(body) != pages * (8 + PAGE_BYTES) or head != (number, pages << 32 | checksum(body)):
            raise CorruptTableError(f"{path}: the written bitmap does not match its checksum")
        bits = np.frombuffer(body[8 * pages :], np.uint8).reshape(pages, PAGE_BYTES)
        return np.frombuffer(body[: 8 * pages], np.int64), bits

    def _path(self, segment: int) -> str:
        return f"base/{self.table_id}/{segment:06d}.rows"

    def _map(self, segment: int) -> NDArray[np.uint8]:
        path = self._path(segment)
        if not self.files.exists(path):
            raise CorruptTableError(f"{path}: expected rows, found no file")
        with closing(self.files.open(path)) as file:
            head = file.read(0, PAGE_BYTES)
            if unpack_header(head, BASE_MAGIC, self.store_id, path, 1) != (self.table_id, segment):
                raise CorruptTableError(f"{path}: has rows of another table or segment")
            return file.map(file.size)
