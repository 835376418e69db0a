"""The dense check: the same tables as dense arrays in memory, without a store.

A table's content is a function of its identity and of its acknowledged updates. So any program that
applies the same gradients by the same arithmetic must get the same digest. A DenseTable is the
simplest such program: it has two arrays as long as the table, and no cache, no log, and no batches
over tables. It shares only the formulas of `embstore.arithmetic` with a store. So it detects a row
that the store lost, mixed up, updated twice or read too early.

A row's initial content is computed when the row is first used. Otherwise a training that reads
thousands of a table's millions of rows would be slow to start. Rows of sparse keys get their
numbers at their first use, and the arrays grow.
"""

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from embstore.arithmetic import (
    BLOCK_KEYS,
    apply_update,
    initial_rows,
    initial_state,
    leaf,
    partitions,
    root,
    scale_sums,
    sum_by_key,
    unique,
    update_scalars,
)
from embstore.arrays import Keys, Rows
from embstore.config import TableConfig

_LEAF_BYTES = 32


class DenseTable:
    """One table. Arguments are not checked: keys must be int64, dense keys must be in [0, rows),
    and gradients must be finite float32 (n, dim)."""

    def __init__(self, config: TableConfig) -> None:
        self.config = config
        self.t = 0
        rows = 0 if config.is_sparse else config.rows
        self._weights = np.empty((rows, config.dim), np.float32)
        self._state = np.empty((rows, config.state_dim), np.float32)
        self._made = np.zeros(rows, np.bool_)
        self._written = np.zeros(rows, np.bool_)
        self._places: dict[int, int] = {}  # indices of sparse keys, in the order of first use

    @property
    def rows(self) -> int:
        """The number of written rows, which are the rows of keys that an update has contained."""
        return int(np.count_nonzero(self._written))

    def lookup(self, keys: Keys) -> Rows:
        """Return the weights of `keys`, (n, dim)."""
        at = self._made_at(keys)
        rows: Rows = self._weights[at]
        return rows

    def update(self, keys: Keys, gradients: Rows) -> None:
        """Apply one update with the optimizer's own learning rate."""
        config, named, inverse = self.config, *unique(keys)
        at = self._made_at(named)
        self.t += 1
        g = scale_sums(sum_by_key(inverse, len(named), gradients), 1.0)
        scalars = update_scalars(
            config.optimizer, self.t, config.optimizer.learning_rate, config.dim
        )
        weights, state = self._weights[at], self._state[at]
        apply_update(config.optimizer.kind, weights, state, g, scalars)
        self._weights[at], self._state[at] = weights, state
        self._written[at] = True

    def digest(self) -> str:
        """Return the digest that a store's table with this content has."""
        blocks, leaves = self._sparse_leaves() if self.config.is_sparse else self._dense_leaves()
        hashes = np.frombuffer(b"".join(leaves), np.uint8).reshape(-1, _LEAF_BYTES)
        return root(self.config.identity_json(), self.t, blocks, hashes)

    def _dense_leaves(self) -> tuple[NDArray[np.int64], list[bytes]]:
        written = np.flatnonzero(self._written)
        blocks, firsts = np.unique(written // BLOCK_KEYS, return_index=True)
        leaves = [
            leaf(keys, self._weights[keys], self._state[keys])
            for keys in np.split(written, firsts[1:])
            if len(keys)
        ]
        return blocks, leaves

    def _sparse_leaves(self) -> tuple[NDArray[np.int64], list[bytes]]:
        """Return the partitions, and for each the sum of the hashes of its rows (contract.md, rule
        11)."""
        written = np.flatnonzero(self._written)
        keys = np.fromiter(self._places, np.int64, len(self._places))[written]
        sums: dict[int, int] = {}
        of = partitions(self.config.seed, keys, "sparse").tolist()
        for place, partition, key in zip(written, of, keys[:, None], strict=True):
            row = leaf(key, self._weights[place, None], self._state[place, None])
            sums[partition] = sums.get(partition, 0) + int.from_bytes(row, "little")
        blocks = sorted(sums)
        leaves = [
            (sums[block] % (1 << 8 * _LEAF_BYTES)).to_bytes(_LEAF_BYTES, "little")
            for block in blocks
        ]
        return np.array(blocks, np.int64), leaves

    def _made_at(self, keys: Keys) -> Keys:
        """Return the indices of the rows of `keys`, after initializing new rows."""
        at = self._numbered(keys) if self.config.is_sparse else keys
        is_new = ~self._made[at]
        new, firsts = np.unique(at[is_new], return_index=True)
        if len(new):
            config, named = self.config, keys[is_new][firsts]
            self._weights[new] = initial_rows(config.initializer, config.seed, named, config.dim)
            self._state[new] = initial_state(config.optimizer, config.dim, len(new))
            self._made[new] = True
        return at

    def _numbered(self, keys: Keys) -> Keys:
        """Return the indices of sparse keys, after making room for these keys in the arrays."""
        places = self._places
        at = np.array([places.setdefault(key, len(places)) for key in keys.tolist()], np.int64)
        if len(places) > len(self._made):
            more = max(len(places), 2 * len(self._made)) - len(self._made)
            for name in ("_weights", "_state", "_made", "_written"):
                array = getattr(self, name)
                added = np.zeros((more, *array.shape[1:]), array.dtype)
                setattr(self, name, np.concatenate([array, added]))
        return at


class DenseTables:
    """Tables by name, for calls over several tables as in a store."""

    def __init__(self, configs: list[TableConfig]) -> None:
        self._tables = {config.name: DenseTable(config) for config in configs}

    def difference(self, found: Mapping[str, Rows], keys: Mapping[str, Keys]) -> str | None:
        """Return the first position at which `found`, a store's rows of `keys`, differs in any bit;
        None: there is no difference."""
        for name, rows in found.items():
            expected = self._tables[name].lookup(keys[name])
            differs = (expected.view(np.uint32) != rows.view(np.uint32)).any(axis=1)
            if differs.any():
                key = int(keys[name][np.argmax(differs)])
                return f"table {name!r}, key {key}"
        return None

    def update(self, gradients: Mapping[str, tuple[Keys, Rows]]) -> None:
        """Apply one update to several tables."""
        for name, (keys, rows) in gradients.items():
            self._tables[name].update(keys, rows)

    @property
    def rows(self) -> int:
        """Number of written rows of all tables."""
        return sum(table.rows for table in self._tables.values())

    def digest(self, name: str) -> str:
        """Return the digest of one table."""
        return self._tables[name].digest()
