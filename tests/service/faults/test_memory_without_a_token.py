"""Callers without a token: whatever they send, and wherever, the server stays as small as it was.

They send messages that expand a thousandfold, messages as large as the port takes, and calls whose
answers they never read, to every method, route and socket. A user with a token trains meanwhile.
"""

import gzip
import re
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from time import monotonic
from typing import Any, NamedTuple

import httpx
import numpy as np
import pytest

from embstore.config import Constant, Sgd
from embstore_client import connect
from embstore_proto import shared_memory as frames
from embstore_proto.v1 import embstore_pb2 as pb
from embstore_proto.verbs import VERBS
from tests.faults.forks import Forks
from tests.service.access.tenants import token_of, write_tokens
from tests.service.faults.http2 import Connection
from tests.service.faults.processes import ForkedServer, free_port
from tests.service.faults.served import PATIENCE_S, until
from tests.service.faults.sharing import EndedError, RawSharer

MiB = 1 << 20
LEFT_BYTES_MAX, PEAK_BYTES_MAX = 50 * MiB, 200 * MiB
DRAIN_S = 5
CALLS = 3
"""Of each method and kind; with --soak more in later rounds."""
HEALTH, WATCH = "/grpc.health.v1.Health/Check", "/grpc.health.v1.Health/Watch"
METHODS = [
    f"/{service.full_name}/{method.name}"
    for service in pb.DESCRIPTOR.services_by_name.values()
    for method in service.methods
]
METHODS += [HEALTH, WATCH, "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"]
UNAUTHENTICATED, UNIMPLEMENTED = "16", "12"


def _message(body: bytes, *, is_compressed: bool = False) -> bytes:
    return bytes([is_compressed]) + len(body).to_bytes(4, "big") + body


# A field of 31 MiB, which any message may have.
BODY = b"\x0a\x80\x80\x80\x0f" + bytes(31 << 20)
PLAIN, BOMB = _message(BODY), _message(gzip.compress(BODY), is_compressed=True)
GZIP = {"grpc-encoding": "gzip"}


class Attacked(NamedTuple):
    """A server that others send to."""

    server: ForkedServer
    admin: str
    data: Path
    idle_bytes: int

    @property
    def resident_bytes(self) -> int:
        """Memory of its own that it holds in RAM now; its libraries' code is not counted."""
        status = Path(f"/proc/{self.server.pid}/status").read_text("ascii")
        (found,) = re.findall(r"RssAnon:\s+(\d+) kB", status)
        return int(found) << 10

    def paths(self) -> dict[str, Any]:
        """Return the methods of each path of REST."""
        found = httpx.get(f"http://{self.admin}/openapi.json", timeout=PATIENCE_S).json()
        return dict(found["paths"])


class User(threading.Thread):
    """A trainer, whose every step must be right; `steps` counts them."""

    def __init__(self, address: str) -> None:
        super().__init__()
        self.steps = 0
        self._over = threading.Event()
        self._store = connect(
            address, token=token_of("trainer"), transport="grpc", timeout_s=PATIENCE_S
        )
        self._table = self._store.create_table(
            "a/rows", dim=4, rows=100, optimizer=Sgd(1.0), initializer=Constant(0.0)
        )

        self._begun_at = self._table.lookup([7])

    def run(self) -> None:
        while not self._over.is_set():
            self.step()

    def step(self) -> None:
        """Train, and look up what came of it."""
        self._table.update([7], np.ones((1, 4), np.float32))
        self.steps += 1
        assert (self._table.lookup([7]) == self._begun_at - self.steps).all()

    def end(self) -> None:
        """Train no more."""
        self._over.set()
        if self.is_alive():
            self.join()
        self._store.close()


@pytest.fixture
def attacked(forks: Forks, quick_path: Path) -> Iterator[Attacked]:
    admin, data = f"127.0.0.1:{free_port()}", quick_path / "store"
    tokens = write_tokens(quick_path / "tokens.json")
    server = ForkedServer(forks, data, admin=admin, tokens=tokens, drain_s=DRAIN_S)
    server.start()
    found = Attacked(server, admin, data, 0)
    try:
        user = User(server.address)
        user.step()
        user.end()
        found.paths()
        yield found._replace(idle_bytes=found.resident_bytes)
    finally:
        with suppress(AssertionError):  # it has ended
            server.kill()


def pump(connections: list[Connection], attacked: Attacked) -> int:
    """Send what can be; return how much memory the server has."""
    for connection in connections:
        connection.pump()
    return attacked.resident_bytes


