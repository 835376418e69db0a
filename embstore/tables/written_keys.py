"""Which rows of a table were written, in some blocks of its keys.

A written row is dirty in the cache, or in the log, or in the base. Each of the three says which
keys it has, so that a table costs what is written of it, wherever its keys are: to ask for every
key of a block would cost 256 questions for a row that is alone there.
"""

import numpy as np

from embstore.arithmetic import BLOCK_KEYS
from embstore.arrays import KEY_BITS, Keys
from embstore.cache.pool import Pool

_SHIFT = BLOCK_KEYS.bit_length() - 1


class WrittenKeys:
    """The written row keys of a table, as of now. Engine thread only.

    Parameters
    ----------
    count : of the blocks that will be asked for; None: all
    """

    def __init__(self, pool: Pool, table_id: int, count: int | None) -> None:
        self._rows = pool.storage.rows
        self._table_id = table_id
        _, dirty = pool.writer.dirty_slots(table_id)
        self._dirty = np.sort(dirty)
        self._logged: Keys | None = None
        if count is None or count * BLOCK_KEYS > self._rows.logged_rows:
            first = table_id << KEY_BITS
            self._logged = np.sort(self._rows.logged_between(first, first + (1 << KEY_BITS)))

    def blocks(self) -> Keys:
        """Return the blocks with a written row, ascending: row key >> 8. Of all were asked for."""
        assert self._logged is not None
        in_base = self._rows.blocks_in_base(self._table_id, _SHIFT)
        others = [keys >> _SHIFT for keys in (self._dirty, self._logged)]
        return np.unique(np.concatenate([in_base, *others]))

    def in_blocks(self, blocks: Keys) -> Keys:
        """Return the written row keys in ascending blocks, ascending."""
        found = [self._rows.keys_in_base(blocks, _SHIFT), _of_blocks(self._dirty, blocks)]
        if self._logged is not None:
            found.append(_of_blocks(self._logged, blocks))
        else:
            keys = ((blocks << _SHIFT)[:, None] + np.arange(BLOCK_KEYS)).ravel()
            found.append(keys[self._rows.are_logged(keys)])
        found = [keys for keys in found if len(keys)]
        return np.unique(np.concatenate(found)) if len(found) != 1 else found[0]


def _of_blocks(keys: Keys, blocks: Keys) -> Keys:
    """Return those of ascending keys that are in ascending blocks."""
    low, high = np.searchsorted(keys, [blocks[0] << _SHIFT, (blocks[-1] + 1) << _SHIFT])
    near: Keys = keys[low:high]
    at = np.searchsorted(blocks, near >> _SHIFT)
    wanted: Keys = near[blocks[at] == near >> _SHIFT]
    return wanted
