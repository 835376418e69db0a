"""What a store is and did, as plain numbers: the dictionaries of `stats()`. Engine thread only.

Rows resident and dirty are counted in one pass over a pool's slots for all of its tables: a pass
for each would stall training for as long as there are tables, whenever somebody looks.
"""

from dataclasses import asdict
from typing import Any

import numpy as np

from embstore.arrays import KEY_BITS
from embstore.cache.pool import Pool
from embstore.engine import Engine
from embstore.tablestate import TableState


def store_figures(engine: Engine) -> dict[str, Any]:
    """Return the figures of a store; see `Store.stats`."""
    catalogue = engine.storage.catalogue
    counts = {id(pool): _rows_of_tables(pool) for pool in engine.pools.values()}
    return {
        "store_id": catalogue.store_id,
        "epoch": catalogue.epoch,
        "command": engine.command_number,
        "device": engine.device.name,
        "policy": engine.policy,
        "read_only": engine.storage.read_only,
        "tables": {t.name: _table(t, *counts[id(t.pool)]) for t in engine.tables.values()},
        "cache": {
            "budget_bytes": engine.arena.budget_bytes,
            "memory_bytes": engine.arena.memory_bytes,
            "pools": [_pool(pool) for pool in engine.pools.values()],
        },
        "storage": engine.storage.stats(),
        "stages": engine.stages.totals(),
    }


def table_figures(table: TableState) -> dict[str, Any]:
    """Return the figures of one table; see `Table.stats`."""
    return _table(table, *_rows_of_tables(table.pool))


def _rows_of_tables(pool: Pool) -> tuple[dict[int, int], dict[int, int]]:
    """Return how many rows of each table id are resident, and how many of those are dirty."""
    here = pool.contents()
    ids = here.keys >> KEY_BITS  # -1 where the slot is free
    return _counted(ids[ids >= 0]), _counted(ids[here.dirty])


def _counted(ids: Any) -> dict[int, int]:
    if not len(ids):
        return {}
    lowest = int(ids.min())  # ids grow for ever, and those of a pool are often close together
    counts = np.bincount(ids - lowest)
    return {lowest + int(i): int(counts[i]) for i in np.flatnonzero(counts)}


def _table(table: TableState, resident: dict[int, int], dirty: dict[int, int]) -> dict[str, Any]:
    return {
        "rows": table.rows,
        "dim": table.dim,
        "optimizer": table.config.optimizer.kind,
        "learning_rate": table.learning_rate,
        "t": table.t,
        "resident_rows": resident.get(table.table_id, 0),
        "dirty_rows": dirty.get(table.table_id, 0),
        "row_bytes": 4 * table.pool.layout.stride,
    }


def _pool(pool: Pool) -> dict[str, Any]:
    return {
        "dim": pool.layout.dim,
        "optimizer": pool.layout.optimizer,
        "slots": pool.slot_count,
        "resident_rows": pool.resident_count,
        "dirty_rows": int(np.count_nonzero(pool.contents().dirty)),
        "memory_bytes": pool.memory_bytes,
    } | asdict(pool.counters)
