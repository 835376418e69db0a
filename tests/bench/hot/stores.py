"""The written store and its copies.

Every row is written once and folded into the base, as it would be after some time of training. Each
contestant has a copy.

The values of rows are of the size of the demo's initial values, and the same 2**18 values are
repeated. Writing is what takes long, and the values only have to be small and different from each
other.
"""

import pathlib
import time
from typing import Any

import numpy as np

import embstore
from embstore.config import TableConfig
from embstore_tools.demo.training import table_configs
from tests.bench.hot.scale import Scale
from tests.bench.stores import NO_MERGES, cache_bytes_for, copy_store, open_store, wait_for_folds

_PIECE_ROWS = 1 << 18
_FOLDED_LOG_BYTES = 64 << 20
"""Less than that is not folded."""
_FOLD_S = 180.0


class Written:
    """A directory with every row of all tables, and the copies made of it."""

    def __init__(self, folder: pathlib.Path, scale: Scale) -> None:
        self._folder = folder
        self._scale = scale
        self._first = folder / "written"
        optimizer = embstore.RowWiseAdagrad(learning_rate=scale.learning_rate)
        self.configs = table_configs(scale.rows, dim=scale.dim, optimizer=optimizer)
        begin = time.perf_counter()
        options = {"threads": scale.threads, "checkpoints_keep": 1}
        with open_store(self._first, 64 << 20, **options) as store:
            store.warm_up()
            for config in self.configs:
                self._write(store, config)
                store.checkpoint(config.name)
            folded = wait_for_folds(store, _FOLDED_LOG_BYTES, _FOLD_S)
            assert folded, f"not folded within {_FOLD_S:g} s: {store.stats()['storage']}"
        self.seconds = time.perf_counter() - begin

    def _write(self, store: Any, config: TableConfig) -> None:
        table = store.create_table(
            config.name,
            dim=config.dim,
            rows=config.rows,
            optimizer=config.optimizer,
            initializer=config.initializer,
        )
        rng = np.random.default_rng(config.rows)
        pattern = rng.random((min(_PIECE_ROWS, config.rows), config.dim), dtype=np.float32)
        pattern = (2 * pattern - 1) * np.float32(config.rows**-0.5)
        for low in range(0, config.rows, _PIECE_ROWS):
            keys = np.arange(low, min(low + _PIECE_ROWS, config.rows))
            table.assign(keys, pattern[: len(keys)])

    def open(self, name: str, slots: int, policy: str = "lru", count_rate: float = 0.0) -> Any:
        """Return a fresh copy of the store, open, with about so many slots."""
        store = open_store(
            copy_store(self._first, self._folder / name),
            cache_bytes_for(slots, self._scale.dim),
            policy=policy,
            count_rate=count_rate,
            threads=self._scale.threads,
            limits=NO_MERGES,
        )
        store.warm_up()
        return store

    def bring_all(self, store: Any) -> None:
        """Have every row in the cache of a store that has room for all."""
        for config in self.configs:
            for low in range(0, config.rows, _PIECE_ROWS):
                keys = np.arange(low, min(low + _PIECE_ROWS, config.rows))
                store.lookup({config.name: keys})
        resident = pool(store)["resident_rows"]
        assert resident == sum(self._scale.rows), f"{resident} rows are resident, not all"


def pool(store: Any) -> dict[str, Any]:
    """Return the figures of the one pool: all tables have the same layout."""
    (found,) = store.stats()["cache"]["pools"]
    return dict(found)
