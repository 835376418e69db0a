"""Records: the checksum against published values, rows to records and back, and what is refused."""

import struct

import numpy as np
import pytest

from embstore.storage.records import copy_records, crc_word, crc_word_by_table, pack, unpack

SEED = 41
FULL = 0xFFFFFFFF
POLYNOMIAL = 0x82F63B78  # Castagnoli's, bits reversed

# RFC 3720, B.4: 32 bytes of zeros, of ones, ascending, descending, and a SCSI Read (10) command.
SCSI_READ = bytes.fromhex(
    "01c00000 00000000 00000000 00000000 14000000 00000400"
    "00000014 00000018 28000000 00000000 02000000 00000000"
)
PUBLISHED = {
    bytes(32): 0x8A9136AA,
    b"\xff" * 32: 0x62A8AB43,
    bytes(range(32)): 0x46DD794E,
    bytes(range(31, -1, -1)): 0x113FDB5C,
    SCSI_READ: 0xD9963A56,
}
CHECK_VALUE = 0xE3069283  # of the nine characters "123456789"


def continued(crc, data):
    """Continue a CRC-32C bit by bit, as the polynomial says."""
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (POLYNOMIAL if crc & 1 else 0)
    return crc


def checksum(data):
    """Return the checksum that a record has whose row key and row are `data`."""
    words = np.frombuffer(data, np.uint64)[None]
    record = np.zeros((1, len(words[0]) + 1), np.uint64)
    key = words[0, :1].view(np.int64)
    pack(np.ascontiguousarray(words[:, 1:]), np.zeros(1, np.int64), key, record, 0, 1)
    return int(record[0, 0])


def sample(count=7, words=6):
    """Return rows, their slots in other order, row keys and the packed records."""
    rng = np.random.default_rng(SEED)
    rows = rng.integers(0, 1 << 63, (2 * count, words)).astype(np.uint64)
    slots = rng.permutation(2 * count)[:count]
    keys = rng.integers(0, 1 << 62, count)
    records = np.zeros((count, 2 + words), np.uint64)
    pack(rows, slots, keys, records, 0, count)
    return rows, slots, keys, records


def addresses(records):
    start = records.__array_interface__["data"][0]
    return np.array([start + i * records.strides[0] for i in range(len(records))], np.uint64)


@pytest.mark.parametrize("message", PUBLISHED, ids=["zeros", "ones", "up", "down", "scsi"])
def test_checksum_gives_the_published_values(message):
    assert checksum(message) == PUBLISHED[message]


@pytest.mark.parametrize("word", [crc_word, crc_word_by_table], ids=["chosen", "table"])
def test_checksum_gives_the_published_check_value(word):
    (eight,) = struct.unpack("<Q", b"12345678")
    crc = int(word(np.uint64(FULL), np.uint64(eight)))
    assert continued(crc, b"9") ^ FULL == CHECK_VALUE


@pytest.mark.skipif(crc_word is crc_word_by_table, reason="this processor has no SSE 4.2")
def test_hardware_and_table_give_the_same_checksums():
    rng = np.random.default_rng(SEED)
    by_hardware = by_table = np.uint64(FULL)
    for word in rng.integers(0, 1 << 63, 500).astype(np.uint64) * np.uint64(2):
        by_hardware, by_table = crc_word(by_hardware, word), crc_word_by_table(by_table, word)
        assert by_hardware == by_table


def test_record_is_checksum_key_and_row():
    rows, slots, keys, records = sample()
    for i, slot in enumerate(slots):
        content = keys[i].tobytes() + rows[slot].tobytes()
        expected = struct.pack("<Q", continued(FULL, content) ^ FULL) + content
        assert records[i].tobytes() == expected


def test_pack_writes_its_range_alone():
    rows, slots, keys, whole = sample()
    records = np.zeros_like(whole)
    pack(rows, slots, keys, records, 2, 5)
    assert np.array_equal(records[2:5], whole[2:5])
    assert not records[:2].any() and not records[5:].any()


def test_unpack_returns_the_rows():
    rows, slots, keys, records = sample()
    found = np.zeros((len(keys), rows.shape[1]), np.uint64)
    assert unpack(addresses(records), keys, found, 0, len(keys)) == -1
    assert np.array_equal(found, rows[slots])


def test_unpack_writes_its_range_alone():
    rows, slots, keys, records = sample()
    found = np.zeros((len(keys), rows.shape[1]), np.uint64)
    assert unpack(addresses(records), keys, found, 2, 5) == -1
    assert np.array_equal(found[2:5], rows[slots][2:5])
    assert not found[:2].any() and not found[5:].any()


def test_unpack_leaves_rows_without_a_record():
    rows, slots, keys, records = sample()
    places = addresses(records)
    places[[0, 3]] = 0
    found = np.full((len(keys), rows.shape[1]), 9, np.uint64)
    assert unpack(places, keys, found, 0, len(keys)) == -1
    assert (found[[0, 3]] == 9).all()
    assert np.array_equal(found[[1, 2, 4, 5, 6]], rows[slots][[1, 2, 4, 5, 6]])


def test_copy_records_copies_them_whole():
    _, _, keys, records = sample()
    out = np.zeros_like(records)
    order = np.array([4, 0, 6])
    assert copy_records(addresses(records)[order], keys[order], out[:3]) == -1
    assert np.array_equal(out[:3], records[order])
    assert not out[3:].any()


def test_no_records_are_no_error():
    nothing = np.empty(0, np.uint64)
    assert unpack(nothing, np.empty(0, np.int64), np.empty((0, 2), np.uint64), 0, 0) == -1
    assert copy_records(nothing, np.empty(0, np.int64), np.empty((0, 4), np.uint64)) == -1


def test_a_record_of_another_key_is_refused():
    rows, _, keys, records = sample()
    found, out = np.zeros((len(keys), rows.shape[1]), np.uint64), np.zeros_like(records)
    keys[[3, 5]] += 1
    assert unpack(addresses(records), keys, found, 0, len(keys)) == 3
    assert copy_records(addresses(records), keys, out) == 3


def test_every_flipped_bit_is_refused():
    _, _, keys, records = sample(count=2)
    found, out = np.zeros((2, records.shape[1] - 2), np.uint64), np.zeros_like(records)
    places, flat = addresses(records), records.view(np.uint8).reshape(-1)
    for bit in range(8 * records.strides[0]):
        at = records.strides[0] + bit // 8
        flat[at] ^= 1 << bit % 8
        assert unpack(places, keys, found, 0, 2) == 1, f"bit {bit}"
        assert copy_records(places, keys, out) == 1, f"bit {bit}"
        flat[at] ^= 1 << bit % 8
    assert unpack(places, keys, found, 0, 2) == -1
