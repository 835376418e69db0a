"""The keys of the written rows of a table, or of the written rows in some blocks of its keys.

A written row is dirty in the cache, or in the log, or in the base. Each of these three places lists
its keys. Therefore the cost depends on the number of written rows and not on the range of their
keys. Rejected: a query for every key of a block, which would make 256 queries for a single row in
the block.

Cache, log and base are queried in slices, while other calls run. Rows move in one direction only,
from the cache to the log, and from the log to the base. The places are queried in the same order,
so that no row that was written at the beginning is missed. The exceptions are rows that other calls
delete between slices; the keys of these rows are reported separately. Rows that are written between
slices, and rows that were deleted, may be found or not.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext

import numpy as np

from embstore.arithmetic import BLOCK_KEYS
from embstore.arrays import KEY_BITS, Keys
from embstore.cache.pool import Pool
from embstore.cache.writing import FIRST, Place
from embstore.storage.sparse import SparseRows
from embstore.storage.stored_rows import StoredRows

_SHIFT = BLOCK_KEYS.bit_length() - 1
_BLOCKS = 1 << 12
"""The number of blocks whose keys are searched together."""


def dirty_keys(
    pool: Pool,
    one: Callable[[], AbstractContextManager[None]],
    at_end: Callable[[], None] = lambda: None,
    deleted: Sequence[Keys] = (),
) -> Keys:
    """Return the row keys of all dirty rows in a pool's cache, of all tables, ascending. Rows that
    are logged between slices may be missing.

    Parameters
    ----------
    one : function that returns a context manager, which has the engine for one slice
    at_end : function called in the last slice
    deleted : list to which other calls append the row keys of rows that they delete; these row keys
        are returned too
    """
    found, exchange = [np.empty(0, np.int64)], pool.residency.exchange
    at: Place | None = FIRST
    try:
        while at is not None:
            with one():
                if at == FIRST and exchange is not None:  # else rows that move up may be missed
                    exchange.risen = found
                at, keys = pool.writer.dirty_range(at)
                found.append(keys)
                if at is None:
                    at_end()
    finally:
        if exchange is not None:
            exchange.risen = None
    return _union(*found, *deleted)


def _union(*found: Keys) -> Keys:
    """Return the distinct keys, ascending. np.unique would hash the keys, which takes longer."""
    every = np.sort(np.concatenate(found))
    return every[np.append(True, every[1:] != every[:-1])] if len(every) else every


def written_ids(pool: Pool) -> Keys:
    """Return the written keys of the sparse table of a pool. Call this with the engine, in one
    slice."""
    rows = pool.storage.rows
    assert isinstance(rows, SparseRows)
    ids = rows.numbers.ids_of(np.arange(rows.numbers.count))
    return _union(ids[rows.has(ids)], dirty_keys(pool, nullcontext))


class WrittenKeys:
    """The written row keys of a table. Making the object takes the engine in slices; afterwards any
    thread can use the object."""

    def __init__(
        self,
        pool: Pool,
        table_id: int,
        one: Callable[[], AbstractContextManager[None]],
        deleted: Sequence[Keys] = (),
    ) -> None:
        """Query the written keys, in slices that `one` takes. Other calls append the row keys of
        rows that they delete to `deleted`."""
        self._pool, self._table_id = pool, table_id
        dirty = dirty_keys(pool, one, self._note_stored, deleted)
        self._dirty = dirty[dirty >> KEY_BITS == table_id]
        self._logged = self._stored.logged()

    def _note_stored(self) -> None:
        rows = self._pool.storage.rows
        assert isinstance(rows, StoredRows), "a sparse table has another digest"
        self._stored = rows.keys(self._table_id)

    def blocks(self) -> Keys:
        """Return the blocks (row key >> 8) with a written row, ascending."""
        others = [keys >> _SHIFT for keys in (self._dirty, self._logged)]
        return _union(self._stored.blocks_in_base(_SHIFT), *others)

    def all(self) -> Keys:
        """Return all written row keys, ascending."""
        blocks = self.blocks()
        cuts = range(0, len(blocks), _BLOCKS)
        pieces = [self.in_blocks(blocks[low : low + _BLOCKS]) for low in cuts]
        return np.concatenate([blocks[:0], *pieces])

    def in_blocks(self, blocks: Keys) -> Keys:
        """Return the written row keys in some blocks, ascending; `blocks` are ascending."""
        found = [_of_blocks(keys, blocks) for keys in (self._dirty, self._logged)]
        found = [keys for keys in (self._stored.keys_in_base(blocks, _SHIFT), *found) if len(keys)]
        return found[0] if len(found) == 1 else _union(blocks[:0], *found)


def _of_blocks(keys: Keys, blocks: Keys) -> Keys:
    """Return the keys that are in `blocks`; both arguments are ascending."""
    low, high = np.searchsorted(keys, [blocks[0] << _SHIFT, (blocks[-1] + 1) << _SHIFT])
    near: Keys = keys[low:high]
    at = np.searchsorted(blocks, near >> _SHIFT)
    wanted: Keys = near[blocks[at] == near >> _SHIFT]
    return wanted