def begin(attacked: Attacked, clients: ExitStack, rounds: int) -> list[Connection]:
    """Call every method in three ways: by bombs, by large messages, and without reading."""
    made = []
    for message, headers, reads in ((BOMB, GZIP, True), (PLAIN, {}, True), (PLAIN, {}, False)):
        made.append(Connection(attacked.server.address, reads=reads))
        clients.callback(made[-1].close)
        for _ in range(CALLS * rounds):
            for method in METHODS:
                made[-1].call(method, message, headers)
    return made


def attack_grpc(attacked: Attacked, rounds: int) -> int:
    """Send to every method, until all is refused that is to be; return the most memory seen."""
    peak, calls = 0, CALLS * rounds
    with ExitStack() as clients:
        bombs, plain, unread = connections = begin(attacked, clients, rounds)

        def is_over() -> bool:
            nonlocal peak
            peak = max(peak, pump(connections, attacked))
            all_calls, watched = len(METHODS) * calls, calls
            return len(bombs.answers) == all_calls and len(plain.answers) >= all_calls - watched

        until(is_over)
        assert set(bombs.answers.values()) == {UNIMPLEMENTED}
        for stream, status in plain.answers.items():
            method = METHODS[(stream - 1) // 2 % len(METHODS)]
            assert status == UNAUTHENTICATED or method in (HEALTH, WATCH), (method, status)
        assert unread.sent_bytes < 100 * MiB
    return peak


def attack_rest(attacked: Attacked) -> None:
    """Send a large body to every route, by its length and in chunks, and read no answer."""
    routes = [(method, path) for path, methods in attacked.paths().items() for method in methods]
    host, _, port = attacked.admin.rpartition(":")
    with ExitStack() as clients:
        for method, path in [*routes, ("get", "/"), ("post", "/none")]:
            for length in (f"Content-Length: {64 * MiB}", "Transfer-Encoding: chunked"):
                one = clients.enter_context(socket.create_connection((host, int(port))))
                one.setblocking(False)
                head = f"{method.upper()} {path} HTTP/1.1\r\nHost: localhost\r\n{length}\r\n"
                body = b"%x\r\n%s\r\n" % (MiB, bytes(MiB)) if "chunked" in length else bytes(MiB)
                with suppress(OSError):
                    one.send(head.encode() + b"Content-Type: application/json\r\n\r\n")
                    while one.send(body):
                        pass
        assert httpx.get(f"http://{attacked.admin}/readyz", timeout=PATIENCE_S).status_code == 200


def ask_and_read_nothing(attacked: Attacked, clients: ExitStack) -> None:
    """Ask for more than a socket holds, and leave it there."""
    host, _, port = attacked.admin.rpartition(":")
    one = clients.enter_context(socket.create_connection((host, int(port))))
    one.sendall(b"GET /openapi.json HTTP/1.1\r\nHost: localhost\r\n\r\n" * 200)


def attack_shared_memory(attacked: Attacked) -> None:
    """Ask for segments, call every verb, and begin large frames."""
    with RawSharer(attacked.data / "socket", "Bearer nobody.x") as sharer:
        for what in (frames.segment(1 << 30), *(b"".join(_shared_call(verb)) for verb in VERBS)):
            sharer.say(what)
            assert sharer.next().refusal.name == "UnauthenticatedError"
        with suppress(OSError):
            sharer.say(frames.frame_of(frames.Kind.CALL, bytes(MiB)))
        with suppress(EndedError):
            assert sharer.next().refusal.name == "InvalidArgumentError"


def _shared_call(verb: str) -> list[Any]:
    return frames.call(verb, 1.0, bytes(1000), bytes(1000), None)


def test_callers_without_a_token_take_little_memory(attacked, soak):
    user = User(attacked.server.address)
    user.start()
    try:
        peak = attack_grpc(attacked, 1 + soak)
        attack_rest(attacked)
        peak = max(peak, attacked.resident_bytes)
        attack_shared_memory(attacked)
        until(lambda: user.steps > 3 or not user.is_alive())
        assert user.is_alive()
    finally:
        user.end()
    sys.stdout.write(f"idle {attacked.idle_bytes / MiB:.0f}, peak {peak / MiB:.0f} MiB")
    assert peak - attacked.idle_bytes < PEAK_BYTES_MAX
    until(lambda: attacked.resident_bytes - attacked.idle_bytes < LEFT_BYTES_MAX)
    sys.stdout.write(f", left {attacked.resident_bytes / MiB:.0f} MiB")
    with ExitStack() as clients:  # and it ends on time while that goes on
        connections = begin(attacked, clients, 1)
        ask_and_read_nothing(attacked, clients)
        stopping = threading.Thread(target=attacked.server.stop)
        began = monotonic()
        stopping.start()
        while stopping.is_alive():
            for connection in connections:
                connection.pump()
        sys.stdout.write(f", ended after {monotonic() - began:.1f} s\n")
        assert monotonic() - began < 6 * DRAIN_S  # on a busy machine
