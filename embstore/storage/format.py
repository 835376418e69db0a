"""What is on disk: magic numbers, headers, and where a row is. Little-endian throughout.

store.json       {"format", "endianness", "store_id"}: read before anything else is believed
CATALOGUE        a line with magic, format and blake2b, then JSON (catalogue.py)
log/N.log        header page, then records back to back, then a key index and a trailer (log.py)
base/N-P.rows    header page, then records by key, then their index and a trailer (run.py)
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

from embstore.errors import CorruptTableError, TableMismatchError

FORMAT = 2
"""Of a store; a file's header has the format of its own kind."""
PAGE_BYTES = 4096
LOG_MAGIC = b"EMBS.LOG"
BASE_MAGIC = b"EMBSBASE"
COMMANDS_MAGIC = b"EMBSCOMM"
_FORMATS = {LOG_MAGIC: 1, COMMANDS_MAGIC: 1, BASE_MAGIC: 2}
_HEADER = struct.Struct("<8sII16sQQQQ")
_BYTE_ORDER = 0x01020304


def checksum(data: bytes | memoryview) -> int:
    """Return the checksum of headers and indexes (rows have CRC-32C, in records.py)."""
    return zlib.crc32(data)


def pack_header(magic: bytes, store_id: bytes, first: int = 0, second: int = 0) -> bytes:
    """Return a file's header page."""
    head = _HEADER.pack(magic, _FORMATS[magic], _BYTE_ORDER, store_id, first, second, 0, 0)[:56]
    return (head + struct.pack("<Q", checksum(head))).ljust(PAGE_BYTES, b"\0")


def unpack_header(
    page: bytes, magic: bytes, store_id: bytes, path: str, form: int = 0
) -> tuple[int, int]:
    """Check a header page and return its two numbers.

    form : the format it must have; 0: today's
    """
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
    form = form or _FORMATS[magic]
    if version != form or order != _BYTE_ORDER:
        raise TableMismatchError(
            f"{path}: expected format {form}, little-endian, found format {version}, mark "
            f"{order:#x}"
        )
    if found_id != store_id:
        raise CorruptTableError(
            f"{path}: belongs to store {found_id.hex()}, not to {store_id.hex()}"
        )
    return first, second
