"""Row keys: the int64 by which the cache, its index and the kernels identify a row.

Tables of **dense** keys (``0 <= key < rows``) share pools, so their row keys contain the table id:
``table_id << 40 | key``. A table of **sparse** keys uses any 64 bits, which leave no bits for a
table id, so each such table has its own pool, in which the row keys are the keys of the table.
EMPTY_KEY (-1) is neither a dense nor a sparse row key.

A kernel finds the parameters of a row's table at the index ``(row key & ~mask) >> 40``. The index
is the id of a dense table, or 0 in a pool of sparse keys, where `mask` has all bits set. `number`
returns this index.

Rejected for sparse keys: row keys of 16 bytes, for which every index would grow by half; and a map
from keys to 40 bits in front of the cache, in which a GPU would have to look up each key before it
can look for the row.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embstore.arrays import EMPTY_KEY, KEY_BITS, KEY_MASK, Keys


@dataclass(frozen=True)
class RowKeys:
    """The row keys of one pool."""

    sparse_id: int | None = None
    """The id of the pool's one table of sparse keys; None: the pool has tables of dense keys."""

    @property
    def mask(self) -> int:
        """The bits of a row key that contain the key."""
        return KEY_MASK if self.sparse_id is None else -1

    def number(self, table_id: int) -> int:
        """Return the index of a table in the kernels' arrays."""
        return table_id if self.sparse_id is None else 0

    def of(self, table_id: int, keys: Keys) -> Keys:
        """Return the row keys of a table's keys."""
        return table_id << KEY_BITS | keys if self.sparse_id is None else keys

    def keys(self, row_keys: Any) -> Any:
        """Return the key of one row key, or the keys of an array of row keys."""
        return row_keys & self.mask

    def key_of(self, row_key: int) -> int:
        """Return the key in a row key, unsigned."""
        return row_key & self.mask & (1 << 64) - 1

    def table_ids(self, row_keys: Any) -> Any:
        """Return the table id of one row key, or the ids of an array of row keys; -1 for
        EMPTY_KEY."""
        if self.sparse_id is None:
            return row_keys >> KEY_BITS
        return np.where(row_keys == EMPTY_KEY, -1, self.sparse_id)

    def are_of(self, row_keys: Keys, table_id: int) -> NDArray[np.bool_]:
        """Return which row keys belong to a table."""
        found: NDArray[np.bool_] = self.table_ids(row_keys) == table_id
        return found


DENSE = RowKeys()
