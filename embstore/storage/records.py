"""Records of log and base (storage/format.py): encoding rows as checked records, and decoding them.

The checksum is CRC-32C, because processors compute it eight bytes at a time. On a processor without
that instruction a table of 256 entries computes the same result. A record is checked whenever it is
read: a flipped bit on the disk causes an error, never a wrong row.

Each step of the checksum waits for the step before it. Therefore, by itself, the processor would
fetch no other record while it checks one. So records at random addresses are prefetched, and read
two at a time. Measured: 80,000 records of 544 bytes, at random addresses in 816 MB of the page
cache, take 17 ms on one thread. They take 40 ms without prefetching and pairs, and 13 ms without a
checksum.

Rejected: copying records in the order of their pages. The rows are then written in random order,
which costs more time than it saves.
"""

import numpy as np
from numpy.typing import NDArray

from embstore.arithmetic.cached import processor_features
from embstore.arithmetic.jit import (
    Int,
    Int64s,
    Int64sIn,
    Uint64Rows,
    Uint64RowsIn,
    Uint64sIn,
    building_block,
    carray,
    crc32c_word,
    kernel,
    pointer_at,
    prefetch,
)

_HARDWARE_CRC = "sse4.2" in processor_features()


def _crc_table() -> NDArray[np.uint64]:
    table = np.arange(256, dtype=np.uint64)
    for _ in range(8):
        table = np.where(
            table & np.uint64(1),
            (table >> np.uint64(1)) ^ np.uint64(0x82F63B78),
            table >> np.uint64(1),
        )
    return table


_TABLE = _crc_table()


@building_block
def crc_word_by_table(crc: np.uint64, word: np.uint64) -> np.uint64:
    """Continue a CRC-32C as `crc_word` does, without the processor's instruction."""
    for _ in range(8):
        crc = (crc >> np.uint64(8)) ^ _TABLE[(crc ^ word) & np.uint64(0xFF)]
        word = word >> np.uint64(8)
    return crc


if _HARDWARE_CRC:

    @building_block
    def crc_word(crc: np.uint64, word: np.uint64) -> np.uint64:
        """Continue a CRC-32C by the eight bytes of `word`, low byte first."""
        continued: np.uint64 = crc32c_word(crc, word)
        return continued

else:
    crc_word = crc_word_by_table


@kernel
def pack(
    rows: Uint64RowsIn,  # (slots, stride / 2): rows as words
    slots: Int64sIn,  # (n,)
    keys: Int64sIn,  # (n,) row keys
    out: Uint64Rows,  # (n, 2 + stride / 2)
    low: Int,
    high: Int,
) -> None:
    """Write the records of rows[slots[i]], for i in [low, high), to `out`."""
    words = rows.shape[1]
    full = np.uint64(0xFFFFFFFF)
    for i in range(low, high):
        slot = slots[i]
        key = np.uint64(keys[i])
        crc = crc_word(full, key)
        out[i, 1] = key
        for j in range(words):
            word = rows[slot, j]
            out[i, 2 + j] = word
            crc = crc_word(crc, word)
        out[i, 0] = crc ^ full


_AHEAD_BYTES = 4096
"""Number of bytes of records that are prefetched. A core can have about this number of bytes in
flight."""


@building_block
def _ask(address: np.uint64, size: int) -> None:
    first = np.int64(address)
    for line in range(first & ~63, first + size, 64):
        prefetch(line)


@building_block
def _copy_two(addresses: Uint64sIn, keys: Int64sIn, rows: Uint64Rows, i: int, k: int) -> int:
    """Copy two rows, or the same row twice; return the first index whose record is wrong, or -1."""
    words = rows.shape[1]
    full = np.uint64(0xFFFFFFFF)
    first = carray(pointer_at(np.int64(addresses[i])), (words + 2,), np.uint64)
    second = carray(pointer_at(np.int64(addresses[k])), (words + 2,), np.uint64)
    first_crc, second_crc = crc_word(full, first[1]), crc_word(full, second[1])
    for j in range(words):
        word, other = first[2 + j], second[2 + j]
        rows[i, j] = word
        rows[k, j] = other
        first_crc, second_crc = crc_word(first_crc, word), crc_word(second_crc, other)
    if first[0] != first_crc ^ full or first[1] != np.uint64(keys[i]):
        return i
    if second[0] != second_crc ^ full or second[1] != np.uint64(keys[k]):
        return k
    return -1


@building_block
def copy_rows(addresses: Uint64sIn, keys: Int64sIn, rows: Uint64Rows, low: int, high: int) -> int:
    """Copy the rows of the records `low` to `high` - 1, as `unpack` does; return the first index
    whose record is wrong, or -1."""
    size = 8 * (rows.shape[1] + 2)
    ahead = max(_AHEAD_BYTES // size, 1)
    before = -1  # index of a record that waits for a second record
    for i in range(low - ahead, high):
        if i + ahead < high and addresses[i + ahead] != np.uint64(0):
            _ask(addresses[i + ahead], size)
        if i < low or addresses[i] == np.uint64(0):
            continue
        if before < 0:
            before = i
            continue
        wrong = _copy_two(addresses, keys, rows, before, i)
        if wrong >= 0:
            return wrong
        before = -1
    return _copy_two(addresses, keys, rows, before, before) if before >= 0 else before


@kernel
def unpack(
    addresses: Uint64sIn,  # (n,) of records; 0: no record
    keys: Int64sIn,  # (n,) the row keys that the records must have
    rows: Uint64Rows,  # (n, stride / 2)
    low: Int,
    high: Int,
) -> int:
    """Copy the row of each record to rows[i]; return the first i whose record is wrong, or -1."""
    return copy_rows(addresses, keys, rows, low, high)


@kernel
def find_wrong(
    addresses: Uint64sIn,  # (n,) addresses of records
    sizes: Int64sIn,  # (n,) bytes of records
    keys: Int64sIn,  # (n,) the row keys that the records must have
    wrong: Int64s,  # (n,)
) -> int:
    """Write the indexes of the wrong records, ascending; return their number."""
    full = np.uint64(0xFFFFFFFF)
    found = 0
    for i in range(addresses.shape[0]):
        words = sizes[i] >> 3
        record = carray(pointer_at(np.int64(addresses[i])), (words,), np.uint64)
        crc = full
        for j in range(1, words):
            crc = crc_word(crc, record[j])
        if record[0] != crc ^ full or record[1] != np.uint64(keys[i]):
            wrong[found] = i
            found += 1
    return found


@kernel
def copy_records(
    addresses: Uint64sIn,  # (n,) addresses of records
    keys: Int64sIn,  # (n,) the row keys that the records must have
    out: Uint64Rows,  # (n, 2 + stride / 2)
) -> int:
    """Copy whole records; return the first i whose record is wrong, or -1."""
    words, count = out.shape[1], addresses.shape[0]
    ahead = max(_AHEAD_BYTES // (8 * words), 1)
    full = np.uint64(0xFFFFFFFF)
    for i in range(count):
        if i + ahead < count:
            _ask(addresses[i + ahead], 8 * words)
        record = carray(pointer_at(np.int64(addresses[i])), (words,), np.uint64)
        crc = full
        for j in range(1, words):
            word = record[j]
            out[i, j] = word
            crc = crc_word(crc, word)
        out[i, 0] = record[0]
        if record[0] != crc ^ full or record[1] != np.uint64(keys[i]):
            return i
    return -1
