"""A table's digest, kept up to date by block (contract.md, rule 11).

The digest hashes leaves, one for each block of 256 keys with a written row. Leaves are kept between
calls, together with the blocks written since; so only those blocks are hashed again. Before the
first call nothing is kept, and a table that nobody asks for pays nothing.

A block's written rows are found by asking for each of its 256 keys: the cache (a dirty row is
written), then the log, then the base. Rows are gathered on the engine thread and hashed on two
others, which hold no lock while they hash.
"""

from concurrent.futures import Future, ThreadPoolExecutor
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embstore.arithmetic import BLOCK_KEYS, leaf, root
from embstore.arrays import EMPTY_KEY, KEY_BITS, KEY_MASK, Keys
from embstore.cache.pool import Pool
from embstore.storage.row_index import add_keys

_CHUNK_BLOCKS = 16
_AHEAD_BLOCKS = 256
"""Blocks that the disk is asked for at a time, while the ones before are hashed."""
_HASH_THREADS = 2
_BLOCK_SHIFT = BLOCK_KEYS.bit_length() - 1


class KeySet:
    """A set of non-negative int64, added to by the thousand."""

    def __init__(self) -> None:
        self._keys: Keys = np.full(1 << 10, EMPTY_KEY)
        self._size = 0

    def add(self, keys: Keys, shift: int) -> None:
        """Add every key >> shift."""
        if 2 * (self._size + len(keys)) > len(self._keys):
            members = self.members()
            larger = np.full(1 << (4 * (len(members) + len(keys)) - 1).bit_length(), EMPTY_KEY)
            add_keys(larger, members, 0)
            self._keys = larger
        self._size += add_keys(self._keys, keys, shift)

    def members(self) -> Keys:
        """Return the members, ascending."""
        return np.sort(self._keys[self._keys != EMPTY_KEY])


class TableDigest:
    """The leaves of one table. Engine thread only."""

    def __init__(self) -> None:
        self._blocks: Keys | None = None  # ascending; None until the first digest
        self._leaves: NDArray[np.uint8] = np.empty((0, 32), np.uint8)
        self._changed = KeySet()

    @property
    def is_followed(self) -> bool:
        """Whether a digest has been asked for, so that writes must be noted."""
        return self._blocks is not None

    def note_written(self, keys: Keys) -> None:
        """Remember that these row keys of the table were written."""
        if self.is_followed:
            self._changed.add(keys, _BLOCK_SHIFT)

    def compute(self, pool: Pool, table_id: int, rows: int, identity: bytes, t: int) -> str:
        """Return the digest, 64 hexadecimal digits; hash what changed since the last."""
        first = (table_id << KEY_BITS) >> _BLOCK_SHIFT
        if self._blocks is None:
            stored = pool.storage.rows.blocks(table_id, BLOCK_KEYS)
            _, dirty = pool.writer.dirty_slots(table_id)
            changed = np.union1d(stored, (dirty & KEY_MASK) // BLOCK_KEYS)
            blocks, leaves = changed[:0], self._leaves[:0]
        else:
            changed = self._changed.members() - first
            blocks, leaves = self._blocks, self._leaves
        fresh = _hash_blocks(pool, table_id, rows, changed)
        kept = ~np.isin(blocks, changed, assume_unique=True)
        blocks = np.concatenate([blocks[kept], changed])
        order = np.argsort(blocks)
        self._blocks = blocks[order]
        self._leaves = np.concatenate([leaves[kept], fresh])[order]
        self._changed = KeySet()
        return root(identity, t, self._blocks, self._leaves)


def _hash_blocks(pool: Pool, table_id: int, rows: int, blocks: Keys) -> NDArray[np.uint8]:
    """Return the leaf of each of `blocks`, which all have a written row."""
    leaves = np.empty((len(blocks), 32), np.uint8)
    pending: list[Future[None]] = []
    with ThreadPoolExecutor(_HASH_THREADS) as hashers:
        _ask_for(pool, table_id, rows, blocks[:_AHEAD_BLOCKS])
        for low in range(0, len(blocks), _CHUNK_BLOCKS):
            if low % _AHEAD_BLOCKS == 0:
                ahead = low + _AHEAD_BLOCKS
                _ask_for(pool, table_id, rows, blocks[ahead : ahead + _AHEAD_BLOCKS])
            chunk = blocks[low : low + _CHUNK_BLOCKS]
            keys, records = _written_rows(pool, table_id, rows, chunk)
            cuts = np.searchsorted(keys, [*chunk * BLOCK_KEYS, (KEY_MASK + 1)])
            pending.append(
                hashers.submit(
                    _hash_chunk, pool, keys, records, cuts, leaves[low : low + len(chunk)]
                )
            )
            while len(pending) > _HASH_THREADS:
                pending.pop(0).result()
        for future in pending:
            future.result()
    return leaves


def _keys_of(blocks: Keys, rows: int) -> Keys:
    keys: Keys = (blocks[:, None] * BLOCK_KEYS + np.arange(BLOCK_KEYS)).ravel()
    return keys[: np.searchsorted(keys, rows)]


def _ask_for(pool: Pool, table_id: int, rows: int, blocks: Keys) -> None:
    keys = _keys_of(blocks, rows) | table_id << KEY_BITS
    pool.storage.rows.prefetch(keys, pool.layout.record_bytes)


def _written_rows(pool: Pool, table_id: int, rows: int, blocks: Keys) -> tuple[Keys, NDArray[Any]]:
    keys = _keys_of(blocks, rows)
    records, written = pool.reader.peek_written(keys | table_id << KEY_BITS)
    return keys[written], records


def _hash_chunk(
    pool: Pool,
    keys: Keys,
    records: NDArray[Any],
    cuts: NDArray[np.int64],
    leaves: NDArray[np.uint8],
) -> None:
    dim, end = pool.layout.dim, pool.layout.dim + pool.layout.state_dim
    for i, (low, high) in enumerate(pairwise(cuts.tolist())):
        rows = records[low:high]
        leaves[i] = np.frombuffer(leaf(keys[low:high], rows[:, :dim], rows[:, dim:end]), np.uint8)
