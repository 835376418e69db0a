"""What is on disk: magic numbers, headers, and where a row is. Little-endian throughout.

store.json       {"format", "endianness", "store_id"}: read before anything else is believed
CATALOGUE        a line with magic, format and blake2b, then JSON (catalogue.py)
log/N.log        header page, then records back to back, then a key index and a trailer (log.py)
base/T/S.rows    header page, then pages of records by key; sparse (base.py)
base/T/G.written which rows the base has as of one fold; never changed (written.py)
commands/N.commands  header page, then the commands that no commit has yet (command_records.py)

A **record** is the same everywhere: CRC-32C (8 bytes, upper four zero), row key (8), and the row as
the cache has it (`embstore.layout`). The checksum covers row key and row, so a record read
from the wrong place fails as surely as one with a flipped bit.

A **header** is 64 bytes on a page of its own: magic (8), format (4), byte order mark (4), store id
(16), two numbers of the file's kind (16), zero (8), CRC-32 of the first 56 bytes (8). A file of
another store is refused.
"""

import struct
import zlib
from dataclasses import dataclass

from embstore.errors import CorruptTableError, TableMismatchError

FORMAT = 1
PAGE_BYTES = 4096
LOG_MAGIC = b"EMBS.LOG"
BASE_MAGIC = b"EMBSBASE"
WRITTEN_MAGIC = b"EMBSWRIT"
COMMANDS_MAGIC = b"EMBSCOMM"
_HEADER = struct.Struct("<8sII16sQQQQ")
_BYTE_ORDER = 0x01020304


def checksum(data: bytes | memoryview) -> int:
    """Return the checksum of headers, indexes and bitmaps (rows have CRC-32C, in records.py)."""
    return zlib.crc32(data)


def pack_header(magic: bytes, store_id: bytes, first: int = 0, second: int = 0) -> bytes:
    """Return a file's header page."""
    head = _HEADER.pack(magic, FORMAT, _BYTE_ORDER, store_id, first, second, 0, 0)[:56]
    return (head + struct.pack("<Q", checksum(head))).ljust(PAGE_BYTES, b"\0")


def unpack_header(page: bytes, magic: bytes, store_id: bytes, path: str) -> tuple[int, int]:
    """Check a header page and return its two numbers."""
    if len(page) < PAGE_BYTES:
        raise CorruptTableError(
            f"{path}: expected a header of {PAGE_BYTES} bytes, found {len(page)}"
        )
    found_magic, version, order, found_id, first, second, _, crc = _HEADER.unpack(
        page[: _HEADER.size]
    )
    if found_magic != magic:
        raise CorruptTableError(f"{path}: expected magic {magic!r}, found {found_magic!r}")
    if crc != checksum(page[:56]) or any(page[_HEADER.size :]):
        raise CorruptTableError(f"{path}: the header's checksum does not match")
    if version != FORMAT or order != _BYTE_ORDER:
        raise TableMismatchError(
            f"{path}: expected format {FORMAT}, little-endian, found format {version}, mark "
            f"{order:#x}"
        )
    if found_id != store_id:
        raise CorruptTableError(
            f"{path}: belongs to store {found_id.hex()}, not to {store_id.hex()}"
        )
    return first, second


@dataclass(frozen=True)
class BaseGeometry:
    """Where the base keeps key k: no record straddles a page unless it is larger than one."""

    record_bytes: int
    segment_bytes: int

    @property
    def records_per_page(self) -> int:
        """Records on one page; 0 where a record takes several pages."""
        return PAGE_BYTES // self.record_bytes

    @property
    def pages_per_record(self) -> int:
        """Pages that a record larger than a page takes."""
        return -(-self.record_bytes // PAGE_BYTES)

    @property
    def rows_per_segment(self) -> int:
        """Keys of one segment file."""
        pages = self.segment_bytes // PAGE_BYTES - 1
        return (
            pages * self.records_per_page
            if self.records_per_page
            else pages // self.pages_per_record
        )

    def file_bytes(self, rows: int) -> int:
        """Length of a segment file for the first `rows` keys of its segment."""
        if self.records_per_page:
            return PAGE_BYTES * (1 + -(-rows // self.records_per_page))
        return PAGE_BYTES * (1 + rows * self.pages_per_record)
