"""The header page of a file: what other releases wrote is refused in words."""

import zlib

import pytest

from embstore.errors import CorruptTableError, TableMismatchError
from embstore.storage.format import LOG_MAGIC, pack_header, unpack_header

STORE_ID = bytes(range(16))
KEY_BYTES, ELEMENT, EXTRA_BYTES = 16, 18, 20
"""Offsets of what a header says of rows."""


def changed(offset: int, value: int) -> bytes:
    """A header page with another byte, its checksum right."""
    page = bytearray(pack_header(LOG_MAGIC, STORE_ID, 7, 8, 9))
    page[offset] = value
    page[72:80] = zlib.crc32(page[:72]).to_bytes(8, "little")
    return bytes(page)


def test_a_header_comes_back():
    page = changed(KEY_BYTES, 8)
    assert unpack_header(page, LOG_MAGIC, STORE_ID, "log/1.log") == (7, 8, 9)


def test_headers_of_two_files_differ_by_their_file_id():
    one, other = (pack_header(LOG_MAGIC, STORE_ID, 7, 8, 9) for _ in range(2))
    assert one[64:72] != other[64:72]
    assert (one[:64], one[80:]) == (other[:64], other[80:])


@pytest.mark.parametrize(
    ("offset", "value", "found"),
    [(KEY_BYTES, 16, "16, 1 and 0"), (ELEMENT, 2, "8, 2 and 0"), (EXTRA_BYTES, 12, "8, 1 and 12")],
)
def test_rows_of_another_kind_are_refused(offset, value, found):
    with pytest.raises(TableMismatchError, match=f"log/1.log: .*found {found}: .*newer release"):
        unpack_header(changed(offset, value), LOG_MAGIC, STORE_ID, "log/1.log")


@pytest.mark.parametrize("offset", range(80))
def test_a_flipped_bit_is_found(offset):
    page = bytearray(pack_header(LOG_MAGIC, STORE_ID, 7, 8, 9))
    page[offset] ^= 1
    with pytest.raises(CorruptTableError):
        unpack_header(bytes(page), LOG_MAGIC, STORE_ID, "log/1.log")
