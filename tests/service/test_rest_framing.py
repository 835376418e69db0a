"""Requests as bytes, at a real port: of which two readers could find different requests in them."""

import re
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from embstore_server.setup.launch import ServerProcess
from tests.service.faults.served import PATIENCE_S

HIDDEN = b"GET /api/v1/tables HTTP/1.1\r\nHost: localhost\r\n\r\n"
"""What is to be answered by nobody."""
LENGTH, CHUNKED = b"Content-Length: 2\r\n", b"Transfer-Encoding: chunked\r\n"
HEADS = {
    "length-first": LENGTH + CHUNKED,
    "chunked-first": CHUNKED + LENGTH,
    "capitals": b"transfer-ENCODING: Chunked\r\n" + LENGTH,
    "two-lengths": LENGTH + b"Content-Length: 3\r\n",
    "signed": b"Content-Length: +2\r\n",
    "chunked-twice": CHUNKED + CHUNKED,
    "two-codings": b"Transfer-Encoding: gzip, chunked\r\n",
    "identity": b"Transfer-Encoding: identity\r\n" + LENGTH,
    "space": b"Transfer-Encoding : chunked\r\n",
    "folded": b"Transfer-Encoding:\r\n chunked\r\n" + LENGTH,
    "two-hosts": b"Host: localhost\r\n" + LENGTH,
    "foreign-host": b"Host: else.example\r\n" + LENGTH,
}
BODIES = {"length": b"{}", "chunks": b"2\r\n{}\r\n0\r\n\r\n", "empty": b"0\r\n\r\n"}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    path: Path = tmp_path_factory.mktemp("store")
    with ServerProcess(path, "--device", "cpu", "--cache-bytes", "1MiB") as started:
        yield started


def answers(server: ServerProcess, request: bytes) -> list[bytes]:
    """Send bytes; return the statuses that come until the server ends the connection."""
    host, _, port = server.admin.rpartition(":")
    found = b""
    with socket.create_connection((host, int(port)), PATIENCE_S) as connection:
        connection.sendall(request)
        while more := connection.recv(1 << 16):
            found += more
    return re.findall(rb"HTTP/1\.1 (\d+)", found)


@pytest.mark.parametrize("head", HEADS)
def test_a_request_that_can_be_read_in_two_ways_is_refused_and_ends_its_connection(server, head):
    before = len(server.log)
    for method, path in ((b"GET", b"/readyz"), (b"POST", b"/api/v1/commands/ListTables")):
        for body in BODIES.values():
            first = method + b" " + path + b" HTTP/1.1\r\nHost: localhost\r\n"
            kind = b"Content-Type: application/json\r\n"
            request = first + kind + HEADS[head] + b"\r\n" + body + HIDDEN
            assert answers(server, request) == [b"400"]
    assert not [line for line in server.log[before:] if "Traceback" in line]


def test_a_request_of_one_length_keeps_its_connection(server):
    """Else no proxy, and no other test here, would tell anything."""
    first = b"POST /api/v1/commands/ListTables HTTP/1.1\r\nHost: localhost\r\n"
    kind = b"Content-Type: application/json\r\n"
    last = HIDDEN.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n")
    for head, body in ((LENGTH, "length"), (CHUNKED, "chunks")):
        request = first + kind + head + b"\r\n" + BODIES[body] + last
        assert answers(server, request) == [b"200"] * 2
