"""Finds out why gRPC could not connect to a server, and returns a sentence with the remedy.

gRPC reports the last error of its library. For a REST port, this error is a frame of a wrong type;
for a server with TLS, it is a closed socket. So when the first connection fails, this module
connects once more with plain sockets, and checks each step: the name resolves, the port answers,
the TLS handshake succeeds, and a gRPC server answers the preface of HTTP/2 with a SETTINGS frame
(RFC 9113, 3.4).

A failure that waiting cannot mend is returned as an error: another protocol, TLS on one side alone,
a certificate that one side does not trust. A name that does not resolve yet, or a port that is
still closed, may belong to a server that is being started. Such a failure is returned as text only,
and the caller decides whether to wait.
"""

import socket
import ssl

from embstore.errors import EmbstoreError, InvalidArgumentError, UnauthenticatedError
from embstore_client.tls import TlsFiles
from embstore_proto.addresses import split_address

_LOOK_S = 2.0
_FRAME_BYTES = 9
_SETTINGS = b"\x04"
_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0" + _SETTINGS + b"\0\0\0\0\0"


def why_unreached(address: str, tls: TlsFiles | None) -> str | EmbstoreError:
    """Return the reason why "host:port" was not reached; "" if it can be reached by now."""
    try:
        with _connected(address) as plain:
            if tls is not None:
                return _found_with_tls(address, tls, plain)
            return _found(address, _answer(plain))
    except socket.gaierror as exc:
        return f"the name {split_address(address)[0]} does not resolve: {exc.strerror}"
    except ConnectionRefusedError:
        return "nothing listens there: is `embstore serve` running?"
    except TimeoutError:
        return "the host does not answer"
    except OSError as exc:
        return exc.strerror or str(exc)


def _connected(address: str) -> socket.socket:
    return socket.create_connection(split_address(address), _LOOK_S)


def _answer(connection: socket.socket) -> bytes:
    """Return the first bytes of the answer to the preface; b"": the connection was closed."""
    answer = b""
    try:
        connection.sendall(_PREFACE)
        while len(answer) < _FRAME_BYTES and (more := connection.recv(_FRAME_BYTES)):
            answer += more
    except OSError:
        pass
    return answer


def _is_grpc(answer: bytes) -> bool:
    return len(answer) >= _FRAME_BYTES and answer[3:4] == _SETTINGS


def _found(address: str, answer: bytes) -> str | EmbstoreError:
    """Return the reason why a call without TLS fails, judged by the server's answer to the preface;
    "" if the server is a gRPC server."""
    if _is_grpc(answer):
        return ""
    if answer:
        return _no_grpc(address)
    if _takes_tls(address):
        return InvalidArgumentError(
            f"expected no TLS at {address}, found TLS: give the file of the authorities to trust "
            "(tls_ca, --tls-ca)"
        )
    return "the connection was closed before any reply"


def _no_grpc(address: str) -> InvalidArgumentError:
    return InvalidArgumentError(
        f"expected gRPC at {address}, found another protocol, perhaps HTTP/1 of a server's REST "
        "port: give the gRPC address, which is the --listen of `embstore serve` (port 50051 by "
        "default)"
    )


def _takes_tls(address: str) -> bool:
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE  # no data is sent over this connection
    try:
        with _connected(address) as plain, context.wrap_socket(plain):
            return True
    except OSError:
        return False


def _found_with_tls(address: str, tls: TlsFiles, plain: socket.socket) -> str | EmbstoreError:
    try:
        context = tls.context()
    except ssl.SSLError as exc:
        return InvalidArgumentError(
            f"expected PEM files of certificates and a key as tls_ca, tls_cert and tls_key: {exc}"
        )
    context.set_alpn_protocols(["h2"])
    try:
        secure = context.wrap_socket(plain, server_hostname=split_address(address)[0])
    except ssl.SSLCertVerificationError as exc:
        return InvalidArgumentError(
            f"the certificate of {address} is not one that tls_ca trusts: {exc.verify_message}"
        )
    except OSError as exc:
        return _found_without_tls(address) or f"TLS was not agreed on: {exc.strerror or exc}"
    with secure:
        if secure.selected_alpn_protocol() != "h2":
            return _no_grpc(address)
        if _is_grpc(_answer(secure)):
            return ""
    if tls.cert is None:
        return UnauthenticatedError(
            f"{address} asks for a certificate: give it and its key (tls_cert and tls_key, "
            "--client-cert and --client-key)"
        )
    return UnauthenticatedError(f"{address} rejects the certificate in {tls.cert}")


def _found_without_tls(address: str) -> EmbstoreError | None:
    """Return the error for a server without the requested TLS; None: the server sent nothing."""
    with _connected(address) as plain:
        answer = _answer(plain)
    if _is_grpc(answer):
        return InvalidArgumentError(
            f"expected TLS at {address}, found none: leave tls_ca (--tls-ca) out"
        )
    return _no_grpc(address) if answer else None
