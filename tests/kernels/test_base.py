"""The base's loops: bits of keys, places of records, and records laid over pages."""

import numpy as np
import pytest

from embstore.storage.base import locate, overlay
from embstore.storage.format import PAGE_BYTES, BaseGeometry
from embstore.storage.written import BITMAP_PAGE_KEYS, set_bits
from tests.kernels.samples import row_keys

SEED = 47
MAP_STARTS = np.array([1 << 40, 5 << 40, 9 << 40], np.uint64)


def bitmap(*keys):
    """Return (pages, bits) in which exactly `keys` are set, by NumPy's own packing."""
    pages = np.unique(np.array(keys, np.int64) // BITMAP_PAGE_KEYS)
    bits = np.zeros((len(pages), BITMAP_PAGE_KEYS), np.uint8)
    for key in keys:
        bits[np.searchsorted(pages, key // BITMAP_PAGE_KEYS), key % BITMAP_PAGE_KEYS] = 1
    return pages, np.packbits(bits, axis=1, bitorder="little")


def located(geometry, written, keys, wanted=None):
    keys = np.asarray(keys, np.int64)
    wanted = np.arange(len(keys)) if wanted is None else np.array(wanted)
    addresses = np.full(len(keys), 7, np.uint64)
    g = geometry
    found = locate(
        keys, wanted, *written, MAP_STARTS, g.records_per_page, g.pages_per_record,
        g.rows_per_segment, g.record_bytes, addresses,
    )  # fmt: skip
    return found, addresses.tolist()


def test_a_bitmap_page_is_a_page():
    assert BITMAP_PAGE_KEYS == 8 * PAGE_BYTES


def test_set_bits_sets_the_bits_of_the_keys_and_no_others():
    keys = np.random.default_rng(SEED).integers(0, 4 * BITMAP_PAGE_KEYS, 300)
    keys = np.append(keys, [0, 7, 8, BITMAP_PAGE_KEYS - 1, BITMAP_PAGE_KEYS])
    pages, expected = bitmap(*keys)
    bits = np.zeros_like(expected)
    set_bits(bits, np.searchsorted(pages, keys // BITMAP_PAGE_KEYS), keys % BITMAP_PAGE_KEYS)
    assert np.array_equal(bits, expected)


@pytest.mark.parametrize("record_bytes", [32, 48, 528, 4096])
def test_records_of_up_to_a_page_never_straddle_one(record_bytes):
    geometry = BaseGeometry(record_bytes, 1 << 20)
    per_segment = geometry.rows_per_segment
    keys = [0, 1, geometry.records_per_page - 1, geometry.records_per_page, per_segment - 1]
    keys += [per_segment, 2 * per_segment + 1]
    found, addresses = located(geometry, bitmap(*keys), keys)
    assert found == len(keys)
    for key, address in zip(keys, addresses, strict=True):
        row = key % per_segment
        page, place = divmod(row, PAGE_BYTES // record_bytes)
        offset = address - int(MAP_STARTS[key // per_segment])
        assert offset == PAGE_BYTES + page * PAGE_BYTES + place * record_bytes
        assert offset // PAGE_BYTES == (offset + record_bytes - 1) // PAGE_BYTES
        assert offset + record_bytes <= geometry.segment_bytes


@pytest.mark.parametrize("record_bytes", [4112, 8192, 8208, 49168])
def test_a_larger_record_begins_on_a_page(record_bytes):
    geometry = BaseGeometry(record_bytes, 1 << 20)
    per_segment, pages = geometry.rows_per_segment, -(-record_bytes // PAGE_BYTES)
    keys = [0, 1, per_segment - 1, per_segment]
    _, addresses = located(geometry, bitmap(*keys), keys)
    for key, address in zip(keys, addresses, strict=True):
        offset = address - int(MAP_STARTS[key // per_segment])
        assert offset == PAGE_BYTES * (1 + key % per_segment * pages)
        assert offset + record_bytes <= geometry.segment_bytes


def test_only_wanted_keys_are_located():
    found, addresses = located(BaseGeometry(32, 1 << 20), bitmap(0, 1, 2), [0, 1, 2], wanted=[2, 0])
    assert found == 2
    assert addresses[1] == 7 and 7 not in (addresses[0], addresses[2])


def test_a_row_key_is_located_by_the_key_in_it():
    geometry, written = BaseGeometry(32, 1 << 20), bitmap(130)
    assert located(geometry, written, row_keys(9, [130])) == located(geometry, written, [130])


def test_overlay_writes_the_records_and_nothing_beside_them():
    rng = np.random.default_rng(SEED)
    buffer = rng.integers(0, 256, 3 * PAGE_BYTES).astype(np.uint8)
    expected, first = buffer.copy(), 5 * PAGE_BYTES
    records = rng.integers(0, 256, (3, 48)).astype(np.uint8)
    places = first + np.array([0, 4048, 2 * PAGE_BYTES])
    for place, record in zip(places - first, records, strict=True):
        expected[place : place + 48] = record
    overlay(buffer, first, places, records)
    assert np.array_equal(buffer, expected)
