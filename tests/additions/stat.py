"""A stat that only a copy of the packages has: of a store, of a cluster, over REST, as a metric."""

import sys
from pathlib import Path
from typing import Any

import httpx
import numpy as np

import embstore
from embstore_server.transports.rest.app import make_rest
from tests.clusters import table
from tests.conformance.sharded import TwoShards
from tests.service.faults.served import Served
from tests.service.rest import BASE
from tests.serving import on_loop

ROWS, LOOKUPS = 20_000, 3


def looked_up(store: Any) -> None:
    """Look up rows that a cluster has on every shard, by calls that make keys unique."""
    made = store.create_table("ads", **table(embstore.Sgd(0.1), ROWS))
    for _ in range(LOOKUPS):
        made.lookup(np.arange(0, ROWS, 50))


def of(stats: Any) -> int:
    (pool,) = stats["cache"]["pools"]
    return int(pool["lookups"])


def over_shards(root: Path) -> None:
    backend = TwoShards(root)
    store = backend.open_store()
    looked_up(store)
    found = store.stats()
    assert of(found) == sum(map(of, found["shards"]))
    assert all(of(shard) > 0 for shard in found["shards"])
    backend.close()


def served(root: Path) -> None:
    """Of a store, over gRPC and REST, and as a metric."""

    async def got(path: str) -> httpx.Response:
        transport = httpx.ASGITransport(make_rest(server.service))
        async with httpx.AsyncClient(transport=transport, base_url=BASE) as client:
            answer = await client.get(path)
            assert answer.status_code == 200, answer.text
            return answer

    with Served(root) as server, server.connect() as store:
        looked_up(store)
        found = of(store.stats())
        assert found > 0
        assert of(server.on_engine(lambda inside: inside.stats())) == found
        assert of(on_loop(got("/api/v1/stats")).json()) == found
        text = on_loop(got("/metrics")).text
        (line,) = (one for one in text.splitlines() if one.startswith("embstore_pool_lookups"))
        assert float(line.split()[-1]) == found


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    over_shards(folder / "shards")
    served(folder / "served")
