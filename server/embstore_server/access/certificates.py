"""The server's certificate, and the authorities for certificates of clients; read again at SIGHUP.

Both ports use the current certificates for each new connection, so that a certificate that is about
to expire is replaced without a restart. If a new file is invalid, the server logs this, and the
certificates that it read before stay in use.
"""

import logging
import ssl
from pathlib import Path
from typing import NamedTuple

from embstore.errors import InvalidArgumentError
from embstore_server.setup.settings import Settings
from embstore_server.telemetry.logs import event


class Served(NamedTuple):
    """The key and certificates for a handshake, as PEM and as a context of Python's `ssl`."""

    key: bytes
    chain: bytes
    authorities: bytes | None
    context: ssl.SSLContext


class Certificates:
    """The certificates of a server that has TLS. Any thread."""

    def __init__(self, settings: Settings) -> None:
        """Read the files; raises InvalidArgumentError if they are invalid."""
        self._settings = settings
        self.served = _read(settings)

    def reload(self) -> None:
        """Read the files again; connections from now on use them."""
        try:
            self.served = _read(self._settings)
        except InvalidArgumentError as exc:
            event(
                logging.ERROR,
                "certificate not read",
                reason=str(exc),
                note="the old one stays in use",
            )
        else:
            event(logging.INFO, "certificate read")

    def context(self) -> ssl.SSLContext:
        """Return a context that uses the current certificates at each handshake."""

        def take(connection: ssl.SSLObject, _: str | None, __: ssl.SSLContext) -> None:
            connection.context = self.served.context

        first = _read(self._settings).context
        first.sni_callback = take  # also called for clients that name no server
        # A resumed connection would use the authorities of the earlier connection.
        first.options |= ssl.OP_NO_TICKET
        first.num_tickets = 0
        return first


def _read(settings: Settings) -> Served:
    cert, key, ca = settings.tls_cert, settings.tls_key, settings.tls_client_ca
    try:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(str(cert), str(key))
        if ca is not None:
            context.load_verify_locations(str(ca))
            context.verify_mode = ssl.CERT_OPTIONAL
        key_pem, chain, authorities = (
            None if path is None else Path(path).read_bytes() for path in (key, cert, ca)
        )
    except OSError as exc:  # an SSLError is an OSError
        wanted = "" if ca is None else f", and tls_client_ca {ca}"
        raise InvalidArgumentError(
            f"tls_cert {cert} and tls_key {key}{wanted}: expected PEM files of a certificate, its "
            f"key{', and authorities' if ca else ''}: {exc}"
        ) from exc
    assert key_pem is not None and chain is not None
    return Served(key_pem, chain, authorities, context)
