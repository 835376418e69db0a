"""A table's digest, kept up to date by block (contract.md, rule 11).

The digest hashes leaves, one for each block of 256 keys with a written row. Leaves are kept between
calls, together with the blocks written since; so only those blocks are hashed again. Before the
first call nothing is kept, and a table that nobody asks for pays nothing.

Rows are gathered on the engine thread, in the order of their keys, which is that of the base's
files, and hashed on two others, which hold no lock while they hash.
"""

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import zip_longest
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embstore.arithmetic import BLOCK_KEYS, leaves, root
from embstore.arrays import EMPTY_KEY, KEY_BITS, KEY_MASK, Keys
from embstore.cache.pool import Pool
from embstore.storage.row_index import add_keys
from embstore.tables.written_keys import WrittenKeys

_CHUNK_BYTES = 2 << 20
"""Rows that are hashed by one thread at a time."""
_AHEAD_BYTES = 32 << 20
"""Rows that the disk is asked for at a time, at most, while the ones before are hashed."""
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
        if self._blocks is None:
            written = WrittenKeys(pool, table_id, None)
            changed = written.blocks()
            blocks, leaves = changed[:0], self._leaves[:0]
        else:
            changed = self._changed.members()
            written = WrittenKeys(pool, table_id, len(changed))
            blocks, leaves = self._blocks, self._leaves
        fresh = _hash_blocks(pool, written, changed)
        kept = ~np.isin(blocks, changed, assume_unique=True)
        blocks = np.concatenate([blocks[kept], changed])
        order = np.argsort(blocks)
        self._blocks = blocks[order]
        self._leaves = np.concatenate([leaves[kept], fresh])[order]
        self._changed = KeySet()
        first = (table_id << KEY_BITS) >> _BLOCK_SHIFT
        return root(identity, t, self._blocks - first, self._leaves)


def _hash_blocks(pool: Pool, written: WrittenKeys, blocks: Keys) -> NDArray[np.uint8]:
    """Return the leaf of each of `blocks`, which all have a written row."""
    leaves = np.empty((len(blocks), 32), np.uint8)
    pending: list[Future[None]] = []
    step = max(1, _AHEAD_BYTES // (BLOCK_KEYS * pool.layout.record_bytes))
    parts = [slice(low, low + step) for low in range(0, len(blocks), step)]
    rows_max = max(1, _CHUNK_BYTES // pool.layout.record_bytes)
    ahead = _asked_for(pool, written, blocks[parts[0]]) if parts else blocks
    with ThreadPoolExecutor(_HASH_THREADS) as hashers:
        for part, after in zip_longest(parts, parts[1:]):
            keys = ahead
            if after is not None:
                ahead = _asked_for(pool, written, blocks[after])
            for low, high, cuts in _chunks(keys, blocks[part], rows_max):
                records, _ = pool.reader.peek_written(keys[cuts[0] : cuts[-1]])
                into = leaves[part][low:high]
                rows = keys[cuts[0] : cuts[-1]] & KEY_MASK
                pending.append(
                    hashers.submit(_hash_chunk, pool, rows, records, cuts - cuts[0], into)
                )
                while len(pending) > _HASH_THREADS:
                    pending.pop(0).result()
        for future in pending:
            future.result()
    return leaves


def _asked_for(pool: Pool, written: WrittenKeys, blocks: Keys) -> Keys:
    """Return the written row keys of blocks, whose rows the disk has been asked for."""
    keys = written.in_blocks(blocks)
    pool.storage.rows.prefetch(keys, pool.layout.record_bytes)
    return keys


def _chunks(
    keys: Keys, blocks: Keys, rows_max: int
) -> Iterator[tuple[int, int, NDArray[np.int64]]]:
    """Yield blocks [low, high) of so many rows, or a block more, and where in keys each begins and
    the last ends."""
    starts = np.append(np.searchsorted(keys, blocks << _BLOCK_SHIFT), len(keys))
    low = 0
    while low < len(blocks):
        high = int(np.searchsorted(starts, starts[low] + rows_max))
        high = min(max(high, low + 1), len(blocks))
        yield low, high, starts[low : high + 1]
        low = high


def _hash_chunk(
    pool: Pool,
    keys: Keys,
    records: NDArray[Any],
    cuts: NDArray[np.int64],
    into: NDArray[np.uint8],
) -> None:
    dim, end = pool.layout.dim, pool.layout.dim + pool.layout.state_dim
    into[:] = leaves(keys, records[:, :dim], records[:, dim:end], cuts.tolist())
