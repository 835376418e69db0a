"""embstore, embedded: 100, 20 and 5 % of the rows cached, and 26 tables in one call.

Before the first round every row has been written once, coldest first: no lane reads initial rows,
and an LRU cache holds the hot part. ``embstore-1-table`` and ``embstore-26-tables`` make the same
calls over the same rows: key k of the one is row k // 26 of table k % 26 of the other. Only the
number of tables differs.
"""

import pathlib
from typing import Any

import numpy as np

from tests.bench.rounds import Contender, Lane, Times
from tests.bench.scale import Scale
from tests.bench.stores import create_table, open_store
from tests.bench.workload import Keys, Rows, Workload

CACHED_SHARES = {"embstore-100": 1.0, "embstore-20": 0.2, "embstore-5": 0.05}
HEADROOM = 1.05
"""Where all rows are to be cached: what a row costs beside its bytes is only about known."""


class TableLane:
    """One table and its own calls, with an output array that is used again, as a trainer would."""

    def __init__(self, table: Any, scale: Scale) -> None:
        self._table = table
        self._out = np.empty((scale.batch_keys, scale.dim), np.float32)

    def prepare(self, keys: Keys, grads: Rows) -> Any:
        """Return the batch as it is."""
        return keys, grads

    def lookup(self, prepared: Any) -> Any:
        """Look up into the lane's own array."""
        keys = prepared[0]
        return self._table.lookup(keys, out=self._out[: len(keys)])

    def update(self, prepared: Any, looked_up: Any) -> None:
        """Apply the gradients."""
        self._table.update(*prepared)


class CallLane:
    """`tables` tables, looked up and updated by one call of the store."""

    def __init__(self, store: Any, names: list[str]) -> None:
        self._store = store
        self._names = names

    def prepare(self, keys: Keys, grads: Rows) -> Any:
        """Return the arguments of both calls; tables that the batch does not name are left out."""
        count = len(self._names)
        of_table = keys % count
        named = [(name, np.flatnonzero(of_table == i)) for i, name in enumerate(self._names)]
        lookups = {name: keys[at] // count for name, at in named if len(at)}
        return lookups, {name: (lookups[name], grads[at]) for name, at in named if len(at)}

    def lookup(self, prepared: Any) -> Any:
        """One call for all tables."""
        return self._store.lookup(prepared[0])

    def update(self, prepared: Any, looked_up: Any) -> None:
        """One call for all tables."""
        self._store.update(prepared[1])


def stage_seconds(store: Any) -> dict[str, float]:
    """Return the seconds spent so far in each stage that the store counts."""
    stages = store.stats().get("stages", {})
    seconds = {
        name: value.get("seconds", 0.0) if isinstance(value, dict) else value
        for name, value in stages.items()
    }
    return {name: float(value) for name, value in seconds.items()}


class EngineContender(Contender):
    """Owns the stores; adds up stage times over the rounds, without the warm-up."""

    def __init__(self, scale: Scale) -> None:
        self._scale = scale
        self._stores: dict[str, Any] = {}
        self._stages: dict[str, dict[str, float]] = {}
        self._batches_run: dict[str, int] = {}
        super().__init__(Workload(scale), {})
        self._lanes.update(self._open())
        self._next_batch = dict.fromkeys(self._lanes, 0)
        for name in self._lanes:
            super().run(name, scale.settle_batches, 0)

    def _open(self) -> dict[str, Lane]:
        lanes: dict[str, Lane] = {
            name: self._table_lane(name, share) for name, share in CACHED_SHARES.items()
        }
        self._stores["embstore-1-table"] = self._stores["embstore-100"]
        lanes["embstore-1-table"] = CallLane(self._stores["embstore-100"], ["ads"])
        lanes["embstore-26-tables"] = self._call_lane("embstore-26-tables")
        return lanes

    def _table_lane(self, name: str, share: float) -> Lane:
        """Return a lane of one table, written once, in a store that caches `share` of it."""
        scale = self._scale
        table = create_table(self._store(name, share), "ads", scale.rows, scale.dim)
        lane = self._lane(table)
        self._write_all(lane)
        return lane

    def _lane(self, table: Any) -> TableLane:
        return TableLane(table, self._scale)

    def _call_lane(self, name: str) -> Lane:
        """Return a lane of `scale.tables` tables, written once, in a store that caches all."""
        scale = self._scale
        store = self._store(name, 1.0)
        names = [f"ads-{i}" for i in range(scale.tables)]
        for table in names:
            create_table(store, table, scale.rows // scale.tables + 1, scale.dim)
        lane = CallLane(store, names)
        self._write_all(lane)
        return lane

    def _store(self, name: str, share: float) -> Any:
        rows = self._scale.rows * share * (HEADROOM if share == 1.0 else 1.0)
        path = pathlib.Path(self._scale.data_dir) / name
        store = self._open_store(path, self._scale.cache_bytes(rows, self._scale.dim))
        self._stores[name] = store
        return store

    def _open_store(self, path: pathlib.Path, cache_bytes: int) -> Any:
        return open_store(path, cache_bytes)

    def _write_all(self, lane: Lane) -> None:
        for index, keys in enumerate(self._workload.coldest_first()):
            prepared = lane.prepare(keys, self._workload.gradients_of(index)[: len(keys)])
            lane.update(prepared, lane.lookup(prepared))

    def run(self, name: str, untimed: int, timed: int) -> Times:
        """As ever, with the stages' times beside."""
        before = stage_seconds(self._stores[name])
        times = super().run(name, untimed, timed)
        spent = self._stages.setdefault(name, {})
        for stage, seconds in stage_seconds(self._stores[name]).items():
            spent[stage] = spent.get(stage, 0.0) + seconds - before.get(stage, 0.0)
        self._batches_run[name] = self._batches_run.get(name, 0) + untimed + timed
        return times

    def notes(self) -> dict[str, Any]:
        """Return, by lane, milliseconds of each stage in a batch, and the store's own counters."""
        return {
            name: {
                "stages_ms": {
                    stage: 1e3 * seconds / self._batches_run[name]
                    for stage, seconds in self._stages[name].items()
                },
                "stats": self._stores[name].stats(),
            }
            for name in self._stages
        }

    def close(self) -> None:
        """Close every store once."""
        for store in {id(store): store for store in self._stores.values()}.values():
            store.close()


start = EngineContender
"""Tables written, kernels compiled, caches settled."""
