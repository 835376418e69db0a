"""Headers are checked by every byte."""

import pytest

from embstore.errors import CorruptTableError, TableMismatchError
from embstore.storage import format as formats
from embstore.storage.format import (
    BASE_MAGIC,
    LOG_MAGIC,
    PAGE_BYTES,
    pack_header,
    unpack_header,
)
from tests.unit.storage_samples import STORE_ID


def test_a_header_gives_back_its_numbers():
    page = pack_header(LOG_MAGIC, STORE_ID, 7, (1 << 64) - 1, 3)
    assert len(page) == PAGE_BYTES
    assert unpack_header(page, LOG_MAGIC, STORE_ID, "f") == (7, (1 << 64) - 1, 3)


@pytest.mark.parametrize(
    "magic, store_id, length, message",
    [
        (BASE_MAGIC, STORE_ID, PAGE_BYTES, "expected magic b'EMBSBASE', found b'EMBS.LOG'"),
        (LOG_MAGIC, bytes(16), PAGE_BYTES, "belongs to store"),
        (LOG_MAGIC, STORE_ID, PAGE_BYTES - 1, "expected a header of 4096 bytes, found 4095"),
    ],
)
def test_what_is_wrong_with_a_header_is_said(magic, store_id, length, message):
    page = pack_header(LOG_MAGIC, STORE_ID)[:length]
    with pytest.raises(CorruptTableError, match=message):
        unpack_header(page, magic, store_id, "f")


def test_another_format_is_a_mismatch_and_no_corruption(monkeypatch):
    monkeypatch.setitem(formats._FORMATS, LOG_MAGIC, 3)
    page = pack_header(LOG_MAGIC, STORE_ID)
    monkeypatch.undo()
    with pytest.raises(TableMismatchError, match=r"expected format 1, .* found format 3"):
        unpack_header(page, LOG_MAGIC, STORE_ID, "f")
