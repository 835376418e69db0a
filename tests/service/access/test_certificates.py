"""TLS, mutual TLS, and certificates that are replaced while the server runs."""

import socket
import ssl
import threading
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import httpx
import pytest
from cryptography import x509

from embstore import commands as c
from embstore.errors import InvalidArgumentError, UnauthenticatedError
from embstore_client import connect
from embstore_server.access.certificates import Certificates
from embstore_server.access.tokens import Entry, right_named, write
from embstore_server.setup.launch import ServerProcess
from embstore_server.setup.settings import Settings
from tests.service.access.certificates import Authority, server_settings
from tests.service.access.tenants import Caller, serving, token_of, write_tokens


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority.new(tmp_path / "authority")


def test_a_certificate_names_one_and_nobody_else(tmp_path, authority):
    settings = server_settings(authority) | {"tls_client_ca": authority.file}
    tokens = write_tokens(tmp_path / "names.json", "writer", certificates=True)
    stranger = Authority.new(tmp_path / "stranger")
    with serving(tmp_path, **settings, tokens=tokens) as server:
        own = {"tls_ca": authority.file, "timeout_s": 300.0}

        def shown(pair: tuple[Path, Path]) -> dict[str, Any]:
            return own | {"tls_cert": pair[0], "tls_key": pair[1]}

        by_name = authority.pair("alternative", "writer")
        with connect(server.address, **shown(by_name)) as store:
            assert store.tables() == ["a/t", "a/u"]
        with pytest.raises(UnauthenticatedError):
            connect(server.address, **shown(authority.pair("other", common_name="reader")))
        forged = stranger.pair("forged", common_name="writer")
        for bad in (shown(forged), own):
            with pytest.raises(UnauthenticatedError, match="certificate"):
                connect(server.address, **bad)
    with pytest.raises(InvalidArgumentError, match="tls_ca, tls_cert and tls_key"):
        connect("127.0.0.1:1", tls_cert=forged[0], tls_key=forged[1])


def test_tls_of_both_ports_and_a_new_certificate_at_sighup(tmp_path, authority):
    """A real process: mutual TLS where it is asked for, probes without, SIGHUP takes new files."""
    cert, key = server_settings(authority).values()
    tokens = write_tokens(tmp_path / "names.json", "operator", certificates=True)
    pair = authority.pair("operator", common_name="operator")
    files = ("--tls-cert", cert, "--tls-key", key, "--tls-client-ca", authority.file)
    flags = (*files, "--tokens", tokens, "--device", "cpu", "--cache-bytes", "1MiB")
    with ServerProcess(tmp_path / "store", *map(str, flags)) as server:

        def served(known: Authority, client: tuple[Path, Path] | None) -> tuple[int, int]:
            context = ssl.create_default_context(cafile=str(known.file))
            if client is not None:
                context.load_cert_chain(*map(str, client))
            with httpx.Client(verify=context, base_url=f"https://{server.admin}") as rest:
                return rest.get("/readyz").status_code, rest.get("/api/v1/stats").status_code

        options = {"tls_cert": pair[0], "tls_key": pair[1], "connect_timeout_s": 60.0}
        connect(server.address, tls_ca=authority.file, **options).close()
        assert served(authority, pair) == (200, 200)
        assert served(authority, None) == (200, 401)

        cert.write_text("garbage")
        server.reload("certificate not read")
        assert served(authority, pair) == (200, 200)

        other = Authority.new(tmp_path / "other")
        new_cert, new_key = server_settings(other).values()
        cert.write_bytes(new_cert.read_bytes())
        key.write_bytes(new_key.read_bytes())
        server.reload("certificate read")
        assert served(other, pair) == (200, 200)
        connect(server.address, tls_ca=other.file, **options).close()
        with pytest.raises(httpx.ConnectError):
            served(authority, pair)


