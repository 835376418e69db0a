"""The check: the same tables, dense and in memory, with no store in between.

A table's content is a function of its identity and of the updates it acknowledged; so whoever
applies the same gradients by the same arithmetic must come to the same digest. A DenseTable does
that in the simplest way there is: two arrays as long as the table, no cache, no log, no batches
over tables. `embstore.arithmetic` gives it the formulas, and the arrays give it everything else:
a row that the store lost, mixed up, updated twice or read too early shows.

A row's initial content is made when the row is first named, because a table of millions of rows
of which thousands are read would otherwise be slow to begin.
"""

from collections.abc import Mapping

import numpy as np

from embstore.arithmetic import (
    BLOCK_KEYS,
    apply_update,
    initial_rows,
    initial_state,
    leaf,
    root,
    scale_sums,
    sum_by_key,
    unique,
    update_scalars,
)
from embstore.arrays import Keys, Rows
from embstore.config import TableConfig


class DenseTable:
    """One table. Not checked: keys are int64 in [0, rows), gradients finite float32 (n, dim)."""

    def __init__(self, config: TableConfig) -> None:
        self.config = config
        self.t = 0
        self._weights = np.empty((config.rows, config.dim), np.float32)
        self._state = np.empty((config.rows, config.state_dim), np.float32)
        self._made = np.zeros(config.rows, np.bool_)
        self._written = np.zeros(config.rows, np.bool_)

    def lookup(self, keys: Keys) -> Rows:
        """Return the weights of `keys`, (n, dim)."""
        self._make(keys)
        rows: Rows = self._weights[keys]
        return rows

    def update(self, keys: Keys, gradients: Rows) -> None:
        """Apply one update at the optimizer's own learning rate."""
        config, named, inverse = self.config, *unique(keys)
        self._make(named)
        self.t += 1
        g = scale_sums(sum_by_key(inverse, len(named), gradients), 1.0)
        scalars = update_scalars(
            config.optimizer, self.t, config.optimizer.learning_rate, config.dim
        )
        weights, state = self._weights[named], self._state[named]
        apply_update(config.optimizer.kind, weights, state, g, scalars)
        self._weights[named], self._state[named] = weights, state
        self._written[named] = True

    def digest(self) -> str:
        """Return the digest that a store's table of this content has."""
        written = np.flatnonzero(self._written)
        blocks, firsts = np.unique(written // BLOCK_KEYS, return_index=True)
        leaves = [
            leaf(keys, self._weights[keys], self._state[keys])
            for keys in np.split(written, firsts[1:])
            if len(keys)
        ]
        hashes = np.frombuffer(b"".join(leaves), np.uint8).reshape(-1, 32)
        return root(self.config.identity_json(), self.t, blocks, hashes)

    def _make(self, keys: Keys) -> None:
        new = np.unique(keys[~self._made[keys]])
        if not len(new):
            return
        config = self.config
        self._weights[new] = initial_rows(config.initializer, config.seed, new, config.dim)
        self._state[new] = initial_state(config.optimizer, config.dim, len(new))
        self._made[new] = True


class DenseTables:
    """Tables by name, for calls over several of them as a store has them."""

    def __init__(self, configs: list[TableConfig]) -> None:
        self._tables = {config.name: DenseTable(config) for config in configs}

    def difference(self, found: Mapping[str, Rows], keys: Mapping[str, Keys]) -> str | None:
        """Return where `found`, what a store's lookup of `keys` returned, differs to the bit."""
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

    def digest(self, name: str) -> str:
        """Return the digest of one table."""
        return self._tables[name].digest()
