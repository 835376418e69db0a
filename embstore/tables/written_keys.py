"""Which rows of a table were written, in some blocks of its keys.

A written row is dirty in the cache, or in the log, or in the base. Each of the three says which
keys it has, so that a table costs what is written of it, wherever its keys are: to ask for every
key of a block would cost 256 questions for a row that is alone there.

They are asked in slices, while calls go on. Rows go one way only, from the cache to the log, and
from the log to the base; so they are asked in this order, and no row that was written at the begin
is missed, but those that are deleted meanwhile, whose keys are told. Rows that are written
meanwhile, or were deleted, may be found, or not.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager

import numpy as np

from embstore.arithmetic import BLOCK_KEYS
from embstore.arrays import KEY_BITS, Keys
from embstore.cache.pool import Pool
from embstore.cache.writing import FIRST, Place

_SHIFT = BLOCK_KEYS.bit_length() - 1
_BLOCKS = 1 << 12
"""Looked at together."""


class WrittenKeys:
    """The written row keys of a table. Made with slices of the engine; then any thread."""

    def __init__(
        self,
        pool: Pool,
        table_id: int,
        one: Callable[[], AbstractContextManager[None]],
        deleted: Sequence[Keys] = (),
    ) -> None:
        """Ask for them, each time in `one` slice; `deleted` grows by the row keys of rows that are
        deleted meanwhile."""
        found, exchange = [np.empty(0, np.int64)], pool.residency.exchange
        at: Place | None = FIRST
        try:
            while at is not None:
                with one():
                    if at == FIRST and exchange is not None:  # what rises may pass by
                        exchange.risen = found
                    at, keys = pool.writer.dirty_range(at)
                    found.append(keys)
                    if at is None:
                        self._stored = pool.storage.rows.keys(table_id)
        finally:
            if exchange is not None:
                exchange.risen = None
        dirty = np.unique(np.concatenate([*found, *deleted]))
        self._dirty = dirty[dirty >> KEY_BITS == table_id]
        self._logged = self._stored.logged()

    def blocks(self) -> Keys:
        """Return the blocks with a written row, ascending: row key >> 8."""
        others = [keys >> _SHIFT for keys in (self._dirty, self._logged)]
        return np.unique(np.concatenate([self._stored.blocks_in_base(_SHIFT), *others]))

    def all(self) -> Keys:
        """Return all of them, ascending."""
        blocks = self.blocks()
        cuts = range(0, len(blocks), _BLOCKS)
        pieces = [self.in_blocks(blocks[low : low + _BLOCKS]) for low in cuts]
        return np.concatenate([blocks[:0], *pieces])

    def in_blocks(self, blocks: Keys) -> Keys:
        """Return the written row keys in ascending blocks, ascending."""
        found = [_of_blocks(keys, blocks) for keys in (self._dirty, self._logged)]
        found = [keys for keys in (self._stored.keys_in_base(blocks, _SHIFT), *found) if len(keys)]
        return found[0] if len(found) == 1 else np.unique(np.concatenate([blocks[:0], *found]))


def _of_blocks(keys: Keys, blocks: Keys) -> Keys:
    """Return those of ascending keys that are in ascending blocks."""
    low, high = np.searchsorted(keys, [blocks[0] << _SHIFT, (blocks[-1] + 1) << _SHIFT])
    near: Keys = keys[low:high]
    at = np.searchsorted(blocks, near >> _SHIFT)
    wanted: Keys = near[blocks[at] == near >> _SHIFT]
    return wanted
