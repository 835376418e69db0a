"""The connections of the REST port: no more than there may be, and none that asks for nothing.

A connection holds a descriptor, from when it is accepted: TLS may be agreed on much later, or
never. Therefore it is counted there, and one too many is ended at once. One address has at most
half of all, so that it does not keep the others out; loopback, where proxies are, may have all.

Uvicorn ends a connection that has been answered and sends nothing more; it waits for ever for the
first request, and for the rest of a request that was begun.

With mutual TLS, each request has the names in its connection's certificate. A client need not show
one here: probes have none.
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
"""Key of a request's state: the names in the certificate that its client has shown."""

_SHARE = 2
"""One address may have 1/n of all connections."""


class Listener(socket.socket):
    """A listening socket that ends connections beyond those that there may be.

    Raises OSError: the address cannot be listened at.
    """

    def __init__(self, address: tuple[str, int], family: int, connections_max: int) -> None:
        made = socket.create_server(address, family=family)
        # The protocol by its number: for sockets without, asyncio does not turn Nagle's algorithm
        # off, and an answer's second packet would wait 40 ms for the acknowledgement of its first.
        super().__init__(made.family, made.type, socket.IPPROTO_TCP, made.detach())
        self._connections_max = connections_max
        self._hosts: WeakKeyDictionary[socket.socket, str] = WeakKeyDictionary()

    def accept(self) -> tuple[socket.socket, Any]:
        """Return a connection and its address; ConnectionAbortedError: it was ended."""
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
    """A connection that has so much time for the head of a request."""

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
        """Refuse input that is not HTTP; end the connection where its answer has gone already. The
        application's answer to a request that breaks off in this way is dropped."""
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
        """Let the time run while no request is there, or only a part of its head."""
        is_asked = self.cycle is not None and not self.cycle.response_complete
        if is_asked or self.timeout_keep_alive_task is not None:
            self._stop_watching()
        elif self._end is None:
            self._end = self.loop.call_later(self._handshake_timeout_s, self.transport.abort)

    def _stop_watching(self) -> None:
        if self._end is not None:
            self._end.cancel()
            self._end = None
