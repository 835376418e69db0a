"""The digest of a table: a two-level hash over its written rows (contract.md, rule 11).

    leaf   of a block of 256 keys   blake2b-256 over its written rows in key order
    root   of the table             blake2b-256 over identity, t, and (block, leaf) ascending

There are two levels for three reasons. Leaves of unchanged blocks can be kept, so that only changed
blocks are hashed again. Two stores that differ can compare leaves to find out where they differ.
And leaves of shards can be combined. Leaves of a sparse table are sums over the rows of a block, in
any order (compiled_digest.py); the root of a sparse table is computed as that of a dense table. The
digest does not depend on the machine: integers and floats are little-endian and packed. It does not
include unwritten rows, so growing or reading a table does not change the digest.
"""

import hashlib
import struct
import zlib
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embstore.arrays import Keys, Rows

BLOCK_KEYS = 256
"""Keys of one leaf: block = key // BLOCK_KEYS."""
_HASH_BYTES = 32
LEAF_RECORD = np.dtype([("block", "<u8"), ("leaf", "u1", (_HASH_BYTES,))])
"""A record of the root: a block's number and its leaf."""


def leaf(keys: Keys, weights: Rows, state: Rows) -> bytes:
    """Return the 32-byte hash of the written rows of one block.

    Parameters
    ----------
    keys : (n,) int64, ascending, all in one block, n >= 1
    weights : (n, dim) float32
    state : (n, state_dim) float32, state_dim may be 0
    """
    return leaves(keys, weights, state, [0, len(keys)]).tobytes()


def leaves(keys: Keys, weights: Rows, state: Rows, cuts: Sequence[int]) -> NDArray[np.uint8]:
    """Return the leaves, (m, 32) uint8, of m blocks at once.

    cuts : m + 1 positions in `keys`: the first key of each block, and the end of the last block
    """
    packed = np.dtype(
        [("key", "<i8"), ("weights", "<f4", weights.shape[1:]), ("state", "<f4", state.shape[1:])]
    )
    records = np.empty(len(keys), packed)
    records["key"] = keys
    records["weights"] = weights
    records["state"] = state
    content = records.view(np.uint8).data
    size = packed.itemsize
    hashes = [
        hashlib.blake2b(content[size * low : size * high], digest_size=_HASH_BYTES).digest()
        for low, high in pairwise(cuts)
    ]
    return np.frombuffer(b"".join(hashes), np.uint8).reshape(-1, _HASH_BYTES)


def checksum(rows: Iterable[tuple[Rows, Rows]]) -> int:
    """Return one CRC32 over the weights (n, dim) and the state (n, state_dim) of several tables,
    one table after the other. It detects accidental differences, at a fraction of the cost of a
    hash."""
    found = 0
    for table in rows:
        for values in table:
            found = zlib.crc32(np.ascontiguousarray(values, "<f4").data, found)
    return found


def root(
    identity_json: bytes,
    t: int,
    blocks: NDArray[np.uint64] | NDArray[np.int64],
    leaves: NDArray[np.uint8],
) -> str:
    """Return the table's digest as 64 hexadecimal digits.

    Parameters
    ----------
    identity_json : `TableConfig.identity_json()`
    t : the table's update count
    blocks : (m,) numbers of the blocks with a written row, ascending
    leaves : (m, 32) uint8, the leaves of these blocks
    """
    whole = Root(identity_json, t)
    whole.add(leaf_records(blocks, leaves))
    return whole.digest()


def leaf_records(
    blocks: NDArray[np.uint64] | NDArray[np.int64], leaves: NDArray[np.uint8]
) -> NDArray[Any]:
    """Return blocks and their leaves, (m,) LEAF_RECORD, in the form that the root hashes."""
    records = np.empty(len(blocks), LEAF_RECORD)
    records["block"] = blocks
    records["leaf"] = leaves
    return records


class Root:
    """A table's digest, which is computed as its leaves arrive, in ascending order of blocks."""

    def __init__(self, identity_json: bytes, t: int) -> None:
        self._hash = hashlib.blake2b(digest_size=_HASH_BYTES)
        head = struct.pack("<Q", len(identity_json)) + identity_json + struct.pack("<Q", t)
        self._hash.update(head)

    def add(self, records: NDArray[Any]) -> None:
        """Add the next leaves, (m,) LEAF_RECORD."""
        self._hash.update(records.tobytes())

    def digest(self) -> str:
        """Return the digest of the leaves added so far, as 64 hexadecimal digits."""
        return self._hash.hexdigest()
