"""Connections that only take: they are counted, and ended; who works goes on."""

import os
import resource
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from embstore_client import connect
from embstore_server.setup.launch import ServerProcess
from tests.service.faults.ledger import applied_counts, gradients, make_tables
from tests.service.faults.served import PATIENCE_S

MANY = 1_100
LIMIT = 1_024
HALF_A_REQUEST = b"GET /api/v1/stats HTTP/1.1\r\nHost: loc"


@pytest.fixture
def few_descriptors() -> Iterator[None]:
    """Processes that are started may have no more; this one has what it needs for the rest."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < 3 * MANY:
        pytest.skip("this user may have too few descriptors")
    resource.setrlimit(resource.RLIMIT_NOFILE, (LIMIT, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def started(path: Path, *options: str) -> ServerProcess:
    server = ServerProcess(path, "--cache-bytes", "4MiB", *options)
    server.start()
    return server


def address_of(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    return host, int(port)


def is_ended(connection: socket.socket) -> bool:
    """Wait until the server has ended a connection; return whether it has."""
    connection.settimeout(PATIENCE_S)
    try:
        while connection.recv(1 << 16):
            pass
    except ConnectionResetError:
        pass
    return True


@pytest.mark.parametrize("port", ["address", "admin"])
def test_idle_connections_do_not_keep_a_checkpoint_from_its_files(
    quick_path, few_descriptors, port
):
    server = started(quick_path / "store", "--connections-max", "100000")
    resource.prlimit(server.pid, resource.RLIMIT_NOFILE, (LIMIT, LIMIT))
    resource.setrlimit(
        resource.RLIMIT_NOFILE, (3 * MANY, resource.getrlimit(resource.RLIMIT_NOFILE)[1])
    )
    with ExitStack() as taken, connect(server.address, timeout_s=PATIENCE_S) as store:
        make_tables(store)
        for _ in range(MANY):
            taken.enter_context(socket.create_connection(address_of(getattr(server, port))))
        for n in range(3):
            store.update(gradients(n))
            store.checkpoint(f"label-{n}")
        assert applied_counts(store)[:3] == [1, 1, 1]
    assert server.stop() == 0
    assert sum(map(len, server.log)) < 100_000


def test_a_connection_that_asks_for_nothing_is_ended(quick_path):
    server = started(quick_path / "store", "--handshake-timeout-s", "0.3")
    with connect(server.address, timeout_s=PATIENCE_S) as store, ExitStack() as open_ones:
        make_tables(store)
        silent = [
            open_ones.enter_context(socket.create_connection(address_of(address)))
            for address in (server.address, server.admin, server.admin)
        ]
        silent[-1].send(HALF_A_REQUEST)
        assert all(map(is_ended, silent))
        store.update(gradients(1))  # a client that says nothing for as long is not one of those
    assert server.stop() == 0


@pytest.mark.parametrize("port", ["address", "admin"])
def test_there_are_no_more_connections_than_are_allowed(quick_path, port):
    most = 20
    options = ("--connections-max", str(most), "--handshake-timeout-s", "3600")
    server = started(quick_path / "store", *options)
    with connect(server.address, timeout_s=PATIENCE_S) as store, ExitStack() as open_ones:
        make_tables(store)
        idle = [
            open_ones.enter_context(socket.create_connection(address_of(getattr(server, port))))
            for _ in range(2 * most)
        ]
        ended = sum(is_ended(one) for one in idle[most:])
        assert ended == most
        store.update(gradients(1))
        descriptors = os.listdir(f"/proc/{server.pid}/fd")
        assert len(descriptors) < 3 * most + 100
    assert server.stop() == 0
