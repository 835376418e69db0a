"""Row keys: the int64 by which cache, index and kernels know a row.

Tables of **dense** keys (``0 <= key < rows``) share pools, so their row keys name the table, too:
``table_id << 40 | key``. A table of **sparse** keys takes any 64 bits, which leave no room for a
table, so it has a pool of its own, whose row keys are its keys. EMPTY_KEY (-1) is neither.

A kernel finds the parameters of a row's table by ``(row key & ~mask) >> 40``: the id of a dense
table, 0 in a pool of sparse keys, where `mask` has all bits. `number` is this index.

Rejected for sparse keys: row keys of 16 bytes, for which every index would grow by half; a map from
keys to 40 bits in front of the cache, which a GPU would have to ask before it can look for a row.
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
    """The id of the one table, whose keys are sparse; None: tables of dense keys."""

    @property
    def mask(self) -> int:
        """The bits of a row key that are the key's."""
        return KEY_MASK if self.sparse_id is None else -1

    def number(self, table_id: int) -> int:
        """Return the index of a table in the arrays of the kernels."""
        return table_id if self.sparse_id is None else 0

    def of(self, table_id: int, keys: Keys) -> Keys:
        """Return the row keys of a table's keys."""
        return table_id << KEY_BITS | keys if self.sparse_id is None else keys

    def keys(self, row_keys: Any) -> Any:
        """Return the keys of row keys: one, or an array of them."""
        return row_keys & self.mask

    def key_of(self, row_key: int) -> int:
        """Return the key of a row key, unsigned."""
        return row_key & self.mask & (1 << 64) - 1

    def table_ids(self, row_keys: Any) -> Any:
        """Return the ids of the tables of row keys, one or an array; -1 for EMPTY_KEY."""
        if self.sparse_id is None:
            return row_keys >> KEY_BITS
        return np.where(row_keys == EMPTY_KEY, -1, self.sparse_id)

    def are_of(self, row_keys: Keys, table_id: int) -> NDArray[np.bool_]:
        """Return which row keys belong to a table."""
        found: NDArray[np.bool_] = self.table_ids(row_keys) == table_id
        return found


DENSE = RowKeys()
