"""Headers are checked by every byte; the base's geometry keeps records inside pages."""

import pytest

from embstore.errors import CorruptTableError, TableMismatchError
from embstore.storage import format as formats
from embstore.storage.format import (
    BASE_MAGIC,
    LOG_MAGIC,
    PAGE_BYTES,
    BaseGeometry,
    pack_header,
    unpack_header,
)
from tests.unit.storage_samples import STORE_ID, layout_of


def test_a_header_gives_back_its_numbers():
    page = pack_header(LOG_MAGIC, STORE_ID, 7, (1 << 64) - 1)
    assert len(page) == PAGE_BYTES
    assert unpack_header(page, LOG_MAGIC, STORE_ID, "f") == (7, (1 << 64) - 1)


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
    monkeypatch.setattr(formats, "FORMAT", 2)
    page = pack_header(LOG_MAGIC, STORE_ID)
    monkeypatch.undo()
    with pytest.raises(TableMismatchError, match=r"expected format 1, .* found format 2"):
        unpack_header(page, LOG_MAGIC, STORE_ID, "f")


@pytest.mark.parametrize("stride", [4, 8, 64, 68, 1020, 1024, 4096, 12288])
def test_geometry_fills_pages_and_wastes_no_more_than_it_must(stride):
    size = layout_of(stride).record_bytes
    geometry = BaseGeometry(size, 1 << 20)
    per_segment = geometry.rows_per_segment
    assert size % 16 == 0
    if size <= PAGE_BYTES:
        assert geometry.records_per_page == PAGE_BYTES // size
        assert per_segment == 255 * geometry.records_per_page
    else:
        assert geometry.records_per_page == 0
        assert (geometry.pages_per_record - 1) * PAGE_BYTES < size
        assert per_segment == 255 // geometry.pages_per_record
    assert geometry.file_bytes(per_segment) <= 1 << 20
    assert geometry.file_bytes(0) == PAGE_BYTES
    lengths = [geometry.file_bytes(rows) for rows in range(min(per_segment, 300))]
    assert lengths == sorted(lengths)
