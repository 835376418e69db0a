"""Two verbs that only a copy of the packages has, wherever a verb can be called.

`CountDirtyRows` reads, of all tables. `AdvanceTable` writes: it adds to a table's t, which is in
the table's digest. What they find and leave is compared with a model.
"""

import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

import embstore
from embstore.commands import COMMANDS
from embstore.errors import PermissionDeniedError
from embstore_server.transports.rest.app import make_rest
from tests.conformance.backends import Embedded
from tests.conformance.sharded import TwoShards
from tests.reference import ReferenceStore
from tests.service.access.tenants import token_of, write_tokens
from tests.service.faults.proxy import Proxy
from tests.service.faults.served import PATIENCE_S, Served, until
from tests.service.rest import BASE
from tests.serving import on_loop

TABLES, DIM, ROWS = ("a/t", "a/u", "b/t"), 4, 20_000
OPENED: dict[str, Any] = {"cache_bytes": 1 << 20, "commit_every_s": 0, "durability": "commands"}
"""Rows stay dirty until somebody commits."""


class Model:
    """A store, and what it is to have after the calls that were made through this."""

    def __init__(self, store: Any) -> None:
        self.store, self.reference = store, ReferenceStore()
        self.dirty: dict[str, set[int]] = {name: set() for name in TABLES}
        for name in TABLES:
            optimizer, initializer = embstore.Sgd(0.1), embstore.Uniform(-1.0, 1.0)
            for made in (store, self.reference):
                made.create_table(
                    name, dim=DIM, rows=ROWS, optimizer=optimizer, initializer=initializer, seed=1
                )

    def update(self, name: str, *keys: int) -> None:
        """Update some rows, which are dirty then."""
        gradients = np.full((len(keys), DIM), 0.5, np.float32)
        for updated in (self.store, self.reference):
            updated.table(name).update(np.array(keys), gradients)
        self.dirty[name] |= {*keys}

    def advanced(self, name: str, updates: int) -> int:
        """Note that a table was advanced; return its t then."""
        self.reference.table(name)._t += updates
        return self.reference.table(name).t

    @property
    def counts(self) -> dict[str, int]:
        """Dirty rows by table."""
        return {name: len(keys) for name, keys in self.dirty.items()}

    def check(self) -> None:
        """Compare the store with this."""
        assert self.store.count_dirty_rows() == self.counts
        self.check_content(self.store)

    def check_content(self, store: Any) -> None:
        for name in TABLES:
            found, expected = store.table(name), self.reference.table(name)
            assert (found.t, found.digest()) == (expected.t, expected.digest()), name


def called(store: Any) -> Model:
    """Call both verbs by the methods of a store without a table."""
    model = Model(store)
    model.check()
    model.update("a/t", 1, 2, 3, 50, 51)
    model.update("b/t", 7)
    model.check()
    assert store.advance_table("a/t", 4) == model.advanced("a/t", 4)
    model.check()
    return model


def embedded(root: Path) -> None:
    """In this process; after a crash the command log has what was advanced."""
    backend = Embedded(root)
    store = backend.open_store(**OPENED)
    model = called(store)
    model.check_content(backend.open_store(backend.copy("store"), **OPENED))
    backend.close()


def over_shards(root: Path) -> None:
    """Over two shards, each with some of the rows."""
    backend = TwoShards(root)
    model = called(backend.open_store(**OPENED))
    model.update("a/t", *range(0, ROWS, 50))
    model.check()
    count: Any = COMMANDS["CountDirtyRows"]
    for shard in model.store.executor.shards:
        assert 0 < shard.execute(count())["a/t"] < model.counts["a/t"]
    backend.close()


def served(root: Path) -> None:
    """Over gRPC and REST, with and without the right to it, and when its answer is lost."""
    data, tokens = root / "store", write_tokens(root / "tokens.json")
    with ExitStack() as stack:
        server = stack.enter_context(
            Served(data, lambda: embstore.open(data, threads=1, **OPENED), tokens=tokens)
        )

        def connected(name: str, address: str = server.address) -> Any:
            how: dict[str, Any] = {"transport": "grpc", "timeout_s": PATIENCE_S}
            return stack.enter_context(embstore.connect(address, token=token_of(name), **how))

        model = called(connected("operator"))
        refused(connected, model)
        by_rest(server, model)
        proxy = stack.enter_context(Proxy(server.address))
        sent_again(server, proxy, connected("operator", proxy.address), model)


def refused(connected: Any, model: Model) -> None:
    """One needs the right to read everything, the other that to administrate a table."""
    reader, writer, owner = map(connected, ("reader", "writer", "owner"))
    with pytest.raises(PermissionDeniedError, match=r"right to read on everything"):
        reader.count_dirty_rows()
    for caller, table in ((writer, "a/t"), (owner, "b/t")):
        with pytest.raises(PermissionDeniedError, match=f"right to admin on '{table}'"):
            caller.advance_table(table, 1)
    assert owner.advance_table("a/u", 2) == model.advanced("a/u", 2)
    assert connected("dashboard").count_dirty_rows() == model.counts
    model.check()


def by_rest(server: Served, model: Model) -> None:
    """Both have a route that nobody wrote."""

    async def posted(verb: str, body: dict[str, Any]) -> Any:
        transport = httpx.ASGITransport(make_rest(server.service))
        told = {"authorization": f"Bearer {token_of('operator')}"}
        async with httpx.AsyncClient(transport=transport, base_url=BASE, headers=told) as client:
            answer = await client.post(f"/api/v1/commands/{verb}", json=body)
            assert answer.status_code == 200, answer.text
            return answer.json()

    found = on_loop(posted("CountDirtyRows", {}))["rows"]
    assert {name: int(count) for name, count in found.items()} == model.counts
    told = on_loop(posted("AdvanceTable", {"table": "b/t", "updates": 3}))
    assert int(told["t"]) == model.advanced("b/t", 3)
    model.check()


def sent_again(server: Served, proxy: Proxy, store: Any, model: Model) -> None:
    """A lost answer is asked for again, and what was done is not done twice."""

    def lost(verb: str, call: Callable[[], Any]) -> Any:
        before = server.answered(verb, "OK")
        proxy.silence()
        with ThreadPoolExecutor(1) as thread:
            answer = thread.submit(call)
            until(lambda: server.answered(verb, "OK") > before)
            proxy.cut()
            return answer.result(PATIENCE_S)

    assert store.count_dirty_rows() == model.counts  # so there is a connection
    assert lost("CountDirtyRows", store.count_dirty_rows) == model.counts
    assert lost("AdvanceTable", lambda: store.advance_table("a/t", 5)) == model.advanced("a/t", 5)
    model.check()


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    for case in (embedded, over_shards, served):
        (folder / case.__name__).mkdir()
        case(folder / case.__name__)
