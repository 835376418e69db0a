"""Where no server is reached: what connect and the commands say, and that it is said at once.

Real servers: gRPC with and without TLS, and REST. Nothing here waits: whoever did would wait for
WAIT_S.
"""

import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from threading import Event
from typing import Any

import grpc
import pytest

import embstore
from embstore.errors import InvalidArgumentError, StoreClosedError
from embstore_client import connect, unreached
from embstore_server.cli import connection, exits
from embstore_server.host.host import Host
from embstore_server.setup.settings import Settings
from embstore_server.telemetry.metrics import Metrics
from embstore_server.transports.rest.serving import rest_server
from tests.service.access.certificates import Authority, server_settings
from tests.service.access.tenants import serving as tenants
from tests.serving import Server, on_loop

WAIT_S = 900.0


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "CONNECT_TIMEOUT_S", WAIT_S)


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority.new(tmp_path_factory.mktemp("tls") / "authority")


@pytest.fixture(scope="module")
def stranger(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority.new(tmp_path_factory.mktemp("tls") / "stranger")


@pytest.fixture(scope="module")
def ports(authority: Authority, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Return the address of each kind of port: "plain", "tls", "mutual", "rest", "rests"."""
    tls = server_settings(authority)
    cert, key = (path.read_bytes() for path in tls.values())
    trusted = authority.file.read_bytes()
    found = {}
    with ThreadPoolExecutor(1) as thread:
        server = grpc.server(thread)
        of_tls = grpc.ssl_server_credentials([(key, cert)])
        of_both = grpc.ssl_server_credentials([(key, cert)], trusted, True)
        found["plain"] = server.add_insecure_port("127.0.0.1:0")
        found["tls"] = server.add_secure_port("127.0.0.1:0", of_tls)
        found["mutual"] = server.add_secure_port("127.0.0.1:0", of_both)
        server.start()
        with socket.create_server(("127.0.0.1", 0)) as given_up:
            found["closed"] = given_up.getsockname()[1]
        data = tmp_path_factory.mktemp("rest")
        plain, secure = _rest(data, {}), _rest(data, tls)
        addresses = {name: f"127.0.0.1:{port}" for name, port in found.items()}
        addresses |= {"rest": on_loop(plain.__aenter__()), "rests": on_loop(secure.__aenter__())}
        yield addresses
        for rest in (plain, secure):
            on_loop(rest.__aexit__(None, None, None))
        server.stop(None).wait(WAIT_S)


def _rest(data: Path, tls: dict[str, Path]) -> AbstractAsyncContextManager[str]:
    settings = Settings(data, listen="127.0.0.1:0", admin="127.0.0.1:0", **tls)

    def unopened() -> Any:
        raise AssertionError("no call is made")

    return rest_server(Host(settings, unopened, Metrics()).service)


CA, OTHER, GARBAGE = "--tls-ca {own}", "--tls-ca {other}", "--tls-ca {garbage}"
SAID = {
    ("closed", ""): (exits.NO_ANSWER, "nothing listens there"),
    ("rest", ""): (exits.USAGE, "expected gRPC at"),
    ("rests", CA): (exits.USAGE, "expected gRPC at"),
    ("rest", CA): (exits.USAGE, "expected gRPC at"),
    ("plain", CA): (exits.USAGE, "expected TLS at {}, found none"),
    ("tls", ""): (exits.USAGE, "expected no TLS at {}, found TLS"),
    ("mutual", ""): (exits.USAGE, "expected no TLS at {}, found TLS"),
    ("tls", OTHER): (exits.USAGE, "the certificate of {} is not one that tls_ca trusts"),
    ("tls", GARBAGE): (exits.USAGE, "expected PEM files"),
    ("mutual", CA): (exits.FAILED, "{} asks for a certificate"),
    ("mutual", CA + " --client-cert {cert} --client-key {key}"): (
        exits.FAILED,
        "{} rejects the certificate",
    ),
}


@pytest.mark.parametrize(("port", "words"), SAID, ids=lambda one: one.replace(" ", "") or "-")
def test_a_command_says_at_once_what_is_wrong(
    port, words, ports, authority, stranger, tmp_path, shell
):
    (tmp_path / "garbage").write_text("none")
    cert, key = stranger.pair("forged", "somebody")
    files = {"own": authority.file, "other": stranger.file, "garbage": tmp_path / "garbage"}
    given = words.format(**files, cert=cert, key=key).split()
    ended = shell("stats", "--address", ports[port], "--timeout", str(WAIT_S), *given)
    status, said = SAID[port, words]
    assert (ended.status, ended.out) == (status, "")
    assert said.format(ports[port]) in ended.err
    assert len(ended.err.splitlines()) == 1


@pytest.mark.parametrize(
    ("address", "said"),
    [
        ("no-such-host.invalid:1", "the name no-such-host.invalid does not resolve"),
        ("unix:/none/socket", "No such file or directory"),
    ],
)
def test_what_is_not_there_is_said_at_once(address, said, shell):
    ended = shell("stats", "--address", address, "--timeout", str(WAIT_S))
    assert ended.status == exits.NO_ANSWER
    assert said in ended.err


@pytest.mark.parametrize("address", ["127.0.0.1:99999", "127.0.0.1", ":1", "http://127.0.0.1:1"])
def test_what_is_no_address_is_refused(address, shell):
    ended = shell("stats", "--address", address)
    assert ended.status == exits.USAGE
    assert 'expected an address "host:port", with a port up to 65535' in ended.err
    assert repr(address) in ended.err


def test_a_wrong_token_is_said_at_once(tmp_path, shell, monkeypatch):
    with tenants(tmp_path) as server:
        for token in ("", "reader.guessed", "nobody.guessed"):
            monkeypatch.setenv("EMBSTORE_TOKEN", token)
            ended = shell("stats", "--address", server.address, "--timeout", str(WAIT_S))
            assert (ended.status, len(ended.err.splitlines())) == (exits.FAILED, 1), token
            assert "token" in ended.err


def test_connect_waits_for_a_server_that_is_being_started(tmp_path, monkeypatch):
    failed, why = Event(), unreached.why_unreached

    def noted(*way: Any) -> Any:
        failed.set()
        return why(*way)

    monkeypatch.setattr(unreached, "why_unreached", noted)
    with socket.create_server(("127.0.0.1", 0)) as given_up:
        address = f"127.0.0.1:{given_up.getsockname()[1]}"
    with pytest.raises(StoreClosedError, match="nothing listens there"):
        connect(address, wait=False)
    with ThreadPoolExecutor(1) as thread:
        failed.clear()
        connecting = thread.submit(connect, address, connect_timeout_s=WAIT_S, timeout_s=WAIT_S)
        assert failed.wait(WAIT_S)

        def opened() -> embstore.Store:
            return embstore.open(tmp_path / "store", cache_bytes=1 << 20)

        with Server(opened, tmp_path / "store", listen=address):
            with connecting.result(WAIT_S) as store:
                assert store.tables() == []


def test_connect_does_not_wait_for_what_no_waiting_mends(ports):
    for port in ("rest", "tls"):
        with pytest.raises(InvalidArgumentError, match="expected"):
            connect(ports[port], connect_timeout_s=WAIT_S)
