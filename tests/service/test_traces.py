"""The trace of an error that a server answered ends with that error: nothing of gRPC above it."""

import socket
import traceback
from collections.abc import Callable

import numpy as np
import pytest

import embstore
from embstore.handles.store import Store
from embstore_client import connect
from tests.serving import patient


def trace_of(call: Callable[[], object]) -> str:
    try:
        call()
    except embstore.EmbstoreError:
        return traceback.format_exc()
    raise AssertionError("expected an error, found none")


def check(trace: str, name: str) -> None:
    assert trace.count("Traceback") == 1, trace
    assert "Rpc" not in trace
    assert trace.splitlines()[-1].startswith(f"embstore.errors.{name}: ")


CALLS: dict[str, Callable[[Store], object]] = {
    "TableNotFoundError": lambda store: store.table("nope"),
    "CheckpointNotFoundError": lambda store: store.restore("nope"),
    "InvalidArgumentError": lambda store: store.table("ads").lookup([-1]),
}


@pytest.mark.parametrize("way", ["grpc", "shared_memory"])
@pytest.mark.parametrize("name", CALLS)
def test_a_servers_error_has_a_trace_of_its_own(name, way, server):
    address = server.address if way == "grpc" else f"unix:{server.socket}"
    with patient(address) as store:
        check(trace_of(lambda: CALLS[name](store)), name)


def test_so_has_the_error_of_a_table_that_went_while_it_was_used(server):
    with patient(server.address) as store, patient(server.address) as other:
        store.lookup({"ads": [1]})
        other.drop_table("ads")
        check(trace_of(lambda: store.lookup({"ads": [1]})), "TableNotFoundError")


def test_so_has_that_of_a_call_that_was_tried_until_its_deadline():
    with socket.create_server(("127.0.0.1", 0)) as listening:  # of nobody who speaks gRPC
        address = f"127.0.0.1:{listening.getsockname()[1]}"
        check(trace_of(lambda: connect(address, connect_timeout_s=0.2)), "DeadlineError")


def test_so_has_that_of_a_connection_that_is_closed(server):
    store = patient(server.address)
    table = store.table("ads")
    store.close()
    check(trace_of(lambda: table.update([1], np.ones((1, 4), np.float32))), "StoreClosedError")
