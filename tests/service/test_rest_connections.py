"""How many connections the REST port takes: of all, of one address, before TLS and after."""

import asyncio
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest
import uvicorn
from uvicorn.server import ServerState

from embstore_server.transports.rest import connections
from embstore_server.transports.rest.connections import Listener

MOST = 10


@pytest.fixture
def listener() -> Iterator[Listener]:
    with Listener(("127.0.0.1", 0), socket.AF_INET, MOST) as made:
        yield made


def taken(listener: Listener, count: int, clients: ExitStack) -> list[socket.socket]:
    """Have so many clients connect, who say nothing; return the connections that were taken."""
    found = []
    for _ in range(count):
        clients.enter_context(socket.create_connection(listener.getsockname()))
        try:
            found.append(clients.enter_context(listener.accept()[0]))
        except ConnectionAbortedError:
            pass
    return found


def test_one_address_leaves_half_to_the_others(listener, monkeypatch):
    with ExitStack() as clients:
        with monkeypatch.context() as far:
            far.setattr(connections, "_is_near", lambda host: False)
            assert len(taken(listener, MOST, clients)) == MOST // 2
        assert len(taken(listener, MOST, clients)) == MOST // 2


def test_an_answer_does_not_wait_for_the_acknowledgement_of_its_head(listener):
    """As asyncio makes transports: it turns Nagle's algorithm off where it sees that it is TCP."""

    async def accepted(connection: socket.socket) -> bool:
        connection.setblocking(False)
        loop = asyncio.get_running_loop()
        transport, _ = await loop.connect_accepted_socket(asyncio.Protocol, connection)
        found = transport.get_extra_info("socket")
        is_off = found.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        transport.abort()
        return bool(is_off)

    with ExitStack() as clients:
        assert asyncio.run(accepted(taken(listener, 1, clients)[0]))


def test_a_body_that_breaks_off_after_its_answer_ends_the_connection_quietly():
    async def refusing(_scope: Any, _receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 404, "headers": []})
        await send({"type": "http.response.body"})

    async def faults() -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: found.append(context))
        config = uvicorn.Config(refusing, log_config=None)
        config.load()
        made = connections.protocol(60.0)
        server = await loop.create_server(
            lambda: made(config=config, server_state=ServerState(), app_state={}), "127.0.0.1", 0
        )
        async with server:
            host, port = server.sockets[0].getsockname()
            reader, writer = await asyncio.open_connection(host, port)
            head = b"POST / HTTP/1.1\r\nHost: here\r\nTransfer-Encoding: chunked\r\n\r\n"
            writer.write(head)
            assert b"404" in await reader.readline()
            writer.write(b"not the length of a chunk\r\n")
            await reader.read()
            writer.close()
        return found

    assert asyncio.run(faults()) == []


@pytest.mark.parametrize("host", ["127.0.0.1", "127.9.9.9", "::1", "::ffff:127.0.0.1"])
def test_loopback_may_have_all(host):
    assert connections._is_near(host)


@pytest.mark.parametrize("host", ["10.0.0.1", "fe80::1%eth0", "::ffff:10.0.0.1", "2001:db8::1"])
def test_other_addresses_may_not(host):
    assert not connections._is_near(host)
