"""The client in another language (client/node/client.js) where calls fail: what it sends again."""

import errno
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from grpc import StatusCode

import embstore
from embstore.errors import StorageError
from tests.copies import copy_of_open
from tests.faults.refusing import RefusingFiles
from tests.node.installed import Program, installed, running
from tests.service.faults.ledger import gradients, make_tables
from tests.service.faults.proxy import Proxy
from tests.service.faults.served import Served, until
from tests.service.faults.wire import Wire, update

SEED = 20_261_124
ROUNDS, CALL_BYTES = 40, 900
"""Of cuts; what an update takes in both directions, about."""


@pytest.fixture(scope="module", autouse=True)
def programs() -> None:
    """Skip where there is no Node before anything else is started."""
    installed()


@pytest.fixture
def node(served: Served) -> Iterator[Program]:
    with running("calls.js", served.address) as program:
        yield program


def tables_of(n: int) -> list[dict[str, Any]]:
    """Return what update n of the ledger brings, for calls.js."""
    return [
        {
            "table": name,
            "keys": keys.tolist(),
            "gradients": {"rows": rows.ravel().tolist(), "shape": rows.shape},
        }
        for name, (keys, rows) in gradients(n).items()
    ]


def refused(answer: dict[str, Any]) -> tuple[str, str]:
    """Return the status and the class of a call that must be refused."""
    codes = {code.value[0]: code.name for code in StatusCode}
    return codes[answer["code"]], answer["kind"]


@pytest.mark.parametrize("how", ["call", "stream"])
def test_every_update_is_applied_once_over_a_connection_that_is_cut(how, served, ledger):
    rng = np.random.default_rng(SEED)
    with Proxy(served.address) as proxy, running("calls.js", proxy.address) as node:
        for n in range(ROUNDS):
            proxy.cut_after(int(rng.integers(2 * CALL_BYTES)))
            answer = node.call("Update", how=how, tables=tables_of(n))
            ledger.acknowledged[n] = int(answer["context"]["command"])
        assert proxy.cuts > ROUNDS // 4


def test_a_refusal_has_the_class_that_the_server_names(node):
    missing = node.call("GetTable", request={"table": "none"})
    assert refused(missing) == ("NOT_FOUND", "TableNotFoundError")
    rates = {"sgd": {"learning_rate": 1.0}, "constant": {"value": 0.0}}
    other = node.call(
        "CreateTable", request={"config": {"name": "marks", "dim": 2, "rows": 9} | rates}
    )
    assert refused(other) == ("ALREADY_EXISTS", "TableExistsError")
    beyond = [{"table": "marks", "keys": [1 << 40]}]
    for how in ("call", "stream"):
        wrong = node.call("Lookup", how=how, tables=beyond)
        assert refused(wrong) == ("INVALID_ARGUMENT", "InvalidArgumentError")


def test_a_refusal_of_a_full_queue_is_sent_again(serve):
    served = serve(queue_calls_max=1)
    served.on_engine(make_tables)
    with running("calls.js", served.address) as node, Wire(served.address) as wire:
        with served.held():
            waiting = wire.begin("Update", update(gradients(1)).joined())
            served.await_queue(1)
            node.write({"verb": "Update", "tables": tables_of(2)})
            until(lambda: served.answered("Update", "UNAVAILABLE") > 1)
        waiting.result()
        (answer,) = (next(iter(node)),)
        assert answer["t"] == {"marks": "2", "rows": "2"}


def test_a_call_without_an_answer_ends_at_its_deadline(served, node):
    with served.held():
        late = node.call("GetStats", request={}, timeoutMs=300)
        assert late["code"] == StatusCode.DEADLINE_EXCEEDED.value[0]
        assert late["kind"] in ("", "DeadlineError")


@pytest.mark.parametrize("durability", ["commands", "checkpoint"])
def test_a_call_that_a_crash_left_without_an_answer_is_answered_if_it_is_known(
    durability, serve, quick_path
):
    def serve_store(name: str) -> Served:
        options: dict[str, Any] = {"cache_bytes": 1 << 22, "threads": 1, "durability": durability}

        def opened() -> embstore.Store:
            return embstore.open(quick_path / name, **options)

        return serve(name, open_store=opened, socket="off")  # which no copy can be made of

    served = serve_store("store")
    served.on_engine(make_tables)
    served.on_engine(lambda store: store.checkpoint("tables"))
    with Proxy(served.address) as proxy, running("calls.js", proxy.address) as node:
        assert node.call("Update", tables=tables_of(1))["t"] == {"marks": "1", "rows": "1"}
        proxy.silence()
        node.write({"verb": "Update", "tables": tables_of(2)})
        until(lambda: served.answered("Update", "OK") == 2)
        copy_of_open(quick_path / "store", quick_path / "after a crash")
        proxy.upstream = serve_store("after a crash").address
        proxy.cut()
        answer = next(iter(node))
        if durability == "commands":
            assert answer["t"] == {"marks": "2", "rows": "2"}
        else:  # both updates are lost, which the client is told once
            assert refused(answer) == ("UNKNOWN", "OutcomeUnknownError")
            assert node.call("GetTable", request={"table": "rows"})["table"]["t"] == "0"
            assert node.call("Update", tables=tables_of(2))["t"] == {"marks": "1", "rows": "1"}


def test_a_failed_store_is_not_asked_again(serve, quick_path):
    files = RefusingFiles(quick_path / "store")

    def opened() -> embstore.Store:
        return embstore.open(files.root, files=files, cache_bytes=1 << 22, threads=1)

    served = serve(open_store=opened)
    served.on_engine(make_tables)
    with running("calls.js", served.address) as node, served.connect() as store:
        store.update(gradients(1))
        files.refuse(("sync",), 1, errno.EIO, lasting=True)
        with pytest.raises(StorageError):
            store.checkpoint("bad")
        found = node.call("Update", tables=tables_of(2))
        assert (refused(found), found["isFinal"]) == (("UNAVAILABLE", "StoreClosedError"), True)
    assert served.answered("Update", "UNAVAILABLE") == 1
