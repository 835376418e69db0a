"""The end of a file that never changes: its key index, and a trailer with the index's offset.

    ... | key index | trailer

The trailer (64 bytes) contains a magic number, the file's number, two counts of the index, the
offset and the checksum of the index, the checksum of the trailer, and zero. The catalogue also
contains the length of the file and the checksum of the index. Therefore a wrong or truncated file
is detected before its index is used.
"""

import struct
from typing import NamedTuple, Protocol

from embstore.errors import CorruptTableError
from embstore.storage.files import File
from embstore.storage.format import PAGE_BYTES, checksum

_TRAILER = struct.Struct("<8sQQQQQQQ")
_CHECKED_BYTES = 48
TRAILER_BYTES = _TRAILER.size


class Committed(Protocol):
    """The entry of a file in the catalogue."""

    @property
    def number(self) -> int:
        """Number of the file; all parts of a run have the same number."""

    @property
    def bytes(self) -> int:
        """Length of the file in bytes."""

    @property
    def checksum(self) -> int:
        """Checksum of the file's key index."""


class IndexBytes(NamedTuple):
    """The key index of a file as it was read, with the two counts that are needed to decode it."""

    first: int
    second: int
    at: int
    """Offset of the index in the file."""
    content: bytes


def pack_trailer(magic: bytes, number: int, first: int, second: int, at: int, crc: int) -> bytes:
    """Return the trailer of a file whose key index begins at `at`."""
    head = _TRAILER.pack(magic, number, first, second, at, crc, 0, 0)[:_CHECKED_BYTES]
    return head + struct.pack("<QQ", checksum(head), 0)


def read_index(file: File, magic: bytes, entry: Committed) -> IndexBytes:
    """Return the key index of a file after checking its length, trailer and index against `entry`.

    The index is read in one piece, which is far faster than reading it page by page through a map.
    """
    path, length = file.path, entry.bytes
    if file.size != length or length < PAGE_BYTES + TRAILER_BYTES:
        raise CorruptTableError(f"{path}: expected {length} bytes, found {file.size}")
    data = file.read(length - TRAILER_BYTES, TRAILER_BYTES)
    found, number, first, second, at, index_crc, crc, zero = _TRAILER.unpack(data)
    expected = (magic, entry.number, entry.checksum, checksum(data[:_CHECKED_BYTES]), 0)
    if (found, number, index_crc, crc, zero) != expected:
        raise CorruptTableError(f"{path}: the trailer is not the committed one")
    content = file.read(at, length - TRAILER_BYTES - at)
    if checksum(content) != entry.checksum:
        raise CorruptTableError(f"{path}: the key index does not match its checksum")
    return IndexBytes(first, second, at, content)
