"""Callers without a right to what they ask for: the log stays short, however often they ask."""

import socket
import ssl
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from time import monotonic
from typing import Any

import grpc
import httpx
import pytest

import embstore
from embstore.errors import EmbstoreError
from embstore_proto.verbs import JSON_VERBS, SERVICE, VERBS
from embstore_server.setup.launch import ServerProcess
from embstore_server.telemetry.logs import REPEAT_S
from tests.service.access.certificates import Authority, server_settings
from tests.service.access.samples import ANYONE, NEEDED, sample
from tests.service.access.tenants import Caller, fill, token_of, write_tokens
from tests.service.faults.served import PATIENCE_S
from tests.service.faults.sharing import EndedError, RawSharer

MORE = 5
TOKENS = ("", "nothing.guess")
"""That nobody has."""
NOISE = (
    b"\r\n\r\n",
    b"GET / HTTP/9.9\r\n\r\n",
    b"GET /readyz HTTP/1.1\r\nHost: [::1].example\r\n\r\n",
    b"POST /api/v1/commands/Flush HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\n"
    b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    b"GET /readyz HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(64),
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\xff" * 64,
    b"\x16\x03\x01\x00\x05hello",
    bytes(range(256)),
)
"""First bytes of connections; no protocol here takes them."""


@pytest.fixture
def data(tmp_path: Path) -> Path:
    with embstore.open(tmp_path / "store", cache_bytes=1 << 20, threads=1) as store:
        fill(store)
    return tmp_path / "store"


def served(data: Path, *flags: Any) -> ServerProcess:
    """Return a server of tokens, to which every call is slow."""
    more = ("--device", "cpu", "--cache-bytes", "1MiB", "--slow-call-ms", "0", *flags)
    return ServerProcess(data, *map(str, more))


@pytest.fixture
def server(data: Path, tmp_path: Path) -> Iterator[ServerProcess]:
    tokens, path = write_tokens(tmp_path / "tokens.json"), tmp_path / "socket"
    with served(data, "--tokens", tokens, "--socket", path) as started:
        yield started


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "socket"


def check_flood(server: ServerProcess, flood: Callable[[], None]) -> None:
    """See that a flood adds a line of each kind to the log, and further ones none for a minute."""
    began, before = monotonic(), lines(server)
    flood()
    first = lines(server) - before
    for _ in range(MORE):
        flood()
    added = lines(server) - before
    minutes = 1 + int((monotonic() - began) / REPEAT_S)
    assert added <= (first + 2) * minutes, "\n".join(server.log)
    assert server.stop() == 0


def lines(server: ServerProcess) -> int:
    """Return how many lines the log has, but for those that tell that this one was asked for."""
    server.reload("tokens read")
    return server._events.total() - server._events["tokens read"]


def refused(call: Callable[[], Any]) -> None:
    with pytest.raises((EmbstoreError, grpc.RpcError)):
        call()


def test_grpc_without_a_token(server):
    def flood() -> None:
        for token in TOKENS:
            with Caller(server.address, token) as caller:
                for verb in NEEDED:
                    refused(lambda verb=verb: caller.execute(sample(verb, "a")))
                    if VERBS[verb].has_twin:
                        refused(lambda verb=verb: caller.execute(sample(verb, "a"), streamed=True))

    check_flood(server, flood)


def follow(server: ServerProcess, token: str) -> None:
    with grpc.insecure_channel(server.address) as channel:
        method = channel.stream_stream(f"/{SERVICE.full_name}/Follow")
        for message in (b"", b"\xff" * 8):
            metadata = (("authorization", f"Bearer {token}"),) if token else ()
            refused(lambda m=message, h=metadata: list(method(iter([m]), metadata=h)))


def test_follow_without_the_right(server):
    def flood() -> None:
        for token in (*TOKENS, token_of("nothing"), token_of("owner")):
            follow(server, token)

    check_flood(server, flood)


