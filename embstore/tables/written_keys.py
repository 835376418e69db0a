"""Which rows of a table were written, in some blocks of its keys.

A written row is dirty in the cache, or in the log, or in the base. Each of the three says which
keys it has, so that a table costs what is written of it, wherever its keys are: to ask for every
key of a block would cost 256 questions for a row that is alone there.

They are asked in slices, while calls go on. Rows go one way only, from the cache to the log, and
from the log to the base; so they are asked in this order, and no row that was written at the begin
is missed, but those that are deleted meanwhile, whose keys are told. Rows that are written
meanwhile, or were deleted, may be found, or not.
"""

from collections.abc import Sequence

import numpy as np

from embstore.arithmetic import BLOCK_KEYS
from embstore.arrays import KEY_BITS, Keys
from embstore.cache.pool import Pool
from embstore.cache.writing import FIRST, Place
from embstore.tables.slices import Slices

_SHIFT = BLOCK_KEYS.bit_length() - 1


class WrittenKeys:
    """The written row keys of a table. Made with slices of the engine; then any thread."""

    def __init__(
        self, pool: Pool, table_id: int, slices: Slices, deleted: Sequence[Keys] = ()
    ) -> None:
        """Ask for them; `deleted` grows by the row keys of rows that are deleted meanwhile."""
        found, exchange = [np.empty(0, np.int64)], pool.residency.exchange
        at: Place | None = FIRST
        try:
            while at is not None:
                with slices.one():
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
