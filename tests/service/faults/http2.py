"""HTTP/2 as bytes, so that a test can send what no gRPC library would."""

import re
import socket
import struct
from collections.abc import Mapping

_FRAME = struct.Struct(">BHBBL")  # length in three bytes, kind, flags, stream
_DATA, _HEADERS, _RESET, _SETTINGS, _PING, _GOAWAY, _WINDOW = 0, 1, 3, 4, 6, 7, 8
_END_STREAM, _END_HEADERS, _ACKNOWLEDGED = 1, 4, 1
_TABLE_SIZE, _STREAM_WINDOW = 1, 4
_DATA_BYTES, _RECEIVE_BYTES = 1 << 14, 1 << 18
_STATUS = re.compile(rb"grpc-status.(\d+)", re.DOTALL)
RESET = "reset"
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"


def frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    """Return a frame."""
    size = len(payload)
    return _FRAME.pack(size >> 16, size & 0xFFFF, kind, flags, stream) + payload


def _literal(*texts: str) -> bytes:
    """Return a header of HTTP/2 that uses no table; each text has less than 127 characters."""
    return b"\0" + b"".join(bytes([len(text)]) + text.encode() for text in texts)


def begun_call(path: str, headers: Mapping[str, str] = {}) -> bytes:
    """Return the block of headers that begins a call."""
    given = {
        ":method": "POST",
        ":scheme": "http",
        ":path": path,
        ":authority": "localhost",
        "te": "trailers",
        "content-type": "application/grpc",
    }
    return b"".join(_literal(*header) for header in (given | dict(headers)).items())


class Connection:
    """A connection with calls that are sent as far as the server lets them. Never blocks.

    With `reads` False it takes nothing of what the server sends.
    """

    def __init__(self, address: str, *, reads: bool = True) -> None:
        host, _, port = address.rpartition(":")
        self._socket = socket.create_connection((host, int(port)))
        self._socket.setblocking(False)
        self._reads = reads
        self._received = b""
        no_table = struct.pack(">HL", _TABLE_SIZE, 0)
        self._unsent = bytearray(PREFACE)
        self._unsent += frame(_SETTINGS, 0, 0, no_table)
        self._window = self._stream_window = 65535
        self._windows: dict[int, int] = {}
        self._messages: dict[int, memoryview] = {}
        self.answers: dict[int, str] = {}
        """Of each call that has ended its status, or RESET."""
        self.pings = 0
        """Answers to pings that came."""
        self.end: int | None = None
        """Why the server ended the connection; -1: it was closed."""
        self.sent_bytes = 0
        """Of messages."""

    def call(self, path: str, message: bytes, headers: Mapping[str, str] = {}) -> int:
        """Begin a call with one message; return its stream. An empty one never comes to an end."""
        stream = 2 * len(self._windows) + 1
        self._unsent += frame(_HEADERS, _END_HEADERS, stream, begun_call(path, headers))
        self._windows[stream] = self._stream_window
        if message:
            self._messages[stream] = memoryview(message)
        return stream

    def ping(self) -> None:
        """Ask whether the server is there."""
        self._unsent += frame(_PING, 0, 0, bytes(8))

    def close(self) -> None:
        """End the connection."""
        self._socket.close()

    def pump(self) -> None:
        """Send and receive what can be now."""
        self._queue_data()
        try:
            while self._unsent:
                del self._unsent[: self._socket.send(self._unsent[:_RECEIVE_BYTES])]
        except BlockingIOError:
            pass
        except OSError:
            self.end = -1 if self.end is None else self.end
        if self._reads:
            self._receive()

    def _queue_data(self) -> None:
        for stream, message in list(self._messages.items()):
            if stream in self.answers:
                del self._messages[stream]
                continue
            size = min(self._window, self._windows[stream], len(message), _DATA_BYTES)
            if size <= 0 or len(self._unsent) > 1 << 20:
                continue
            is_last = size == len(message)
            self._unsent += frame(_DATA, is_last * _END_STREAM, stream, message[:size].tobytes())
            self._window -= size
            self._windows[stream] -= size
            self.sent_bytes += size
            self._messages[stream] = message[size:]
            if is_last:
                del self._messages[stream]

    def _receive(self) -> None:
        try:
            while found := self._socket.recv(_RECEIVE_BYTES):
                self._received += found
            self.end = -1 if self.end is None else self.end
        except BlockingIOError:
            pass
        except OSError:
            self.end = -1 if self.end is None else self.end
        while len(self._received) >= _FRAME.size:
            high, low, kind, flags, stream = _FRAME.unpack_from(self._received)
            end = _FRAME.size + (high << 16 | low)
            if len(self._received) < end:
                return
            payload, self._received = self._received[_FRAME.size : end], self._received[end:]
            self._take(kind, flags, stream, payload)

    def _take(self, kind: int, flags: int, stream: int, payload: bytes) -> None:
        if kind == _SETTINGS and not flags & _ACKNOWLEDGED:
            self._unsent += frame(_SETTINGS, _ACKNOWLEDGED, 0, b"")
            for name, value in struct.iter_unpack(">HL", payload):
                if name == _STREAM_WINDOW:
                    for known in self._windows:
                        self._windows[known] += value - self._stream_window
                    self._stream_window = value
        elif kind == _WINDOW:
            (more,) = struct.unpack(">L", payload)
            if stream:
                self._windows[stream] += more
            else:
                self._window += more
        elif kind == _PING:
            self.pings += bool(flags & _ACKNOWLEDGED)
            if not flags & _ACKNOWLEDGED:
                self._unsent += frame(_PING, _ACKNOWLEDGED, 0, payload)
        elif kind == _RESET:
            self.answers.setdefault(stream, RESET)
        elif kind == _HEADERS and (status := _STATUS.search(payload)):
            self.answers[stream] = status[1].decode()
        elif kind == _GOAWAY:
            self.end = int.from_bytes(payload[4:8], "big")
        if kind == _DATA and payload:  # a reply's bytes are taken, whatever they are
            more_room = struct.pack(">L", len(payload))
            self._unsent += frame(_WINDOW, 0, 0, more_room)
