"""Leaves of a sparse table, compiled (contract.md, rule 11): rows are hashed, and hashes are
summed.

Sums are kept by partition in a (PARTITIONS, 5) uint64 array: four words of the sum, then the number
of rows in the sum. Each thread has its own array; `leaves_of_sums` adds them up.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from embstore.arithmetic import jit
from embstore.arithmetic.blake2b import COUNTED, HASH_BYTES, LANES, LAST, OF_32_BYTES
from embstore.arithmetic.compiled_partitions import partition_of
from embstore.arithmetic.jit import blake2b_compress, building_block, kernel
from embstore.arrays import Keys, Rows
from embstore.sharding import PARTITIONS

Sums = NDArray[np.uint64]
_WORDS, _COUNT, _FIRST_WORD, _BLOCK_WORDS = HASH_BYTES // 8, HASH_BYTES // 8, 8, 16
_START = np.array(OF_32_BYTES, np.uint64)
_ONE, _NONE, _ALL, _HALF = np.uint64(1), np.uint64(0), np.uint64(2**64 - 1), np.uint64(2**32 - 1)


@building_block
def _take_words(
    scratch: jit.Uint64Rows, lane: int, key: np.uint64, row: jit.Uint64sIn, used: int, block: int
) -> None:
    """Write the next 16 words of a record to a lane. The first word of a record is the key; the row
    follows."""
    whole, has_half = used >> 1, used & 1
    for word in range(_BLOCK_WORDS):
        place, value = block * _BLOCK_WORDS + word - 1, _NONE
        if place < 0:
            value = key
        elif place < whole:
            value = row[place]
        elif place == whole and has_half:
            value = row[place] & _HALF
        scratch[_FIRST_WORD + word, lane] = value


@building_block
def _add_hash(total: jit.Uint64s, scratch: jit.Uint64Rows, lane: int) -> None:
    carry = _NONE
    for word in range(_WORDS):
        one = scratch[word, lane]
        with_carry = one + carry
        total[word] += with_carry
        carry = np.uint64(with_carry < one) + np.uint64(total[word] < with_carry)
    total[_COUNT] += _ONE


@kernel
def _add_row_hashes(
    seed: jit.Uint64sIn,  # (1,)
    start: jit.Uint64sIn,  # (8,) state of a hash before its first bytes
    keys: jit.Int64sIn,  # (n,)
    rows: jit.Uint64RowsIn,  # (n, stride / 2)
    used: jit.Int,  # elements of a row without its padding
    sums: jit.Uint64Rows,  # (PARTITIONS, 5)
) -> None:
    count, row_bytes = keys.shape[0], 8 + 4 * used
    block_count = (row_bytes + 127) >> 7
    scratch = np.empty((LAST + 1, LANES), np.uint64)
    place = scratch.ctypes.data
    for first in range(0, count, LANES):
        for number in range(_FIRST_WORD):
            scratch[number, :] = start[number]
        for block in range(block_count):
            for lane in range(LANES):
                i = min(first + lane, count - 1)  # the last row may be hashed more than once
                _take_words(scratch, lane, np.uint64(keys[i]), rows[i], used, block)
            scratch[COUNTED, :] = min(128 * (block + 1), row_bytes)
            scratch[LAST, :] = _ALL if block == block_count - 1 else _NONE
            blake2b_compress(place)
        for lane in range(min(LANES, count - first)):
            partition = partition_of(seed[0], np.uint64(keys[first + lane]))
            _add_hash(sums[partition], scratch, lane)


def row_sums() -> Sums:
    """Return sums to which no row was added."""
    return np.zeros((PARTITIONS, _WORDS + 1), np.uint64)


def add_row_hashes(seed: int, keys: Keys, rows: Rows, used: int, sums: Sums) -> None:
    """Add the hashes of written rows of a sparse table to `sums`. Any thread, without the GIL.

    Parameters
    ----------
    seed : the table's seed
    keys : (n,) int64, unique
    rows : (n, stride) float32, C-contiguous, as in the cache and on the disk
    used : number of elements of weights and state, without padding
    """
    _add_row_hashes(np.array([seed], np.uint64), _START, keys, rows.view(np.uint64), used, sums)


def leaves_of_sums(sums: Sequence[Sums]) -> tuple[NDArray[np.int64], NDArray[np.uint8]]:
    """Return the blocks with a written row, (m,) ascending, and the leaf of each block, (m, 32)."""
    blocks = np.flatnonzero(sum(own[:, _COUNT] for own in sums))
    leaves = bytearray()
    for block in blocks.tolist():
        words = (own[block, :_WORDS].astype("<u8").tobytes() for own in sums)
        total = sum(int.from_bytes(word, "little") for word in words)
        leaves += (total % (1 << 8 * HASH_BYTES)).to_bytes(HASH_BYTES, "little")
    return blocks, np.frombuffer(bytes(leaves), np.uint8).reshape(-1, HASH_BYTES)
