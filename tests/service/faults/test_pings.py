"""A client that waits asks now and then whether the server is there, and is not cut off for it."""

import socket
import struct
from collections.abc import Callable

import pytest

from embstore_client.grpc_wire import KEEPALIVE_MS
from embstore_server import port
from tests.service.faults.served import PATIENCE_S, Served
from tests.service.faults.wire import SERVICE

_FRAME = struct.Struct(">BHBBL")  # length in three bytes, kind, flags, stream
_HEADERS, _SETTINGS, _PING, _GOAWAY = 1, 4, 6, 7
_END_HEADERS, _ACKNOWLEDGED = 4, 1
_ENHANCE_YOUR_CALM = 11
_PINGS = 20


def _frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    size = len(payload)
    return _FRAME.pack(size >> 16, size & 0xFFFF, kind, flags, stream) + payload


def _literal(*texts: str) -> bytes:
    """Return a header of HTTP/2 that uses no table."""
    return b"\0" + b"".join(bytes([len(text)]) + text.encode() for text in texts)


class Caller:
    """A connection of HTTP/2 with one call, whose request does not come to an end."""

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self._socket = socket.create_connection((host, int(port)), PATIENCE_S)
        self._stream = self._socket.makefile("rb")
        headers = {
            ":method": "POST",
            ":scheme": "http",
            ":path": f"{SERVICE}ListTables",
            ":authority": address,
            "te": "trailers",
            "content-type": "application/grpc",
        }
        begin = b"".join(_literal(*header) for header in headers.items())
        self._socket.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + _frame(_SETTINGS, 0, 0, b""))
        self._socket.sendall(_frame(_HEADERS, _END_HEADERS, 1, begin))

    def close(self) -> None:
        """End the connection."""
        self._stream.close()
        self._socket.close()

    def ping(self) -> int | None:
        """Ask whether the server is there; return why it ended the connection, None if it is."""
        self._socket.sendall(_frame(_PING, 0, 0, bytes(8)))
        while True:
            high, low, kind, flags, _ = _FRAME.unpack(self._stream.read(_FRAME.size))
            payload = self._stream.read(high << 16 | low)
            if kind == _PING and flags & _ACKNOWLEDGED:
                return None
            if kind == _GOAWAY:
                return int.from_bytes(payload[4:8], "big")


@pytest.mark.parametrize("apart_ms, reason", [(0, None), (3_600_000, _ENHANCE_YOUR_CALM)])
def test_who_asks_no_more_often_than_is_allowed_is_answered(
    apart_ms: int,
    reason: int | None,
    serve: Callable[..., Served],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(port, "PINGS_APART_MS", apart_ms)
    caller = Caller(serve().address)
    try:
        reasons = [caller.ping()]
        while reasons[-1] is None and len(reasons) < _PINGS:
            reasons.append(caller.ping())
    finally:
        caller.close()
    assert reasons[-1] == reason


def test_the_client_library_asks_no_more_often() -> None:
    assert KEEPALIVE_MS >= 2 * port.PINGS_APART_MS  # a ping may be late, and the next one not
