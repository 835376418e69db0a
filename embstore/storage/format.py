"""The format on disk: magic numbers, headers, and the form of a row. Little-endian throughout.

store.json       {"format", "endianness", "store_id"}: checked before any other file is trusted
CATALOGUE        a line with title, format and blake2b, then JSON (catalogue.py); LINEAGE and SHARD
                 have the same form
log/N.log        header page, then records back to back, then a key index and a trailer (log.py)
base/N-P.rows    header page, then records by key, then their index and a trailer (run.py)
ids/N.ids        header page, then the ids of row numbers of a sparse table (id_files.py)
commands/N.commands  header page, then the uncommitted commands (command_records.py)

A **record** has the same form in all files: CRC-32C (8 bytes, of which the upper four are zero),
row key (8), and the row in the form that it has in the cache (`embstore.layout`). The checksum
covers the row key and the row, so the checksum detects a record that was read from a wrong offset
as surely as a record with a flipped bit. A **tombstone** is a record that contains no row; it marks
a row as deleted. The indexes of log and base contain the length of each record, so they show which
records are tombstones, without reading the records.

A **header** is 80 bytes on a page of its own: magic (8), format (4), byte order mark (4), bytes of
a key (2), type of a row's elements (2), extra bytes of a row (4), store id (16), three numbers
whose meaning depends on the kind of file (24), file id (8), CRC-32 of the first 72 bytes (8). A
file of another store is refused. The file id is random: only a file and its copies share it. If two
copies of a store both continue, they give the same names to different files; the file ids
distinguish these files.

At present keys are 8 bytes wide, elements are fp32, and a row contains weights and optimizer state
only. The header records these three properties. Therefore a later release can add wider keys, other
element types, or counts and times in rows, without a new form of header; and this release can
refuse such a store with a clear message.
"""

import hashlib
import secrets
import struct
import zlib

from embstore.errors import CorruptTableError, TableMismatchError

FORMAT = 8
"""The format number of a store. In addition, each kind of file has its own format number, which is
in the header of the file."""
ROOMS = ("log", "base", "ids")
"""Folders whose files the catalogue names."""
PAGE_BYTES = 4096
LOG_MAGIC = b"EMBS.LOG"
BASE_MAGIC = b"EMBSBASE"
COMMANDS_MAGIC = b"EMBSCOMM"
IDS_MAGIC = b"EMBS.IDS"
_FORMATS = {LOG_MAGIC: 4, COMMANDS_MAGIC: 5, BASE_MAGIC: 5, IDS_MAGIC: 2}
BACKUP_FORMAT = 1
"""The format number of the marker of a backup directory; the other files of a backup have the
formats above."""
_FILE_ID_BYTES = 8
_HEADER = struct.Struct("<8sIIHHI16sQQQ8sQ")
_CHECKED_BYTES = _HEADER.size - 8
_BYTE_ORDER = 0x01020304
_ROWS = (8, 1, 0)
"""Properties of rows: bytes of a key; type of the elements (1: fp32); bytes of a row that are
neither weights nor state."""


def checksum(data: bytes | memoryview) -> int:
    """Return the checksum of headers and indexes (rows have a CRC-32C, see records.py)."""
    return zlib.crc32(data)


def pack_header(
    magic: bytes, store_id: bytes, first: int = 0, second: int = 0, third: int = 0
) -> bytes:
    """Return the header page of a new file."""
    fields = (store_id, first, second, third, secrets.token_bytes(_FILE_ID_BYTES))
    head = _HEADER.pack(magic, _FORMATS[magic], _BYTE_ORDER, *_ROWS, *fields, 0)
    head = head[:_CHECKED_BYTES]
    return (head + struct.pack("<Q", checksum(head))).ljust(PAGE_BYTES, b"\0")


def unpack_header(page: bytes, magic: bytes, store_id: bytes, path: str) -> tuple[int, int, int]:
    """Check a header page, and return the three numbers that were passed to `pack_header`."""
    if len(page) < PAGE_BYTES:
        raise CorruptTableError(
            f"{path}: expected a header of {PAGE_BYTES} bytes, found {len(page)}"
        )
    found_magic, version, order, *found = _HEADER.unpack(page[: _HEADER.size])
    (*rows, found_id), numbers, crc = found[:4], found[4:7], found[8]
    if found_magic != magic:
        raise CorruptTableError(f"{path}: expected magic {magic!r}, found {found_magic!r}")
    if crc != checksum(page[:_CHECKED_BYTES]) or any(page[_HEADER.size :]):
        raise CorruptTableError(f"{path}: the header's checksum does not match")
    form = _FORMATS[magic]
    if version != form or order != _BYTE_ORDER:
        raise TableMismatchError(
            f"{path}: expected format {form}, little-endian, found format {version}, mark "
            f"{order:#x}"
        )
    if tuple(rows) != _ROWS:
        raise TableMismatchError(
            f"{path}: expected keys of 8 bytes, elements of type 1 (fp32) and no extra bytes in a "
            f"row, found {rows[0]}, {rows[1]} and {rows[2]}: open it with the newer release that "
            "wrote it"
        )
    if found_id != store_id:
        raise CorruptTableError(
            f"{path}: belongs to store {found_id.hex()}, not to {store_id.hex()}"
        )
    first, second, third = numbers
    return first, second, third


def seal(title: str, form: int, body: bytes) -> bytes:
    """Return the content of a small file: a line with its title, format and hash, then the body."""
    return f"EMBSTORE {title} {form} {_hash(body)}\n".encode() + body


def unseal(title: str, form: int, content: bytes, path: str) -> bytes:
    """Return the body of a small file.

    Raises CorruptTableError if the file is damaged, and TableMismatchError if it has another
    format.
    """
    line, _, body = content.partition(b"\n")
    words = line.decode("ascii", "replace").split(" ")
    if len(words) != 4 or words[:2] != ["EMBSTORE", title]:
        raise CorruptTableError(
            f"{path}: expected a line starting with 'EMBSTORE {title}', found {line[:40]!r}"
        )
    if words[3] != _hash(body):
        raise CorruptTableError(f"{path}: the checksum does not match")
    if words[2] != str(form):
        raise TableMismatchError(f"{path}: expected format {form}, found {words[2]}")
    return body


def _hash(body: bytes) -> str:
    return hashlib.blake2b(body, digest_size=32).hexdigest()
