"""embstore as a contender: in the worker's process, as a service, and through shared memory.

Before the first round every row is written once, the coldest row first. So no lane reads initial
rows, and an LRU cache contains the hot rows. ``embstore-1-table`` and ``embstore-26-tables`` make
the same calls over the same rows: key k of the single table is row k // 26 of table k % 26. Only
the number of tables differs.

**service**, **shared**: the worker is the trainer, and the server is its child process, with every
row in the cache. The worker has the client, and does the client's share of the work: it makes keys
unique, sums gradients, and spreads rows. Through shared memory, the rows of a lookup are used in
the memory in which they arrive. This memory is given back when the next batch's rows have arrived.
"""

import pathlib
from typing import Any

import numpy as np

from tests.bench.rounds import Contender, Lane
from tests.bench.scale import HEADROOM, Scale
from tests.bench.serving import Server
from tests.bench.stores import create_table, open_store
from tests.bench.workload import Keys, Rows, Workload

ONE_TABLE = {
    "engine": {"embstore-100": 1.0, "embstore-20": 0.2, "embstore-5": 0.05},
    "service": {"service": 1.0},
    "shared": {"shared-memory": 1.0},
}
"""By contender, the lanes of one table, and the share of the rows that is cached."""
MANY_TABLES = {"engine": ["embstore-26-tables"], "service": ["service-26-tables"], "shared": []}
"""Lanes of as many tables as the scale says, in one call, all rows cached."""
TRANSPORTS = {"service": "grpc", "shared": "shared_memory"}


class TableLane:
    """One table and its own calls, with an output array that is used again, as a trainer would;
    or with none, for rows that are used where they are."""

    def __init__(self, table: Any, scale: Scale, *, has_out: bool) -> None:
        self._table = table
        self._out = np.empty((scale.batch_keys, scale.dim), np.float32) if has_out else None

    def prepare(self, keys: Keys, grads: Rows) -> Any:
        return keys, grads

    def lookup(self, prepared: Any) -> Any:
        keys = prepared[0]
        return self._table.lookup(keys, out=None if self._out is None else self._out[: len(keys)])

    def update(self, prepared: Any, looked_up: Any) -> None:
        self._table.update(*prepared)


class CallLane:
    """Some tables, looked up and updated by one call of the store."""

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
        return self._store.lookup(prepared[0])

    def update(self, prepared: Any, looked_up: Any) -> None:
        self._store.update(prepared[1])


class EngineContender(Contender):
    """Owns the stores, or servers."""

    def __init__(self, scale: Scale, kind: str) -> None:
        super().__init__(Workload(scale), {})
        self._scale, self._kind = scale, kind
        self._servers: dict[str, Server] = {}
        self._stores: dict[str, Any] = {}
        try:
            self._open_lanes()
            self._next_batch = dict.fromkeys(self._lanes, 0)
            for name in self._lanes:
                self.run(name, scale.settle_batches, 0)
        except BaseException:
            self.close()
            raise

    def _open_lanes(self) -> None:
        scale = self._scale
        for name, share in ONE_TABLE[self._kind].items():
            table = create_table(self._open(name, share), "ads", scale.rows, scale.dim)
            self._lanes[name] = TableLane(table, scale, has_out=self._kind != "shared")
            self._write_all(self._lanes[name])
        for name in MANY_TABLES[self._kind]:
            names = [f"ads-{i}" for i in range(scale.tables)]
            store = self._open(name, 1.0)
            for table_name in names:
                create_table(store, table_name, scale.rows // scale.tables + 1, scale.dim)
            self._lanes[name] = CallLane(store, names)
            self._write_all(self._lanes[name])
        if self._kind == "engine":
            self._stores["embstore-1-table"] = self._stores["embstore-100"]
            self._lanes["embstore-1-table"] = CallLane(self._stores["embstore-100"], ["ads"])

    def _open(self, name: str, share: float) -> Any:
        rows = self._scale.rows * share * (HEADROOM if share == 1.0 else 1.0)
        path = pathlib.Path(self._scale.data_dir) / name
        cache_bytes = self._scale.cache_bytes(rows, self._scale.dim)
        if self._kind in TRANSPORTS:
            server = Server(path, cache_bytes, transport=TRANSPORTS[self._kind])
            self._servers[name], self._stores[name] = server, server.store
        else:
            self._stores[name] = open_store(path, cache_bytes)
        return self._stores[name]

    def _write_all(self, lane: Lane) -> None:
        for index, keys in enumerate(self._workload.coldest_first()):
            prepared = lane.prepare(keys, self._workload.gradients_of(index)[: len(keys)])
            lane.update(prepared, lane.lookup(prepared))

    def close(self) -> None:
        """End every server, or close every store once."""
        stores = {} if self._servers else {id(store): store for store in self._stores.values()}
        for opened in (*self._servers.values(), *stores.values()):
            opened.close()


start = EngineContender
"""Tables written, kernels compiled, caches settled."""
