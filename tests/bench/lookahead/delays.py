"""A network that takes its time: a TCP proxy in a process of its own, which passes what it gets on
after a delay, each way, as fast as it came.

    python -m tests.bench.lookahead.delays ADDRESS MS

prints the address that it listens at, and serves until its input ends.
"""

import queue
import socket
import subprocess
import sys
import threading
import time
from types import TracebackType
from typing import Self

_PIECE_BYTES = 1 << 18


class Delayed:
    """An address whose traffic to another one is delayed, inside a with block."""

    def __init__(self, upstream: str, delay_ms: float) -> None:
        command = [sys.executable, "-m", __name__, upstream, str(delay_ms)]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self._process.stdout is not None
        self.address = self._process.stdout.readline().strip()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._process.communicate()


def _pass_on(source: socket.socket, sink: socket.socket, delay_s: float) -> None:
    """Start the threads that pass on what one side sends."""
    pieces: queue.SimpleQueue[tuple[float, bytes]] = queue.SimpleQueue()

    def receive() -> None:
        while piece := source.recv(_PIECE_BYTES):
            pieces.put((time.perf_counter() + delay_s, piece))
        pieces.put((0.0, b""))

    def send() -> None:
        while True:
            due, piece = pieces.get()
            if not piece:
                sink.shutdown(socket.SHUT_WR)
                return
            if (left := due - time.perf_counter()) > 0:
                time.sleep(left)
            sink.sendall(piece)

    for work in (receive, send):
        threading.Thread(target=work, daemon=True).start()


def _serve(upstream: str, delay_ms: float) -> None:
    host, _, port = upstream.rpartition(":")
    listener = socket.create_server(("127.0.0.1", 0))

    def accept() -> None:
        while True:
            ours, _ = listener.accept()
            theirs = socket.create_connection((host, int(port)))
            for end in (ours, theirs):
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            _pass_on(ours, theirs, 1e-3 * delay_ms)
            _pass_on(theirs, ours, 1e-3 * delay_ms)

    threading.Thread(target=accept, daemon=True).start()
    sys.stdout.write(f"127.0.0.1:{listener.getsockname()[1]}\n")
    sys.stdout.flush()
    sys.stdin.read()


if __name__ == "__main__":
    _serve(sys.argv[1], float(sys.argv[2]))
