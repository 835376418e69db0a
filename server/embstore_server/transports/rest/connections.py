"""The connections of the REST port: their number is bounded, and an idle connection is closed.

A connection occupies a descriptor from the moment when it is accepted; TLS may be agreed on much
later, or never. Therefore connections are counted when they are accepted, and a connection beyond
the bound is closed at once. One address can have at most half of all connections, so that it does
not block other addresses; loopback, where proxies run, can have all connections.

Uvicorn closes a connection that has been answered and sends nothing more. But by itself it would
wait for ever for the first request, or for the rest of a request.

With mutual TLS, each request carries the names in its connection's certificate. A client need not
show a certificate here, because probes have none.
"""

import asyncio
import socket
from functools import partial
from ipaddress import IPv6Address, ip_address
from typing import Any
from weakref import WeakKeyDictionary

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

CERTIFICATE_NAMES = "certificate_names"
"""The key, in a request's state, of the names in the certificate that the client has shown."""

_SHARE = 2
"""The number of all connections divided by this number is the most that one address can have."""


class Listener(socket.socket):
    """A listening socket that closes connections beyond the bound.

    Raises OSError if it cannot listen on the address.
    """

    def __init__(self, address: tuple[str, int], family: int, connections_max: int) -> None:
        made = socket.create_server(address, family=family)
        # The protocol's number is given. For sockets without a protocol number, asyncio does not
        # turn off Nagle's algorithm, and the second packet of an answer would wait 40 ms for the
        # acknowledgement of the first.
        super().__init__(made.family, made.type, socket.IPPROTO_TCP, made.detach())
        self._connections_max = connections_max
        self._hosts: WeakKeyDictionary[socket.socket, str] = WeakKeyDictionary()

    def accept(self) -> tuple[socket.socket, Any]:
        """Return a connection and its address; raises ConnectionAbortedError if the connection is
        beyond a bound, and was closed at once."""
        connection, address = super().accept()
        host, most = address[0], self._connections_max
        hosts = [known for one, known in self._hosts.items() if one.fileno() >= 0]
        if len(hosts) >= most or (
            not _is_near(host) and hosts.count(host) >= max(most // _SHARE, 1)
        ):
            connection.close()
            raise ConnectionAbortedError
        self._hosts[connection] = host
        return connection, address


def _is_near(host: str) -> bool:
    address = ip_address(host.partition("%")[0])
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return (mapped or address).is_loopback


def protocol(handshake_timeout_s: float) -> Any:
    """Return the factory of Uvicorn's connections."""
    return partial(_Connection, handshake_timeout_s=handshake_timeout_s)


def _names_in(transport: Any) -> tuple[str, ...]:
    tls = transport.get_extra_info("ssl_object")
    certificate = None if tls is None else tls.getpeercert(binary_form=True)
    if not certificate:
        return ()
    from embstore_server.access.certificate_names import names_in  # few servers need it

    return names_in(certificate)


class _Connection(H11Protocol):
    """A connection whose client has a bounded time to send the head of a request."""

    def __init__(self, *args: Any, handshake_timeout_s: float, **options: Any) -> None:
        super().__init__(*args, **options)
        self._handshake_timeout_s = handshake_timeout_s
        self._end: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self.app_state = {**self.app_state, CERTIFICATE_NAMES: _names_in(transport)}
        self._watch()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._watch()

    def send_400_response(self, msg: str) -> None:
        """Refuse input that is not HTTP; close the connection if an answer has been sent already.

        If a request ends in such input, the application's answer to that request is dropped.
        """
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            super().send_400_response(msg)
        else:
            self.transport.close()
        if self.cycle is not None:
            self.cycle.disconnected = True
            self.cycle.message_event.set()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._stop_watching()

    def _watch(self) -> None:
        """Start the timer that ends the connection if there is no request, or only a part of a
        request's head; otherwise stop the timer."""
        is_asked = self.cycle is not None and not self.cycle.response_complete
        if is_asked or self.timeout_keep_alive_task is not None:
            self._stop_watching()
        elif self._end is None:
            self._end = self.loop.call_later(self._handshake_timeout_s, self.transport.abort)

    def _stop_watching(self) -> None:
        if self._end is not None:
            self._end.cancel()
            self._end = None