OF_NOBODY = x509.DNSName("else.example")
OPERATOR = x509.DNSName("operator")
MAIL = x509.RFC822Name("operator@b.example")
UNFITTING = [
    x509.UniformResourceIdentifier("operator"),
    x509.IPAddress(ip_address("10.0.0.1")),
    x509.RegisteredID(x509.ObjectIdentifier("1.2.3")),
    x509.DirectoryName(x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "operator")])),
]
NAMES = {
    "common": (["operator"], [], True),
    "alternative": ([], [OPERATOR], True),
    "alternative-of-an-unknown-common": (["nobody"], [OPERATOR], True),
    "twice-the-same": (["operator"], [OPERATOR, OPERATOR], True),
    "twice-the-same-common": (["operator", "operator"], [], True),
    "as-a-mail-address-and-a-dns-name": ([], [MAIL, x509.DNSName("operator@b.example")], True),
    "two-that-differ-in-capitals": ([], [OPERATOR, x509.DNSName("OPERATOR")], False),
    "two-of-three": ([], [OPERATOR, OPERATOR, OF_NOBODY], False),
    "mail": ([], [MAIL], True),
    "common-and-unfitting": (["operator"], UNFITTING, True),
    "common-does-not-count": (["operator"], [OF_NOBODY], False),
    "common-does-not-count-beside-mail": (["operator"], [x509.RFC822Name("a@b.example")], False),
    "unfitting-alone": ([], UNFITTING, False),
    "two-common": (["operator", "nobody"], [], False),
    "two-common-turned": (["nobody", "operator"], [], False),
    "two-alternative": ([], [OPERATOR, OF_NOBODY], False),
    "two-alternative-turned": ([], [OF_NOBODY, OPERATOR], False),
    "two-that-are-known": ([], [OPERATOR, MAIL], False),
    "empty-common": ([""], [], False),
    "empty-alternative": (["operator"], [x509.DNSName("")], False),
    "none": ([], [], False),
    "wildcard": ([], [x509.DNSName("*")], False),
    "capitals": (["OPERATOR"], [], False),
    "with-a-zero": (["operator\0.example"], [], False),
}
"""Common and alternative names, and whether they stand for one who is known; OU=operator in all."""


def test_both_ports_take_one_name_of_rfc_6125(tmp_path, authority):
    tokens = tmp_path / "names.json"
    rights = {"*": right_named("admin")}
    write(
        tokens, {n: Entry(n, None, rights) for n in ("operator", "operator@b.example", "10.0.0.1")}
    )
    settings = server_settings(authority) | {"tls_client_ca": authority.file, "tokens": tokens}
    flags = [f"--{name.replace('_', '-')}={value}" for name, value in settings.items()]
    more = ("--device", "cpu", "--cache-bytes", "1MiB")
    with ServerProcess(tmp_path / "store", *flags, *more) as server:
        for name, (common_names, others, is_known) in NAMES.items():
            pair = authority.strange_pair(name, common_names, others)
            found = grpc_refusal(server, authority, pair), rest_refusal(server, authority, pair)
            assert found[0] == found[1], name
            assert (found[0] == "") == is_known, (name, found)
            assert ("expected a certificate of one name" in found[0]) == (
                name.startswith(("two-", "empty-"))
            ), (name, found)


def grpc_refusal(server: ServerProcess, authority: Authority, pair: tuple[Path, Path]) -> str:
    with Caller(server.address, credentials=authority.credentials(pair)) as caller:
        try:
            caller.execute(c.ListTables())
        except UnauthenticatedError as exc:
            return str(exc)
    return ""


def rest_refusal(server: ServerProcess, authority: Authority, pair: tuple[Path, Path]) -> str:
    context = ssl.create_default_context(cafile=str(authority.file))
    context.load_cert_chain(*map(str, pair))
    answer = httpx.get(f"https://{server.admin}/api/v1/tables", verify=context, timeout=300.0)
    if answer.status_code == 200:
        return ""
    assert answer.status_code == 401
    return str(answer.json()["message"])


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_an_earlier_connection_is_not_taken_up_again(tmp_path, authority, version):
    """Otherwise an authority that is trusted no more would still let its clients in."""
    certificates = Certificates(
        Settings(
            data=tmp_path,
            tokens=tmp_path / "none",
            tls_client_ca=authority.file,
            **server_settings(authority),
        )
    )
    serving_context = certificates.context()
    client = ssl.create_default_context(cafile=str(authority.file))
    client.minimum_version = client.maximum_version = version
    client.load_cert_chain(*map(str, authority.pair("operator", common_name="operator")))

    def connect_again(session: ssl.SSLSession | None) -> None:
        ours, theirs = socket.socketpair()
        thread = threading.Thread(target=answer, args=(theirs,))
        thread.start()
        with client.wrap_socket(ours, server_hostname="localhost", session=session) as tls:
            assert tls.recv(1) == b"x"  # a ticket would have come before
            found.append((tls.session, tls.session_reused))
        thread.join()

    def answer(theirs: socket.socket) -> None:
        with serving_context.wrap_socket(theirs, server_side=True) as tls:
            tls.sendall(b"x")

    found: list[tuple[ssl.SSLSession | None, bool | None]] = []
    connect_again(None)
    connect_again(found[0][0])
    assert not found[1][1]


def test_tokens_over_tls(tmp_path, authority):
    with serving(tmp_path, **server_settings(authority)) as server:
        options = {"tls_ca": authority.file, "timeout_s": 300.0}
        with connect(server.address, token=token_of("writer"), **options) as store:
            store.table("a/t").lookup([1, 2])
        with pytest.raises(UnauthenticatedError):
            connect(server.address, **options)