@pytest.mark.parametrize("tenant", ["nothing", "reader"])
def test_grpc_without_the_right(server, tenant):
    """Of a session that is not there, too: `EndSession` of any name was a line each."""
    verbs = [verb for verb, needed in NEEDED.items() if needed != ANYONE or tenant == "nothing"]

    def flood() -> None:
        with Caller(server.address, token_of(tenant)) as caller:
            for verb in verbs:
                with suppress(EmbstoreError):
                    caller.execute(sample(verb, "b"))

    check_flood(server, flood)


@pytest.mark.parametrize("tenant", ["", "nothing"])
def test_rest(server, tenant):
    token = tenant and token_of(tenant)
    headers = {"authorization": f"Bearer {token}"} if token else {}
    told = headers | {"content-type": "application/json"}
    base = f"http://{server.admin}"
    paths = httpx.get(f"{base}/openapi.json", timeout=PATIENCE_S).json()["paths"]
    others = [(m, p) for p, methods in paths.items() for m in methods if "/commands/" not in p]
    bodies = [b"{}", b"{", b'{"name": "any"}']

    def flood() -> None:
        with httpx.Client(base_url=base, timeout=PATIENCE_S) as client:
            for verb in JSON_VERBS:
                for body in bodies:
                    client.post(f"/api/v1/commands/{verb}", headers=told, content=body)
            for method, path in others:
                client.request(method, path, headers=headers)

    check_flood(server, flood)


@pytest.mark.parametrize("port", ["address", "admin"])
def test_noise(server, port):
    host, _, number = getattr(server, port).rpartition(":")

    def flood() -> None:
        for noise in NOISE:
            send(socket.create_connection((host, int(number))), noise)

    check_flood(server, flood)


def send(connection: socket.socket, noise: bytes) -> None:
    """Send bytes, say that there are no more, and wait until the server has ended it."""
    connection.settimeout(PATIENCE_S)
    with connection, suppress(OSError):
        connection.sendall(noise)
        connection.shutdown(socket.SHUT_WR)
        while connection.recv(1 << 16):
            pass


def test_shared_memory(server, path):
    def flood() -> None:
        for token in TOKENS:
            with RawSharer(path, f"Bearer {token}" if token else "") as sharer:
                for verb in NEEDED:
                    with suppress(EndedError, OSError):
                        sharer.execute(sample(verb, "a"))
        for noise in NOISE:
            own = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            own.connect(str(path))
            send(own, noise)

    check_flood(server, flood)


def test_handshakes(data, tmp_path):
    """Of both ports, with mutual TLS: noise, no certificate, a stranger's, one of no known name."""
    authority, stranger = (Authority.new(tmp_path / name) for name in ("own", "stranger"))
    cert, key = server_settings(authority).values()
    tokens = write_tokens(tmp_path / "names.json", "operator", certificates=True)
    flags = "--tls-cert", cert, "--tls-key", key, "--tls-client-ca", authority.file
    pairs = [None, stranger.pair("forged", common_name="operator")]
    pairs += [authority.pair("unknown", common_name="unknown")]

    def shaken(address: str, pair: Any) -> None:
        host, _, number = address.rpartition(":")
        context = ssl.create_default_context(cafile=str(authority.file))
        if pair is not None:
            context.load_cert_chain(*map(str, pair))
        with suppress(OSError), socket.create_connection((host, int(number))) as connection:
            connection.settimeout(PATIENCE_S)
            with context.wrap_socket(connection, server_hostname="localhost") as tls:
                send(tls, b"GET /api/v1/stats HTTP/1.1\r\nHost: localhost\r\n\r\n")

    with served(data, "--tokens", tokens, *flags) as server:

        def flood() -> None:
            for address in (server.address, server.admin):
                host, _, number = address.rpartition(":")
                for noise in NOISE:
                    send(socket.create_connection((host, int(number))), noise)
                for pair in pairs:
                    shaken(address, pair)

        check_flood(server, flood)
