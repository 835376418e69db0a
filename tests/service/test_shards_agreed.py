"""Commands that one served shard refuses, or that arrive while it is down: no shard changes."""

import numpy as np
import pytest

import embstore
from embstore import commands as c
from embstore.config import Sgd
from embstore.errors import TableHeldError
from embstore.handles.store import Store
from embstore.sharding import ShardMap
from embstore_client import connect
from tests.clusters import table
from tests.serving import Server, free_addresses

PATIENCE_S, LEASE_MS = 300.0, 300_000
KEYS = np.arange(0, 20_000, 7)
ROWS = np.ones((len(KEYS), 4), np.float32)

CHANGES = {
    "assign": lambda store: store.table("a").assign(KEYS, ROWS),
    "delete": lambda store: store.table("a").delete(KEYS),
    "clear": lambda store: store.table("a").clear(),
    "rate": lambda store: setattr(store.table("a"), "learning_rate", 0.5),
    "grow": lambda store: store.table("a").grow(30_000),
    "drop": lambda store: store.drop_table("a"),
    "restore": lambda store: store.restore("l1"),
}


class Served:
    """Two served shards, and clients of them."""

    def __init__(self, tmp_path, transport):
        self.map = ShardMap.even("ads", free_addresses(2))
        self.file = tmp_path / "map.json"
        self.file.write_text(self.map.to_json())
        self.transport = transport
        self.servers = [self.serve(tmp_path / f"shard-{n}", n) for n in range(2)]

    def serve(self, data, shard):
        def opened() -> Store:
            return embstore.open(data, device="cpu", cache_bytes=1 << 20, durability="commands")

        address = self.map.shards[shard]
        settings = {"shard_map": self.file, "shard": shard}
        return Server(opened, data, listen=address, **settings)

    def client(self, timeout_s=PATIENCE_S):
        return connect(self.map.shards[0], timeout_s=timeout_s, transport=self.transport)


@pytest.fixture(params=["grpc", "shared_memory"])
def served(request, tmp_path):
    made = Served(tmp_path, request.param)
    with made.servers[0], made.servers[1], made.client() as store:
        own = store.create_table("a", **table(Sgd(0.1)))
        own.update(KEYS, ROWS)
        store.checkpoint("l1")
        own.update(KEYS, ROWS)
        yield made


def state_of(served):
    """Return what a new client finds, and the command number of each shard."""
    with served.client() as store:
        own = store.table("a")
        commands = [Store(shard).command for shard in store.executor.shards]
        kept = [one.label for one in store.checkpoints()]
        found = own.digest(), own.t, own.rows, own.learning_rate, kept, store.epoch
        return (*found, *commands)


@pytest.mark.parametrize("shard", range(2))
def test_a_session_that_one_shard_has_refuses_a_change_for_all(served, shard):
    """As after the crash of the other shard during a session."""
    with served.client() as trainer, served.client() as store:
        one = trainer.executor.shards[shard]
        one.execute(c.OpenSession("left", ("a",), lease_ms=LEASE_MS, rank_timeout_ms=LEASE_MS))
        before = state_of(served)
        for name, change in CHANGES.items():
            with pytest.raises(TableHeldError):
                change(store)
            assert state_of(served) == before, name
        store.sessions.end("left")
        for name, change in CHANGES.items():
            if name != "drop":
                change(store)
        assert store.table("a").t == 1
        CHANGES["drop"](store)
        assert store.tables() == []
