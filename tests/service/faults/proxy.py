"""A TCP proxy that cuts connections: at once, or after so many bytes in either direction.

What a client sees then is what a network does to it: a frame that ends in the middle, a reply that
never comes. A cut is a reset or an orderly end, in turn. So that a call is done before its reply is
lost, replies can be dropped first.
"""

import socket
import struct
import threading
from contextlib import suppress

_PIECE_BYTES = 1 << 16
_DATA = b"\0"
"""Of an answer, its first frame in HTTP/2 that a client may not see. Without windows, in frames of
other types, a client sends no more than 64 KiB."""
_RESET = struct.pack("ii", 1, 0)
"""SO_LINGER, for no time: closing sends a reset."""


class _Link:
    """One client's connection and the server's."""

    def __init__(self, proxy: "Proxy", client: socket.socket, server: socket.socket) -> None:
        self._proxy = proxy
        self._ends = (client, server)
        self.is_silent = False  # the client gets no answers any more
        self.is_answered = False  # though there was one
        self._threads = [
            threading.Thread(target=self._pump, args=ends)
            for ends in ((client, server), (server, client))
        ]
        for thread in self._threads:
            thread.start()

    def _pump(self, source: socket.socket, sink: socket.socket) -> None:
        with suppress(OSError):
            while piece := source.recv(_PIECE_BYTES):
                if self.is_silent and source is self._ends[1]:
                    piece = self._without_answers(piece)
                allowed = self._proxy.allowed(len(piece))
                sink.sendall(piece[:allowed])
                if allowed < len(piece):
                    self._proxy.cut()
        self._stop(socket.SHUT_RDWR)

    def _without_answers(self, piece: bytes) -> bytes:
        """Return the frames that come before the first answer."""
        end = 0
        while not self.is_answered and end < len(piece):
            self.is_answered = piece[end + 3 : end + 4] == _DATA
            end += 0 if self.is_answered else 9 + int.from_bytes(piece[end : end + 3])
        return piece[:end]

    def _stop(self, how: int) -> None:
        for end in self._ends:
            with suppress(OSError):
                end.shutdown(how)

    def close(self, *, reset: bool) -> None:
        """End both connections, by a reset or in order; called by one of the pumps, or neither."""
        self._stop(socket.SHUT_RD if reset else socket.SHUT_RDWR)
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join()
        for end in self._ends:
            with suppress(OSError):
                if reset:
                    end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            end.close()


class Proxy:
    """Listens at `address` and forwards to `upstream`, which may be changed."""

    def __init__(self, upstream: str) -> None:
        self.upstream = upstream
        self.cuts = 0
        self._lock = threading.Lock()
        self._left: int | None = None
        self._links: list[_Link] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._thread = threading.Thread(target=self._accept)
        self._thread.start()

    def __enter__(self) -> "Proxy":
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._listener.close()
        self.cut()

    def cut_after(self, count: int) -> None:
        """Cut every connection when `count` more bytes have passed; what comes later passes."""
        with self._lock:
            self._left = count

    def silence(self) -> None:
        """Pass no answers to the clients of the connections that there are, which stay."""
        with self._lock:
            for link in self._links:
                link.is_silent = True

    def allowed(self, count: int) -> int:
        """Return how many of `count` bytes may pass."""
        with self._lock:
            if self._left is None:
                return count
            passing = min(count, self._left)
            self._left -= passing
            if passing < count:
                self._left = None
            return passing

    def cut(self) -> None:
        """Cut every connection."""
        with self._lock:
            links, self._links = self._links, []
            self.cuts += bool(links)
            reset = self.cuts % 2 == 0
        for link in links:
            link.close(reset=reset)

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                self._connect(client)

    def _connect(self, client: socket.socket) -> None:
        host, _, port = self.upstream.rpartition(":")
        try:
            server = socket.create_connection((host, int(port)))
        except OSError:
            client.close()
            return
        with self._lock:
            self._links.append(_Link(self, client, server))
